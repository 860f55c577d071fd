"""Rules over a part of history, to what they find: one partition, or several as one. Memory has a bound.

Nothing here knows whether it runs in the command itself or in a task of Spark: `run_fold` gives the same either way.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from samovar.changelog.formats.journal import JournalEntry, effective_entries
from samovar.changelog.log import Log
from samovar.common.errors import Refused
from samovar.native.kernel import Batch
from samovar.patterns.engine.compile import compile_rules
from samovar.patterns.engine.matcher import Matches
from samovar.patterns.engine.order import NO_TIME
from samovar.patterns.syntax.tree import Rule
from samovar.service.backtest.lanes import Lane, OffsetSpan, PartitionCounts, merged
from samovar.service.config.models import ServiceFile
from samovar.service.topology.plans import input_of
from samovar.state.memory import MemoryStore
from samovar.state.rocks import RocksStore
from samovar.tasks.model.plan import OutputTopics, Plan
from samovar.tasks.replay.rebuild import journal_of
from samovar.tasks.rules.state_cache import StateCache

STATE_BYTES = 1 << 30  # of states in memory; beyond it they go to a store on disk
LOOK_EVERY = 500_000  # events between two looks at that

OnEvents = Callable[[int], None]  # how many more were read


@dataclass(frozen=True, kw_only=True)
class Fold:
    """What one run is over. Plain data, so that it can be sent to another machine."""

    rules: tuple[Rule, ...]
    streams: tuple[str, ...]
    spans: tuple[OffsetSpan, ...]
    until_ms: int
    state_bytes: int
    placed_in: int  # partitions among which keys are placed, where one partition alone is folded

    @property
    def records(self) -> int:
        return sum(span.records for span in self.spans)

    @property
    def partition(self) -> int:
        """The partition that it is over; -1 where there are several."""
        return self.spans[0].partition if len(self.spans) == 1 else -1


class FoldedMatch(NamedTuple):
    """A match as it is compared, and its line of JSON."""

    rule: str
    partition: int
    key: bytes
    start: int
    at: int
    line: bytes


@dataclass(kw_only=True)
class Tally:
    """What folds met on their way. Where several read the same partition, it counts once."""

    seen: dict[tuple[str, int], PartitionCounts] = field(default_factory=dict)  # by stream and partition
    max_event_time: int = NO_TIME
    dropped: Counter[str] = field(default_factory=Counter)  # by rule: partial matches and events beyond a limit
    no_key: Counter[str] = field(default_factory=Counter)
    suppressed: Counter[str] = field(default_factory=Counter)

    @property
    def totals(self) -> PartitionCounts:
        return sum(self.seen.values(), PartitionCounts())

    def add_partition(self, place: tuple[str, int], counts: PartitionCounts) -> None:
        self.seen[place] = max(counts, self.seen.get(place, counts), key=lambda each: each.records)

    def add(self, other: Tally) -> None:
        self.max_event_time = max(self.max_event_time, other.max_event_time)
        for place, counts in other.seen.items():
            self.add_partition(place, counts)
        self.dropped.update(other.dropped)
        self.no_key.update(other.no_key)
        self.suppressed.update(other.suppressed)


def run_fold(settings: ServiceFile, log: Log, fold: Fold, tally: Tally, on_events: OnEvents) -> Iterator[FoldedMatch]:
    """All matches of a fold, in order of event time; what else it met is added to the tally."""
    inputs = tuple(input_of(name, settings.streams[name], fold.placed_in) for name in fold.streams)
    topics = OutputTopics(
        alerts="", late="", dead_letters="", changelog=settings.changelog.topic, journal=settings.journal.topic
    )
    limits = settings.max_partials, settings.max_events, settings.max_matches, settings.tunables
    plan = Plan(settings.service, inputs, compile_rules(fold.rules), (), topics, *limits)
    lanes = [Lane(log, plan, each, _journal(log, plan, each.partition), fold.until_ms) for each in fold.spans]
    read = 0
    with (
        tempfile.TemporaryDirectory(prefix="samovar-backtest-") as folder,
        closing(_States(plan, fold.state_bytes, Path(folder), tally)) as states,
    ):
        try:
            for batch, watermark in merged(lanes, len(plan.fields)):
                if len(batch):
                    tally.max_event_time = max(tally.max_event_time, int(batch.time[-1]))
                matches = states.run(batch, watermark)
                for key, line in matches.records() if len(matches) else ():
                    match: dict[str, Any] = json.loads(line)
                    yield FoldedMatch(match["rule"], fold.partition, key, match["start"], match["at"], line)
                before, read = read, sum(lane.records for lane in lanes)
                on_events(read - before)
        finally:
            for lane in lanes:
                lane.close()
        for lane in lanes:
            for stream, counts in lane.counts.items():
                tally.add_partition((stream, lane.span.partition), counts)
        states.add_to_tally()


def _journal(log: Log, plan: Plan, partition: int) -> Sequence[JournalEntry]:
    """The journal of the main stage, which knows every stream; none where the service never ran."""
    if not log.topics([plan.topics.journal]):
        return ()
    try:
        return effective_entries(journal_of(log, plan, partition))
    except Refused as refused:
        if refused.code != "journal-cut":
            raise
        return ()


class _States:
    """The rules' states: in memory while they fit there, else also on disk."""

    def __init__(self, plan: Plan, limit: int, folder: Path, tally: Tally) -> None:
        self.plan, self.limit, self.folder, self.tally = plan, limit, folder, tally
        self.state_cache = StateCache(plan, MemoryStore(), [spec.origin for spec in plan.inputs])
        self.store: RocksStore | None = None
        self._since_look = 0

    def run(self, batch: Batch, watermark: int) -> Matches:
        found = self.state_cache.run(batch, watermark).render()
        self._since_look += len(batch)
        if self._since_look >= LOOK_EVERY:
            self._since_look = 0
            if self.state_cache.states.memory_bytes() > self.limit:
                self._spill(watermark)
        return found

    def _spill(self, watermark: int) -> None:
        """Moves all states to the disk; those that are needed again come back."""
        if self.store is None:
            self.store = RocksStore(self.folder / "states")
            self.state_cache.spill_to(self.store)
        rows, index = self.state_cache.changes(watermark)
        self.store.write([*rows, *index])
        self.state_cache.committed()
        self.add_to_tally()
        self.state_cache.evict()

    def add_to_tally(self) -> None:
        """Counts what the states in memory dropped: those that leave it take their counts with them."""
        for number, plan in enumerate(self.plan.program.rules):
            found, rule = self.state_cache.states.tallies(number), plan.rule.id
            self.tally.dropped[rule] += found.dropped_partials + found.dropped_events + found.dropped_matches
            self.tally.no_key[rule] += found.no_key
            self.tally.suppressed[rule] += found.suppressed

    def close(self) -> None:
        if self.store is not None:
            self.store.close()
