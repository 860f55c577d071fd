"""What options say, read: times, instants, parameters, lists, schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from samovar.patterns.engine.decode import RefusedError, time_of
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax.constants import duration_ms
from samovar.patterns.syntax.yaml import core_value


def milliseconds(option: str, text: str) -> int:
    ms = duration_ms(text)
    if ms is None:
        raise typer.BadParameter(f"`{text}` is not a time: write 500ms, 30s, 10m, 8h or 7d", param_hint=option)
    return ms


def instant(option: str, text: str) -> int:
    try:
        return time_of(text)
    except RefusedError:
        raise typer.BadParameter(f"`{text}` is not an ISO 8601 time, such as 2026-01-05", param_hint=option) from None


def read_schema(path: str) -> Any:
    try:
        return Schema.parse(read_text("--schema", path))
    except ValueError as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="--schema") from None


def read_param(text: str) -> tuple[str, Any]:
    """`limit=200`: typed as in YAML 1.2; text in double or single quotes is text."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"`{text}`: write NAME=VALUE", param_hint="--param")
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        return name, value[1:-1]
    return name, core_value(value)


def read_list(text: str) -> tuple[str, list[Any]]:
    """`risky=FILE`: a value a line, typed as in YAML 1.2, but digits with a leading zero stay text."""
    name, equals, path = text.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"`{text}`: write NAME=FILE", param_hint="--list")
    lines = (line.strip() for line in read_text("--list", path).splitlines())
    zero = ("0", "-0", "+0")
    return name, [
        line if line.startswith(zero) and line.strip("+-0").isdigit() else core_value(line) for line in lines if line
    ]


def read_text(option: str, path: str) -> str:
    try:
        return Path(path).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise typer.BadParameter(f"cannot read {path}: {reason}", param_hint=option) from None
