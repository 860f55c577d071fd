"""Rules over history, or a part of it, to what they find. Memory has a bound.

Records are read and decoded once for all rules, a partition per thread. Rules whose keys are in one partition each run
on every partition by itself; the others on all partitions merged, each of several threads with a share of the keys. The
kernel's work is done without Python's lock, and no event is ever an object of Python.

Nothing here knows whether it runs in the command itself or in a task of Spark: `run_fold` gives the same either way.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from samovar.changelog.formats.journal import JournalEntry, effective_entries
from samovar.changelog.log import Log
from samovar.common.errors import Refused
from samovar.native.kernel import Batch
from samovar.patterns.engine.compile import compile_rules
from samovar.patterns.engine.matcher import ALL_KEYS, KeyShare, Matches
from samovar.patterns.engine.order import NO_TIME
from samovar.patterns.syntax.tree import Rule
from samovar.service.backtest.lanes import Lane, LaneBatch, Merge, OffsetSpan, PartitionCounts, read_lanes
from samovar.service.backtest.rules import Group
from samovar.service.config.models import ServiceFile
from samovar.service.topology.plans import input_of
from samovar.state.memory import MemoryStore
from samovar.state.rocks import RocksStore
from samovar.tasks.model.plan import OutputTopics, Plan
from samovar.tasks.replay.rebuild import journal_of
from samovar.tasks.rules.state_cache import StateCache

STEPS_AHEAD = 3  # of a group of rules, before the oldest is waited for
STATE_BYTES = 1 << 30  # of states in memory; beyond it they go to a store on disk
LOOK_EVERY = 500_000  # events between two looks at that, or as many as there are states: each is looked at

_TALLY = Lock()  # of all tallies: it is had for a moment
OnEvents = Callable[[int], None]  # how many more were read


@dataclass(frozen=True, kw_only=True)
class Fold:
    """What one run is over. Plain data, so that it can be sent to another machine."""

    groups: tuple[Group, ...]
    spans: tuple[OffsetSpan, ...]
    until_ms: int
    state_bytes: int
    placed_in: int  # partitions among which keys are placed
    checked: frozenset[str]  # streams whose records must be in the partitions of their keys
    share: KeyShare = ALL_KEYS  # of the keys of rules that run on all partitions merged

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for group in self.groups for name in group.streams))

    @property
    def records(self) -> int:
        return sum(span.records for span in self.spans)

    def parts(self) -> Iterator[Fold]:
        """The same work for several machines, each of which reads what its rules need."""
        for group in self.groups:
            for number, span in enumerate(self.spans):
                if group.apart:
                    yield replace(self, groups=(group,), spans=(span.of(group.streams),))
                else:
                    spans = tuple(each.of(group.streams) for each in self.spans)
                    yield replace(self, groups=(group,), spans=spans, share=KeyShare(number, len(self.spans)))


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


def plan_over(settings: ServiceFile, streams: Iterable[str], rules: Sequence[Rule], placed_in: int) -> Plan:
    """Rules on the streams of a service as they are, whatever its stages."""
    inputs = tuple(input_of(name, settings.streams[name], placed_in) for name in streams)
    changelog, journal = settings.changelog.topic, settings.journal.topic
    topics = OutputTopics(alerts="", late="", dead_letters="", changelog=changelog, journal=journal)
    return Plan(
        service=settings.service,
        inputs=inputs,
        program=compile_rules(rules),
        rules=(),
        topics=topics,
        max_partials=settings.max_partials,
        max_events=settings.max_events,
        max_matches=settings.max_matches,
        tunables=settings.tunables,
    )


def run_fold(
    settings: ServiceFile, log: Log, fold: Fold, tally: Tally, on_events: OnEvents, workers: int = 1
) -> Iterator[FoldedMatch]:
    """All matches of a fold, those of a key in order of event time; what else it met is added to the tally.

    So many threads work at once; what is found does not depend on it.
    """
    plan = plan_over(settings, fold.streams, [rule for group in fold.groups for rule in group.rules], fold.placed_in)
    lanes = [
        Lane(log, plan, each, _journal(log, plan, each.partition), fold.until_ms, fold.checked) for each in fold.spans
    ]
    read = [0] * len(lanes)
    with (
        ThreadPoolExecutor(workers, "backtest") as pool,
        tempfile.TemporaryDirectory(prefix="samovar-backtest-") as folder,
        ExitStack() as stack,
    ):
        runs: list[_GroupRun] = []
        for group in fold.groups:
            own = replace(plan, program=compile_rules(group.rules, plan.program.fields))
            runs.append(_GroupRun(own, group.apart, fold, workers, Path(folder) / str(len(runs)), tally))
            stack.enter_context(closing(runs[-1]))
        for found in stack.enter_context(closing(read_lanes(lanes, pool))):
            if len(found.events):
                tally.max_event_time = max(tally.max_event_time, int(found.events.time[-1]))
            for run in runs:
                yield from run.take(found, pool)
            on_events(found.records - read[found.lane])
            read[found.lane] = found.records
        for run in runs:
            yield from run.finish()
        for lane in lanes:
            for stream, counts in lane.counts.items():
                tally.add_partition((stream, lane.span.partition), counts)


class _GroupRun:
    """One group of rules on its way: its states, and the steps that threads are at, in their order."""

    def __init__(self, plan: Plan, apart: bool, fold: Fold, workers: int, folder: Path, tally: Tally) -> None:
        self._lanes = [Merge(1, 0) for _ in fold.spans] if apart else [Merge(len(fold.spans), len(plan.fields))]
        self._apart = apart
        self._partitions = [span.partition for span in fold.spans] if apart else [-1]
        shares = [ALL_KEYS] if apart else [fold.share.part(number, workers) for number in range(workers)]
        limit = fold.state_bytes // (len(fold.groups) * len(self._lanes) * len(shares))
        self._states = [
            [_States(plan, share, limit, folder / f"{place}-{share.number}", tally) for share in shares]
            for place in range(len(self._lanes))
        ]
        self._steps: deque[tuple[int, list[Future[Matches]]]] = deque()

    def take(self, found: LaneBatch, pool: Executor) -> Iterator[FoldedMatch]:
        """Has the next events of a lane worked on; what came out of earlier ones."""
        place = found.lane if self._apart else 0
        ordered = self._lanes[place].add(found)
        if ordered is not None:
            while len(self._steps) >= STEPS_AHEAD:
                yield from self._result()
            # States are never worked on by two threads at once: a step begins after the one before it.
            self._steps.append((place, [states.submit(pool, *ordered) for states in self._states[place]]))

    def _result(self) -> Iterator[FoldedMatch]:
        place, steps = self._steps.popleft()
        for step in steps:
            for key, line in step.result().records():
                match: dict[str, Any] = json.loads(line)
                at = match["start"], match["at"]
                yield FoldedMatch(match["rule"], self._partitions[place], key, *at, line)

    def finish(self) -> Iterator[FoldedMatch]:
        """What is still to come; then counts are in the tally."""
        while self._steps:
            yield from self._result()
        for states in self._all():
            states.add_to_tally()

    def _all(self) -> Iterator[_States]:
        return chain.from_iterable(self._states)

    def close(self) -> None:
        wait([step for _, steps in self._steps for step in steps])
        for states in self._all():
            states.close()


def lane_of(log: Log, plan: Plan, span: OffsetSpan, until_ms: int, checked: Collection[str], **how: Any) -> Lane:
    """A lane with what the journal says of its partition."""
    return Lane(log, plan, span, _journal(log, plan, span.partition), until_ms, checked, **how)


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
    """The rules' states for a share of the keys: in memory while they fit there, else also on disk."""

    def __init__(self, plan: Plan, share: KeyShare, limit: int, folder: Path, tally: Tally) -> None:
        self.plan, self.limit, self.folder, self.tally = plan, limit, folder, tally
        self.state_cache = StateCache(plan, MemoryStore(), [spec.origin for spec in plan.inputs], share)
        self.store: RocksStore | None = None
        self._since_look = 0
        self._last: Future[Matches] | None = None

    def submit(self, pool: Executor, batch: Batch, watermark: int) -> Future[Matches]:
        """Has a thread take events through the rules, after those that were given before."""
        before, self._last = self._last, Future()
        step = self._last

        def run() -> None:
            try:
                step.set_result(self._run(batch, watermark))
            except BaseException as fault:
                step.set_exception(fault)

        def after(done: Future[Matches]) -> None:
            fault = done.exception()
            if fault is None:
                pool.submit(run)
            else:
                step.set_exception(fault)

        if before is None:
            pool.submit(run)
        else:
            before.add_done_callback(after)
        return step

    def _run(self, batch: Batch, watermark: int) -> Matches:
        found = self.state_cache.run(batch, watermark).render()
        self._since_look += len(batch)
        if self._since_look >= max(LOOK_EVERY, self.state_cache.states.live()):
            self._since_look = 0
            if self.state_cache.states.memory_bytes() > self.limit:
                self._spill(watermark)
        return found

    def _spill(self, watermark: int) -> None:
        """Moves all states to the disk; those that are needed again come back."""
        if self.store is None:
            self.folder.mkdir(parents=True)
            self.store = RocksStore(self.folder / "states")
            self.state_cache.spill_to(self.store)
        rows, index = self.state_cache.changes(watermark)
        self.store.write([*rows, *index])
        self.state_cache.committed()
        self.add_to_tally()
        self.state_cache.evict()

    def add_to_tally(self) -> None:
        """Counts what the states in memory dropped: those that leave it take their counts with them."""
        with _TALLY:
            for number, plan in enumerate(self.plan.program.rules):
                found, rule = self.state_cache.states.tallies(number), plan.rule.id
                self.tally.dropped[rule] += found.dropped_partials + found.dropped_events + found.dropped_matches
                self.tally.no_key[rule] += found.no_key
                self.tally.suppressed[rule] += found.suppressed

    def close(self) -> None:
        if self.store is not None:
            self.store.close()
