"""Settings from next to the service file: environment variables, and above them flags.

    SAMOVAR_CACHE=64MB                                  cache: 64MB
    SAMOVAR_STREAMS__PURCHASE__PARTITIONS=8             streams: {purchase: {partitions: 8}}
    SAMOVAR_LOG__KAFKA__SASL_PASSWORD=...               log: {kafka: {sasl.password: ...}}
    --set streams.purchase.partitions=8

A variable is a setting's place in upper case, `__` between its parts; what is not a letter and no digit is `_`. Names
that the user chose, such as a stream's, are found in the file whatever their case. Values are YAML, so that a number is
one; under `log`, and where they are secrets, they are text as it stands, since a password may look like a number.

Variables that name no setting are other people's business here; `samovar config check` shows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

from pydantic import BaseModel

from samovar.common.errors import Refused
from samovar.patterns.syntax.findings import Report
from samovar.patterns.syntax.positions import whole
from samovar.patterns.syntax.tree import Span
from samovar.patterns.syntax.yaml import List, Node, YamlMap, plain_data, read
from samovar.service.config.models import TOPICS_OF_A_SERVICE, ServiceFile
from samovar.service.config.types import is_secret

PREFIX = "SAMOVAR_"
BETWEEN = "__"
# For tests and for those who work on Samovar itself, and the name of the machine: no settings of a service.
OTHERS = (
    "SAMOVAR_CHROMIUM",
    "SAMOVAR_EXAMPLES",
    "SAMOVAR_HOST",
    "SAMOVAR_KERNEL",
    "SAMOVAR_KILL",
    "SAMOVAR_KILLS",
    "SAMOVAR_REBALANCE_S",
    "SAMOVAR_SEED",
)
OTHERS_BEGIN = "SAMOVAR_TEST_"

Place: TypeAlias = tuple[str, ...]

_START = Span(1, 1, 1, 1)


@dataclass(frozen=True)
class ValuePlace:
    """A value's place and that of its key."""

    span: Span
    key_span: Span


def place_of(root: YamlMap, place: tuple[int | str, ...]) -> ValuePlace:
    """The place of a setting, or of the nearest thing around it that the file has."""
    node: Node = root
    where = ValuePlace(_START, _START)
    for part in place:
        entry = _inside(node, part)
        if entry is not None:
            node, key_span = entry
            where = ValuePlace(node.span if _is_shown(node) else key_span, key_span)
    return where


def _inside(node: Node, part: int | str) -> tuple[Node, Span] | None:
    if isinstance(node, List) and isinstance(part, int) and part < len(node.items):
        return node.items[part], node.items[part].span
    if isinstance(node, YamlMap):
        return next(((value, key.span) for key, value in node.entries if key.text == str(part)), None)
    return None


def _is_shown(node: Node) -> bool:
    """A block of many lines is pointed at by its key, and so is a value that is not there."""
    return node.span.line == node.span.end_line and node.span.column < node.span.end_column


def allowed_names(place: tuple[int | str, ...]) -> list[str]:
    """The settings that may stand at a place, as the file writes them."""
    model: type[BaseModel] = ServiceFile
    for part in place:
        # A name that the user chose, such as a stream's, leads to no other model.
        field = next((field for name, field in model.model_fields.items() if (field.alias or name) == part), None)
        model = (_model_in(field.annotation) if field else None) or model
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(kind: Any) -> type[BaseModel] | None:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next((model for inner in get_args(kind) if (model := _model_in(inner))), None)


@dataclass(frozen=True)
class LayerValue:
    """A value from next to the file, and what gave it: `SAMOVAR_CACHE`, or `--set cache`."""

    place: Place
    value: Any
    source: str
    kind: str  # environment, or flag


def from_environment(environment: Mapping[str, str], data: Mapping[str, Any]) -> list[LayerValue]:
    """The variables that are settings. `data` is the file, for the names in it."""
    if not any(name.startswith(PREFIX) for name in environment):
        return []
    _refuse_both(environment)
    found = []
    for place, text in _leaves(_nested(environment)):
        own = _as_in_file(_client_names(place), data)
        found.append(LayerValue(own, _value(own, text), variable_of(place), "environment"))
    return found


def from_flags(flags: Iterable[str], data: Mapping[str, Any]) -> list[LayerValue]:
    """From `--set PLACE=VALUE`."""
    found = []
    for flag in flags:
        name, equals, text = flag.partition("=")
        place = tuple(name.split("."))
        if not (equals and all(place)):
            raise Refused("bad-flag", f"`--set {name}` sets nothing", "Write --set PLACE=VALUE: --set cache=64MB.")
        if place[0] not in names_of_settings():
            known = ", ".join(names_of_settings())
            raise Refused("bad-flag", f"`--set {name}`: there is no setting `{place[0]}`", f"Settings are {known}.")
        place = _as_in_file(_client_names(place), data)
        found.append(LayerValue(place, _value(place, text), f"--set {name}", "flag"))
    return found


def variable_of(place: Place) -> str:
    """
    >>> variable_of(("log", "kafka", "sasl.password"))
    'SAMOVAR_LOG__KAFKA__SASL_PASSWORD'
    """
    return PREFIX + BETWEEN.join(re.sub(r"[^A-Za-z0-9]", "_", part).upper() for part in place)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Variables that look like settings and are none."""
    own = {PREFIX + name.upper() for name in names_of_settings()}
    return sorted(
        name
        for name in environment
        if name.startswith(PREFIX)
        and name not in OTHERS
        and not name.startswith(OTHERS_BEGIN)
        and name.partition(BETWEEN)[0] not in own
    )


def names_of_settings() -> list[str]:
    return [field.alias or name for name, field in ServiceFile.model_fields.items()]


# ---------------------------------------------------------------- over the file


def layered(data: Mapping[str, Any], given: Iterable[LayerValue]) -> dict[str, Any]:
    """The file's data with what was given next to it; later ones win."""
    whole_of: dict[str, Any] = dict(data)
    for each in given:
        inside = whole_of
        for depth, part in enumerate(each.place[:-1]):
            inside[part] = _opened(each.place[: depth + 1], inside.get(part), each.place[depth + 1])
            inside = inside[part]
        inside[each.place[-1]] = each.value
    return whole_of


def _opened(place: Place, value: Any, inner: str) -> dict[str, Any]:
    """A map to be written into, made from what the file has at its place."""
    if place == ("log",):  # one log takes the other's place
        return {inner: value[inner]} if isinstance(value, Mapping) and inner in value else {}
    if isinstance(value, Mapping):
        return dict(value)
    is_topic = place[0] in TOPICS_OF_A_SERVICE and isinstance(value, str)
    return {"topic": value} if is_topic else {}


def giving(given: Iterable[LayerValue], place: Iterable[str | int]) -> LayerValue | None:
    """Who gave the value at a place, or what it is part of; None where the file or a default did."""
    whole_place = tuple(map(str, place))
    found = None
    for each in given:
        if each.place == whole_place[: len(each.place)]:
            found = each
    return found


# ---------------------------------------------------------------- from the environment


def _nested(environment: Mapping[str, str]) -> dict[str, Any]:
    from samovar.service.config.variables import nested  # noqa: PLC0415 - takes long to load, and is rarely needed

    return nested(environment, names_of_settings(), PREFIX, BETWEEN)


def _leaves(data: Mapping[str, Any], place: Place = ()) -> Iterator[tuple[Place, str]]:
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*place, name))
        else:
            yield (*place, name), value


def _refuse_both(environment: Mapping[str, str]) -> None:
    """Two variables of which one is part of the other say different things, and neither is more right."""
    own = {PREFIX + name.upper() for name in names_of_settings()}
    names = sorted(name for name in environment if name.upper().partition(BETWEEN)[0] in own)
    for name in names:
        outer = next((other for other in names if name.upper().startswith(other.upper() + BETWEEN)), None)
        if outer is not None:
            raise Refused("bad-variable", f"{outer} and {name} both say what a setting is", "Unset one of the two.")


# ---------------------------------------------------------------- names and values


def _client_names(place: Place) -> Place:
    """The clients of Kafka and of the registry have dots in their settings' names, and no `_`."""
    if place[:2] == ("log", "kafka") and len(place) > 2:
        return (*place[:2], ".".join(place[2:]).replace("_", "."))
    if len(place) > 3 and place[0] == "streams" and place[2] == "registry":
        return (*place[:3], ".".join(place[3:]).replace("_", "."))
    return place


def _as_in_file(place: Place, data: Any) -> Place:
    """The place with the names that the file has, where they differ in case and signs only."""
    found: list[str] = []
    for part in place:
        names = data if isinstance(data, Mapping) else {}
        name = part if part in names else next((own for own in names if _plain(own) == _plain(part)), part)
        found.append(name)
        data = names.get(name)
    return tuple(found)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def _value(place: Place, text: str) -> Any:
    if place[0] == "log" or is_secret(place[-1]):
        return text
    report = Report("value")
    node = read(whole(text), report)
    return text if report.failed or node is None else plain_data(node)
