"""Sources that are repartition topics: events of many source partitions, named by their source, in order.

One repartition topic brings events of all partitions of a stream. `RepartitionSource` keeps a watermark for each of
them, and event time is the least; where all are idle, the greatest that one of them reported.

It has no idle rule: that a source partition is idle is told by marks (samovar.changelog.formats.forwarded), and
they take effect where they stand in the topic, so that a replay needs no journal for them. Only where an idle partition
is active again does event time depend on what other streams did meanwhile: when that was is a journal entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samovar.changelog.cursors import RecordSlice
from samovar.changelog.formats.dead_letters import SourceCoordinates
from samovar.changelog.formats.forwarded import (
    EVENT,
    FORMAT,
    HEAD_BYTES,
    IDLE,
    MARK,
    Heads,
    OriginalRecords,
    heads_of,
    marks_of,
)
from samovar.changelog.formats.journal import EntryKind, JournalEntry
from samovar.changelog.formats.record import UNKNOWN_SINCE, InputPosition, Position, SourcePartitionPosition
from samovar.changelog.formats.waiting import WaitingRecords
from samovar.changelog.log import Int64s, Pair, Records, TopicPartition
from samovar.common.tunables import DEFAULTS, Tunables
from samovar.native.kernel import Batch, Int32s, Messages, joined
from samovar.patterns.engine.order import NO_TIME, OrderedEvents, due_at, release
from samovar.tasks.input.source import (
    DeadRecord,
    DecodedBatch,
    InputPartition,
    LateEvent,
    StreamSource,
    cut_at,
    edges_of,
    known_time,
    needed,
    unknown_at,
    unknown_yet,
    wrong_types,
)
from samovar.tasks.model.plan import InputSpec

UNKNOWN = SourcePartitionPosition(-1, None, False, 0, UNKNOWN_SINCE)


class RepartitionSource(StreamSource):
    """The repartition topics of one task. The source of truth for how far their source partitions are."""

    def __init__(
        self, inputs: Sequence[InputSpec], fields: Sequence[str], partition: int, tunables: Tunables = DEFAULTS
    ) -> None:
        super().__init__(inputs, fields, partition, tunables)
        self.received = {stream: SourcePartitions() for stream in self.sources}
        self._looked_at: tuple[Records, Heads] | None = None

    def _places(self, number: int, spec: InputSpec) -> list[tuple[int, int]]:
        return [(number, each) for each in range(spec.source_partitions)]

    def _partitions(self, records: Records) -> Int32s:
        assert isinstance(records, OriginalRecords | WaitingRecords), records
        return records.partitions

    def _faults(self, source: InputPartition, batch: Batch, _times: Int64s) -> dict[int, tuple[str, str]]:
        return wrong_types(source, batch)  # the rest was looked at before it was forwarded

    def origins(self, records: Records) -> tuple[list[int], list[int]]:
        heads = self.heads(records)
        return heads["partition"].tolist(), heads["offset"].tolist()

    def original(self, records: Records, row: int) -> Pair:
        return records.key(row), (records.value(row) or b"")[HEAD_BYTES:]

    def dead_letter(self, records: Records, row: int) -> tuple[SourceCoordinates, int, Pair]:
        spec, value = self.by_topic[records.topic].spec, records.value(row)
        (head,) = heads_of(joined([value or b""]))
        if not is_ours(head, spec):
            return super().dead_letter(records, row)
        where = SourceCoordinates.of(spec.origin, int(head["partition"]), spec.stream)
        return where, int(head["offset"]), (records.key(row), (value or b"")[HEAD_BYTES:])

    # ------------------------------------------------------------ where it stands

    def _parts(self, source: InputPartition) -> dict[int, SourcePartitionPosition]:
        """The source partitions as they are now."""
        parts = {}
        for partition in range(source.spec.source_partitions):
            known = self.received[source.spec.stream].at(partition)
            max_event_time = known_time(self.buffer.max_event_time.get((source.number, partition), NO_TIME))
            parts[partition] = (
                known if known.idle else known._replace(partition=partition, max_event_time=max_event_time)
            )
        return parts

    def max_event_time(self, stream: str) -> int:
        """The maximum event time of the source partition that is behind."""
        source = self.sources[stream]
        times = (self.buffer.max_event_time.get(place) for place in self._places(source.number, source.spec))
        return min((time for time in times if time is not None), default=NO_TIME)

    def inputs(self) -> dict[str, InputPosition]:
        pending, found = self.buffer.pending, {}
        for stream, source in self.sources.items():
            received, spec, marks = self.received[stream], source.spec, self.received[stream].checkpoints
            # One that waited when the service was repartitioned may be of a source partition that is no more.
            mine = np.flatnonzero((pending.stream == source.number) & (pending.partition < spec.source_partitions))
            if not len(mine):
                marks.clear()
                received.activations.clear()
            else:
                partitions, offsets = pending.partition[mine], pending.offset[mine]
                first_waiting = {int(each): int(offsets[partitions == each].min()) for each in set(partitions)}
                while len(marks) > 1 and all(marks[1].parts[each].next <= at for each, at in first_waiting.items()):
                    marks.popleft()
                while received.activations and received.activations[0].offset < marks[0].offset:
                    received.activations.popleft()
            first = marks[0] if marks else RepartitionCheckpoint(source.next, self._parts(source))
            source.unknown = needed(source.unknown, first.offset)
            found[stream] = InputPosition(
                topic=spec.topic,
                topic_id=source.topic_id,
                next=source.next,
                replay_from=first.offset,
                parts=tuple(first.parts.values()),
                activations=tuple(received.activations) if marks else (),
                unknown=source.unknown,
            )
        return found

    def settled(self, stream: str) -> InputPosition:
        parts = tuple(self._parts(self.sources[stream]).values())
        return replace(super().settled(stream), max_event_time=None, parts=parts)

    def log_times(self, records: Records) -> Int64s:
        return self.heads(records)["time"].astype(np.int64)

    def resume(self, position: Position) -> None:
        self.journaled = position.journal
        self.buffer.low_watermark = NO_TIME if position.watermark is None else position.watermark
        for stream, stored in position.inputs.items():
            if stream in self.sources:
                source = self.sources[stream]
                source.topic_id, source.next, source.unknown = stored.topic_id, stored.replay_from, stored.unknown
                self.received[stream] = SourcePartitions({each.partition: each for each in stored.parts})
                for each in stored.parts:
                    self._set(source, each.partition, NO_TIME if each.max_event_time is None else each.max_event_time)

    def _set(self, source: InputPartition, partition: int, max_event_time: int) -> None:
        """Set a source partition's maximum event time. An idle one has none, and holds nothing back."""
        place = (source.number, partition)
        if self.received[source.spec.stream].at(partition).idle:
            self.buffer.max_event_time.pop(place, None)
        else:
            self.buffer.max_event_time[place] = max_event_time

    # ------------------------------------------------------------ records

    def feed(self, records: Records) -> DecodedBatch:
        source = self.by_topic[records.topic]
        heads = self.heads(records)
        events = np.flatnonzero(is_ours(heads, source.spec) & (heads["kind"] == EVENT))
        self._meet_schemas(source, OriginalRecords(records, heads, events))
        fed: DecodedBatch | None = None
        for stretch in self._stretches(source, records, heads):
            taken = self._take(source, records, heads, stretch)
            keep = np.ones(len(taken.batch), bool)
            keep[taken.late] = False
            self.buffer.pending.append(taken.batch, np.flatnonzero(keep))
            late = [
                LateEvent(int(taken.rows[at]), int(ms)) for at, ms in zip(taken.late, taken.late_by_ms, strict=True)
            ]
            fed = together(fed, DecodedBatch(ordered=self._release(), dead=taken.dead, late=late, rows=taken.rows))
        source.next = records.next
        if len(records):
            source.taken_ms = int(records.times[-1])
        return fed or DecodedBatch(ordered=self._release(), dead=[], late=[])

    def pieces(self, records: Records) -> Iterator[tuple[Records, bool]]:
        """A new piece begins where a source partition forwards since another offset: the stage was away meanwhile."""
        source, heads, start, is_anew = self.by_topic[records.topic], self.heads(records), 0, False
        marks = np.flatnonzero(is_ours(heads, source.spec) & (heads["kind"] == MARK)).tolist()
        told = dict(zip(marks, marks_of(heads[marks], messages_at(records, np.array(marks, np.int64))), strict=True))
        received = self.received[source.spec.stream]
        for row, mark in told.items():
            since = received.at(mark.partition).since
            if UNKNOWN_SINCE in (since, mark.since) or since == mark.since:
                continue
            yield RecordSlice(records, start, row, int(records.offsets[row])), is_anew
            source.next, start, is_anew = int(records.offsets[row]), row, True
            self._note(EntryKind.RESTART, stream=source.spec.stream, partition=mark.partition, since=mark.since)
            known = received.at(mark.partition)  # as the piece before has left it
            self.missed += max(mark.since - known.next, 0)
            received.parts[mark.partition] = known._replace(since=mark.since)
        yield RecordSlice(records, start, len(records), records.next) if start else records, is_anew

    def _release(self) -> OrderedEvents:
        """What can be released now. Where all source partitions are idle, none waits for another."""
        if not self.buffer.max_event_time:
            told = [
                each.max_event_time - self.sources[stream].spec.slack_ms
                for stream, received in self.received.items()
                for each in received.parts.values()
                if each.max_event_time is not None
            ]
            self.buffer.low_watermark = max([self.buffer.low_watermark, *told])
        return release(self.buffer)

    def _stretches(self, source: InputPartition, records: Records, heads: Heads) -> Iterator[Int64s]:
        """Rows in stretches: a new one begins where an idle source partition is active again."""
        start, count = 0, len(records)
        while start < count:
            end = self._next_activation(source, heads, start)
            if end > start:
                yield np.arange(start, end, dtype=np.int64)
            if end < count:  # what it says before event time is late from there on
                source.next, partition = int(records.offsets[end]), int(heads["partition"][end])
                max_event_time = self.watermark + source.spec.slack_ms if self.watermark > NO_TIME else NO_TIME
                self._note(
                    EntryKind.ACTIVE, stream=source.spec.stream, partition=partition, max_event_time=max_event_time
                )
                self._mark_active(source, partition, max_event_time)
            start = end

    def _next_activation(self, source: InputPartition, heads: Heads, start: int) -> int:
        """The first row from here on of a source partition that is idle when its turn comes."""
        received = self.received[source.spec.stream]
        idle = {each for each, part in received.parts.items() if part.idle}
        ours = is_ours(heads, source.spec)
        says_silent = ours & (heads["kind"] == MARK) & ((heads["flags"] & IDLE) != 0)
        says_more = ours & ~says_silent
        at = start
        while True:
            fall = first_of(says_silent, at)
            speak = first_of(says_more & np.isin(heads["partition"], list(idle)), at) if idle else len(heads)
            if speak <= fall:
                return speak
            idle.add(int(heads["partition"][fall]))
            at = fall + 1

    def _take(self, source: InputPartition, records: Records, heads: Heads, rows: Int64s) -> ReceivedBatch:
        """Decode a stretch, and move the source partitions' times on."""
        received = self.received[source.spec.stream]
        if (heads["kind"][rows] == EVENT).any():
            offset, checkpoints = int(records.offsets[rows[0]]), received.checkpoints
            if not checkpoints or offset - checkpoints[-1].offset >= self.tunables.mark_records:
                checkpoints.append(RepartitionCheckpoint(offset, self._parts(source)))
        ours = is_ours(heads[rows], source.spec)
        dead = [DeadRecord(row, "NOT_FORWARDED", "no record of a repartition topic") for row in rows[~ours].tolist()]
        events = self.new_events(source.spec.stream, heads, rows[ours & (heads["kind"][rows] == EVENT)])
        batch, kept, bad = self.decode(OriginalRecords(records, heads, events))
        dead += [replace(each, row=int(events[each.row])) for each in bad]
        kept = events[kept]
        marks = rows[ours & (heads["kind"][rows] == MARK)]
        late, by = self._move_times(source, batch, kept, heads, marks)
        for each in np.unique(heads["partition"][events]).tolist():
            last = int(heads["offset"][events[heads["partition"][events] == each]].max())
            received.parts[each] = received.at(each)._replace(partition=each, next=last + 1)
        for mark in marks_of(heads[marks], messages_at(records, marks)):
            known, told = received.at(mark.partition), None
            if mark.idle:
                max_event_time = self.buffer.max_event_time.pop((source.number, mark.partition), NO_TIME)
                told = known_time(
                    max(
                        max_event_time,
                        mark.max_event_time,
                        NO_TIME if known.max_event_time is None else known.max_event_time,
                    )
                )
            received.parts[mark.partition] = SourcePartitionPosition(
                mark.partition, told, mark.idle, max(known.next, mark.next), mark.since
            )
        return ReceivedBatch(batch, kept, dead, late, by)

    def new_events(self, stream: str, heads: Heads, rows: Int64s) -> Int64s:
        """Without events that came before: what was forwarded twice is taken once."""
        received = self.received[stream]
        keep = np.ones(len(rows), bool)
        partitions, offsets = heads["partition"][rows], heads["offset"][rows]
        for each in np.unique(partitions).tolist():
            mine = np.flatnonzero(partitions == each)
            before = np.maximum.accumulate(np.concatenate(([received.at(each).next - 1], offsets[mine])))[:-1]
            keep[mine] = offsets[mine] > before
        return rows if keep.all() else rows[keep]

    def _move_times(
        self, source: InputPartition, batch: Batch, rows: Int64s, heads: Heads, marks: Int64s
    ) -> tuple[Int64s, Int64s]:
        """Which events are behind their own source partition's watermark, marks counted where they stand."""
        late, by = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        slack_ms = source.spec.slack_ms
        partitions = batch.partition
        for each in sorted({*np.unique(partitions).tolist(), *np.unique(heads["partition"][marks]).tolist()}):
            own = np.flatnonzero(partitions == each)
            own_marks = marks[heads["partition"][marks] == each]
            where = np.argsort(np.concatenate((rows[own], own_marks)), kind="stable")
            told = heads["time"][own_marks].astype(np.int64)
            times = np.concatenate((batch.time[own], told))[where]
            max_event_time = self.buffer.max_event_time.get((source.number, each), NO_TIME)
            before = np.maximum.accumulate(np.concatenate(([max_event_time], times)))
            behind = before[:-1] - slack_ms - times
            is_late = (behind > 0) & (where < len(own))
            late.append(own[where[is_late]])
            by.append(behind[is_late])
            self._set(source, each, int(before[-1]))
        rows_late, ms = np.concatenate(late), np.concatenate(by)
        arrival = np.argsort(rows_late, kind="stable")
        return rows_late[arrival], ms[arrival]

    def heads(self, records: Records) -> Heads:
        """The head of each record; of the last records asked for they are kept."""
        if self._looked_at is not None and self._looked_at[0] is records:
            return self._looked_at[1]
        heads = heads_of(records.values)
        self._looked_at = records, heads
        return heads

    # ------------------------------------------------------------ once more, after a crash

    def recover(self, stream: str, records: Sequence[Records], stored: InputPosition) -> None:
        source = self.sources[stream]
        activations = deque(Activation(*each) for each in stored.activations)
        for each in records:
            heads = self.heads(each)
            offsets = each.offsets[each.offsets < stored.next]
            for rows in cut_at(offsets, [*(join.offset for join in activations), *edges_of(stored.unknown)]):
                source.decoder.hide(unknown_at(stored.unknown, int(offsets[rows[0]])))
                while activations and activations[0].offset <= int(offsets[rows[0]]):
                    source.next, partition, max_event_time = activations.popleft()
                    self._mark_active(source, partition, max_event_time)
                taken = self._take(source, each, heads, rows)
                waits = ~due_at(taken.batch.time, self.buffer, self.buffer.low_watermark)
                waits[taken.late] = False
                self.buffer.pending.append(taken.batch, np.flatnonzero(waits))
        for join in activations:
            source.next = join.offset
            self._mark_active(source, join.partition, join.max_event_time)
        source.next = stored.next
        source.decoder.hide(unknown_yet(source.unknown) if self.replays else ())

    def _mark_active(self, source: InputPartition, partition: int, max_event_time: int) -> None:
        """An idle source partition is idle no more."""
        received = self.received[source.spec.stream]
        received.parts[partition] = received.at(partition)._replace(
            partition=partition, max_event_time=None, idle=False
        )
        self._set(source, partition, max_event_time)
        if received.checkpoints:
            received.activations.append(Activation(source.next, partition, max_event_time))

    def apply(self, entry: JournalEntry) -> OrderedEvents:
        if entry.kind == EntryKind.SCHEMA:
            return super().apply(entry)
        self.journaled = entry.number
        if entry.kind == EntryKind.RESTART:
            received = self.received[entry.facts["stream"]]
            partition = entry.facts["partition"]
            received.parts[partition] = received.at(partition)._replace(since=entry.facts["since"])
        elif entry.kind == EntryKind.ACTIVE:
            self._mark_active(
                self.sources[entry.facts["stream"]], entry.facts["partition"], entry.facts["max_event_time"]
            )
        else:  # it was set back to a moment, which the very next record would pass
            self.buffer.low_watermark = max(self.buffer.low_watermark, entry.facts["max_event_time"])
        return release(self.buffer)

    # ------------------------------------------------------------ no idle rule of its own

    def observe_end(self, stream: str, at_end: bool, now_ms: int, stretch: int | None = 0) -> None:
        """It makes no difference here: marks tell."""

    def idle_watermark(self, _now_ms: int) -> int:
        return self.watermark

    def advance(self, _now_ms: int) -> OrderedEvents:
        return self._release()

    def ahead(self, _now_ms: int) -> set[TopicPartition]:
        """Source partitions that are ahead of the task's event time, and repartition topics of which all are."""
        specs = {source.number: source.spec for source in self.sources.values()}
        sources = {
            TopicPartition(specs[number].origin, partition)
            for (number, partition), max_event_time in self.buffer.max_event_time.items()
            if max_event_time - specs[number].slack_ms > self.watermark
        }
        streams = [each for each in specs.values() if self.max_event_time(each.stream) - each.slack_ms > self.watermark]
        return sources | {TopicPartition(each.topic, self.partition) for each in streams}

    def behind(self, now_ms: int) -> set[TopicPartition]:
        """Also the source partitions of its repartition topics."""
        specs = {source.number: source.spec for source in self.sources.values()}
        sources = {TopicPartition(specs[number].origin, partition) for number, partition in self.buffer.max_event_time}
        return super().behind(now_ms) | (sources - self.ahead(now_ms))


class RepartitionCheckpoint(NamedTuple):
    """A place in a repartition topic to read on from, and its source partitions as they were there."""

    offset: int
    parts: dict[int, SourcePartitionPosition]


class Activation(NamedTuple):
    """An idle source partition that is active again: its event time from there on."""

    offset: int
    partition: int
    max_event_time: int


@dataclass
class SourcePartitions:
    """What is known of one stream's source partitions. Their maximum event times stand in the buffer."""

    parts: dict[int, SourcePartitionPosition] = field(default_factory=dict)
    checkpoints: deque[RepartitionCheckpoint] = field(default_factory=deque)
    activations: deque[Activation] = field(default_factory=deque)

    def at(self, partition: int) -> SourcePartitionPosition:
        return self.parts.get(partition, UNKNOWN)


class ReceivedBatch(NamedTuple):
    """Records of one stretch: their events, the rows they come from, what is not an event, and what came too late."""

    batch: Batch
    rows: Int64s
    dead: list[DeadRecord]
    late: Int64s  # rows of the batch
    late_by_ms: Int64s


def is_ours(heads: Any, spec: InputSpec) -> Any:
    """Which heads are of records that a repartition topic of this stream can have."""
    return (heads["format"] == FORMAT) & (heads["kind"] <= MARK) & (heads["partition"] < spec.source_partitions)


def first_of(holds: NDArray[np.bool_], start: int) -> int:
    """The first row from here on of which it holds; the end where there is none."""
    found = np.flatnonzero(holds[start:])
    return start + int(found[0]) if len(found) else len(holds)


def messages_at(records: Records, rows: Int64s) -> Messages:
    values = records.values
    return Messages(values.data, values.starts[rows], values.ends[rows])


def together(one: DecodedBatch | None, other: DecodedBatch) -> DecodedBatch:
    """What became of two stretches, one after the other."""
    if one is None:
        return other
    released = one.ordered.released
    released.append(other.ordered.released, np.arange(len(other.ordered.released), dtype=np.int64))
    ordered = other.ordered._replace(released=released)
    return DecodedBatch(
        ordered=ordered,
        dead=[*one.dead, *other.dead],
        late=[*one.late, *other.late],
        rows=np.concatenate((one.rows, other.rows)),
    )
