"""Stored records as JSON objects that have names of their own.

    @stored("topic topic_id next")
    @dataclass(frozen=True)
    class Following: ...

    to_wire(following)          {"topic": ..., "topic_id": ..., "next": ...}
    from_wire(Following, raw)   the same again

What equals its default is left out. So a class or an attribute that is renamed, or a field that is added with a
default, changes no stored bytes. A name that is not known is refused: it says something that would be lost. Tuples with
names are stored as lists, in their order.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
_ALWAYS = object()  # no value equals it
_WIRE = "__wire__"
_PLAIN = frozenset({str, int, float, bool, type(None)})


class WireField(NamedTuple):
    """One field: the attribute, its name in what is stored, and the value at which it is left out."""

    attribute: str
    name: str
    usual: object


def stored(names: str) -> Callable[[type[T]], type[T]]:
    """Give the fields of a dataclass, in their order, the names under which they are stored."""

    def named(kind: type[T]) -> type[T]:
        known, given = fields(kind), names.split()  # type: ignore[arg-type]  # it is a dataclass
        if len(known) != len(given) or len({*given}) < len(given):
            raise TypeError(f"{kind.__name__} has {len(known)} fields, and is stored as {', '.join(given)}")
        wire = []
        for each, name in zip(known, given, strict=True):
            usual = _ALWAYS if each.default_factory is MISSING else each.default_factory()
            wire.append(WireField(each.name, name, usual if each.default is MISSING else each.default))
        setattr(kind, _WIRE, tuple(wire))
        return kind

    return named


def to_wire(value: Any) -> Any:
    """Data for JSON. Done for every commit of every task."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    wire: tuple[WireField, ...] | None = getattr(kind, _WIRE, None)
    if wire is not None:
        found = ((name, getattr(value, attribute), usual) for attribute, name, usual in wire)
        return {name: to_wire(each) for name, each, usual in found if each != usual and (each != [] or usual != ())}
    if isinstance(value, Mapping):
        return {key: each if type(each) in _PLAIN else to_wire(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_wire(each) for each in value]
    return value


def from_wire(kind: type[T], raw: Mapping[str, Any]) -> T:
    """A record as it was stored. Raises ValueError for a name that is not known, TypeError where one is missing."""
    known = _readers(kind)  # type: ignore[arg-type]  # types are hashable
    if not known.keys() >= raw.keys():
        raise ValueError(f"{', '.join(sorted(raw.keys() - known.keys()))}: no such field here")
    return kind(**{attribute: read(raw[name]) for name, (attribute, read) in known.items() if name in raw})


@cache
def _readers(kind: type[Any]) -> dict[str, tuple[str, Callable[[Any], Any]]]:
    """By name: the attribute, and what makes its value of what is stored."""
    hints = get_type_hints(kind)
    wire: tuple[WireField, ...] = getattr(kind, _WIRE)
    return {each.name: (each.attribute, _reader(hints[each.attribute])) for each in wire}


def _reader(hint: Any) -> Callable[[Any], Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if hasattr(hint, _WIRE):
        return lambda raw: from_wire(hint, raw)
    if origin in (Union, types.UnionType):
        readers = [_reader(each) for each in arguments if each is not type(None)]
        return (lambda raw: None if raw is None else readers[0](raw)) if len(readers) == 1 else (lambda raw: raw)
    if origin is tuple and (len(arguments) != 2 or arguments[1] is not Ellipsis):
        parts = [_reader(each) for each in arguments]
        return lambda raw: tuple(read(each) for read, each in zip(parts, raw, strict=True))
    if origin in (tuple, Sequence):
        read = _reader(arguments[0])
        return lambda raw: tuple(map(read, raw))
    if origin is Mapping:
        read = _reader(arguments[1])
        return lambda raw: {key: read(each) for key, each in raw.items()}
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return lambda raw: hint(*raw)
    return lambda raw: raw
