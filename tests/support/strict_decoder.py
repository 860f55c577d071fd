"""The strict decoder: what a message must be, in plain Python. The kernel does the same fast; tests hold them equal.

A message is one JSON object (RFC 8259, strictly) with a time and a type. Of equal names in an object the last counts.
Where a message has several faults, bad UTF-8 comes first, then the first fault of structure (NOT_JSON, TOO_DEEP), then
the rest as listed in `CODES`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from samovar.patterns.engine.decode import (
    MAX_DEPTH,
    MAX_MESSAGE_BYTES,
    Bad,
    RefusedError,
    lookup,
    sentence,
    shown_byte,
    shown_kind,
    shown_text,
    shown_value,
    time_of,
)

SPACE = " \t\n\r"
BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{\]}]', re.DOTALL)
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class DecodedEvent:
    """A good message. `values` has every wanted path; None where it is absent or null."""

    time: int
    type: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Members:
    """An object as written, equal names and all."""

    pairs: tuple[tuple[str, Any], ...]


def decode_strict(
    message: bytes,
    fields: Sequence[str],
    time_field: str = "ts",
    type_field: str | None = "type",
    fixed_type: str = "",
) -> DecodedEvent | Bad:
    """The verdict on one message. Without a `type_field` every event is of `fixed_type`."""
    try:
        members = parse(message)
        time = time_of(lookup(members, time_field.split(".")))
        kind = fixed_type if type_field is None else type_of(lookup(members, type_field.split(".")))
    except RefusedError as refused:
        column = None if refused.place is None else refused.place + 1
        return Bad(refused.code, sentence(refused.code, refused.shown, time_field, type_field or ""), column)
    return DecodedEvent(time, kind, {path: lookup(members, path.split(".")) for path in fields})


def parse(message: bytes) -> dict[str, Any]:
    text = text_of(message)
    refuse_depth(text)
    try:
        value = json.loads(
            text, object_pairs_hook=members_of, parse_int=integer, parse_float=float, parse_constant=refuse_constant
        )
    except json.JSONDecodeError as error:
        raise RefusedError("NOT_JSON", shown_text(text[error.pos :]), error.pos) from None
    if not isinstance(value, Members):
        place = len(text) - len(text.lstrip(SPACE))
        raise RefusedError("NOT_AN_OBJECT", shown_kind(text[place]), place)
    for scalar in scalars(value):
        if isinstance(scalar, str) and SURROGATE.search(scalar):
            raise RefusedError("LONE_SURROGATE")
        if isinstance(scalar, float) and math.isinf(scalar):
            raise RefusedError("NUMBER_TOO_LARGE")
    plain: dict[str, Any] = last_of_each(value)
    return plain


def text_of(message: bytes) -> str:
    if not message:
        raise RefusedError("EMPTY")
    if len(message) > MAX_MESSAGE_BYTES:
        raise RefusedError("TOO_LONG")
    try:
        text = message.decode("utf-8")
    except UnicodeDecodeError as error:
        place = len(message[: error.start].decode())
        raise RefusedError("NOT_UTF8", shown_byte(message, error.start), place) from None
    if not text.strip(SPACE):
        raise RefusedError("BLANK")
    return text


def refuse_depth(text: str) -> None:
    """Refuses the bracket that goes too deep, unless the text goes wrong before it."""
    closers: list[str] = []
    for token in BRACKETS.finditer(text):
        if token[0] in "[{":
            closers.append("]" if token[0] == "[" else "}")
        elif token[0] in "]}" and closers:
            closers.pop()
        if len(closers) > MAX_DEPTH:
            # Good up to here if and only if a value in the bracket's place, and all closed, makes good JSON.
            before = text[: token.start()] + "0" + "".join(reversed(closers[:-1]))
            if is_json(before):
                raise RefusedError("TOO_DEEP", place=token.start())
            return


def is_json(text: str) -> bool:
    try:
        json.loads(text, parse_int=integer, parse_constant=refuse_constant)
    except (json.JSONDecodeError, RefusedError):
        return False
    return True


def members_of(pairs: list[tuple[str, Any]]) -> Members:
    return Members(tuple(pairs))


def integer(text: str) -> int | float:
    """Whole numbers beyond 64 bits are floats (infinite where they are too large for that)."""
    if len(text) > 20:
        return float(text)
    number = int(text)
    return number if -(2**63) <= number < 2**63 else float(text)


def refuse_constant(name: str) -> NoReturn:
    raise RefusedError("NOT_JSON", name)


def scalars(value: Any) -> Iterator[Any]:
    """Names and values in the order in which they are written."""
    if isinstance(value, Members):
        for name, member in value.pairs:
            yield name
            yield from scalars(member)
    elif isinstance(value, list):
        for item in value:
            yield from scalars(item)
    else:
        yield value


def last_of_each(value: Any) -> Any:
    if isinstance(value, Members):
        return {name: last_of_each(member) for name, member in value.pairs}
    if isinstance(value, list):
        return [last_of_each(item) for item in value]
    return value


def type_of(value: Any) -> str:
    if value is None:
        raise RefusedError("MISSING_TYPE")
    if not isinstance(value, str):
        raise RefusedError("TYPE_NOT_TEXT", shown_value(value))
    return value
