"""Schemas that nobody knew when their messages came: what was a dead letter then is none that a replay may take.

A registry may learn of a schema later. So it is written down from where to where in an input it was unknown: in the
journal, for a rebuild, and in the position, for what is read again after a crash.
"""

from __future__ import annotations

from collections.abc import Sequence

from samovar.changelog.formats.record import Unknown


def turned(stretches: Sequence[Unknown], schema: int, offset: int, *, known: bool) -> tuple[Unknown, ...]:
    """The schema becomes known, or unknown, at an offset."""
    if not known:
        return (*stretches, Unknown(schema, offset, None))
    return tuple(
        each._replace(until=offset) if each.schema == schema and each.until is None else each for each in stretches
    )


def unknown_yet(stretches: Sequence[Unknown]) -> set[int]:
    return {each.schema for each in stretches if each.until is None}


def unknown_at(stretches: Sequence[Unknown], offset: int) -> set[int]:
    return {each.schema for each in stretches if each.since <= offset and (each.until is None or offset < each.until)}


def edges_of(stretches: Sequence[Unknown]) -> list[int]:
    """The offsets at which it changes."""
    return [edge for each in stretches for edge in (each.since, each.until) if edge is not None]


def needed(stretches: Sequence[Unknown], safe: int) -> tuple[Unknown, ...]:
    """Those that count for what may be read again, from `safe` on, and those that still last."""
    return tuple(each for each in stretches if each.until is None or each.until > safe)
