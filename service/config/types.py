"""The kinds of value in a service file: times, sizes, names, paths. Each says in words what it expected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, SecretStr, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from samovar.changelog.log import Delivery
from samovar.common.suggest import did_you_mean
from samovar.common.times import unit_hint
from samovar.patterns.syntax.constants import duration_ms

FOREVER = -1  # as Kafka writes a retention without an end

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")
_SERVICE = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}\Z")
_SIZE = re.compile(r"(\d{1,12}) ?(B|kB|KB|MB|GB|KiB|MiB|GiB)\Z")
_UNITS = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
# Wide enough for a slip: what is shown for want of a letter is shown for ever.
_SECRET = re.compile(r"pas+w|passphrase|secret|token|oauthbearer|pem|jaas|private|credential|user\.info", re.IGNORECASE)


class Model(BaseModel):
    """A map of a service file. A key without a value is as good as none."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            return {name: value for name, value in data.items() if value is not None}
        return data


def wrong(message: str, expected: str | None = None, hint: str | None = None) -> NoReturn:
    """Refuse a value, from inside a validator."""
    # The braces of a message are not for pydantic to fill in.
    raise PydanticCustomError("setting", "{message}", {"message": message, "expected": expected, "hint": hint})


def shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a map"
    if isinstance(value, list):
        return "a list"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text[:60]}`"


# ---------------------------------------------------------------- values


def read_duration(value: Any) -> int:
    if value == 0 and not isinstance(value, bool):
        return 0
    ms = duration_ms(value) if isinstance(value, str) else None
    if ms is not None:
        return ms
    if isinstance(value, int) and not isinstance(value, bool):
        wrong(f"`{value}` has no unit", hint=f"write {value}s, {value}m or {value}h")
    text = str(value)
    tip = unit_hint(text) if isinstance(value, str) and text[:1].isdigit() else None
    wrong(f"{shown(value)} is not a time", expected="500ms, 30s, 10m, 8h or 7d", hint=tip)


def read_retention(value: Any) -> int:
    return FOREVER if value == "forever" else read_duration(value)


def read_size(value: Any) -> int:
    found = _SIZE.match(value) if isinstance(value, str) else None
    if found:
        return int(found[1]) * _UNITS[found[2]]
    if isinstance(value, int) and not isinstance(value, bool):
        wrong(f"`{value}` has no unit", hint=f"write {value}MB, or {value}B for bytes")
    wrong(f"{shown(value)} is not a size", expected="64MB, 256MB or 1GB")


def read_count(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31:
        return value
    wrong(f"{shown(value)} is no count", expected="a whole number from 1 on")


def read_topic(value: Any) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str) and _TOPIC.match(text) and text not in (".", ".."):
        return text
    wrong(f"{shown(value)} cannot be a topic's name", expected="1 to 249 of a-z, A-Z, 0-9, `.`, `_` and `-`")


def is_service_name(value: Any) -> bool:
    return isinstance(value, str) and bool(_SERVICE.match(value))


def read_service_name(value: Any) -> str:
    if is_service_name(value):
        return str(value)
    lower = value.lower().replace(" ", "-") if isinstance(value, str) else ""
    tip = f"write `{lower}`" if is_service_name(lower) else None
    wrong(f"{shown(value)} cannot be a service's name", expected="1 to 100 of a-z, 0-9, `.`, `_` and `-`", hint=tip)


def read_field(value: Any) -> str:
    if isinstance(value, str) and value.strip() and "\0" not in value:
        return value
    if isinstance(value, list):
        wrong("a record has one key: a list of fields cannot be one", hint="name the one field that all rules share")
    wrong(f"{shown(value)} is not a field's name", expected="the name of a field, such as card or user.id")


def read_fields(value: Any) -> tuple[str, ...]:
    if isinstance(value, list | tuple):
        return tuple(read_field(item) for item in value)
    wrong(f"{shown(value)} is not a list of fields", expected="[card, user.email]")


def read_path(value: Any, info: ValidationInfo) -> Path:
    """Relative paths begin at the service file's folder."""
    if not isinstance(value, str) or not value or "\0" in value:
        wrong(f"{shown(value)} is not a path")
    return Path((info.context or {}).get("folder", ".")) / Path(value).expanduser()


def read_paths(value: Any, info: ValidationInfo) -> tuple[Path, ...]:
    if isinstance(value, list) and not value:
        wrong("the list is empty", expected="a folder, a file, or a list of them")
    return tuple(read_path(item, info) for item in (value if isinstance(value, list) else [value]))


def read_choice(value: Any, choices: tuple[str, ...]) -> str:
    if value in choices:
        return str(value)
    tip = did_you_mean(str(value).replace("-", "_"), choices)
    wrong(f"{shown(value)} is none of the choices", expected=" or ".join(choices), hint=tip)


def read_flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    wrong(f"{shown(value)} is neither", expected="true or false")


def read_delivery(value: Any) -> Delivery:
    return Delivery(read_choice(value, tuple(each.value for each in Delivery)))


def read_client_value(value: Any) -> str | SecretStr:
    """A setting of the Kafka client: text, as the client takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, SecretStr):
        return value
    wrong(f"{shown(value)} is not a value of the Kafka client", expected="text, a number, true or false")


def is_secret(name: str) -> bool:
    """Whether a setting of the Kafka client is never to be shown.

    >>> is_secret("sasl.password"), is_secret("sasl.username"), is_secret("ssl.key.pem")
    (True, False, True)
    """
    return bool(_SECRET.search(name))


def revealed(value: str | SecretStr) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


DurationMs: TypeAlias = Annotated[int, BeforeValidator(read_duration)]
RetentionMs: TypeAlias = Annotated[int, BeforeValidator(read_retention)]
SizeBytes: TypeAlias = Annotated[int, BeforeValidator(read_size)]
Count: TypeAlias = Annotated[int, BeforeValidator(read_count)]
TopicName: TypeAlias = Annotated[str, BeforeValidator(read_topic)]
ServiceName: TypeAlias = Annotated[str, BeforeValidator(read_service_name)]
FieldName: TypeAlias = Annotated[str, BeforeValidator(read_field)]
FieldNames: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(read_fields)]
RelativePath: TypeAlias = Annotated[Path, BeforeValidator(read_path)]
RelativePaths: TypeAlias = Annotated[tuple[Path, ...], BeforeValidator(read_paths)]
DeliveryName: TypeAlias = Annotated[Delivery, BeforeValidator(read_delivery)]
