"""One task: one partition of all inputs of a stage, its store, and its life.

    CREATED --> RESTORING --> RUNNING --> CLOSED
       |            |                       ^
       +------------+-----------------------+

CREATED knows its partition only. RESTORING has its store and follows its changelog to the end, and builds the timer
index where it has none. RUNNING takes records. CLOSED has let go of the store and its lock; a task never comes back
from there, another is made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import numpy as np

from samovar.changelog.cursors import RecordSlice
from samovar.changelog.formats import record
from samovar.changelog.log import Delivery, Log, Records, TopicPartition
from samovar.changelog.restore.point_in_time import follows_replaced
from samovar.changelog.restore.restore import ChangelogPartition, Restore, checkpoint_of, next_step
from samovar.common.errors import Refused
from samovar.common.failpoints import hit
from samovar.patterns.engine.matcher import NEVER, RuleFailure, StepBudget
from samovar.state import snapshots
from samovar.state.rocks import RocksMemory
from samovar.state.store import Change
from samovar.state.task_storage import DiskStorage, LocalStore, TaskStorage
from samovar.tasks.input.processor import Processor
from samovar.tasks.input.source import known_time, numbered
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
from samovar.tasks.processors import make_processor
from samovar.tasks.replay.rebuild import entries_of
from samovar.tasks.replay.repair import plan_of_position
from samovar.tasks.rules import migration
from samovar.tasks.rules.backfill import warm_offsets, warm_rows
from samovar.tasks.rules.crash_marks import CrashMarks
from samovar.tasks.rules.processor import RuleProcessor
from samovar.tasks.rules.rate_limiter import limits_in, limits_row

LIVE_BUDGET = StepBudget()


class RulesBehind(Exception):
    """A state was made by a change of the rules that is not known here yet."""

    def __init__(self, change: int, task: str) -> None:
        super().__init__(f"{task} stands for change {change} of the rules")
        self.change = change


class TaskState(Enum):
    """Where a task is in its life."""

    CREATED = "created"
    RESTORING = "restoring"
    RUNNING = "running"
    CLOSED = "closed"


_TRANSITIONS = {
    TaskState.CREATED: {TaskState.RESTORING, TaskState.CLOSED},
    TaskState.RESTORING: {TaskState.RUNNING, TaskState.CLOSED},
    TaskState.RUNNING: {TaskState.CLOSED},
    TaskState.CLOSED: set(),
}


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """How a task keeps its state. Without `has_threads` the container's thread restores and takes snapshots."""

    folder: Path
    memory: RocksMemory
    group: str
    delivery: Delivery
    delete_retention_ms: int
    snapshot_keep: int
    budget: StepBudget = LIVE_BUDGET
    has_threads: bool = True
    storage: Callable[[Path], TaskStorage] | None = None  # by a task's folder; None: on disk, in that folder
    past: Callable[[Log], Log] = lambda log: log  # what a backfill reads: it may go further back than the log


class StreamTask:
    """The source of truth for one partition's state while this process owns it."""

    # Each is there from the moment on that its state brings it, and goes when the task is closed.
    store: LocalStore
    changelog: ChangelogPartition
    restore: Restore
    processor: Processor

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
        self.name = name_of(plan.stage, partition)
        # A plan with other inputs is another task.
        self.inputs = [TopicPartition(spec.topic, partition) for spec in plan.inputs]
        self.folder = task_folder(config.folder, partition, plan.stage)
        self.notes: list[str] = []  # what a person should know: wipes, skipped snapshots, dropped states
        self._committed: Mapping[TopicPartition, int | None] = {}
        disk = DiskStorage(self.folder, config.memory, in_thread=config.has_threads)
        self._storage: TaskStorage = disk if config.storage is None else config.storage(self.folder)
        self._counts = Counts()  # while there is no processor
        self._dropped: list[Change] = []
        self._following: record.ChangelogCheckpoint | None = None
        self._snapshot_at_ms = clock.steady_ms()
        self.failure: RuleFailure | None = None  # for which a rule is to be taken out
        self._ended_by: RuleFailure | None = None  # the process, while the rule was not at work yet
        self.backfill_failures: list[RuleFailure] = []  # of rules that came in quarantined, to be told to all
        self.is_abandoned = False  # its inputs are to be read again from its position on
        self.piece_rows: int | None = None  # records that are taken at once, where whole batches find too much
        self._takes_all = False  # the next step may find as much as it likes: it cannot be cut
        self._mark = CrashMarks(self.folder)

    def _become(self, state: TaskState) -> None:
        assert state in _TRANSITIONS[self.state], (self.state, state)
        self.state = state

    @property
    def counts(self) -> Counts:
        """What it did so far; after a step that was abandoned, also where it could not begin again."""
        return self.processor.counts if hasattr(self, "processor") else self._counts

    # ------------------------------------------------------------ restoring

    def open(self) -> None:
        """Take the store and begin to restore it. Reading the group's offsets first waits for what is pending. The
        store is replaced by a snapshot or by nothing where it cannot be tailed.

        Raises StoreLocked, and may be called again, where another process has the store.
        """
        self.store = self._storage.open()
        self._become(TaskState.RESTORING)
        self._committed = self.log.committed(self.config.group, self.inputs)
        at = TopicPartition(self.plan.topics.changelog, self.partition)
        self.changelog = ChangelogPartition.load(self.log, at, self.config.delete_retention_ms, self.plan.service)
        record.refuse_others(self._stored_position(), self.plan.service, f"the state in {self.folder}")
        checkpoint = checkpoint_of(self.store)
        is_stale = checkpoint is not None and follows_replaced(checkpoint, self.log, self.changelog)
        start = None if is_stale else next_step(checkpoint, self.changelog, self.clock.wall_ms())
        if is_stale:
            self.notes.append(f"{self.name}: the service was repartitioned, and the store was replaced whole")
        if checkpoint is None or start is None:
            if checkpoint is not None and not is_stale:
                self.notes.append(f"{self.name}: the store is too old to be tailed, and was replaced whole")
            self.store.close()
            self._storage.wipe()
            found = self._storage.newest_snapshot()
            self.notes += [f"{self.name}: {reason}" for reason in found.skipped]
            if found.snapshot is not None and self._is_usable(found.snapshot):
                self._storage.restore_snapshot(found.snapshot)
            self.store = self._storage.open()
            start = next_step(checkpoint_of(self.store), self.changelog, self.clock.wall_ms())
            assert start is not None, "a usable snapshot can be tailed"
        self.restore = Restore(
            self.store,
            self.log,
            self.changelog,
            start,
            in_thread=self.config.has_threads,
            now_s=lambda: self.clock.steady_ms() / 1000,
        )

    def _stored_position(self) -> record.Position | None:
        data = self.store.get(record.POSITION)
        return None if data is None else record.unpack_position(data)

    def _is_usable(self, snapshot: snapshots.Snapshot) -> bool:
        changelog = snapshot.manifest.changelog
        checkpoint = record.ChangelogCheckpoint(
            topic=changelog.topic,
            topic_id=changelog.topic_id,
            partition=changelog.partition,
            partitions=changelog.partitions,
            next=changelog.offset,
            time_ms=changelog.time_ms,
        )
        try:
            record.refuse_newer(snapshot.manifest.formats, "its state")
            return next_step(checkpoint, self.changelog, self.clock.wall_ms()) is not None
        except Refused as refused:
            self.notes.append(f"{self.name}: snapshot {snapshot.number} was passed over: {refused.what}")
            return False

    def restore_some(self, timeout_s: float) -> bool:
        """Restore a little more. True when the task is running."""
        if self.state is TaskState.RUNNING:
            return True
        if not hasattr(self, "processor"):
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
        """Begin where the store stands, if the changelog, the group's offsets and the journal agree with it."""
        position = self._stored_position()
        check_against_changelog(position, self.changelog.topic, self.partition)
        check_against_offsets(position, self._own_offsets(position), self.partition, self.config.delivery)
        name = self.plan.topics.journal
        topic = self.log.topics([name])[name]
        if position is not None and position.journal_id not in ("", topic.id):
            # It is another topic now: one that was put back from a copy has all entries.
            entries = entries_of(self.log, TopicPartition(name, self.partition))
            check_against_journal(position, topic, {entry.number for entry in entries}, self.partition)
        self._begin(position)
        self._following = checkpoint_of(self.store)
        self.failure = self._mark.failure_of(self.processor.plan, self.plan)

    def _own_offsets(self, position: record.Position | None) -> Mapping[TopicPartition, int | None]:
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

    def _begin(self, position: record.Position | None, standing: Plan | None = None) -> None:
        """From what is committed on, with the rules that are at work: `standing`, of a task that goes on."""
        self._dropped = []
        wanted = standing or self.plan
        self.processor = processor = self._processor_of(standing or self._current_plan(position), position)
        if wanted.ruleset_change is None:
            is_other = position is None or dict(position.rules) != wanted.versions
            if position is not None and is_other:
                self._dropped = processor.gone_rows()
            if self._dropped:
                listed = ", ".join(sorted({record.row_parts(row)[1] for row, _ in self._dropped}))
                self.notes.append(f"{self.name}: rules changed; {len(self._dropped)} rows are dropped, of {listed}")
            has_other_limits = wanted.task is None and dict(limits_in(self.store)) != dict(wanted.storm)
            if has_other_limits:
                self._dropped += limits_row(wanted.storm)
            # A stage's rules may have other streams than before; the main stage always has all.
            has_other_inputs = position is not None and position.inputs.keys() != processor.source.sources.keys()
            if is_other or has_other_limits or (has_other_inputs and self.plan.stage != MAIN):
                processor.note_rules()
        elif position is None:
            self._dropped = migration.ruleset_row(wanted)
            processor.note_rules()
        processor.dirty = processor.dirty or bool(self._dropped)
        self._limit()

    def _limit(self) -> None:
        if isinstance(self.processor, RuleProcessor):
            budget = replace(self.config.budget, mark=self._mark.path)
            self.processor.state_cache.limit(replace(budget, step_bytes=NEVER) if self._takes_all else budget)

    def _current_plan(self, position: record.Position | None) -> Plan:
        """The plan with the rules that are at work here: those of a published change come in by a migration."""
        facts = migration.stored_ruleset(self.store)
        if self.plan.ruleset_change is None or position is None:
            if facts is not None:
                raise RulesBehind(facts["change"], self.name)
            return self.plan
        if facts is None:  # the rules were those of files so far
            return replace(plan_of_position(self.log, self.plan, self.partition, position), ruleset_change=None)
        if facts["change"] > self.plan.ruleset_change.change:
            raise RulesBehind(facts["change"], self.name)
        return migration.plan_of_facts(self.plan, facts, position.inputs)

    def _processor_of(self, plan: Plan, position: record.Position | None) -> Processor:
        """The rules of a plan, from a position on."""
        specs = numbered(position, plan.inputs)
        topics = self.log.topics([*(spec.topic for spec in specs), plan.topics.journal])
        bounds = self.log.bounds([TopicPartition(spec.topic, self.partition) for spec in plan.inputs])
        past = self.config.past(self.log)
        if position is not None:
            check_against_inputs(position, specs, topics, bounds, self.partition, past)
        processor = make_processor(plan, self.partition, self.store, specs, position)
        processor.changelog_id, processor.journal_id = self.changelog.topic.id, topics[plan.topics.journal].id

        def partitions_now(topic: str) -> int:
            found = self.log.topics([topic]).get(topic)
            return 0 if found is None else found.partitions

        processor.source.partitions_now = partitions_now
        if position is not None:
            recover_waiting(past, processor.source, position, self.partition)
        for source in processor.source.sources.values():
            if position is None or source.spec.stream not in position.inputs:
                source.topic_id = topics[source.spec.topic].id
                source.next = bounds[TopicPartition(source.spec.topic, self.partition)].begin
        processor.counts = self.counts  # it goes on with those of the one before it
        if isinstance(processor, RuleProcessor):
            processor.state_cache.dropped_before += self.counts.dropped
        return processor

    # ------------------------------------------------------------ published rules

    @property
    def migration_due(self) -> bool:
        """Whether a change of rules is to come in, between two batches."""
        if self.plan.ruleset_change is None or self.state is not TaskState.RUNNING:
            return False
        return migration.is_due(self.processor.plan, self.plan, known_time(self.processor.source.watermark))

    def begin_migration(self) -> Outcome:
        """The last of the rules before a change: what it commits is what those after it begin from."""
        processor = self.processor
        assert not processor.dirty, self.name
        assert isinstance(processor, RuleProcessor), self.name
        change = migration.migrate(processor.plan, self.plan, known_time(processor.source.watermark))
        if self._ended_by is not None:
            change, self._ended_by = self._without(change, self._ended_by), None
        warm: list[Change] = []
        while change.warm:  # a rule that goes over the budget comes in quarantined, and with no history
            cut = None if processor.repartitioned is None else processor.repartitioned.inputs
            past = self.config.past(self.log)
            since = warm_offsets(past, change.plan, self.partition, change.warm, cut)
            change = replace(change, warm_from=since)
            specs = numbered(processor.position(), change.plan.inputs)
            budget = replace(self.config.budget, mark=self._mark.path)
            try:
                warm = warm_rows(past, change, self.partition, processor, specs, budget)
                break
            except RuleFailure as failed:
                self._mark.put_away()
                change = self._without(change, failed)
            except Refused as refused:  # retention took records since it was asked where the inputs begin
                if refused.code != "input-expired":
                    raise
        rows = migration.migrated_rows(self.store, change.plan, change.moves)
        processor.migrate(change, self._nexts_after(change.plan))
        self._tell_migration(change, rows)
        outcome = processor.outcome([*rows, *warm])
        if self.store.get(record.INDEXED) is not None:
            outcome.changes.extend(record.deadline_rows([*rows, *warm]))
        return outcome

    def _without(self, change: migration.RuleMigration, failure: RuleFailure) -> migration.RuleMigration:
        """The change with the rule in quarantine whose history cannot be folded."""
        quarantined = migration.quarantine(change.plan, failure) if failure.rule in change.warm else None
        if quarantined is None:
            return change
        self._tell_quarantine(failure)
        self.backfill_failures.append(failure)
        warm = tuple(rule for rule in change.warm if rule != failure.rule)
        return replace(change, plan=quarantined.plan, warm=warm, quarantine=quarantined.quarantine)

    def end_migration(self) -> None:
        """What `begin_migration` gave is in the log and in the store."""
        self.processor = self._processor_of(self.processor.plan, self._stored_position())
        self._limit()

    def _nexts_after(self, plan: Plan) -> dict[str, int]:
        """Where the inputs are read on; a stage may have another stream now, from its begin."""
        known = self.processor.source.nexts()
        places = {spec.stream: TopicPartition(spec.topic, self.partition) for spec in plan.inputs}
        new = {stream: at for stream, at in places.items() if stream not in known}
        bounds = self.log.bounds(list(new.values())) if new else {}
        return {stream: bounds[at].begin if stream in new else known[stream] for stream, at in places.items()}

    def _tell_migration(self, change: migration.RuleMigration, rows: Sequence[Change]) -> None:
        assert change.plan.ruleset_change is not None
        gone = {record.row_parts(row)[1] for row, value in rows if value is None and row[:1] == record.ROW}
        gone -= change.moves.keys()
        more = f", states of {', '.join(sorted(gone))} are dropped" if gone else ""
        more += f", the history of {', '.join(change.warm)} is folded" if change.warm else ""
        drains = [rule.name for rule in change.plan.rules if rule.drains]
        more += f", {', '.join(drains)} drains" if drains else ""
        text = f"{self.name}: rules of change {change.plan.ruleset_change.change} from here on{more}"
        self.notes.append(LogEvent(text, "rules", partition=self.partition, change=change.plan.ruleset_change.change))

    # ------------------------------------------------------------ a step that was abandoned

    def abandon(self, failure: RuleFailure | None, rows: int) -> None:
        """Begin again from what is committed; where no rule is at fault, fewer than these `rows` are taken at once."""
        if failure is None and rows > 1:
            self.piece_rows = rows // 2
        elif failure is None:
            self._takes_all = True
        self._mark.put_away()
        position, standing = self._stored_position(), self.processor.plan
        self._counts = self.processor.counts
        del self.processor  # its memory goes before there is another
        self._begin(position, standing)
        self.failure, self.is_abandoned = failure, True

    def begin_quarantine(self) -> Outcome | None:
        """What takes the rule out that failed, at the position before the batch; None where it is not at work."""
        assert isinstance(self.processor, RuleProcessor), self.name
        failure, self.failure = self.failure, None
        change = None if failure is None else migration.quarantine(self.processor.plan, failure)
        if change is None or failure is None:
            self._ended_by = failure
            return None
        if change.plan.ruleset_change is None:
            rows = rows_of_gone_rules(self.store, change.plan)
        else:
            rows = migration.migrated_rows(self.store, change.plan, {})
        self.processor.migrate(change, self._nexts_after(change.plan))
        self._tell_quarantine(failure)
        dropped, self._dropped = self._dropped, []
        return self.processor.outcome([*dropped, *rows])

    def _tell_quarantine(self, failure: RuleFailure) -> None:
        text = f"{self.name}: rule {failure.rule} is in quarantine: {failure.reason}; its states are dropped"
        facts = {"rule": failure.rule, "version": failure.version, "reason": failure.reason}
        self.notes.append(LogEvent(text, "rule-quarantined", "error", partition=self.partition, **facts))

    def pieces(self, records: Records) -> Iterator[Records]:
        """Records as many at a time as may be taken; that may change with every piece."""
        count, first = len(records.offsets), 0
        if self.piece_rows is None or count <= self.piece_rows:
            yield records
            return
        while first < count:
            end = count if self.piece_rows is None else min(first + self.piece_rows, count)
            yield RecordSlice(records, first, end, records.next if end == count else int(records.offsets[end]))
            first = end

    def _take_more(self) -> None:
        """A commit went well: more may be taken at once again."""
        if self._takes_all:
            self._takes_all = False
            self._limit()
        if self.piece_rows is not None:
            is_small = self.piece_rows < self.plan.tunables.piece_records
            self.piece_rows = self.piece_rows * 2 if is_small else None

    # ------------------------------------------------------------ a batch

    def positions(self) -> dict[TopicPartition, int]:
        """Where to read each input on."""
        sources = self.processor.source.sources.values()
        return {TopicPartition(each.spec.topic, self.partition): each.next for each in sources}

    def feed(self, records: Records, settled: SettledRecords = NOTHING_SETTLED) -> frozenset[int]:
        """Take records, but for those of a shared input that were taken before; the offsets of those put aside."""
        done = self.processor.source.by_topic[records.topic].next
        rows = int(np.searchsorted(records.offsets, done)) if records.topic in self.shared else 0
        if rows:
            records = RecordSlice(records, rows, len(records), records.next)
        return self.processor.feed(records, settled) if records.next > done else frozenset()

    def tick(self, ended: Mapping[TopicPartition, int | None], now_ms: int) -> None:
        self.processor.tick(now_ms, ended)

    @property
    def dirty(self) -> bool:
        return self.state is TaskState.RUNNING and self.processor.dirty

    def outcome(self) -> Outcome:
        dropped, self._dropped = self._dropped, []
        return self.processor.outcome(dropped)

    def committed(self, outcome: Outcome, last_offset: int, wall_ms: int) -> None:
        """The log has it: now the store, rows and position in one batch (P4)."""
        topic, at = self.changelog.topic, self.changelog.at
        self._following = record.ChangelogCheckpoint(
            topic=at.topic,
            topic_id=topic.id,
            partition=at.partition,
            partitions=topic.partitions,
            next=last_offset + 1,
            time_ms=wall_ms,
        )
        hit("write.before")
        self.store.write([*outcome.changes, (record.CHECKPOINT, record.pack_checkpoint(self._following))])
        hit("write.after")
        self.processor.committed(outcome)
        is_marked = isinstance(self.processor, RuleProcessor) and self.processor.state_cache.states.take_marked()
        self._take_more()
        if is_marked or self._mark.path.exists():
            self._mark.clear()

    def snapshot_if_due(self, now_ms: int) -> None:
        """Take a snapshot between two batches; its checksums are made next to the loop."""
        if now_ms - self._snapshot_at_ms >= self.plan.tunables.snapshot_every_ms and not self.processor.dirty:
            self._snapshot_at_ms = now_ms
            self.take_snapshot()

    def take_snapshot(self) -> None:
        checkpoint = self._following
        if checkpoint is None:
            return
        position = self.processor.position()
        changelog = snapshots.ChangelogPosition(
            topic=checkpoint.topic,
            topic_id=checkpoint.topic_id,
            partition=checkpoint.partition,
            partitions=checkpoint.partitions,
            offset=checkpoint.next,
            time_ms=checkpoint.time_ms,
        )
        manifest = snapshots.SnapshotManifest(
            changelog=changelog,
            inputs={f"{each.topic}/{self.partition}": each.next for each in position.inputs.values()},
            watermark_ms=position.watermark,
            journal=position.journal,
            formats=record.FORMATS,
            digest=None,
            created_ms=self.clock.wall_ms(),
        )
        self._storage.take_snapshot(manifest, keep=self.config.snapshot_keep)

    def close(self) -> None:
        """Let go of everything; what is not committed is forgotten, and the store's lock is free."""
        if self.state is TaskState.CLOSED:
            return
        self._become(TaskState.CLOSED)
        try:
            said = self.processor.close() if hasattr(self, "processor") else None
            if said is not None:
                self.notes.append(f"{self.name}: {said}")
        finally:
            self._mark.put_away()
            self._storage.close()
            for name in ("restore", "store"):
                if hasattr(self, name):
                    getattr(self, name).close()
            # The processor knows its task, and the container's loop runs without the cycle collector: what is left of a
            # circle would stay for good.
            for name in ("restore", "store", "processor"):
                vars(self).pop(name, None)


def task_folder(state: Path, partition: int, stage: str = MAIN) -> Path:
    """Where a task keeps its store and snapshots."""
    return state / stage / str(partition)


def name_of(stage: str, partition: int) -> str:
    """A task, as people are told of it.

    >>> name_of("", 3), name_of("by-user", 3)
    ('partition 3', 'partition 3 of by-user')
    """
    return f"partition {partition}" + (f" of {stage}" if stage != MAIN else "")
