"""Where a setting stands in the service file, and which names may stand at its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel

from samovar.patterns.syntax import Span
from samovar.patterns.yamltext import List, Map, Node
from samovar.service.config.models import ServiceFile

_START = Span(1, 1, 1, 1)


@dataclass(frozen=True)
class Where:
    """A value's place and that of its key."""

    span: Span
    key_span: Span


def place_of(root: Map, place: tuple[int | str, ...]) -> Where:
    """The place of a setting, or of the nearest thing around it that the file has."""
    node: Node = root
    where = Where(_START, _START)
    for part in place:
        entry = _inside(node, part)
        if entry is not None:
            node, key_span = entry
            where = Where(node.span if _is_shown(node) else key_span, key_span)
    return where


def _inside(node: Node, part: int | str) -> tuple[Node, Span] | None:
    if isinstance(node, List) and isinstance(part, int) and part < len(node.items):
        return node.items[part], node.items[part].span
    if isinstance(node, Map):
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
