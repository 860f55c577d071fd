"""What can be read of a state's rows without its rule: format 1 of native/match/rows.cpp, as drawn there.

Of a rule's state: when it is due and when it last alerted. Of a history function's, which is nothing but a queue of
events with one value each: all of it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from samovar.changelog.formats.record import row_parts

FORMAT, HEADER, NO_DEADLINE, SIGN = 1, 0, (1 << 64) - 1, 1 << 63


class UnreadableError(ValueError):
    """These rows are not what the format says."""


@dataclass(frozen=True, slots=True)
class StateHeader:
    """A state's header, up to what its form packs. `rest` is that."""

    due_ms: int | None
    alerted_ms: int | None
    rest: Bytes


@dataclass(frozen=True, slots=True)
class RememberedEvent:
    """One event that a history function remembers."""

    time_ms: int
    offset: int
    value: Any


class Bytes:
    """Bytes on their way through; a row's begin with the format."""

    def __init__(self, data: bytes, *, is_row: bool = True) -> None:
        self.data, self.at = data, 0
        if is_row and self.raw() != FORMAT:
            raise UnreadableError("it has another format")

    def take(self, size: int) -> bytes:
        part = self.data[self.at : self.at + size]
        if len(part) < size:
            raise UnreadableError("it ends too early")
        self.at += size
        return part

    def raw(self) -> int:
        number = shift = 0
        while True:
            (byte,) = self.take(1)
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7

    def num(self) -> int:
        number = self.raw()
        return number >> 1 ^ -(number & 1)

    def value(self) -> Any:
        tag = self.raw()
        if tag in (1, 2):
            number = self.num()
            return bool(number) if tag == 1 else number
        if tag == 3:
            return struct.unpack("<d", self.take(8))[0]
        return None if tag == 0 else self.take(self.raw()).decode("utf-8", "replace")


def head_of(rows: Mapping[bytes, bytes]) -> StateHeader:
    """The header of one state; `rows` are all its rows, by their keys in the store."""
    parts = [Bytes(value) for kind, _, value in _in_order(rows) if kind == HEADER]
    if not parts:
        raise UnreadableError("it has no header")
    due = int.from_bytes(parts[0].take(8), "big")
    parts[0].raw()  # how many parts
    rest = Bytes(b"".join(part.data[part.at :] for part in parts), is_row=False)
    alerted, is_quiet = rest.num(), rest.num()
    return StateHeader(None if due == NO_DEADLINE else due - SIGN, None if is_quiet else alerted, rest)


def remembered_events(rows: Mapping[bytes, bytes]) -> list[RememberedEvent]:
    """The events that a history function remembers of a key, oldest first."""
    rest = head_of(rows).rest
    begin, end, in_header = rest.num(), rest.num(), rest.raw()
    if in_header:
        return _events(rest)
    kept: list[RememberedEvent] = []
    for chunk in (Bytes(value) for kind, _, value in _in_order(rows) if kind != HEADER):
        first = chunk.num()
        kept += [event for number, event in enumerate(_events(chunk), first) if begin <= number < end]
    return kept


def _events(data: Bytes) -> list[RememberedEvent]:
    found = []
    for _ in range(data.raw()):
        time_ms, _source, offset = data.num(), data.num(), data.num()
        data.num(), data.raw()
        found.append(RememberedEvent(time_ms, offset, data.value()))
    return found


def _in_order(rows: Mapping[bytes, bytes]) -> list[tuple[int, int, bytes]]:
    """Kind, number and value of each row of one state."""
    return sorted((*row_parts(row)[2:], value) for row, value in rows.items())
