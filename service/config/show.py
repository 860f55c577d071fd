"""`samovar config show` and `check`: every setting with its value and where that came from, secrets hidden."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from samovar.common.times import duration_text
from samovar.patterns.syntax.findings import to_json, visible
from samovar.patterns.syntax.yaml import Node, YamlMap
from samovar.service.config.layers import giving, unknown_variables
from samovar.service.config.loading import BadServiceFile, LoadedService, load
from samovar.service.config.types import FOREVER, is_secret

HIDDEN = "***"
NONE = "-"
SHOWN_WIDTH = 60
ERRORS = 1


@dataclass(frozen=True)
class SettingRow:
    """One setting. `source` is file, environment, flag or default; `where` says more of it."""

    setting: str
    value: Any
    source: str
    where: str

    def text(self, widths: tuple[int, int]) -> str:
        value = NONE if self.value is None else self.value if isinstance(self.value, str) else _short(self.value)
        shown = visible(value if len(value) <= SHOWN_WIDTH else value[: SHOWN_WIDTH - 3] + "...")
        source = f"{self.source}, {self.where}" if self.where else self.source
        return f"{self.setting:{widths[0]}}  {shown:{widths[1]}}  {source}"


def rows_of(loaded: LoadedService) -> list[SettingRow]:
    """In the order of the documentation."""
    rows = []
    for place, value in _leaves(loaded.settings, ()):
        source, where = _source(loaded, place)
        rows.append(SettingRow(".".join(place), _plain(value, place, loaded.settings.folder), source, where))
    return rows


def as_text(rows: list[SettingRow]) -> str:
    shown = [
        NONE if row.value is None else row.value if isinstance(row.value, str) else _short(row.value) for row in rows
    ]
    widths = max(len(row.setting) for row in rows), max(min(SHOWN_WIDTH, len(text)) for text in shown)
    return "\n".join(row.text(widths) for row in rows)


def as_json(loaded: LoadedService, rows: list[SettingRow]) -> str:
    settings = [vars(row) for row in rows]
    return json.dumps({"file": str(loaded.settings.path), "settings": settings}, indent=1)


# ---------------------------------------------------------------- check


@dataclass(frozen=True)
class ConfigCheck:
    """What `config check` found; `errors` are as text, `findings` those that have a line."""

    path: Path
    errors: str
    count: int
    findings: list[dict[str, object]]
    warnings: list[str]

    def text(self) -> str:
        counts = f"{self.path}: {_counted(self.count, 'error')}, {_counted(len(self.warnings), 'warning')}"
        return "\n".join(
            [*([self.errors] if self.errors else []), *(f"warning: {each}" for each in self.warnings), counts]
        )

    def json(self) -> str:
        return json.dumps(
            {
                "file": str(self.path),
                "errors": self.count,
                "text": self.errors,
                "findings": self.findings,
                "warnings": self.warnings,
            }
        )


def check(path: Path, flags: list[str]) -> ConfigCheck:
    """All errors of file, variables and flags at once; and variables that look like settings and are none."""
    warnings = [f"{name} names no setting, and is passed over" for name in unknown_variables(os.environ)]
    try:
        load(path, flags=flags)
    except BadServiceFile as bad:
        count = len(bad.findings) + bad.beside
        return ConfigCheck(path, str(bad), count, [to_json(finding) for finding in bad.findings], warnings)
    return ConfigCheck(path, "", 0, [], warnings)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


# ---------------------------------------------------------------- values


def _leaves(value: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Settings by their places, as the file writes them."""
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            if name == "avro" or (place == ("log",) and getattr(value, name) is None):
                continue  # `schema` is shown as the fields that rules see; a service has one log
            if name == "client":
                yield from _leaves(getattr(value, name), place)
            else:
                yield from _units(name, field.alias or name, getattr(value, name), place)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _units("", str(name), inner, place)


def _units(name: str, alias: str, value: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    inside = (*place, alias)
    is_open = isinstance(value, BaseModel) or (
        isinstance(value, Mapping) and value and alias not in ("schema", "schemas") and place[:1] != ("params",)
    )
    if is_open:
        yield from _leaves(value, inside)
    elif name.endswith("_ms") and value is not None:
        yield inside, "forever" if value == FOREVER else duration_text(value)
    elif name.endswith("_bytes"):
        yield inside, _size(value)
    else:
        yield inside, value


def _size(value: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if value % factor == 0:
            return f"{value // factor}{unit}"
    return f"{value}B"


def _plain(value: Any, place: tuple[str, ...], folder: Path) -> Any:
    """As data that can be written; what is a secret is not in it."""
    if isinstance(value, SecretStr) or (value and is_secret(place[-1])):
        return HIDDEN
    if isinstance(value, Path):
        return str(value.relative_to(folder)) if value.is_relative_to(folder) else str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [_plain(each, place, folder) for each in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(each, place, folder) for name, each in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else type(value).__name__.lower()


def _short(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1:
        return _short(value[0])
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# ---------------------------------------------------------------- where it came from


def _source(loaded: LoadedService, place: tuple[str, ...]) -> tuple[str, str]:
    by = giving(loaded.given, place)
    if by is not None:
        return by.kind, by.source
    line = _line(loaded.node, place)
    return ("default", "") if line is None else ("file", f"line {line}")


def _line(node: Node, place: tuple[str, ...]) -> int | None:
    """The line of a setting in the file; None where it is not there."""
    line = None
    for part in place:
        if not isinstance(node, YamlMap):
            return line if part in ("topic", "url", "embedded") else None  # `alerts: hits` says what `alerts.topic` is
        found = next(((key, value) for key, value in node.entries if key.text == part), None)
        if found is None:
            return None
        line, node = found[0].span.line, found[1]
    return line
