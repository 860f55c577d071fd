"""Reads a service file: YAML to a `ServiceFile`, with every error of the file at once, each with its line and a caret.

`${NAME}` in a value under `log`, `registry` or `sinks` is the environment variable NAME, so that a file holds no
secrets, and `$${` is `${`. Over the file go variables that are settings themselves, and over those flags
(settings_layers.py). What came from the environment, and what is named as a secret, is hidden in every text that this
program writes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.patterns.syntax.findings import Finding, Report, render
from samovar.patterns.syntax.positions import whole
from samovar.patterns.syntax.tree import Span
from samovar.patterns.syntax.yaml import List, Node, Text, YamlMap, read
from samovar.service.config.checks import faults
from samovar.service.config.layers import (
    LayerValue,
    allowed_names,
    from_environment,
    from_flags,
    giving,
    layered,
    place_of,
)
from samovar.service.config.models import ServiceFile
from samovar.service.config.types import is_secret

__all__ = ["BadServiceFile", "LoadedService", "ServiceFile", "load", "load_service"]

MAX_FILE_BYTES = 1_000_000
_START = Span(1, 1, 1, 1)
_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PASSWORD = re.compile(r"://[^/]*@|https?://[^/\s]+[/?]\S")  # in an address: before its host, or a token behind it


@dataclass
class BadServiceFile(Refused):
    """A service file with errors; as text, all of them with their lines and carets. `beside` counts those of variables
    and flags, which have none.
    """

    findings: tuple[Finding, ...] = ()
    rendered: str = ""
    beside: int = 0

    def __str__(self) -> str:
        return self.rendered


@dataclass(frozen=True)
class LoadedService:
    """A service file, and where its values came from."""

    settings: ServiceFile
    node: YamlMap
    given: tuple[LayerValue, ...]


def load_service(
    path: str | Path,
    environment: Mapping[str, str] | None = None,
    *,
    lenient: bool = False,
    flags: Sequence[str] = (),
) -> ServiceFile:
    """The service file at this path, or `BadServiceFile`. If `lenient`, an unset variable stays as it is written.
    `flags` are those of `--set`.
    """
    return load(path, environment, lenient=lenient, flags=flags).settings


def load(
    path: str | Path,
    environment: Mapping[str, str] | None = None,
    *,
    lenient: bool = False,
    flags: Sequence[str] = (),
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
    data = _Reader(report, variables, lenient).data(node)
    given = (*from_environment(variables, data), *from_flags(flags, data))
    try:
        settings = ServiceFile.model_validate(layered(data, given), context={"folder": path.absolute().parent})
    except ValidationError as error:
        told = [_report(fault, node, report, given) for fault in error.errors(include_url=False, include_input=False)]
        _refuse(report, _masked(text, node), [each for each in told if each])
    settings._path = path.absolute()
    beside = []
    for place, message, expected, hint in faults(settings):
        by = giving(given, place)
        if by is not None:
            beside.append(_beside(by, message, expected, hint))
        else:
            report.error("service-file", message, place_of(node, place).span, expected=expected, hint=hint)
    if report.failed or beside:
        _refuse(report, _masked(text, node), beside)
    return LoadedService(settings, node, given)


def _text_of(path: Path, report: Report) -> str:
    try:
        data = path.read_bytes()
        if len(data) <= MAX_FILE_BYTES:
            return data.decode("utf-8-sig")
        report.error(
            "service-file", f"the file has {len(data):,} bytes", _START, expected=f"at most {MAX_FILE_BYTES:,}"
        )
    except OSError as error:
        tip = "`samovar init DIR` makes a service folder" if isinstance(error, FileNotFoundError) else None
        report.error("unreadable-file", f"cannot read the file: {error.strerror or error}", _START, hint=tip)
    except UnicodeDecodeError as error:
        where = f"byte 0x{error.object[error.start]:02x} at {error.start}"
        report.error("not-utf-8", f"the file is not UTF-8: {where}", _START, hint="save it as UTF-8")
    return _refuse(report, "")


def _refuse(report: Report, text: str, beside: Sequence[str] = ()) -> NoReturn:
    """`beside` are the faults of variables and flags, which have no line in the file."""
    found = report.findings()
    rendered = "\n".join([*(render(finding, text) for finding in found), *beside])
    total = len(found) + len(beside)
    count = "1 error" if total == 1 else f"{total} errors"
    whose = report.path if found else f"the settings next to {report.path}"
    verb = "has" if found else "have"
    raise BadServiceFile("service-file", f"{whose} {verb} {count}", "fix them", rendered, found, rendered, len(beside))


def _beside(by: LayerValue, message: str, expected: str | None, hint: str | None) -> str:
    lines = [f"{by.source}: error: {message} [service-file]"]
    lines += [f"  expected: {expected}"] if expected else []
    lines += [f"  hint: {hint}"] if hint else []
    return "\n".join(lines)


# ---------------------------------------------------------------- YAML to data


@dataclass(frozen=True)
class _Reader:
    """Turns nodes into plain data. Where there may be secrets variables are replaced, and what they gave is one."""

    report: Report
    environment: Mapping[str, str]
    lenient: bool

    def data(self, node: YamlMap) -> dict[str, Any]:
        return {key.text: self._value(value, secret=key.text in ("log", "sinks")) for key, value in node.entries}

    def _value(self, node: Node, *, secret: bool) -> Any:
        if isinstance(node, YamlMap):
            inside = [(key.text, value, secret or key.text == "registry") for key, value in node.entries]
            return {name: self._value(value, secret=hidden) for name, value, hidden in inside}
        if isinstance(node, List):
            return [self._value(item, secret=secret) for item in node.items]
        if secret and "${" in node.text:
            return self._replaced(node)
        return node.value

    def _replaced(self, node: Text) -> SecretStr:
        return SecretStr(_VARIABLE.sub(lambda found: self._variable(found, node), node.text))

    def _variable(self, found: re.Match[str], node: Text) -> str:
        if found[0] == "$${":
            return "${"
        name = found[1]
        where = node.fragment.locate(found.start(), found.end())
        if found[2] and name in self.environment:
            return self.environment[name]
        if not (found[2] and _NAME.match(name)):
            self.report.error(
                "bad-variable", f"`{found[0]}` names no variable", where, expected="${NAME}", hint="`$${` is `${`"
            )
        elif not self.lenient:
            self.report.error(
                "unset-variable",
                f"the environment variable {name} is not set",
                where,
                hint=did_you_mean(name, self.environment) or f"set it before the start: export {name}=...",
            )
        return found[0]


# ---------------------------------------------------------------- errors


def _report(fault: ErrorDetails, root: YamlMap, report: Report, given: Sequence[LayerValue]) -> str | None:
    """One of pydantic's errors in the words of the house: in the report, or as text where it is not the file's."""
    place = tuple(part for part in fault["loc"] if part != "[key]")
    at = place_of(root, place)
    inside = ".".join(map(str, place[:-1]))
    of = f" in `{inside}`" if inside else ""
    context = fault.get("ctx", {})
    kind = fault["type"]
    by = giving(given, place)
    if by is not None and kind == "extra_forbidden":
        known = allowed_names(place[:-1])
        text = f"there is no setting `{place[-1]}`{of}"
        return _beside(by, text, ", ".join(known), did_you_mean(str(place[-1]), known))
    if by is not None and kind != "missing":
        return _beside(by, context.get("message") or fault["msg"], context.get("expected"), context.get("hint"))
    if kind == "setting":
        message, expected, hint = context["message"], context.get("expected"), context.get("hint")
        report.error(
            "service-file", message, at.key_span if "[key]" in fault["loc"] else at.span, expected=expected, hint=hint
        )
    elif kind == "missing":
        report.error("missing-setting", f"`{place[-1]}` is missing{of}", place_of(root, place[:-1]).key_span)
    elif kind == "extra_forbidden":
        known = allowed_names(place[:-1])
        tip = did_you_mean(str(place[-1]), known)
        text = f"there is no setting `{place[-1]}`{of}"
        report.error("unknown-setting", text, at.key_span, expected=", ".join(known), hint=tip)
    elif kind in ("model_type", "model_attributes_type", "mapping_type", "dict_type"):
        report.error("service-file", f"`{place[-1]}` must be a map", at.span, expected=f"{place[-1]}: {{name: value}}")
    else:
        report.error("service-file", f"`{'.'.join(map(str, place))}`: {fault['msg']}", at.span)
    return None


def _masked(text: str, node: Node, secret: tuple[str, ...] = ()) -> str:
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
                text = _masked(text, value, ("url",) if key.text == "sinks" else secret)
    elif isinstance(node, List):
        for item in node.items:
            text = _masked(text, item, secret)
    return text
