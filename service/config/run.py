"""How a container runs: what `samovar run` also takes as flags."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import BeforeValidator, Field

from samovar.service.config.types import Count, Model, read_choice, read_flag, shown, wrong

LogForm: TypeAlias = Literal["text", "json"]
SLOTS_MOST = 10_000
_ORDINAL = re.compile(r"(?:[a-z0-9][a-z0-9.-]*-)?(\d{1,4})\Z")


def read_slot(value: Any) -> int:
    """A number, or the name of a pod of a StatefulSet, whose ordinal it ends with.

    >>> read_slot(3), read_slot("fraud-12")
    (3, 12)
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < SLOTS_MOST:
        return value
    found = _ORDINAL.match(value) if isinstance(value, str) else None
    if found:
        return int(found[1])
    return wrong(
        f"{shown(value)} is no slot", expected="a number from 0 on, or a pod's name that ends with one: fraud-0"
    )


def read_address(value: Any) -> str:
    """PORT, HOST:PORT; whether it can be served there is seen at the start."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str) and text.rpartition(":")[2].isdecimal():
        return text
    return wrong(f"{shown(value)} is not an address", expected="a port, or HOST:PORT: 9400")


def read_url(value: Any) -> str:
    if isinstance(value, str) and re.match(r"https?://[^/\s@]+\Z", value):
        return value
    return wrong(f"{shown(value)} is not an address of a node", expected="http://HOST:PORT")


class RunSettings(Model):
    """One container, or several processes."""

    slot: Annotated[int, BeforeValidator(read_slot)] = 0
    containers: Count = 1
    leave: Annotated[bool, BeforeValidator(read_flag)] = False
    http: Annotated[str, BeforeValidator(read_address)] | None = None
    advertise: Annotated[str, BeforeValidator(read_url)] | None = None
    metrics: Annotated[str, BeforeValidator(read_address)] | None = None
    log_form: Annotated[LogForm, BeforeValidator(lambda value: read_choice(value, get_args(LogForm)))] = Field(
        "text", alias="log"
    )
