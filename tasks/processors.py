"""What a task does with its input: rules (`RuleProcessor`), or a user-defined task. Tasks and containers know no more
of it than this.

A processor has no log, no clock and no file of its own. Records, ticks and, in a replay, journal entries go in; what
one commit has to write comes out. The same in gives the same out, however it was cut into batches: a rebuild relies on
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from samovar.changelog.formats.journal import JournalEntry
from samovar.changelog.formats.record import Position
from samovar.changelog.log import Pair, Records
from samovar.state.store import Change, TaskStore
from samovar.tasks.input.source import StreamSource
from samovar.tasks.model.plan import InputSpec, Plan
from samovar.tasks.model.results import NOTHING_SETTLED, Counts, Outcome, SettledRecords
from samovar.tasks.rules.processor import RuleProcessor
from samovar.tasks.user.processor import UserTaskProcessor


class Processor(Protocol):
    """One task's work. `counts` are of what is committed, `alerts` what it found since the last `outcome`."""

    plan: Plan
    counts: Counts
    alerts: list[Pair]
    changelog_id: str  # of the topic that its commits go to
    journal_id: str

    @property
    def source(self) -> StreamSource: ...
    @property
    def watermark(self) -> int: ...
    @property
    def dirty(self) -> bool:
        """Whether there is something to commit."""
        ...

    @property
    def indexing(self) -> bool:
        """Whether `index_some` has work to do."""
        ...

    @property
    def waits_for_index(self) -> bool:
        """Whether it must all be done before anything is fed, so that no timer is passed unseen."""
        ...

    def feed(self, records: Records, settled: SettledRecords = NOTHING_SETTLED) -> frozenset[int]:
        """Take the next records of one input. Of those that are settled no letter is written: another stage of the
        service did it. The offsets of records that were put aside here.
        """
        ...

    def tick(self, now_ms: int) -> bool:
        """Let event time pass where inputs are idle, if anything waits for it; whether it did."""
        ...

    def apply(self, entry: JournalEntry) -> None:
        """Do again what the journal tells; only in a replay."""
        ...

    def index_some(self) -> None: ...
    def note_rules(self) -> None:
        """Write to the journal what is at work from here on."""
        ...

    def position(self) -> Position: ...
    def outcome(self, more: Sequence[Change] = ()) -> Outcome:
        """All since the last one; `more` are further rows to log."""
        ...

    def committed(self, outcome: Outcome) -> None:
        """What `outcome` gave is in the log and in the store now."""
        ...

    def gone_rows(self) -> list[Change]:
        """Tombstones for stored rows of what is at work no more."""
        ...

    def memory_bytes(self) -> int: ...
    def evict(self) -> None:
        """Hold nothing in memory that the store has."""
        ...

    def close(self) -> str | None:
        """Let go of what is held next to the store; what a person should know about it, if anything."""
        ...


def make_processor(
    plan: Plan, partition: int, store: TaskStore, inputs: Sequence[InputSpec], position: Position | None
) -> Processor:
    """What a task of this plan does, over its store, from a stored position on."""
    make = RuleProcessor if plan.task is None else UserTaskProcessor
    return make(plan, partition, store, inputs, position)
