"""The kinds of value in a service file: times, sizes, names, paths. Each says in words what it expected."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeAlias
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, SecretStr, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from samovar.changelog.log import Delivery
from samovar.common.suggest import did_you_mean
from samovar.common.times import unit_hint
from samovar.patterns.syntax.constants import duration_ms

FOREVER = -1  # as Kafka writes a retention without an end

_SERVICE = r"[a-z0-9][a-z0-9._-]{0,99}"
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


def is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def checked(fits: Callable[[Any], object], message: str, expected: str) -> BeforeValidator:
    """Takes a value that fits; `message` says what another is not, and comes after it."""

    def read(value: Any) -> Any:
        return value if fits(value) else wrong(f"{shown(value)} {message}", expected=expected)

    return BeforeValidator(read)


def matching(pattern: str, message: str, expected: str) -> BeforeValidator:
    """Takes text of a pattern."""
    return checked(lambda value: isinstance(value, str) and re.fullmatch(pattern, value), message, expected)


INT_AS_TEXT = BeforeValidator(lambda value: str(value) if is_int(value) else value)


# ---------------------------------------------------------------- times, sizes, counts


def read_duration(value: Any) -> int:
    if value == 0 and not isinstance(value, bool):
        return 0
    ms = duration_ms(value) if isinstance(value, str) else None
    if ms is not None:
        return ms
    if is_int(value):
        wrong(f"`{value}` has no unit", hint=f"write {value}s, {value}m or {value}h")
    tip = unit_hint(value) if isinstance(value, str) and value[:1].isdigit() else None
    wrong(f"{shown(value)} is not a time", expected="500ms, 30s, 10m, 8h or 7d", hint=tip)


def read_size(value: Any) -> int:
    found = _SIZE.match(value) if isinstance(value, str) else None
    if found:
        return int(found[1]) * _UNITS[found[2]]
    if is_int(value):
        wrong(f"`{value}` has no unit", hint=f"write {value}MB, or {value}B for bytes")
    wrong(f"{shown(value)} is not a size", expected="64MB, 256MB or 1GB")


def read_positive_size(value: Any) -> int:
    size = read_size(value)
    return size if size > 0 else wrong(f"{shown(value)} is nothing at all", expected="a size from 1B on")


def read_slot(value: Any) -> int:
    """A number, or the name of a pod of a StatefulSet, whose ordinal it ends with.

    >>> read_slot(3), read_slot("fraud-12")
    (3, 12)
    """
    if is_int(value) and 0 <= value < 10_000:
        return int(value)
    found = re.fullmatch(r"(?:[a-z0-9][a-z0-9.-]*-)?(\d{1,4})", value) if isinstance(value, str) else None
    if found:
        return int(found[1])
    wrong(f"{shown(value)} is no slot", expected="a number from 0 on, or a pod's name that ends with one: fraud-0")


def choice(*choices: str) -> BeforeValidator:
    def read(value: Any) -> str:
        if value in choices:
            return str(value)
        tip = did_you_mean(str(value).replace("-", "_"), choices)
        wrong(f"{shown(value)} is none of the choices", expected=" or ".join(choices), hint=tip)

    return BeforeValidator(read)


DurationMs: TypeAlias = Annotated[int, BeforeValidator(read_duration)]
RetentionMs: TypeAlias = Annotated[
    int, BeforeValidator(lambda value: FOREVER if value == "forever" else read_duration(value))
]
SizeBytes: TypeAlias = Annotated[int, BeforeValidator(read_size)]
PositiveBytes: TypeAlias = Annotated[int, BeforeValidator(read_positive_size)]
Count: TypeAlias = Annotated[
    int, checked(lambda value: is_int(value) and 1 <= value < 2**31, "is no count", "a whole number from 1 on")
]
Flag: TypeAlias = Annotated[bool, checked(lambda value: isinstance(value, bool), "is neither", "true or false")]
Slot: TypeAlias = Annotated[int, BeforeValidator(read_slot)]
DeliveryName: TypeAlias = Annotated[
    Delivery, BeforeValidator(lambda name: Delivery[name.upper()]), choice("exactly_once", "at_least_once")
]


# ---------------------------------------------------------------- names


def is_service_name(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(_SERVICE, value) is not None


def read_service_name(value: Any) -> str:
    if is_service_name(value):
        return str(value)
    lower = value.lower().replace(" ", "-") if isinstance(value, str) else ""
    tip = f"write `{lower}`" if is_service_name(lower) else None
    wrong(f"{shown(value)} cannot be a service's name", expected="1 to 100 of a-z, 0-9, `.`, `_` and `-`", hint=tip)


def is_stream_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9._-]{0,199}", name) is not None


def read_stream_name(name: str) -> str:
    if name == "any":
        wrong("`any` is every event in rules: a stream cannot be called so")
    if not is_stream_name(name):
        wrong(f"{shown(name)} cannot be a stream's name", expected="letters, digits, `_`, `-` and `.`")
    return name


def read_task_name(name: str) -> str:
    if name.startswith("by-"):  # as the stages are called that the service makes itself
        wrong(f"{shown(name)} cannot be a task's name", hint="`by-...` is the service's own")
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,79}", name):  # it becomes part of topics' and folders' names
        wrong(f"{shown(name)} cannot be a task's name", expected="a letter, then a-z, 0-9, `_` and `-`")
    return name


def read_class(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", value):
        return value
    tip = None
    if isinstance(value, str) and "." in value and ":" not in value:
        module, _, name = value.rpartition(".")
        tip = f"write {module.removesuffix('.py')}:{name}"
    expected = "profiles:CardProfiles, for that class in profiles.py"
    wrong(f"{shown(value)} names no class", expected=expected, hint=tip)


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


def read_stream_names(value: Any) -> tuple[str, ...]:
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) for name in names):
        wrong(f"{shown(value)} names no streams", expected="streams: [purchase]")
    return tuple(dict.fromkeys(names))


def read_rule_names(value: Any) -> tuple[str, ...]:
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    wrong(f"{shown(value)} is not a list of rules", expected="[card-testing, velocity-sum]")


TopicName: TypeAlias = Annotated[
    str,
    matching(
        r"(?!\.\.?\Z)[A-Za-z0-9._-]{1,249}", "cannot be a topic's name", "1 to 249 of a-z, A-Z, 0-9, `.`, `_` and `-`"
    ),
    INT_AS_TEXT,
]
ServiceName: TypeAlias = Annotated[str, BeforeValidator(read_service_name)]
StreamName: TypeAlias = Annotated[str, BeforeValidator(read_stream_name)]
TaskName: TypeAlias = Annotated[str, BeforeValidator(read_task_name)]
ClassName: TypeAlias = Annotated[str, BeforeValidator(read_class)]
SinkName: TypeAlias = Annotated[str, matching(_SERVICE, "cannot be a sink's name", "a-z, 0-9, -")]
PlainName: TypeAlias = Annotated[
    str, matching(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}", "cannot be a name here", "letters, digits, `_`, `-` and `.`")
]
FieldName: TypeAlias = Annotated[str, BeforeValidator(read_field)]
FieldNames: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(read_fields)]
StreamNames: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(read_stream_names)]
RuleNames: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(read_rule_names)]


# ---------------------------------------------------------------- maps


def read_map(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    wrong(f"{shown(value)} is not a map", expected="names to values: {card: string, amount: double}")


def read_lists(value: Any) -> Mapping[str, Any]:
    for name, items in read_map(value).items():
        if not isinstance(items, list):
            wrong(f"`{name}` must be a list", expected=f"{name}: [a, b]")
    return dict(value)


def read_named(value: Any) -> Mapping[str, Any]:
    """Names, each with settings or with none: `[a, b]` is `{a: {}, b: {}}`."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return {name: {} for name in value}
    if isinstance(value, Mapping):
        return {name: {} if settings is None else settings for name, settings in value.items()}
    wrong(f"{shown(value)} names nothing", expected="[a, b], or a map with settings for each")


# ---------------------------------------------------------------- paths and addresses


def read_path(value: Any, info: ValidationInfo) -> Path:
    """Relative paths begin at the service file's folder."""
    if not isinstance(value, str) or not value or "\0" in value:
        wrong(f"{shown(value)} is not a path")
    return Path((info.context or {}).get("folder", ".")) / Path(value).expanduser()


def read_folder_or_url(value: Any, info: ValidationInfo) -> str:
    """A folder as it stands from the file's own, or an address with a scheme as it is."""
    if isinstance(value, str) and "://" in value:
        if "@" in value.split("://", 1)[1].split("/", 1)[0]:
            wrong("an address with a password is shown in messages", hint="write it under `options` as ${NAME}")
        return value
    return str(read_path(value, info))


def read_paths(value: Any, info: ValidationInfo) -> tuple[Path, ...]:
    if isinstance(value, list) and not value:
        wrong("the list is empty", expected="a folder, a file, or a list of them")
    return tuple(read_path(item, info) for item in (value if isinstance(value, list) else [value]))


def read_networks(value: Any) -> tuple[str, ...]:
    """Addresses or networks, as text that `networks_of` can read."""
    found = []
    for item in value if isinstance(value, list | tuple) else [value]:
        try:
            found.append(str(ipaddress.ip_network(item if isinstance(item, str) else "")))
        except ValueError:
            expected = '"10.1.2.3", or a network such as "10.0.0.0/8"'
            wrong(f"{shown(item)} is not an address or network", expected=expected)
    return tuple(found)


RelativePath: TypeAlias = Annotated[Path, BeforeValidator(read_path)]
FolderOrUrl: TypeAlias = Annotated[str, BeforeValidator(read_folder_or_url)]
RelativePaths: TypeAlias = Annotated[tuple[Path, ...], BeforeValidator(read_paths)]
# Whether it can be served there is seen at the start.
HostPort: TypeAlias = Annotated[
    str, matching(r"(.*:)?\d+", "is not an address", "a port, or HOST:PORT: 9400"), INT_AS_TEXT
]
NodeUrl: TypeAlias = Annotated[str, matching(r"https?://[^/\s@]+", "is not an address of a node", "http://HOST:PORT")]
Networks: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(read_networks)]


# ---------------------------------------------------------------- secrets


def is_secret(name: str) -> bool:
    """Whether a setting of the Kafka client is never to be shown.

    >>> is_secret("sasl.password"), is_secret("sasl.username"), is_secret("ssl.key.pem")
    (True, False, True)
    """
    return bool(_SECRET.search(name))


def revealed(value: str | SecretStr) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def read_client_value(value: Any) -> str | SecretStr:
    """A setting of the Kafka client: text, as the client takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, SecretStr):
        return value
    wrong(f"{shown(value)} is not a value of the Kafka client", expected="text, a number, true or false")


def read_secret_url(value: Any) -> SecretStr:
    """An address, hidden: it may have a password or a token in it."""
    text = revealed(value) if isinstance(value, str | SecretStr) else ""
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        fits = False
    return SecretStr(text) if fits else wrong("this is not an address", expected="https://host/path")


def read_signing_secret(value: Any) -> SecretStr:
    if isinstance(value, str | SecretStr) and len(revealed(value)) >= 16:
        return SecretStr(revealed(value))
    wrong("a secret has at least 16 characters", expected="${NAME}, an environment variable")


SecretUrl: TypeAlias = Annotated[SecretStr, BeforeValidator(read_secret_url)]
SigningSecret: TypeAlias = Annotated[SecretStr, BeforeValidator(read_signing_secret)]
