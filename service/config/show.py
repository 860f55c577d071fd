"""`samovar config show` and `check`: every setting with its value and where that came from, secrets hidden."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel, SecretStr

from samovar.common.times import duration_text
from samovar.patterns.syntax.findings import to_json, visible
from samovar.patterns.syntax.yaml import Node, YamlMap
from samovar.service.config.loading import BadServiceFile, LoadedService, giving, load, unknown_variables
from samovar.service.config.values import FOREVER, is_secret

Place: TypeAlias = tuple[str, ...]

SHOWN_WIDTH = 60


def rows_of(loaded: LoadedService) -> list[dict[str, Any]]:
    """One per setting, in the order of the documentation. Its source is file, environment, flag or default; `where`
    says more of it.
    """
    rows = []
    for place, value in _leaves(loaded.settings, ()):
        by, line = giving(loaded.given, place), _line(loaded.node, place)
        if by is not None:
            source, where = by.kind, by.source
        else:
            source, where = ("default", "") if line is None else ("file", f"line {line}")
        shown = _plain(value, place, loaded.settings.folder)
        rows.append({"setting": ".".join(place), "value": shown, "source": source, "where": where})
    return rows


def as_text(rows: list[dict[str, Any]]) -> str:
    values = ["-" if row["value"] is None else _short(row["value"]) for row in rows]
    name_width = max(len(row["setting"]) for row in rows)
    width = max(min(SHOWN_WIDTH, len(value)) for value in values)
    lines = []
    for row, value in zip(rows, values, strict=True):
        shown = visible(value if len(value) <= SHOWN_WIDTH else value[: SHOWN_WIDTH - 3] + "...")
        source = f"{row['source']}, {row['where']}" if row["where"] else row["source"]
        lines.append(f"{row['setting']:{name_width}}  {shown:{width}}  {source}")
    return "\n".join(lines)


def check(path: Path, flags: list[str]) -> dict[str, Any]:
    """All errors of file, variables and flags at once; and variables that look like settings and are none."""
    warnings = [f"{name} names no setting, and is passed over" for name in unknown_variables(os.environ)]
    count, text, findings = 0, "", []
    try:
        load(path, flags=flags)
    except BadServiceFile as bad:
        count, text = len(bad.findings) + bad.outside, str(bad)
        findings = [to_json(finding) for finding in bad.findings]
    return {"file": str(path), "errors": count, "text": text, "findings": findings, "warnings": warnings}


def check_text(found: dict[str, Any]) -> str:
    counts = {"error": found["errors"], "warning": len(found["warnings"])}
    counted = ", ".join(f"{count} {what}{'s' * (count != 1)}" for what, count in counts.items())
    lines = [*([found["text"]] if found["text"] else []), *(f"warning: {each}" for each in found["warnings"])]
    return "\n".join([*lines, f"{found['file']}: {counted}"])


def _leaves(value: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    """Settings by their places, as the file writes them."""
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            inner = getattr(value, name)
            if name == "avro" or (place == ("log",) and inner is None):
                continue  # `schema` is shown as the fields that rules see; a service has one log
            if name == "client":
                for setting, text in inner.items():
                    yield (*place, setting), text
            elif name.endswith("_ms") and inner is not None:
                yield (*place, field.alias or name), "forever" if inner == FOREVER else duration_text(inner)
            elif name.endswith("_bytes"):
                yield (*place, field.alias or name), _size(inner)
            else:
                yield from _leaves(inner, (*place, field.alias or name))
    elif isinstance(value, Mapping) and value and place[-1] not in ("schema", "schemas") and place[:-1] != ("params",):
        for name, inner in value.items():
            yield from _leaves(inner, (*place, str(name)))
    else:
        yield place, value


def _size(value: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if value % factor == 0:
            return f"{value // factor}{unit}"
    return f"{value}B"


def _plain(value: Any, place: Place, folder: Path) -> Any:
    """As data that can be written; what is a secret is not in it."""
    if isinstance(value, SecretStr) or (value and is_secret(place[-1])):
        return "***"
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


def _line(node: Node, place: Place) -> int | None:
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
