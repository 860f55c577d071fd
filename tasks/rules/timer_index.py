"""The index of deadlines: which keys to look at when event time passes, where not all states are in memory.

    NONE --> BUILDING --> READY

It is local to a store, and has an entry for every stored row with a deadline (samovar.changelog.formats.record). A
small state is all in memory and has none. From the moment that it is begun every commit writes its own entries; the
rows that were there before are looked at in small steps, and the row `INDEXED` says up to where. So a restart goes on
with it. Once it is ready, it stays. Until then nobody may rely on it: whatever is not in memory is found by it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import islice
from typing import TypeAlias

from samovar.changelog.formats.record import DEADLINE, INDEXED, ROW, deadlines_in
from samovar.patterns.engine.matcher import NEVER
from samovar.state.store import Change, Store

ROWS_END = bytes([ROW[0] + 1])
INDEX_END = bytes([DEADLINE[0] + 1])
SIGN = 1 << 63

Deadlines: TypeAlias = Sequence[tuple[bytes, bytes]]  # time and key, as the kernel gives them
DeadlinesOf: TypeAlias = Callable[[Sequence[tuple[bytes, bytes]]], Deadlines]


class Index(Enum):
    """How far an index of deadlines is."""

    NONE = "none"
    BUILDING = "building"
    READY = "ready"


class TimerIndex:
    """The index of one store, and what is known of it without looking."""

    def __init__(self, store: Store) -> None:
        self._store = store
        progress = store.get(INDEXED)
        self.status = Index.NONE if progress is None else Index.BUILDING if progress else Index.READY
        self._next_row = progress or ROW  # rows before this are in the index
        self._from = DEADLINE  # entries before this are deleted; to look there would be to wade through them
        self.first_deadline = self._first()
        self._passed: int | None = None  # entries before this go with the commit at hand
        self._earliest = NEVER  # of those that come with it

    def begin(self) -> None:
        """From here on every commit writes its entries."""
        if self.status is Index.NONE:
            self._store.put(INDEXED, ROW)
            self._next_row, self.status = ROW, Index.BUILDING

    def build_some(self, rows_at_once: int, deadlines_of: DeadlinesOf) -> None:
        """Put some more of the stored rows into the index."""
        rows = list(islice(self._store.range(self._next_row, ROWS_END), rows_at_once))
        entries = self._entries(deadlines_of([(key[1:], value) for key, value in rows]))
        self._next_row = rows[-1][0] + b"\0" if len(rows) == rows_at_once else b""
        self._store.write([*entries, (INDEXED, self._next_row)])
        self._begin_at(self._earliest)
        self._earliest = NEVER
        if not self._next_row:
            self.status = Index.READY

    def build(self, rows_at_once: int, deadlines_of: DeadlinesOf) -> None:
        """All that is left of it."""
        self.begin()
        while self.status is not Index.READY:
            self.build_some(rows_at_once, deadlines_of)

    def due(self, watermark: int) -> list[bytes]:
        """Keys of the entries before this time."""
        return [] if self.first_deadline >= watermark else [row[9:] for row in self._due_rows(watermark)]

    def changes(self, deadlines: Deadlines, watermark: int) -> list[Change]:
        """New deadlines come in, those before the watermark go: for the commit at hand."""
        changes = self._entries(deadlines)
        if self.first_deadline < watermark:
            changes += [(row, None) for row in self._due_rows(watermark)]
            self._passed = watermark
        return changes

    def committed(self) -> None:
        """What `changes` gave is in the store now."""
        if self._passed is not None:
            self._from = DEADLINE + time_bytes(self._passed)
            self._passed = None
            self.first_deadline = self._first()
        self._begin_at(self._earliest)
        self._earliest = NEVER

    def _begin_at(self, earliest: int) -> None:
        """Whatever is in the index is seen, wherever it was thought to begin."""
        if earliest < NEVER:
            self._from = min(self._from, DEADLINE + time_bytes(earliest))
            self.first_deadline = min(self.first_deadline, earliest)

    def _entries(self, deadlines: Deadlines) -> list[Change]:
        if deadlines:
            self._earliest = min(self._earliest, int.from_bytes(min(deadlines)[0], "big") - SIGN)
        return [(DEADLINE + time + key, b"") for time, key in deadlines]

    def _due_rows(self, watermark: int) -> list[bytes]:
        return [row for row, _ in self._store.range(self._from, DEADLINE + time_bytes(watermark))]

    def _first(self) -> int:
        for row, _ in self._store.range(self._from, INDEX_END):
            return int.from_bytes(row[1:9], "big") - SIGN
        return NEVER


def overdue_rows(rows: Iterable[tuple[bytes, bytes]], watermark: int) -> Iterator[tuple[bytes, int]]:
    """Of stored rows, those whose states had to be looked at before this event time, and when. A commit leaves none."""
    for index, row in deadlines_in(rows):
        time = int.from_bytes(index[1:9], "big") - SIGN
        if time < watermark:
            yield row, time


def time_bytes(time: int) -> bytes:
    """A time as 8 bytes that sort as the numbers do."""
    return (time + SIGN).to_bytes(8, "big")
