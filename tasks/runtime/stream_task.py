"""One task: one partition of all inputs of a stage, its store, and its life.

    CREATED --> RESTORING --> RUNNING --> CLOSED
       |            |                       ^
       +------------+-----------------------+

CREATED knows its partition only. RESTORING has its store and follows its changelog to the end, and
builds the index of deadlines where it has none. RUNNING takes records.
CLOSED has let go of the store and its lock; a task never comes back from there, another is made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import numpy as np

from samovar.changelog.cursors import RecordSlice
from samovar.changelog.formats.heartbeat import InputReport, TaskReport
from samovar.changelog.formats.record import (
    FOLLOWING,
    FORMATS,
    INDEXED,
    POSITION,
    ROW,
    ChangelogCheckpoint,
    Position,
    deadline_rows,
    pack_following,
    refuse_newer,
    refuse_others,
    row_parts,
    unpack_position,
)
from samovar.changelog.log import Delivery, Log, Records, TopicPartition
from samovar.changelog.restore.restore import ChangelogPartition, Restore, following_of, next_step
from samovar.common.errors import Refused
from samovar.common.failpoints import hit
from samovar.patterns.engine.matcher import NEVER, RuleFailure, StepBudget
from samovar.patterns.engine.order import NO_TIME
from samovar.state import snapshots
from samovar.state.rocks import RocksMemory
from samovar.state.store import Change
from samovar.state.task_storage import DiskStorage, LocalStore, TaskStorage
from samovar.tasks.input.source import numbered
from samovar.tasks.input.startup_checks import (
    check_against_changelog,
    check_against_inputs,
    check_against_journal,
    check_against_offsets,
    recover_waiting,
    rows_of_gone_rules,
)
from samovar.tasks.model.clock import Clock
from samovar.tasks.model.log_events import LogEvent
from samovar.tasks.model.plan import MAIN, Plan
from samovar.tasks.model.results import NOTHING_SETTLED, Counts, Outcome, SettledRecords
from samovar.tasks.processors import Processor, make_processor
from samovar.tasks.replay.rebuild import entries_of
from samovar.tasks.replay.repair import plan_of_position
from samovar.tasks.rules.backfill import warm_offsets, warm_rows
from samovar.tasks.rules.crash_marks import CrashMarks
from samovar.tasks.rules.migration import (
    RuleMigration,
    book_of,
    book_row,
    is_due,
    migrate,
    plan_of_facts,
    quarantine,
    switch_rows,
)
from samovar.tasks.rules.processor import RuleProcessor
from samovar.tasks.rules.rate_limiter import limits_in, limits_row

LIVE_BUDGET = StepBudget()


class RulesBehind(Exception):
    """A state was made by a change of the rules that is not known here yet."""

    def __init__(self, change: int, task: str) -> None:
        super().__init__(f"{task} stands for change {change} of the rules")
        self.change = change


class TaskState(Enum):
    """Where a task is in its life, and where it may go."""

    CREATED = "created"
    RESTORING = "restoring"
    RUNNING = "running"
    CLOSED = "closed"

    def can_transition_to(self, other: TaskState) -> bool:
        return other in _MOVES[self]


_MOVES = {
    TaskState.CREATED: {TaskState.RESTORING, TaskState.CLOSED},
    TaskState.RESTORING: {TaskState.RUNNING, TaskState.CLOSED},
    TaskState.RUNNING: {TaskState.CLOSED},
    TaskState.CLOSED: set(),
}


@dataclass(frozen=True)
class TaskConfig:
    """How a task keeps its state: where, what is shared, and how many snapshots stay.

    Restores and snapshots work in threads of their own unless `has_threads` is off: then one container is one thread.
    """

    folder: Path
    memory: RocksMemory
    group: str
    delivery: Delivery
    delete_retention_ms: int
    snapshot_keep: int
    budget: StepBudget = LIVE_BUDGET
    has_threads: bool = True
    storage: Callable[[Path], TaskStorage] | None = None  # by a task's folder; None: on disk, in that folder

    def storage_in(self, folder: Path) -> TaskStorage:
        if self.storage is not None:
            return self.storage(folder)
        return DiskStorage(folder, self.memory, in_thread=self.has_threads)


class StreamTask:
    """The source of truth for one partition's state while this process owns it."""

    def __init__(
        self,
        plan: Plan,
        partition: int,
        log: Log,
        config: TaskConfig,
        clock: Clock,
        shared: Collection[str] = (),
    ) -> None:
        """`shared` are inputs that other stages read too: the group's offset is that of the one furthest behind."""
        self.plan = plan
        self.partition = partition
        self.shared = frozenset(shared)
        self.log = log
        self.config = config
        self.clock = clock
        self.state = TaskState.CREATED
        self.folder = task_folder(config.folder, partition, plan.stage)
        self.notes: list[str] = []  # what a person should know: wipes, skipped snapshots, dropped states
        self._committed: Mapping[TopicPartition, int | None] = {}
        self._storage = config.storage_in(self.folder)
        self._store: LocalStore | None = None
        self._processor: Processor | None = None
        self._counts = Counts()  # while there is none
        self._restore: Restore | None = None
        self._dropped: list[Change] = []
        self._following: ChangelogCheckpoint | None = None
        self._snapshot_at_ms = clock.steady_ms()
        self.failure: RuleFailure | None = None  # for which a rule is to be taken out
        self._ended_by: RuleFailure | None = None  # the process, while the rule was not at work yet
        self._backfill_failures: list[RuleFailure] = []  # of rules that came in quarantined, to be told to all
        self.is_abandoned = False  # its inputs are to be read again from its position on
        self.piece_rows: int | None = None  # records that are taken at once, where whole batches find too much
        self._takes_all = False  # the next step may find as much as it likes: it cannot be cut
        self._mark = CrashMarks(self.folder)

    def _become(self, life: TaskState) -> None:
        assert self.state.can_transition_to(life), (self.state, life)
        self.state = life

    @property
    def name(self) -> str:
        """As people are told of it."""
        return name_of(self.plan.stage, self.partition)

    @property
    def processor(self) -> Processor:
        assert self._processor is not None, self.state
        return self._processor

    @property
    def counts(self) -> Counts:
        """What it did so far; after a step that was abandoned, also where it could not begin again."""
        return self._counts if self._processor is None else self._processor.counts

    @property
    def store(self) -> LocalStore:
        assert self._store is not None, self.state
        return self._store

    @property
    def inputs(self) -> list[TopicPartition]:
        return [TopicPartition(spec.topic, self.partition) for spec in self.plan.inputs]

    # ------------------------------------------------------------ restoring

    def open(self) -> None:
        """Take the store and begin to restore it. Reading the group's offsets first waits for what is pending.

        Raises StoreHeld, and may be called again, where another process has the store.
        """
        self._store = self._storage.open()
        self._become(TaskState.RESTORING)
        self._committed = self.log.committed(self.config.group, self.inputs)
        at = TopicPartition(self.plan.topics.changelog, self.partition)
        self.changelog = ChangelogPartition.look(self.log, at, self.config.delete_retention_ms, self.plan.service)
        data = self._store.get(POSITION)
        refuse_others(None if data is None else unpack_position(data), self.plan.service, f"the state in {self.folder}")
        start = self._start()
        self._restore = Restore(
            self.store,
            self.log,
            self.changelog,
            start,
            in_thread=self.config.has_threads,
            now_s=lambda: self.clock.steady_ms() / 1000,
        )

    def _start(self) -> int:
        """Where the store goes on in its changelog. It is replaced by a snapshot or by nothing where it must be."""
        following = following_of(self.store)
        start = next_step(following, self.changelog, self.clock.wall_ms())
        if following is not None and start is not None:
            return start
        if following is not None:
            self.notes.append(f"{self.name}: the store is too old to be tailed, and was replaced whole")
        return self._replace_store()

    def _replace_store(self) -> int:
        self.store.close()
        self._storage.wipe()
        found = self._storage.newest_snapshot()
        self.notes += [f"{self.name}: {reason}" for reason in found.skipped]
        if found.snapshot is not None and self._usable(found.snapshot):
            self._storage.restore_snapshot(found.snapshot)
        self._store = self._storage.open()
        start = next_step(following_of(self.store), self.changelog, self.clock.wall_ms())
        assert start is not None, "a usable snapshot can be tailed"
        return start

    def _usable(self, snapshot: snapshots.Snapshot) -> bool:
        known = snapshot.manifest.changelog
        following = ChangelogCheckpoint(
            known.topic, known.topic_id, known.partition, known.partitions, known.offset, known.time_ms
        )
        try:
            refuse_newer(snapshot.manifest.formats, "its state")
            return next_step(following, self.changelog, self.clock.wall_ms()) is not None
        except Refused as refused:
            self.notes.append(f"{self.name}: snapshot {snapshot.number} was passed over: {refused.what}")
            return False

    @property
    def restore(self) -> Restore:
        assert self._restore is not None, self.state
        return self._restore

    def restore_some(self, timeout_s: float) -> bool:
        """Restore a little more. True when the task is running."""
        if self.state is TaskState.RUNNING:
            return True
        if self._processor is None:
            if not self.restore.advance(timeout_s):
                return False
            if self.restore.records:
                self.notes.append(f"{self.name}: {self.restore.records:,} records restored")
            self._start_processing()
        if self.processor.waits_for_index:
            self.processor.index_some()
            return False
        self._become(TaskState.RUNNING)
        return True

    def _start_processing(self) -> None:
        data = self.store.get(POSITION)
        position = None if data is None else unpack_position(data)
        check_against_changelog(position, self.changelog.topic, self.partition)
        check_against_offsets(position, self._own_offsets(position), self.partition, self.config.delivery)
        self._check_journal(position)
        self._begin(position)
        self._following = following_of(self.store)
        self.failure = self._mark.failure_of(self.processor.plan, self.plan)

    def _check_journal(self, position: Position | None) -> None:
        """A journal that is another topic now is read: one that was put back from a copy has all entries."""
        name = self.plan.topics.journal
        topic = self.log.topics([name])[name]
        if position is not None and position.journal_id not in ("", topic.id):
            entries = entries_of(self.log, TopicPartition(name, self.partition))
            check_against_journal(position, topic, {entry.number for entry in entries}, self.partition)

    def _begin(self, position: Position | None, standing: Plan | None = None) -> None:
        """From what is committed on, with the rules that are at work: `standing`, of a task that goes on."""
        self._dropped = []
        wanted = standing or self.plan
        self._processor = self._processor_of(standing or self._standing(position), position)
        if wanted.book is None:
            self._dropped = self._rows_of_gone_rules(position, wanted)
            has_other_limits = wanted.task is None and dict(limits_in(self.store)) != dict(wanted.storm)
            if has_other_limits:
                self._dropped += limits_row(wanted.storm)
            is_other = position is None or dict(position.rules) != wanted.versions
            if is_other or has_other_limits or (position is not None and self._has_other_inputs(position)):
                self._processor.note_rules()
        elif position is None:
            self._dropped = book_row(wanted)
            self._processor.note_rules()
        self._limit()

    def _count_on(self, counts: Counts) -> None:
        if isinstance(self.processor, RuleProcessor):
            self.processor.count_on(counts)
        else:
            self.processor.counts = counts

    def _limit(self) -> None:
        if isinstance(self.processor, RuleProcessor):
            budget = replace(self.config.budget, mark=self._mark.path)
            self.processor.state_cache.limit(replace(budget, step_bytes=NEVER) if self._takes_all else budget)

    def _standing(self, position: Position | None) -> Plan:
        """The plan with the rules that are at work here: those of a published change come in by a switch."""
        facts = book_of(self.store)
        if self.plan.book is None or position is None:
            if facts is not None:
                raise RulesBehind(facts["book"], self.name)
            return self.plan
        if facts is None:  # the rules were those of files so far
            return replace(plan_of_position(self.log, self.plan, self.partition, position), book=None)
        if facts["book"] > self.plan.book.change:
            raise RulesBehind(facts["book"], self.name)
        return plan_of_facts(self.plan, facts, position.inputs)

    def _processor_of(self, plan: Plan, position: Position | None) -> Processor:
        """The rules of a plan, from a position on."""
        specs = numbered(position, plan.inputs)
        topics = self.log.topics([*(spec.topic for spec in specs), plan.topics.journal])
        bounds = self.log.bounds([TopicPartition(spec.topic, self.partition) for spec in plan.inputs])
        if position is not None:
            check_against_inputs(position, specs, topics, bounds, self.partition)
        processor = make_processor(plan, self.partition, self.store, specs, position)
        processor.changelog_id, processor.source.partitions_now = self.changelog.topic.id, self._partitions_now
        processor.journal_id = topics[plan.topics.journal].id
        if position is not None:
            recover_waiting(self.log, processor.source, position, self.partition)
        for source in processor.source.sources.values():
            if position is None or source.spec.stream not in position.inputs:
                source.topic_id = topics[source.spec.topic].id
                source.next = bounds[TopicPartition(source.spec.topic, self.partition)].begin
        return processor

    def _partitions_now(self, topic: str) -> int:
        found = self.log.topics([topic]).get(topic)
        return 0 if found is None else found.partitions

    def _has_other_inputs(self, position: Position) -> bool:
        """Whether a stage's rules have other streams than before; the main stage always has all."""
        return self.plan.stage != MAIN and position.inputs.keys() != self.processor.source.sources.keys()

    def _own_offsets(self, position: Position | None) -> Mapping[TopicPartition, int | None]:
        """The group's offsets that must agree with the position. That of a shared input is that of the stage furthest
        behind: of another one, or of those that were there while this one was not; it reads on from its own. The main
        stage is always there. Where a stage never ran, the offset is none of its business.
        """
        stored = {} if position is None else {each.topic: each.next for each in position.inputs.values()}
        journal = TopicPartition(self.plan.topics.journal, self.partition)
        is_new = position is None and self.log.bounds([journal])[journal].end == 0

        def is_own(topic: str, offset: int) -> bool:
            if topic not in self.shared or (self.plan.stage == MAIN and stored.get(topic, -1) < offset):
                return True
            return not is_new and topic not in stored

        return {at: offset if is_own(at.topic, offset or 0) else None for at, offset in self._committed.items()}

    def _rows_of_gone_rules(self, position: Position | None, plan: Plan) -> list[Change]:
        if position is None or dict(position.rules) == plan.versions:
            return []
        gone = self.processor.gone_rows()
        if gone:
            listed = ", ".join(sorted({row_parts(row)[1] for row, _ in gone}))
            self.notes.append(f"{self.name}: rules changed; {len(gone)} rows are dropped, of {listed}")
        return gone

    # ------------------------------------------------------------ published rules

    @property
    def migration_due(self) -> bool:
        """Whether a change of rules is to come in, between two batches."""
        if self.plan.book is None or self.state is not TaskState.RUNNING:
            return False
        return is_due(self.processor.plan, self.plan, _known(self.processor.watermark))

    def begin_migration(self) -> Outcome:
        """The last of the rules before a change: what it commits is what those after it begin from."""
        assert not self.dirty, self.name
        assert isinstance(self.processor, RuleProcessor), self.name
        switch, warm = self._backfill(migrate(self.processor.plan, self.plan, _known(self.processor.watermark)))
        rows = switch_rows(self.store, switch.plan, switch.moves)
        self.processor.turn(switch, self._nexts_after(switch.plan))
        self._tell_switch(switch, rows)
        outcome = self.processor.outcome([*rows, *warm])
        if self.store.get(INDEXED) is not None:
            outcome.changes.extend(deadline_rows([*rows, *warm]))
        return outcome

    def _backfill(self, switch: RuleMigration) -> tuple[RuleMigration, list[Change]]:
        """The change, and the rows of its rules' history. A rule that goes over the budget comes in quarantined."""
        failure, self._ended_by = self._ended_by, None
        if failure is not None:
            switch = self._without(switch, failure)
        assert isinstance(self.processor, RuleProcessor), self.name
        while switch.warm:
            since = warm_offsets(self.log, switch.plan, self.partition, switch.warm)
            switch = replace(switch, warm_from=since)
            specs = numbered(self.processor.position(), switch.plan.inputs)
            budget = replace(self.config.budget, mark=self._mark.path)
            try:
                return switch, warm_rows(self.log, switch, self.partition, self.processor, specs, budget)
            except RuleFailure as failed:
                self._mark.put_away()
                switch = self._without(switch, failed)
        return switch, []

    def take_backfill_failures(self) -> list[RuleFailure]:
        """Rules that came in quarantined since this was last asked: all tasks are to be told."""
        found, self._backfill_failures = self._backfill_failures, []
        return found

    def _without(self, switch: RuleMigration, failure: RuleFailure) -> RuleMigration:
        """The change with the rule in quarantine whose history cannot be folded."""
        if failure.rule not in switch.warm:
            return switch
        quarantined = quarantine(switch.plan, failure)
        if quarantined is None:
            return switch
        self._tell_quarantine(failure)
        self._backfill_failures.append(failure)
        warm = tuple(rule for rule in switch.warm if rule != failure.rule)
        return replace(switch, plan=quarantined.plan, warm=warm, quarantine=quarantined.quarantine)

    def end_migration(self) -> None:
        """What `begin_migration` gave is in the log and in the store."""
        data, before = self.store.get(POSITION), self.processor
        assert data is not None
        self._processor = self._processor_of(before.plan, unpack_position(data))
        self._count_on(before.counts)
        self._limit()

    def _nexts_after(self, plan: Plan) -> dict[str, int]:
        """Where the inputs are read on; a stage may have another stream now, from its begin."""
        known = self.processor.source.nexts()
        new = [TopicPartition(spec.topic, self.partition) for spec in plan.inputs if spec.stream not in known]
        bounds = self.log.bounds(new) if new else {}
        return {
            spec.stream: known[spec.stream]
            if spec.stream in known
            else bounds[TopicPartition(spec.topic, self.partition)].begin
            for spec in plan.inputs
        }

    def _tell_switch(self, switch: RuleMigration, rows: Sequence[Change]) -> None:
        assert switch.plan.book is not None
        gone = {row_parts(row)[1] for row, value in rows if value is None and row[:1] == ROW} - switch.moves.keys()
        more = f", states of {', '.join(sorted(gone))} are dropped" if gone else ""
        more += f", the history of {', '.join(switch.warm)} is folded" if switch.warm else ""
        drains = [rule.name for rule in switch.plan.rules if rule.drains]
        more += f", {', '.join(drains)} drains" if drains else ""
        text = f"{self.name}: rules of change {switch.plan.book.change} from here on{more}"
        self.notes.append(LogEvent(text, "rules", partition=self.partition, change=switch.plan.book.change))

    # ------------------------------------------------------------ a step that was abandoned

    def abandon(self, failure: RuleFailure | None, rows: int) -> None:
        """Begin again from what is committed, after a step that was abandoned while `rows` records were taken. Where no
        rule is at fault, fewer are taken at once.
        """
        if failure is None and rows > 1:
            self.piece_rows = rows // 2
        elif failure is None:
            self._takes_all = True
        self._mark.put_away()
        data, standing = self.store.get(POSITION), self.processor.plan
        self._counts = self.processor.counts
        self._processor = None  # its memory goes before there is another
        self._begin(None if data is None else unpack_position(data), standing)
        self._count_on(self._counts)
        self.failure, self.is_abandoned = failure, True

    def begin_quarantine(self) -> Outcome | None:
        """What takes the rule out that failed, at the position before the batch; None where it is not at work."""
        assert isinstance(self.processor, RuleProcessor), self.name
        failure, self.failure = self.failure, None
        switch = None if failure is None else quarantine(self.processor.plan, failure)
        if switch is None or failure is None:
            self._ended_by = failure
            return None
        has_book = switch.plan.book is not None
        rows = switch_rows(self.store, switch.plan, {}) if has_book else rows_of_gone_rules(self.store, switch.plan)
        self.processor.turn(switch, self._nexts_after(switch.plan))
        self._tell_quarantine(failure)
        dropped, self._dropped = self._dropped, []
        return self.processor.outcome([*dropped, *rows])

    def _tell_quarantine(self, failure: RuleFailure) -> None:
        text = f"{self.name}: rule {failure.rule} is in quarantine: {failure.reason}; its states are dropped"
        facts = {"rule": failure.rule, "version": failure.version, "reason": failure.reason}
        self.notes.append(LogEvent(text, "rule-quarantined", "error", partition=self.partition, **facts))

    def pieces(self, records: Records) -> Iterator[Records]:
        """Records as many at a time as may be taken."""
        if self.piece_rows is None or len(records) <= self.piece_rows:
            yield records
            return
        first = 0
        while first < len(records) and self.piece_rows is not None:
            end = min(first + self.piece_rows, len(records))
            next_ = records.next if end == len(records) else int(records.offsets[end])
            yield RecordSlice(records, first, end, next_)
            first = end
        if first < len(records):
            yield RecordSlice(records, first, len(records), records.next)

    def _take_more(self) -> None:
        """A commit went well: more may be taken at once again."""
        if self._takes_all:
            self._takes_all = False
            self._limit()
        if self.piece_rows is not None:
            is_small = self.piece_rows < self.plan.tunables.piece_records
            self.piece_rows = self.piece_rows * 2 if is_small else None

    # ------------------------------------------------------------ running

    def positions(self) -> dict[TopicPartition, int]:
        """Where to read each input on."""
        sources = self.processor.source.sources.values()
        return {TopicPartition(each.spec.topic, self.partition): each.next for each in sources}

    # ------------------------------------------------------------ what others may know of it

    @property
    def watermark(self) -> int:
        return self.processor.watermark

    @property
    def rule_processor(self) -> RuleProcessor | None:
        """What runs the rules; None of a task that runs code of the user's."""
        return self.processor if isinstance(self.processor, RuleProcessor) else None

    @property
    def ruleset_change(self) -> int:
        """The number of the published change that is at work; 0 where nothing was published."""
        book = self.processor.plan.book
        return 0 if book is None else book.change

    @property
    def found_bytes(self) -> int:
        """Of matches that are not committed."""
        return 0 if self.rule_processor is None else self.rule_processor.found_bytes

    def next_offset(self, topic: str) -> int:
        return self.processor.source.by_topic[topic].next

    def inputs_ahead(self, now_ms: int) -> set[TopicPartition]:
        """Inputs whose events wait for others."""
        return self.processor.source.ahead(now_ms)

    def inputs_behind(self, now_ms: int) -> set[TopicPartition]:
        """Inputs that events of others wait for."""
        return self.processor.source.behind(now_ms)

    def holds_more_than(self, events: int, size: int) -> bool:
        """Whether so many events, or bytes of them, wait for event time to pass them."""
        source = self.processor.source
        return len(source.buffer.pending) > events or source.waiting_bytes() > size

    def memory_bytes(self) -> int:
        return self.processor.memory_bytes()

    def evict(self) -> None:
        """Hold no state in memory; the store has it all."""
        self.processor.evict()

    def index_some(self) -> None:
        """Go on a little with the timer index."""
        self.processor.index_some()

    def read_times(self) -> dict[TopicPartition, int]:
        """When the newest record of each input was written to its topic, as far as any was read."""
        sources = self.processor.source.sources.values()
        found = {TopicPartition(each.spec.topic, self.partition): each.taken_ms for each in sources}
        return {at: ms for at, ms in found.items() if ms is not None}

    def report(self) -> TaskReport:
        """Of a task that runs."""
        source = self.processor.source
        return TaskReport(
            self.plan.stage,
            self.partition,
            self.state.value,
            _known(source.watermark),
            source.blocked_by(),
            tuple(
                InputReport(each.spec.stream, each.spec.topic, self.partition, each.next)
                for each in source.sources.values()
            ),
            state_bytes=self.store.size_bytes(),
            waiting=len(source.buffer.pending),
        )

    # ------------------------------------------------------------ a batch

    def feed(self, records: Records, settled: SettledRecords = NOTHING_SETTLED) -> frozenset[int]:
        """Take records; of a shared input, those that were taken before are passed over. The offsets of those that were
        put aside, but for settled ones.
        """
        done = self.processor.source.by_topic[records.topic].next
        rows = int(np.searchsorted(records.offsets, done)) if records.topic in self.shared else 0
        if rows:
            records = RecordSlice(records, rows, len(records), records.next)
        return self.processor.feed(records, settled) if records.next > done else frozenset()

    def tick(self, ended: Mapping[TopicPartition, int | None]) -> None:
        """Look at the clock: inputs that stand at their end for long enough let event time pass. `ended` are those that
        were read to their ends, with what the log said about it (`Member.standing`); None: nothing since the last tick.
        """
        now_ms = self.clock.steady_ms()
        for topic, source in self.processor.source.by_topic.items():
            at = TopicPartition(topic, self.partition)
            self.processor.source.stand(source.spec.stream, at in ended, now_ms, ended.get(at))
        self.processor.tick(now_ms)

    @property
    def indexing(self) -> bool:
        return self.state is TaskState.RUNNING and self.processor.indexing

    @property
    def dirty(self) -> bool:
        return self.state is TaskState.RUNNING and (self.processor.dirty or bool(self._dropped))

    def outcome(self) -> Outcome:
        dropped, self._dropped = self._dropped, []
        return self.processor.outcome(dropped)

    def committed(self, outcome: Outcome, last_offset: int) -> None:
        """The log has it: now the store, rows and position in one batch (P4)."""
        topic, at = self.changelog.topic, self.changelog.at
        self._following = ChangelogCheckpoint(
            at.topic, topic.id, at.partition, topic.partitions, last_offset + 1, self.clock.wall_ms()
        )
        hit("write.before")
        self.store.write([*outcome.changes, (FOLLOWING, pack_following(self._following))])
        hit("write.after")
        self.processor.committed(outcome)
        self._take_more()
        is_marked = isinstance(self.processor, RuleProcessor) and self.processor.state_cache.states.take_marked()
        if is_marked or self._mark.path.exists():
            self._mark.clear()

    # ------------------------------------------------------------ snapshots

    def snapshot_if_due(self) -> None:
        """Take a snapshot between two batches; its checksums are made next to the loop."""
        now_ms = self.clock.steady_ms()
        if now_ms - self._snapshot_at_ms < self.plan.tunables.snapshot_every_ms or self.processor.dirty:
            return
        self._snapshot_at_ms = now_ms
        self.take_snapshot()

    def take_snapshot(self) -> None:
        if self._following is not None:
            self._storage.take_snapshot(self._manifest(self._following), keep=self.config.snapshot_keep)

    def _manifest(self, following: ChangelogCheckpoint) -> snapshots.SnapshotManifest:
        position = self.processor.position()
        changelog = snapshots.ChangelogPosition(
            following.topic,
            following.topic_id,
            following.partition,
            following.partitions,
            following.next,
            following.time_ms,
        )
        inputs = {f"{each.topic}/{self.partition}": each.next for each in position.inputs.values()}
        formats, now_ms = FORMATS, self.clock.wall_ms()
        return snapshots.SnapshotManifest(
            changelog, inputs, position.watermark, position.journal, formats, None, now_ms
        )

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Let go of everything; what is not committed is forgotten, and the store's lock is free."""
        if self.state is TaskState.CLOSED:
            return
        self._become(TaskState.CLOSED)
        try:
            said = None if self._processor is None else self._processor.close()
            if said is not None:
                self.notes.append(f"{self.name}: {said}")
        finally:
            self._mark.put_away()
            self._let_go()

    def _let_go(self) -> None:
        self._storage.close()
        if self._restore is not None:
            self._restore.close()
        if self._store is not None:
            self._store.close()
        # The processor knows its task, and the container's loop runs without the cycle collector: what is left of a
        # circle would stay for good.
        self._processor = self._store = self._restore = None


def _known(time: int) -> int | None:
    return None if time == NO_TIME else time


def task_folder(state: Path, partition: int, stage: str = MAIN) -> Path:
    """Where a task keeps its store and snapshots."""
    return state / stage / str(partition)


def name_of(stage: str, partition: int) -> str:
    """A task, as people are told of it.

    >>> name_of("", 3), name_of("by-user", 3)
    ('partition 3', 'partition 3 of by-user')
    """
    return f"partition {partition}" + (f" of {stage}" if stage != MAIN else "")
