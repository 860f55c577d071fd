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
    """Bytes on their way through."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

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
    parts = sorted((number, value) for (_, _, kind, number), value in _by_parts(rows) if kind == HEADER)
    if not parts:
        raise UnreadableError("it has no header")
    first = Bytes(parts[0][1])
    _refuse_newer(first)
    due = int.from_bytes(first.take(8), "big")
    first.raw()  # how many parts
    packed = [first.data[first.at :]]
    for _, value in parts[1:]:
        part = Bytes(value)
        _refuse_newer(part)
        packed.append(value[part.at :])
    rest = Bytes(b"".join(packed))
    alerted, is_quiet = rest.num(), rest.num()
    return StateHeader(None if due == NO_DEADLINE else due - SIGN, None if is_quiet else alerted, rest)


def history_of(rows: Mapping[bytes, bytes]) -> list[RememberedEvent]:
    """The events that a history function remembers of a key, oldest first."""
    rest = head_of(rows).rest
    begin, end, in_header = rest.num(), rest.num(), rest.raw()
    if in_header:
        return _events(rest)
    kept: list[RememberedEvent] = []
    for (_, _, _, _), value in sorted(each for each in _by_parts(rows) if each[0][2] != HEADER):
        chunk = Bytes(value)
        _refuse_newer(chunk)
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


def _by_parts(rows: Mapping[bytes, bytes]) -> list[tuple[tuple[bytes, str, int, int], bytes]]:
    return [(row_parts(row), value) for row, value in rows.items()]


def _refuse_newer(data: Bytes) -> None:
    if data.raw() != FORMAT:
        raise UnreadableError("it has another format")
