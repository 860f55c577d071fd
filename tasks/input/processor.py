"""What a task does with its input: rules, or a user-defined task. Tasks and containers know no more of it than this.

A processor has no log, no clock and no file of its own. Records, ticks and, in a replay, journal entries go in; what
one commit has to write comes out. The same in gives the same out, however it was cut into batches: a rebuild relies on
it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from samovar.changelog.formats.journal import EntryKind, JournalEntry, pack_entry
from samovar.changelog.formats.record import POSITION, Position, pack_position
from samovar.changelog.formats.redrives import carried
from samovar.changelog.formats.waiting import waiting_events
from samovar.changelog.log import Append, Pair, Records, TopicPartition
from samovar.patterns.engine.order import NO_TIME, OrderedEvents, due_at
from samovar.state.store import Change, TaskStore
from samovar.tasks.input.placement import MISPLACED, MOVED, checked_streams
from samovar.tasks.input.repartition_sink import RepartitionSink
from samovar.tasks.input.source import DeadRecord, LateEvent, StreamSource, known_time
from samovar.tasks.model.plan import MAIN, Plan
from samovar.tasks.model.results import NOTHING_SETTLED, Counts, DeadLetterBuffer, Outcome, SettledRecords


class Processor(ABC):
    """One task's work, from a position on. `counts` are of what is committed, `alerts` what it found since then."""

    def __init__(
        self,
        plan: Plan,
        partition: int,
        store: TaskStore,
        source: StreamSource,
        position: Position | None,
        written_up_to: Callable[[str, str], int],
    ) -> None:
        """`written_up_to` says, of a stream and a topic, before which offset all is there already."""
        self.plan, self.partition, self.store, self.source = plan, partition, store, source
        if position is not None:
            source.resume(position)
        source.check_places(checked_streams(plan), position)
        self.repartitioned = None if position is None else position.repartitioned
        held = waiting_events(store) if self.repartitioned is not None else {}
        last = [source.take_back(stream, events) for stream, events in held.items() if stream in source.sources]
        # Rows of events that waited at a repartition; all of them go once event time has passed the last.
        self._held = [each.row(stream) for stream, events in held.items() for each in events]
        self._held_until = max(last, default=NO_TIME)
        # Whether no stage before it counts all events and puts most letters aside.
        self.is_first = plan.stage == MAIN if plan.task is None else plan.task.alone
        told = {} if position is None else position.forwards
        self.sink = RepartitionSink(plan.forwards, source, partition, told, written_up_to)
        self.changelog_id = self.journal_id = ""  # of the topics that its commits go to
        self.counts, self._since = Counts(), Counts()
        self.alerts: list[Pair] = []
        self.found_bytes = 0  # of matches, since the last outcome
        self._dead, self._late = DeadLetterBuffer(), DeadLetterBuffer()
        self.dirty = False  # whether there is something to commit

    def feed(self, records: Records, settled: SettledRecords = NOTHING_SETTLED) -> frozenset[int]:
        """Take the next records of one input; the offsets of those put aside. Settled ones get no letter here."""
        source, aside = self.source, set[int]()
        if self.sink.outputs:
            self.sink.begin()
        for piece, begins_anew in source.pieces(records):
            if begins_anew:
                self.forget()
            fed = source.feed(piece)
            self.dirty = True
            if self.is_first:
                self._since.events += len(piece.offsets)
            if fed.dead or fed.late:
                rows = [each.row for each in fed.dead] + [each.row for each in fed.late]
                aside.update(piece.offsets[rows].tolist())
                dead = [each for each in fed.dead if not settled.has(int(piece.offsets[each.row]))]
                late = [each for each in fed.late if not settled.has(int(piece.offsets[each.row]))]
                self._put_aside(piece, dead, late)
            if self.sink.outputs:
                self._since.unkeyed += self.sink.forward(source.by_topic[piece.topic].spec.stream, piece, fed)
            self._run(fed.ordered)
        self._since.missed += source.missed
        source.missed = 0
        return frozenset(aside)

    def _put_aside(self, records: Records, dead: Sequence[DeadRecord], late: Sequence[LateEvent]) -> None:
        stage = (("samovar.stage", self.plan.stage.encode()),)
        for each in dead:
            where, offset, pair = self.source.dead_letter(records, each.row)
            headers = (*where.dead(offset, each.kind, each.message), *(() if self.is_first else stage))
            self._dead.put(pair, (*headers, *carried(records.headers(each.row))))
            self._since.misplaced += each.kind in (MISPLACED, MOVED)
        for event in late:
            where, offset, pair = self.source.dead_letter(records, event.row)
            is_main = self.is_first and self.plan.task is None
            headers = (*where.late(offset, event.late_ms), *(() if is_main else stage))
            self._late.put(pair, (*headers, *carried(records.headers(event.row))))
        self._since.dead += len(dead)
        self._since.late += len(late)

    def tick(self, now_ms: int, ended: Mapping[TopicPartition, int | None]) -> bool:
        """Look at the clock: inputs that stand at their end for long enough let event time pass, if anything waits for
        it; whether anything came of it. `ended` are those that were read to their ends, with what the log said about it
        (`Member.standing`); None: nothing since the last tick.
        """
        source = self.source
        for topic, each in source.by_topic.items():
            at = TopicPartition(topic, self.partition)
            source.observe_end(each.spec.stream, at in ended, now_ms, ended.get(at))
        has_news = bool(self.sink.outputs) and self.sink.due_watermarks(now_ms)
        watermark = source.idle_watermark(now_ms)
        advances = watermark > source.buffer.low_watermark and (
            bool((source.buffer.pending.time < watermark).any()) or self.is_due(watermark)
        )
        self.dirty = self.dirty or has_news or advances
        if advances:
            self._run(source.advance(now_ms))
        return advances or has_news

    def apply(self, entry: JournalEntry) -> None:
        """Do again what the journal tells; only in a replay."""
        if entry.kind == EntryKind.RESTART:
            self.forget()
        self._run(self.source.apply(entry))

    def note_rules(self) -> None:
        """Write to the journal what is at work from here on."""
        self.source.note_rules(self._facts())
        self.dirty = True

    def position(self) -> Position:
        source, plan = self.source, self.plan
        ruleset_change = 0 if plan.ruleset_change is None or plan.task is not None else plan.ruleset_change.change
        return Position(
            watermark=known_time(source.buffer.low_watermark),
            inputs=source.inputs(),
            streams=source.streams,
            rules=plan.versions,
            journal=source.journaled,
            forwards=self.sink.emitted() if self.sink.outputs else {},
            ruleset_change=ruleset_change,
            changelog=self.changelog_id,
            service=plan.service,
            journal_id=self.journal_id,
            repartitioned=self.repartitioned,
        )

    def _passed_rows(self) -> list[Change]:
        """Tombstones for the events that waited at a repartition, once none of them waits any more."""
        buffer = self.source.buffer
        if not self._held or not due_at(np.array([self._held_until]), buffer, buffer.low_watermark)[0]:
            return []
        gone, self._held = self._held, []
        return [(row, None) for row in gone]

    def outcome(self, more: Sequence[Change] = ()) -> Outcome:
        """All since the last one; `more` are further rows to log."""
        topics, partition, since = self.plan.topics, self.partition, self._since
        sent_bytes, forwarded = self.sink.bytes, self.sink.appends() if self.sink.outputs else []
        position = self.position()
        packed = pack_position(position)
        results, rows, index = self._results(position, packed)
        rows = [*more, *rows, *self._passed_rows(), (POSITION, packed)]
        appends = [Append(topic=topics.changelog, records=rows, partition=partition), *results]
        if self.source.entries:
            name = str(partition).encode()
            entries: list[Pair] = [(name, pack_entry(each)) for each in self.source.entries]
            appends.append(Append(topic=topics.journal, records=entries, partition=partition))
        for topic, letters in ((topics.dead_letters, self._dead), (topics.late, self._late)):
            if letters.pairs:
                appends.append(Append(topic=topic, records=letters.pairs, partition=None, headers=letters.headers))
        appends += forwarded
        offsets = {TopicPartition(each.topic, partition): each.next for each in position.inputs.values()}
        since.commits, since.rows = 1, len(rows)
        since.forwarded = sum(len(each.records) for each in forwarded if each.partition is None)
        self._since, self._dead, self._late = Counts(), DeadLetterBuffer(), DeadLetterBuffer()
        self.alerts, self.source.entries, self.found_bytes, self.dirty = [], [], 0, False
        return Outcome(
            appends=appends, offsets=offsets, changes=[*rows, *index], counts=since, forwarded_bytes=sent_bytes
        )

    @abstractmethod
    def committed(self, outcome: Outcome) -> None:
        """What `outcome` gave is in the log and in the store now."""

    @abstractmethod
    def _run(self, ordered: OrderedEvents) -> None:
        """Take released events in order, then let event time pass."""

    @abstractmethod
    def is_due(self, watermark: int) -> bool:
        """Whether something is to happen by this event time with no event."""

    @abstractmethod
    def _results(self, position: Position, packed: bytes) -> tuple[list[Append], list[Change], list[Change]]:
        """Alerts, or what a task emitted; rows that changed; and changes of local indexes, which are not logged."""

    @abstractmethod
    def _facts(self) -> dict[str, object]:
        """What is at work, for the journal."""

    @abstractmethod
    def forget(self) -> None:
        """The stage was away: what it held of its inputs knows nothing of what happened meanwhile."""

    @abstractmethod
    def gone_rows(self) -> list[Change]:
        """Tombstones for stored rows of what is at work no more."""

    @abstractmethod
    def memory_bytes(self) -> int: ...

    @abstractmethod
    def evict(self) -> None:
        """Hold nothing in memory that the store has."""

    @property
    def indexing(self) -> bool:
        """Whether `index_some` has work to do."""
        return False

    @property
    def waits_for_index(self) -> bool:
        """Whether it must all be done before anything is fed, so that no timer is passed unseen."""
        return False

    def index_some(self) -> None:  # noqa: B027 - of rules alone
        """Go on a little with the timer index."""

    def close(self) -> str | None:
        """Let go of what is held next to the store; what a person should know about it, if anything."""
        return None
