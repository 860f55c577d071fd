"""Runs a user-defined task: records in, calls of the user's code, and out comes what one commit has to write.

An event on which the user's code raises becomes a dead letter with the reason, and the next one is taken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from samovar.changelog.formats.dead_letters import SourceCoordinates, failure
from samovar.changelog.formats.journal import JournalEntry, pack_entry
from samovar.changelog.formats.record import POSITION, Position, pack_position
from samovar.changelog.formats.redrives import carried
from samovar.changelog.log import Append, Headers, Pair, Records, TopicPartition
from samovar.common.errors import Refused
from samovar.patterns.engine.order import NO_TIME, OrderedEvents, due_at
from samovar.state.stack import INDEX, reindexed
from samovar.state.store import Change, TaskStore
from samovar.tasks.input.placement import checked_streams
from samovar.tasks.input.source import DecodedBatch, count_misplaced
from samovar.tasks.input.user_source import UserRepartitionSource, UserStreamSource
from samovar.tasks.model.plan import InputSpec, Plan
from samovar.tasks.model.results import NOTHING_SETTLED, Counts, LetterBuffer, Outcome, SettledRecords, added
from samovar.tasks.model.user_spec import TaskSpec
from samovar.tasks.rules.replay_dedup import ReplayDedupFilter
from samovar.tasks.user.calls import Calls, Failure, UserOutput
from samovar.tasks.user.context import Phase
from samovar.tasks.user.timers import reindexed_timers

TASK_FAILED = "TASK_FAILED"
FITS = INDEX  # the key of a local row: the position that the local indexes fit


class UserTaskProcessor:
    """One task of the user's at work on its inputs, from a position on."""

    def __init__(
        self, plan: Plan, partition: int, store: TaskStore, inputs: Sequence[InputSpec], position: Position | None
    ) -> None:
        assert plan.task is not None, plan.stage
        self.plan = plan
        self.spec = plan.task
        self.partition = partition
        self.is_receiving = any(spec.is_forwarded for spec in inputs)
        self.source = (UserRepartitionSource if self.is_receiving else UserStreamSource)(
            inputs, plan.fields, partition, plan.tunables
        )
        if position is not None:
            self.source.resume(position)
        self.source.check_places(checked_streams(plan), position)
        _fit_indexes(store, self.spec, plan.tunables.rebuilt_rows)
        self.calls = Calls(self.spec, partition, store, plan.tunables.cache_bytes)
        self._dedup = ReplayDedupFilter.of(store)
        if self._dedup.topics:
            self.calls.has_emitted = self._has_emitted
        self.changelog_id = self.journal_id = ""
        self.counts = Counts()  # of what is committed
        self.alerts: list[Pair] = []  # rules have them
        self._since = Counts()
        self._dead, self._late = LetterBuffer(), LetterBuffer()
        self._dirty = False
        self.calls.begin(self.watermark)

    @property
    def watermark(self) -> int:
        return self.source.watermark

    @property
    def dirty(self) -> bool:
        """Whether there is something to commit."""
        return self._dirty

    # ------------------------------------------------------------ what happens

    def feed(self, records: Records, settled: SettledRecords = NOTHING_SETTLED) -> frozenset[int]:
        """Take the next records of one input. What its stores hold stays, also where it was away for a while."""
        aside: frozenset[int] = frozenset()
        for piece, _ in self.source.pieces(records):
            fed = self.source.feed(piece)
            aside |= fed.aside(piece)
            if self.spec.alone:  # else the main stage counts them
                self._since.events += len(piece)
            self._put_aside(piece, fed.unsettled(piece, settled))
            self._run(fed.ordered)
        self._since.missed += self.source.take_missed()
        return aside

    def tick(self, now_ms: int) -> bool:
        """Let event time pass where inputs are idle, if anything waits for it."""
        watermark = self.source.idle_watermark(now_ms)
        if watermark <= self.watermark:
            return False
        if not self.source.waits_before(watermark) and not self.calls.is_due(watermark):
            return False
        self._run(self.source.advance(now_ms))
        return True

    def apply(self, entry: JournalEntry) -> None:
        """Do again what the journal tells; only in a replay."""
        self._run(self.source.apply(entry))

    def note_rules(self) -> None:
        """Write to the journal which code is at work from here on. Its text is not there, only its version."""
        facts = {"id": self.spec.name, "class": self.spec.source, "version": self.spec.version}
        self.source.note_rules({"rules": [], "task": facts})
        self._dirty = True

    def _run(self, ordered: OrderedEvents) -> None:
        self._dirty = True
        self.calls.run(self.source.events(ordered.released), ordered.watermark)

    def _has_emitted(self, phase: Phase, now: int) -> bool:
        """Whether a call was made before the task was set back. What it emitted then is in its topics, for good."""
        until = NO_TIME if self._dedup.watermark is None else self._dedup.watermark
        if phase is Phase.PROCESS:
            return bool(due_at(np.array([now]), self.source.buffer, until)[0])
        return now <= until if phase is Phase.WINDOW else now < until

    # ------------------------------------------------------------ what is put aside

    def _put_aside(self, records: Records, fed: DecodedBatch) -> None:
        for late in fed.late:
            where, offset, pair = self.source.letter(records, late.row)
            redriven = carried(records.headers(late.row))
            self._late.put(pair, (*where.late(offset, late.late_ms), self._name, *redriven))
        self._since.late += len(fed.late)
        more = () if self.spec.alone else (self._name,)
        for dead in fed.dead:
            where, offset, pair = self.source.letter(records, dead.row)
            redriven = carried(records.headers(dead.row))
            self._dead.put(pair, (*where.dead(offset, dead.kind, dead.message), *more, *redriven))
        self._since.dead += len(fed.dead)
        self._since.misplaced += count_misplaced(fed)

    def _put_failure_aside(self, failed: Failure) -> None:
        message, trace, event = failed.fault.message, failed.fault.trace, failed.event
        headers: Headers = failure(TASK_FAILED, message, trace)
        if event is not None:
            where = SourceCoordinates.of(event.topic, event.partition, event.stream)
            headers = where.dead(event.offset, TASK_FAILED, message, trace)
        self._dead.put(failed.record, (*headers, self._name, *failed.headers))

    @property
    def _name(self) -> tuple[str, bytes]:
        return "samovar.stage", self.plan.stage.encode()

    # ------------------------------------------------------------ what is to be written

    def position(self) -> Position:
        stream_source = self.source
        watermark = None if stream_source.watermark == NO_TIME else stream_source.watermark
        head = watermark, stream_source.inputs(), stream_source.streams, self.plan.versions, stream_source.journaled
        return Position(*head, changelog=self.changelog_id, service=self.plan.service, journal_id=self.journal_id)

    def outcome(self, more: Sequence[Change] = ()) -> Outcome:
        """All since the last one. `more` are further rows to log."""
        if self.watermark > NO_TIME:
            self.calls.stack.expire(self.watermark)
        done, self.calls.done = self.calls.done, UserOutput()
        for failed in done.failures:
            self._put_failure_aside(failed)
        position = self.position()
        packed = pack_position(position)
        changed, index = self.calls.stack.changes()
        gone = [] if self._dedup.is_idle else self._dedup.changes(position)
        rows = [*more, *changed, *gone, (POSITION, packed)]
        appends = self._appends(rows, done)
        offsets = {TopicPartition(each.topic, self.partition): each.next for each in position.inputs.values()}
        counts = self._counted(done, rows)
        self._since, self._dead, self._late, self.source.entries = Counts(), LetterBuffer(), LetterBuffer(), []
        self._dirty = False
        return Outcome(appends, offsets, [*rows, *index, (FITS, _fit(packed))], position, counts)

    def _appends(self, rows: Sequence[Change], done: UserOutput) -> list[Append]:
        topics, partition = self.plan.topics, self.partition
        appends = [Append(topics.changelog, rows, partition)]
        among = {emit.topic: emit.among for emit in self.spec.emits.values()}
        appends += [Append(topic, pairs, among=among.get(topic)) for topic, pairs in done.emitted.items()]
        if self.source.entries:
            name = str(partition).encode()
            entries = [(name, pack_entry(each)) for each in self.source.entries]
            appends.append(Append(topics.journal, entries, partition))
        for topic, letters in ((topics.dead_letters, self._dead), (topics.late, self._late)):
            if letters.pairs:
                appends.append(Append(topic, letters.pairs, None, letters.headers))
        return appends

    def _counted(self, done: UserOutput, rows: Sequence[Change]) -> Counts:
        since = self._since
        since.commits, since.rows = 1, len(rows)
        since.emitted = sum(map(len, done.emitted.values()))
        since.failed = len(done.failures)
        since.skipped = done.skipped
        since.dead += since.failed
        return since

    def committed(self, outcome: Outcome) -> None:
        """What `outcome` gave is in the log and in the store now."""
        self.counts = added(self.counts, outcome.counts)
        self.calls.stack.committed()

    # ------------------------------------------------------------ what rules need, and tasks do not

    @property
    def indexing(self) -> bool:
        return False

    @property
    def waits_for_index(self) -> bool:
        return False

    def index_some(self) -> None:
        """Indexes are made when the task begins."""

    def gone_rows(self) -> list[Change]:
        """None: a store that the service file names no more keeps its rows, for they may be wanted again."""
        return []

    # ------------------------------------------------------------ memory, and the end

    def memory_bytes(self) -> int:
        return self.calls.stack.cached_bytes

    def evict(self) -> None:
        """Hold nothing in memory that the store has."""
        self.calls.stack.evict()

    def close(self) -> str | None:
        """What is committed is committed: a `close` that raises is only told."""
        try:
            self.calls.close(self.watermark)
        except Refused as refused:
            return f"{refused.code}: {refused.what}"
        return None


def _fit(packed_position: bytes) -> bytes:
    return hashlib.sha256(packed_position).digest()[:16]


def _fit_indexes(store: TaskStore, spec: TaskSpec, rows_at_once: int) -> None:
    """After a restore, or a crash before the last write, rows and indexes are not of one commit: make these again."""
    position = store.get(POSITION)
    if position is None or store.get(FITS) == _fit(position):
        return
    reindexed_timers(store, rows_at_once)
    for name in spec.stores:
        reindexed(store, name, rows_at_once)
    store.put(FITS, _fit(position))
