"""Reads a service file: YAML to a `ServiceFile`, with every error of the file at once, each with its line and a caret.

`${NAME}` in a value under `log`, `registry` or `sinks` is the environment variable NAME, so that a file holds no
secrets, and `$${` is `${`. What came from the environment, and what is named as a secret, is hidden in every text that
this program writes.

Over the file go environment variables that are settings themselves, and over those flags:

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

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, get_args

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.patterns.syntax.findings import Finding, Report, render
from samovar.patterns.syntax.positions import whole
from samovar.patterns.syntax.tree import Span
from samovar.patterns.syntax.yaml import List, Node, Text, YamlMap, plain_data, read
from samovar.service.config.checks import faults
from samovar.service.config.models import TOPICS_OF_A_SERVICE, ServiceFile
from samovar.service.config.values import is_secret

__all__ = ["BadServiceFile", "LoadedService", "ServiceFile", "load", "load_service"]

Place: TypeAlias = tuple[str, ...]

MAX_FILE_BYTES = 1_000_000
PREFIX = "SAMOVAR_"
BETWEEN = "__"
# For tests and for those who work on Samovar itself, and the name of the machine: no settings of a service.
OTHERS = tuple(f"{PREFIX}{name}" for name in "CHROMIUM EXAMPLES HOST KERNEL KILL KILLS REBALANCE_S SEED".split())
OTHERS_BEGIN = "SAMOVAR_TEST_"
_START = Span(1, 1, 1, 1)
_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_PASSWORD = re.compile(r"://[^/]*@|https?://[^/\s]+[/?]\S")  # in an address: before its host, or a token behind it


@dataclass(kw_only=True)
class BadServiceFile(Refused):
    """A service file with errors; as text, all of them with lines and carets. `outside` counts those without a line."""

    findings: tuple[Finding, ...] = ()
    rendered: str = ""
    outside: int = 0

    def __str__(self) -> str:
        return self.rendered


@dataclass(frozen=True)
class LayerValue:
    """A value from next to the file, and what gave it: `SAMOVAR_CACHE`, or `--set cache`."""

    place: Place
    value: Any
    source: str
    kind: str  # environment, or flag


@dataclass(frozen=True)
class LoadedService:
    """A service file, and where its values came from."""

    settings: ServiceFile
    node: YamlMap
    given: tuple[LayerValue, ...]


def load_service(
    path: str | Path, environment: Mapping[str, str] | None = None, *, lenient: bool = False, flags: Sequence[str] = ()
) -> ServiceFile:
    """The service file at this path, with the `flags` of `--set`. If `lenient`, an unset variable stays as written."""
    return load(path, environment, lenient=lenient, flags=flags).settings


def load(
    path: str | Path, environment: Mapping[str, str] | None = None, *, lenient: bool = False, flags: Sequence[str] = ()
) -> LoadedService:
    """As `load_service`, with the places of all values."""
    path = Path(path)
    report = Report(str(path))
    text = _text_of(path, report)
    node = read(whole(text), report)
    if not isinstance(node, YamlMap):
        if not report.failed:
            report.error("service-file", "a service file maps keys to values", _START, expected="service: NAME, ...")
        _refuse(report, text)
    variables = os.environ if environment is None else environment
    data = _with_variables(node, report, variables, lenient=lenient)
    given = (*_from_environment(variables, data), *_from_flags(flags, data))
    try:
        settings = ServiceFile.model_validate(_merge_layers(data, given), context={"folder": path.absolute().parent})
    except ValidationError as error:
        found = [_report(fault, node, report, given) for fault in error.errors(include_url=False, include_input=False)]
        _refuse(report, _mask_secrets(text, node), [each for each in found if each])
    settings._path = path.absolute()
    outside = []
    for place, message, expected, hint in faults(settings):
        by = giving(given, place)
        if by is not None:
            outside.append(_outside_error(by, message, expected, hint))
        else:
            report.error("service-file", message, _spans_of(node, place)[0], expected=expected, hint=hint)
    if report.failed or outside:
        _refuse(report, _mask_secrets(text, node), outside)
    return LoadedService(settings, node, given)


def _text_of(path: Path, report: Report) -> str:
    try:
        data = path.read_bytes()
        if len(data) <= MAX_FILE_BYTES:
            return data.decode("utf-8-sig")
        most = f"at most {MAX_FILE_BYTES:,}"
        report.error("service-file", f"the file has {len(data):,} bytes", _START, expected=most)
    except OSError as error:
        tip = "`samovar init DIR` makes a service folder" if isinstance(error, FileNotFoundError) else None
        report.error("unreadable-file", f"cannot read the file: {error.strerror or error}", _START, hint=tip)
    except UnicodeDecodeError as error:
        where = f"byte 0x{error.object[error.start]:02x} at {error.start}"
        report.error("not-utf-8", f"the file is not UTF-8: {where}", _START, hint="save it as UTF-8")
    return _refuse(report, "")


# ---------------------------------------------------------------- YAML to data


def _with_variables(root: YamlMap, report: Report, environment: Mapping[str, str], *, lenient: bool) -> dict[str, Any]:
    """The file as plain data. Where there may be secrets `${NAME}` is replaced, and what has one is a secret."""

    def value_of(node: Node, secret: bool) -> Any:
        if isinstance(node, YamlMap):
            return {key.text: value_of(value, secret=secret or key.text == "registry") for key, value in node.entries}
        if isinstance(node, List):
            return [value_of(item, secret=secret) for item in node.items]
        if secret and "${" in node.text:
            return SecretStr(_VARIABLE.sub(lambda found: replaced(found, node), node.text))
        return node.value

    def replaced(found: re.Match[str], node: Text) -> str:
        if found[0] == "$${":
            return "${"
        name, is_closed = found[1], bool(found[2])
        if is_closed and name in environment:
            return environment[name]
        where = node.fragment.locate(found.start(), found.end())
        if not (is_closed and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)):
            message = f"`{found[0]}` names no variable"
            report.error("bad-variable", message, where, expected="${NAME}", hint="`$${` is `${`")
        elif not lenient:
            hint = did_you_mean(name, environment) or f"set it before the start: export {name}=..."
            report.error("unset-variable", f"the environment variable {name} is not set", where, hint=hint)
        return found[0]

    return {key.text: value_of(value, secret=key.text in ("log", "sinks")) for key, value in root.entries}


# ---------------------------------------------------------------- variables and flags


def allowed_names(place: tuple[int | str, ...] = ()) -> list[str]:
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


def variable_of(place: Place) -> str:
    """
    >>> variable_of(("log", "kafka", "sasl.password"))
    'SAMOVAR_LOG__KAFKA__SASL_PASSWORD'
    """
    return PREFIX + BETWEEN.join(re.sub(r"[^A-Za-z0-9]", "_", part).upper() for part in place)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Variables that look like settings and are none."""
    own = {variable_of((name,)) for name in allowed_names()}
    looking = [name for name in environment if name.startswith(PREFIX) and name.partition(BETWEEN)[0] not in own]
    return sorted(name for name in looking if name not in OTHERS and not name.startswith(OTHERS_BEGIN))


def _from_environment(environment: Mapping[str, str], data: Mapping[str, Any]) -> list[LayerValue]:
    """The variables that are settings. `data` is the file, for the names in it."""
    own = {variable_of((name,)): name for name in allowed_names()}
    names = sorted(name for name in environment if name.upper().partition(BETWEEN)[0] in own)
    found = []
    for name in names:
        outer = next((other for other in names if name.upper().startswith(other.upper() + BETWEEN)), None)
        if outer is not None:  # they say different things, and neither is more right
            raise Refused("bad-variable", f"{outer} and {name} both say what a setting is", "Unset one of the two.")
        first, *inner = name.upper().split(BETWEEN)
        place = (own[first], *(part.lower() for part in inner))
        found.append(_layer_value(place, environment[name], data, variable_of(place), "environment"))
    return found


def _from_flags(flags: Iterable[str], data: Mapping[str, Any]) -> list[LayerValue]:
    """From `--set PLACE=VALUE`."""
    found = []
    for flag in flags:
        name, equals, text = flag.partition("=")
        place = tuple(name.split("."))
        if not (equals and all(place)):
            raise Refused("bad-flag", f"`--set {name}` sets nothing", "Write --set PLACE=VALUE: --set cache=64MB.")
        if place[0] not in allowed_names():
            known = ", ".join(allowed_names())
            raise Refused("bad-flag", f"`--set {name}`: there is no setting `{place[0]}`", f"Settings are {known}.")
        found.append(_layer_value(place, text, data, f"--set {name}", "flag"))
    return found


def _layer_value(place: Place, text: str, data: Any, source: str, kind: str) -> LayerValue:
    # The clients of Kafka and of the registry have dots in their settings' names, and no `_`.
    depth = 2 if place[:2] == ("log", "kafka") else 3
    if len(place) > depth and (depth == 2 or (place[0], place[2]) == ("streams", "registry")):
        place = (*place[:depth], ".".join(place[depth:]).replace("_", "."))
    in_file: list[str] = []  # the names that the file has, where they differ in case and signs only
    for part in place:
        names = data if isinstance(data, Mapping) else {}
        name = part if part in names else next((own for own in names if _plain(own) == _plain(part)), part)
        in_file.append(name)
        data = names.get(name)
    value: Any = text
    if in_file[0] != "log" and not is_secret(in_file[-1]):
        report = Report("value")
        node = read(whole(text), report)
        value = text if report.failed or node is None else plain_data(node)
    return LayerValue(tuple(in_file), value, source, kind)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def _merge_layers(data: Mapping[str, Any], given: Iterable[LayerValue]) -> dict[str, Any]:
    """The file's data with what was given next to it; later ones win."""
    settings: dict[str, Any] = dict(data)
    for each in given:
        inside = settings
        for depth, part in enumerate(each.place[:-1]):
            value: Any = inside.get(part)
            inner = each.place[depth + 1]
            is_map = isinstance(value, Mapping)
            if each.place[: depth + 1] == ("log",):  # one log takes the other's place
                value = {inner: value[inner]} if is_map and inner in value else {}
            elif not is_map:
                value = {"topic": value} if each.place[0] in TOPICS_OF_A_SERVICE and isinstance(value, str) else {}
            inside[part] = dict(value)
            inside = inside[part]
        inside[each.place[-1]] = each.value
    return settings


def giving(given: Iterable[LayerValue], place: Iterable[str | int]) -> LayerValue | None:
    """Who gave the value at a place, or what it is part of; None where the file or a default did."""
    parts = tuple(map(str, place))
    return next((each for each in reversed(tuple(given)) if each.place == parts[: len(each.place)]), None)


# ---------------------------------------------------------------- errors


def _refuse(report: Report, text: str, outside: Sequence[str] = ()) -> NoReturn:
    """`outside` are the faults of variables and flags, which have no line in the file."""
    found = report.findings()
    rendered = "\n".join([*(render(finding, text) for finding in found), *outside])
    total = len(found) + len(outside)
    count = "1 error" if total == 1 else f"{total} errors"
    what = f"{report.path} has {count}" if found else f"the settings next to {report.path} have {count}"
    raise BadServiceFile(
        code="service-file",
        what=what,
        hint="fix them",
        detail=rendered,
        findings=found,
        rendered=rendered,
        outside=len(outside),
    )


def _outside_error(by: LayerValue, message: str, expected: str | None, hint: str | None) -> str:
    lines = [f"{by.source}: error: {message} [service-file]"]
    lines += [f"  expected: {expected}"] if expected else []
    lines += [f"  hint: {hint}"] if hint else []
    return "\n".join(lines)


def _report(fault: ErrorDetails, root: YamlMap, report: Report, given: Sequence[LayerValue]) -> str | None:
    """One of pydantic's errors in the words of the house: in the report, or as text where it is not the file's."""
    place = tuple(part for part in fault["loc"] if part != "[key]")
    where, key_span = _spans_of(root, place)
    inside = ".".join(map(str, place[:-1]))
    of = f" in `{inside}`" if inside else ""
    context, kind, by = fault.get("ctx", {}), fault["type"], giving(given, place)
    message, expected, hint = fault["msg"], context.get("expected"), context.get("hint")
    if kind == "missing":
        report.error("missing-setting", f"`{place[-1]}` is missing{of}", _spans_of(root, place[:-1])[1])
        return None
    if kind == "extra_forbidden":
        known, message = allowed_names(place[:-1]), f"there is no setting `{place[-1]}`{of}"
        expected, hint = ", ".join(known), did_you_mean(str(place[-1]), known)
        if by is not None:
            return _outside_error(by, message, expected, hint)
        report.error("unknown-setting", message, key_span, expected=expected, hint=hint)
        return None
    if kind == "setting":
        message = context["message"]
        where = key_span if "[key]" in fault["loc"] else where
    elif by is None and kind in ("model_type", "model_attributes_type", "mapping_type", "dict_type"):
        message, expected = f"`{place[-1]}` must be a map", f"{place[-1]}: {{name: value}}"
    elif by is None:
        message = f"`{'.'.join(map(str, place))}`: {fault['msg']}"
    if by is not None:
        return _outside_error(by, message, expected, hint)
    report.error("service-file", message, where, expected=expected, hint=hint)
    return None


def _spans_of(root: YamlMap, place: tuple[int | str, ...]) -> tuple[Span, Span]:
    """The places of a setting's value and of its key, or those of the nearest thing around it that the file has."""
    node: Node = root
    span = key_span = _START
    for part in place:
        if isinstance(node, List) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
            key_span = node.span
        elif isinstance(node, YamlMap) and (entry := next((e for e in node.entries if e[0].text == str(part)), None)):
            key_span, node = entry[0].span, entry[1]
        else:
            continue
        # A block of many lines is pointed at by its key, and so is a value that is not there.
        is_short = node.span.line == node.span.end_line and node.span.column < node.span.end_column
        span = node.span if is_short else key_span
    return span, key_span


def _mask_secrets(text: str, node: Node, secret: tuple[str, ...] = ()) -> str:
    """The file's text for showing: values of secret settings become stars, and every column stays where it was.

    `secret` are names that are secret here and nowhere else: where a sink goes.
    """
    if isinstance(node, YamlMap):
        for key, value in node.entries:
            named = is_secret(key.text) or key.text in secret
            hidden = isinstance(value, Text) and (named or _PASSWORD.search(value.text))
            if hidden and isinstance(value, Text) and value.text and "${" not in value.text:
                start, end = value.fragment.places[0], value.fragment.places[-1]
                text = text[:start] + "*" * (end - start) + text[end:]
            else:
                text = _mask_secrets(text, value, ("url",) if key.text == "sinks" else secret)
    elif isinstance(node, List):
        for item in node.items:
            text = _mask_secrets(text, item, secret)
    return text
