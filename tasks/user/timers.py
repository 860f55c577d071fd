"""Timers of a user's task, and the end of its window: rows of the task's own, logged as its stores are. Format 1.

    b"t" + name    when the timer is due: 8 bytes that sort as times do (deadline_index.time_bytes)
    b"w"           the end of the window at hand, as the same 8 bytes; none where nothing happened since the last one

An index row: b"t" + time + name, no value. It is local, and made again from the rows after a restore.
"""

from __future__ import annotations

from collections.abc import Iterator

from samovar.patterns.engine.matcher import NEVER
from samovar.state.prefixed import PrefixedStore, after
from samovar.state.stack import INDEX, ROWS, namespace
from samovar.state.store import Readable, Store, write_some
from samovar.tasks.rules.timer_index import SIGN, time_bytes

OWN = ""  # the name under which a task's own rows are
TIMER, WINDOW = b"t", b"w"


def time_of(packed: bytes) -> int:
    return int.from_bytes(packed[:8], "big") - SIGN


class Timers:
    """The source of truth for what is to be called when. Reads and writes through the overlays of the event at hand."""

    def __init__(self, rows: Store, index: Store) -> None:
        self._rows = rows
        self._index = index
        # Index rows before this were called or unset: to look there is to wade through them. None comes there again: no
        # timer is set before the event time at hand.
        self._passed = TIMER

    def put(self, name: str, at: int) -> None:
        self.delete(name)
        time, key = time_bytes(at), name.encode()
        self._rows.put(TIMER + key, time)
        self._passed = min(self._passed, TIMER + time)
        self._index.put(TIMER + time + key, b"")

    def delete(self, name: str) -> None:
        key = name.encode()
        before = self._rows.get(TIMER + key)
        if before is not None:
            self._rows.delete(TIMER + key)
            self._index.delete(TIMER + before + key)

    def first_before(self, until: int) -> tuple[int, str] | None:
        """The timer that is due first, if that is before this time."""
        for row, _ in self._index.range(self._passed, TIMER + time_bytes(min(until, NEVER))):
            self._passed = row
            return time_of(row[1:]), row[9:].decode()
        self._passed = max(self._passed, TIMER + time_bytes(min(until, NEVER)))
        return None

    def next_time(self) -> int:
        """When the first timer is due; NEVER where there is none."""
        for row, _ in self._index.range(self._passed, after(TIMER)):
            return time_of(row[1:])
        return NEVER

    @property
    def window_end(self) -> int | None:
        packed = self._rows.get(WINDOW)
        return None if packed is None else time_of(packed)

    @window_end.setter
    def window_end(self, end: int | None) -> None:
        if end is None:
            self._rows.delete(WINDOW)
        else:
            self._rows.put(WINDOW, time_bytes(end))


def overdue_timers(base: Readable, watermark: int) -> Iterator[tuple[str, int]]:
    """Timers that had to be called before this event time, and when. A commit leaves none."""
    prefix = namespace(ROWS, OWN) + TIMER
    for row, time in base.range(prefix, after(prefix)):
        if time_of(time) < watermark:
            yield row[len(prefix) :].decode(), time_of(time)


def reindexed_timers(base: Store, rows_at_once: int) -> None:
    """Make the index of timers fit their rows, at once and in the base: it is local, and no commit waits for it."""
    rows, index = PrefixedStore(base, namespace(ROWS, OWN)), PrefixedStore(base, namespace(INDEX, OWN))
    write_some(index, rows_at_once, ((row, None) for row, _ in index.range()))
    write_some(index, rows_at_once, ((TIMER + time + row[1:], b"") for row, time in rows.range(TIMER, after(TIMER))))
