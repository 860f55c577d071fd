"""Which part of a task's state is in memory. The store holds all of it; memory holds what was touched lately.

`Residence` is the source of truth for the rules' states between two commits. What a step changes is only in memory
until the commit stands; an aborted commit throws the whole of it away, so memory never holds what a store must not.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import islice

from samovar.changelog.record import DEADLINE, INDEXED, ROW, key_prefix, unreadable_rows
from samovar.patterns.matcher import NEVER, Matches, StateError, States, step
from samovar.patterns.native import Batch
from samovar.state.store import Change, TaskStore
from samovar.tasks.plan import Plan

WHOLE_STATES = 100_000  # up to so many are always all in memory, and need no index of deadlines
INDEX_ROWS = 4_000  # that are looked at together while the index is being made
ROWS_END = bytes([ROW[0] + 1])
INDEX_END = bytes([DEADLINE[0] + 1])
SIGN = 1 << 63


class Index(Enum):
    """Whether the store has an index of deadlines: which keys to look at when event time passes.

        NONE --> BUILDING --> READY

    A small state is all in memory and has none. Once there is one, it stays.
    """

    NONE = "none"
    BUILDING = "building"
    READY = "ready"


class Residence:
    """States of all rules of one task, over its store."""

    def __init__(self, plan: Plan, store: TaskStore, topics: Sequence[str]) -> None:
        self.plan = plan
        self.topics = topics  # of the inputs, by their numbers
        self.store = store
        self.is_forgotten = False
        self._dropped_before = 0
        self._index_from = DEADLINE  # entries before this are deleted; to look there would be to wade through them
        self._first_deadline = self._first_in_index()
        self._passed: int | None = None  # entries before this go with the commit at hand
        self._looked_at = ROW  # rows before this are in the index that is being made
        self.states = self._fresh()
        self.index = Index.READY if store.get(INDEXED) is not None else Index.NONE
        self.whole = self._load_whole()
        if not self.whole and self.index is Index.NONE:
            self.index = Index.BUILDING

    def _fresh(self) -> States:
        return States(
            self.plan.program, max_partials=self.plan.max_partials, max_events=self.plan.max_events, topics=self.topics
        )

    def _load_whole(self) -> bool:
        """A small store is loaded at once; of a larger one, keys come when they are needed."""
        if self.index is Index.READY or self.store.rows_about() > 2 * WHOLE_STATES:
            return False
        rows = list(islice(self.store.range(ROW, ROWS_END), WHOLE_STATES + 1))
        if len(rows) > WHOLE_STATES:
            return False
        self._load(rows)
        return True

    def run(self, released: Batch, watermark: int) -> Matches:
        """Take released events through the rules; then let event time pass."""
        if not self.whole:
            self._bring_in(self.states.cold_keys(released))
            self._bring_in(self.states.unknown_keys(self._due(watermark)))
        return step(self.states, released, watermark)

    def next_deadline(self) -> int:
        """Event time at which something may happen with no event."""
        return min(self.states.next_deadline(), NEVER if self.whole else self._first_deadline)

    def _bring_in(self, keys: Sequence[bytes]) -> None:
        if keys:
            found = self.store.prefixes([key_prefix(key) for key in keys])
            self._load([row for rows in found for row in rows])

    def _load(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        try:
            self.states.load([(key[1:], value) for key, value in rows])
        except StateError:
            raise unreadable_rows(value for _, value in rows) from None

    # ------------------------------------------------------------ deadlines

    def _due(self, watermark: int) -> list[bytes]:
        """Keys of the index's entries before this time."""
        return [] if self._first_deadline >= watermark else [row[9:] for row in self._due_rows(watermark)]

    def _due_rows(self, watermark: int) -> list[bytes]:
        return [row for row, _ in self.store.range(self._index_from, DEADLINE + time_bytes(watermark))]

    def _entries(self, deadlines: Sequence[tuple[bytes, bytes]]) -> list[Change]:
        if deadlines:
            self._first_deadline = min(self._first_deadline, int.from_bytes(min(deadlines)[0], "big") - SIGN)
        return [(DEADLINE + time + key, b"") for time, key in deadlines]

    def index_some(self) -> bool:
        """Put some more of the stored rows into the index that is being made; True when that was the last of them.

        Until then a deadline of a key that is not in memory may be noticed late, which changes when its match comes
        and not what it says.
        """
        rows = list(islice(self.store.range(self._looked_at, ROWS_END), INDEX_ROWS))
        entries = self._entries(self.states.deadlines_of([(key[1:], value) for key, value in rows]))
        if len(rows) == INDEX_ROWS:
            self._looked_at = rows[-1][0] + b"\0"
        else:
            entries.append((INDEXED, b""))
            self.index = Index.READY
        self.store.write(entries)
        return self.index is Index.READY

    # ------------------------------------------------------------ commits

    def changes(self, watermark: int) -> tuple[list[Change], list[Change]]:
        """Rows that changed, which are logged; and changes of the index of deadlines, which are not."""
        rows = [(ROW + key, value) for key, value in self.states.changed_rows()]
        if self.is_forgotten:
            there = {row for row, _ in rows}
            rows = [(row, None) for row, _ in self.store.range(ROW, ROWS_END) if row not in there] + rows
        if self.index is Index.NONE:
            return rows, []
        index = self._entries(self.states.deadlines())
        if self._first_deadline < watermark:
            index += [(row, None) for row in self._due_rows(watermark)]
            self._passed = watermark
        return rows, index

    def committed(self) -> None:
        """What `changes` gave is in the store now."""
        self.is_forgotten = False
        if self._passed is not None:
            self._index_from = DEADLINE + time_bytes(self._passed)
            self._passed = None
            self._first_deadline = self._first_in_index()
        if self.index is Index.NONE and self.states.live() > WHOLE_STATES:
            self.index = Index.BUILDING

    def forget(self) -> None:
        """All states are gone from here on. Their rows go with the next commit, and until then none of them is read."""
        self._dropped_before += self.states.dropped()
        self.states = self._fresh()
        self.whole = self.is_forgotten = True

    def let_go(self) -> None:
        """Hold nothing in memory; the store has it all."""
        self._dropped_before += self.states.dropped()
        self.states = self._fresh()
        self.whole = False
        if self.index is Index.NONE:
            self.index = Index.BUILDING

    def dropped(self) -> int:
        """Partial matches and events that went because of a limit, since the task began."""
        return self._dropped_before + self.states.dropped()

    def _first_in_index(self) -> int:
        for row, _ in self.store.range(self._index_from, INDEX_END):
            return int.from_bytes(row[1:9], "big") - SIGN
        return NEVER


def time_bytes(time: int) -> bytes:
    """A time as 8 bytes that sort as the numbers do."""
    return (time + SIGN).to_bytes(8, "big")
