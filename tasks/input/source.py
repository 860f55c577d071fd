"""Sources: raw records of a task's inputs, to events in order.

`StreamSource` is the source of truth for where a task stands in its inputs and in event time: what was taken, what
waits for event time, what is late, and what moved event time without an event (journal entries).

What a registry or the rules say may change later, so two things are written down with their offsets, in the journal for
a rebuild and in the position for what is read again after a crash: from where to where a schema was unknown, and where
the check of partitions was turned on and off (`placing`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samovar.changelog.formats.dead_letters import SourceCoordinates
from samovar.changelog.formats.journal import EntryKind, JournalEntry
from samovar.changelog.formats.record import InputPosition, Position, UnknownSchema
from samovar.changelog.formats.waiting import WaitingEvent, WaitingRecords
from samovar.changelog.log import Int64s, Pair, Records, TopicPartition
from samovar.changelog.partitioner import key_texts, misplaced_rows
from samovar.common.errors import Refused
from samovar.common.tunables import DEFAULTS, Tunables
from samovar.native.kernel import BOOL, FLOAT, INT, NIL, OTHER, TEXT, Batch, Int32s
from samovar.patterns.engine.decoder import Decoder
from samovar.patterns.engine.order import NO_TIME, Buffer, OrderedEvents, due_at, order, release, take_times
from samovar.tasks.input.placement import MISPLACED, MOVED
from samovar.tasks.model.plan import InputSpec

ALLOWED = {"string": {TEXT}, "double": {INT, FLOAT}, "long": {INT, FLOAT}, "boolean": {BOOL}}
LOOKED_AT = 10_000  # events that wait, to find out what all of them take
_NO_ROWS = np.empty(0, np.int64)
ROW_BYTES = 24  # of an event, and about as much for each of its values next to its text
WORD = {NIL: "null", BOOL: "true or false", INT: "a number", FLOAT: "a number", TEXT: "text", OTHER: "a list or object"}


@dataclass(frozen=True, slots=True)
class DeadRecord:
    """A record that is not an event of its stream."""

    row: int  # of its records
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class LateEvent:
    """An event that came behind its partition's event time."""

    row: int
    late_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBatch:
    """What became of records. `rows` are of events, late ones too; `texts` are their values in `StreamSource.texts`."""

    ordered: OrderedEvents
    dead: Sequence[DeadRecord]
    late: Sequence[LateEvent]
    rows: Int64s = field(default_factory=lambda: _NO_ROWS)
    texts: Sequence[Sequence[bytes | None]] = ()


class ReplayCheckpoint(NamedTuple):
    """Where to read an input on from: the maximum event time before it, and whether it was advanced with no event."""

    offset: int
    max_event_time: int
    advanced: bool


@dataclass(kw_only=True)
class InputPartition:
    """One input of the task, as it stands. `checkpoints` are kept while events from there on wait."""

    number: int
    spec: InputSpec
    decoder: Decoder
    checks: Sequence[tuple[int, str, NDArray[np.bool_]]]  # column, field, allowed tags
    key_column: int
    topic_id: str = ""
    next: int = 0
    idle: bool = False
    checkpoints: deque[ReplayCheckpoint] = field(default_factory=deque)
    idle_since_ms: int | None = None  # when its end was reached, by the clock of the process
    idle_until_ms: int = 0  # up to when the log said so
    idle_base_time: int = NO_TIME
    stretch: int = 0  # of looks at the log, since then without a break
    taken_ms: int | None = None  # log time of the last record taken
    unknown: tuple[UnknownSchema, ...] = ()  # schemas that are not known, or were not
    placing: tuple[int, ...] = ()  # offsets at which the check of partitions was turned on and off
    is_checked: bool = False  # whether records must be in the partition of their key


class StreamSource:
    """The inputs of one task. Pure but for its own memory: no log, no clock."""

    def __init__(
        self, inputs: Sequence[InputSpec], fields: Sequence[str], partition: int, tunables: Tunables = DEFAULTS
    ) -> None:
        self.partition = partition
        self.tunables = tunables
        self.fields = tuple(fields)
        self.streams = tuple(spec.stream for spec in inputs)  # by their numbers, also those that are read no more
        read = [(number, spec) for number, spec in enumerate(inputs) if not spec.retired]
        self.sources = {spec.stream: _source(number, spec, self.fields) for number, spec in read}
        self.by_topic = {spec.topic: self.sources[spec.stream] for _, spec in read}
        places = [place for number, spec in read for place in self._places(number, spec)]
        self.buffer = Buffer(columns=len(self.fields), slack_ms=[spec.slack_ms for spec in inputs], partitions=places)
        self.texts: dict[str, tuple[int, ...]] = {}  # by stream: columns whose texts are wanted with every event
        self.entries: list[JournalEntry] = []  # since the last commit
        self.journaled = 0  # entries ever
        self.replays = False
        # How many partitions a topic has now: asked where keys are misplaced, to say why.
        self.partitions_now: Callable[[str], int] = lambda _topic: 0
        self.missed = 0  # records that went by of which this task was told nothing, since this was last set to 0

    def check_places(self, streams: Collection[str], position: Position | None) -> None:
        """From where the position stands on, records of these streams must be in the partitions of their keys."""
        stored = {} if position is None else position.inputs
        for stream, source in self.sources.items():
            source.placing = stored[stream].placing if stream in stored else ()
            source.is_checked = stream in streams
            is_on = len(source.placing) % 2 == 1
            if is_on != source.is_checked:
                source.placing = (*source.placing, stored[stream].next if stream in stored else 0)

    def _places(self, number: int, _spec: InputSpec) -> list[tuple[int, int]]:
        """The partitions that an input's events come from, each with a watermark of its own."""
        return [(number, self.partition)]

    # ------------------------------------------------------------ where it stands

    @property
    def watermark(self) -> int:
        return self.buffer.low_watermark

    def nexts(self) -> dict[str, int]:
        return {stream: source.next for stream, source in self.sources.items()}

    def inputs(self) -> dict[str, InputPosition]:
        """The positions as they are stored. Checkpoints before which nothing waits any more are let go of."""
        pending = self.buffer.pending
        has_waiting = len(pending) > 0
        found: dict[str, InputPosition] = {}
        for stream, source in self.sources.items():
            spec, checkpoints = source.spec, source.checkpoints
            own = (pending.stream == source.number) & (pending.partition == self.partition)
            waiting = pending.offset[own] if has_waiting else _NO_ROWS
            if not len(waiting):
                checkpoints.clear()
            while len(checkpoints) > 1 and checkpoints[1].offset <= int(waiting.min()):
                checkpoints.popleft()
            first = (
                checkpoints[0] if checkpoints else ReplayCheckpoint(source.next, self._max_event_time(source), False)
            )
            advances = tuple((mark.offset, mark.max_event_time) for mark in list(checkpoints)[1:] if mark.advanced)
            if source.unknown:
                source.unknown = needed(source.unknown, first.offset)
            if source.placing:
                source.placing = needed_turns(source.placing, first.offset)
            found[stream] = InputPosition(
                topic=spec.topic,
                topic_id=source.topic_id,
                next=source.next,
                replay_from=first.offset,
                max_event_time=known_time(first.max_event_time),
                advances=advances,
                idle=source.idle,
                unknown=source.unknown,
                placing=source.placing,
            )
        return found

    def settled(self, stream: str) -> InputPosition:
        """Where it stands in an input, with nothing that is to be read again."""
        source = self.sources[stream]
        return InputPosition(
            topic=source.spec.topic,
            topic_id=source.topic_id,
            next=source.next,
            replay_from=source.next,
            max_event_time=known_time(self._max_event_time(source)),
            idle=source.idle,
            unknown=source.unknown,
            placing=source.placing,
        )

    def log_times(self, records: Records) -> Int64s:
        """The log's time of each record in its stream."""
        return records.times

    def max_event_time(self, stream: str) -> int:
        """The maximum event time of a stream so far."""
        return self._max_event_time(self.sources[stream])

    def _max_event_time(self, source: InputPartition) -> int:
        return self.buffer.max_event_time.get((source.number, self.partition), NO_TIME)

    def _keep_checkpoint(self, source: InputPartition, offset: int) -> None:
        if not source.checkpoints or offset - source.checkpoints[-1].offset >= self.tunables.mark_records:
            source.checkpoints.append(ReplayCheckpoint(offset, self._max_event_time(source), False))

    def resume(self, position: Position) -> None:
        """Stand where a stored position says. Events that waited are brought back by `recover`."""
        self.journaled = position.journal
        self.buffer.low_watermark = NO_TIME if position.watermark is None else position.watermark
        for stream, stored in position.inputs.items():
            source = self.sources[stream]
            source.topic_id, source.next, source.idle = stored.topic_id, stored.replay_from, stored.idle
            source.unknown = stored.unknown
            self._set_max_event_time(source, NO_TIME if stored.max_event_time is None else stored.max_event_time)
            source.checkpoints.clear()

    def recover(self, stream: str, records: Sequence[Records], stored: InputPosition) -> None:
        """Take records from `replay_from` up to `next` once more, for the events among them that still wait."""
        source, buffer = self.sources[stream], self.buffer
        advances, is_checked = deque(stored.advances), source.is_checked
        edges = [*edges_of(stored.unknown), *source.placing]
        for each in records:
            offsets = each.offsets[each.offsets < stored.next]
            for rows in cut_at(offsets, [*(offset for offset, _ in advances), *edges]):
                first = int(offsets[rows[0]])
                source.decoder.hide(unknown_at(stored.unknown, first))
                source.is_checked = is_on_at(source.placing, first)
                while advances and advances[0][0] <= first:
                    source.next, max_event_time = advances.popleft()
                    self._advance_to(source, max_event_time)
                batch, kept, _ = self.decode(each)
                part = Batch(len(self.fields))
                part.append(batch, np.flatnonzero(np.isin(kept, rows)))
                if len(part):
                    self._keep_checkpoint(source, int(part.offset[0]))
                    late, _ = take_times(part, buffer)
                    waits = ~due_at(part.time, buffer, buffer.low_watermark)
                    waits[late] = False
                    buffer.pending.append(part, np.flatnonzero(waits))
        for offset, max_event_time in advances:
            source.next = offset
            self._advance_to(source, max_event_time)
        source.next, source.is_checked = stored.next, is_checked
        source.decoder.hide(unknown_yet(source.unknown) if self.replays else ())

    def take_back(self, stream: str, events: Sequence[WaitingEvent]) -> int:
        """Events that waited when the service was repartitioned wait again, but for those that were released since;
        the greatest time among all of them.
        """
        source, buffer = self.sources[stream], self.buffer
        is_checked, source.is_checked = source.is_checked, False  # they were judged in the partition that they were in
        records = WaitingRecords(source.spec.topic, self.partition, events)
        batch, _, _ = self.decode(records)
        source.is_checked = is_checked
        buffer.pending.append(batch, np.flatnonzero(~due_at(batch.time, buffer, buffer.low_watermark)))
        return int(batch.time.max(initial=NO_TIME))

    # ------------------------------------------------------------ records

    def feed(self, records: Records) -> DecodedBatch:
        """Take the next records of one partition."""
        source = self.by_topic[records.topic]
        source.idle_since_ms = None
        self._meet_schemas(source, records)
        batch, kept, dead = self.decode(records)
        if len(kept):
            if source.idle:
                if self.buffer.low_watermark > NO_TIME:  # it joins where event time is
                    max_event_time = self.buffer.low_watermark + source.spec.slack_ms
                    self._note(EntryKind.ACTIVE, stream=source.spec.stream, max_event_time=max_event_time)
                    self._advance_to(source, max_event_time)
                source.idle = False
            self._keep_checkpoint(source, int(records.offsets[0]))
        texts = [key_texts(batch, column, records.values) for column in self.texts.get(source.spec.stream, ())]
        ordered = order(batch, self.buffer)
        late = [LateEvent(int(kept[row]), int(ms)) for row, ms in zip(ordered.late, ordered.late_by_ms, strict=True)]
        source.next = records.next
        if len(records.times):
            source.taken_ms = int(records.times[-1])
        return DecodedBatch(ordered=ordered, dead=dead, late=late, rows=kept, texts=texts)

    def replay(self) -> None:
        """From here on the journal says which schemas nobody knew, whatever is known today."""
        self.replays = True
        for source in self.sources.values():
            source.decoder.hide(unknown_yet(source.unknown))

    def _meet_schemas(self, source: InputPartition, records: Records) -> None:
        """A schema that is unknown from here on, or known again, is a journal entry."""
        if self.replays:
            return
        for schema in source.decoder.schemas_in(records.values):
            known = source.decoder.knows(schema)
            if known == (schema in unknown_yet(source.unknown)):
                self._note(EntryKind.SCHEMA, stream=source.spec.stream, schema=schema, known=known)
                source.unknown = turned(source.unknown, schema, source.next, known=known)

    def pieces(self, records: Records) -> Iterable[tuple[Records, bool]]:
        """Records in pieces to be fed one after the other; before some of them all states begin again."""
        return ((records, False),)

    def origins(self, records: Records) -> tuple[list[int], list[int]]:
        """By row, the partition and the offset by which an event is named."""
        return [self.partition] * len(records), records.offsets.tolist()

    def original(self, records: Records, row: int) -> Pair:
        """A record's key and value as its stream had them."""
        return records.key(row), records.value(row)

    def dead_letter(self, records: Records, row: int) -> tuple[SourceCoordinates, int, Pair]:
        """Where a record that is put aside came from: origin and offset; and the record itself."""
        where = SourceCoordinates.of(records.topic, records.partition, self.by_topic[records.topic].spec.stream)
        return where, int(records.offsets[row]), (records.key(row), records.value(row))

    def decode(self, records: Records) -> tuple[Batch, Int64s, list[DeadRecord]]:
        """Good events, the rows of the records they come from, and the others. Nothing is taken."""
        source, offsets = self.by_topic[records.topic], records.offsets
        batch = source.decoder.batch()
        if not len(offsets):
            return batch, _NO_ROWS, []
        values = records.values
        verdicts = source.decoder.decode(batch, values, source.number, self._partitions(records), offsets)
        dead: list[DeadRecord] = []
        kept = np.flatnonzero(verdicts["code"] == 0)
        if len(kept) < len(offsets):
            for row in np.flatnonzero(verdicts["code"]).tolist():
                if records.value(row) is None:
                    dead.append(DeadRecord(row, "NULL_VALUE", "the value is null"))
                    continue
                bad = source.decoder.bad(verdicts[row], values[row])
                where = "" if bad.column is None else f" (column {bad.column})"
                dead.append(DeadRecord(row, bad.code, bad.reason + where))
        found = self._faults(source, batch, records.times[kept]) if len(kept) else {}
        if found:
            dead.extend(DeadRecord(int(kept[at]), kind, message) for at, (kind, message) in found.items())
            dead.sort(key=lambda each: each.row)
            good = np.ones(len(kept), bool)
            good[list(found)] = False
            batch.select(np.flatnonzero(good))
            kept = kept[good]
        return batch, kept, dead

    def _partitions(self, records: Records) -> Int32s:
        """The partition by which each record's event is named."""
        if isinstance(records, WaitingRecords):
            return records.partitions
        return np.full(len(records.offsets), self.partition, np.int32)

    def _faults(self, source: InputPartition, batch: Batch, times: Int64s) -> dict[int, tuple[str, str]]:
        """Rows that are JSON but no events of this stream: wrong types, no key, a time too far ahead of the log's."""
        spec = source.spec
        found = wrong_types(source, batch)
        for row in np.flatnonzero(batch.column(source.key_column)["tag"] == NIL).tolist():
            found.setdefault(row, ("MISSING_KEY", f"the key `{spec.key}` is missing or null"))
        ahead = batch.time - times - spec.max_future_skew_ms
        for row in np.flatnonzero(ahead > 0).tolist():
            over = (int(ahead[row]) + spec.max_future_skew_ms) // 1000
            limit = spec.max_future_skew_ms // 1000
            words = f"`{spec.time_field}` is {over:,} s ahead of the log's time, and at most {limit:,} s are allowed"
            found.setdefault(row, ("FROM_THE_FUTURE", words))
        if source.is_checked:
            self._find_misplaced(source, batch, found)
        return found

    def _find_misplaced(self, source: InputPartition, batch: Batch, found: dict[int, tuple[str, str]]) -> None:
        """Events whose key has its state in another partition. Where the topic has grown, that is mostly why."""
        spec = source.spec
        rows = misplaced_rows(batch, source.key_column, spec.placed_in, self.partition)
        if not len(rows):
            return
        now = self.partitions_now(spec.topic)
        is_grown = now > spec.placed_in
        misplaced = set((misplaced_rows(batch, source.key_column, now, self.partition) if is_grown else rows).tolist())
        for row in rows.tolist():
            if row in misplaced:
                words = f"murmur2 of `{spec.key}` places it in another partition than {self.partition}"
                found.setdefault(row, (MISPLACED, f"{words} of {spec.placed_in}"))
            else:
                words = f"the topic has {now} partitions now, and the state was made with {spec.placed_in}"
                found.setdefault(row, (MOVED, f"`{spec.key}` has its state in another partition: {words}"))

    # ------------------------------------------------------------ event time with no event

    def observe_end(self, stream: str, at_end: bool, now_ms: int, stretch: int | None = 0) -> None:
        """Say whether a stream's position stands at the log's end, by a clock that never goes back. It stands there
        only for as long as the log says so: in which stretch of looks; None where there was none since the last time.
        """
        source = self.sources[stream]
        if not at_end:
            source.idle_since_ms = None
        elif stretch is not None:
            if source.idle_since_ms is None or source.stretch != stretch:
                source.idle_since_ms, source.idle_base_time = now_ms, self._max_event_time(source)
            source.idle_until_ms, source.stretch = now_ms, stretch

    def idle_max_event_time(self, source: InputPartition, now_ms: int) -> int | None:
        """What an idle source's maximum event time is to be advanced to: it goes on as the wall clock does, for as long
        as the log said so. NO_TIME where it never had an event, None where it is not idle.
        """
        if source.idle_since_ms is None:
            return None
        idle_ms = min(now_ms, source.idle_until_ms) - source.idle_since_ms
        if idle_ms < source.spec.idle_ms:
            return None
        if source.idle_base_time == NO_TIME:
            return NO_TIME
        return max(self._max_event_time(source), source.idle_base_time + idle_ms - source.spec.idle_ms)

    def idle_watermark(self, now_ms: int) -> int:
        """Event time as it would be after `advance`. A source that never had an event holds back until it is idle."""
        times: list[int] = []
        for source in self.sources.values():
            advanced = self.idle_max_event_time(source, now_ms)
            max_event_time = self._max_event_time(source) if advanced is None or advanced == NO_TIME else advanced
            if max_event_time > NO_TIME:
                times.append(max_event_time - source.spec.slack_ms)
            elif advanced is None and not source.idle:
                times.append(NO_TIME)
        return max(self.buffer.low_watermark, min(times, default=NO_TIME))

    def advance(self, now_ms: int) -> OrderedEvents:
        """Let event time pass for idle streams; each such move is a journal entry."""
        for stream, source in self.sources.items():
            advanced, max_event_time = self.idle_max_event_time(source, now_ms), self._max_event_time(source)
            if advanced is not None and advanced > max_event_time:
                self._note(EntryKind.ADVANCE, stream=stream, max_event_time=advanced)
                self._advance_to(source, advanced)
            elif advanced is not None and max_event_time == NO_TIME and not source.idle:
                self._note(EntryKind.IDLE, stream=stream)
                self._mark_idle(source)
        return release(self.buffer)

    def apply(self, entry: JournalEntry) -> OrderedEvents:
        """Do again what a journal entry tells."""
        self.journaled = entry.number
        source = self.sources[entry.facts["stream"]]
        if entry.kind == EntryKind.IDLE:
            self._mark_idle(source)
        elif entry.kind == EntryKind.SCHEMA:
            source.unknown = turned(source.unknown, entry.facts["schema"], source.next, known=entry.facts["known"])
            source.decoder.hide(unknown_yet(source.unknown))
        else:
            source.idle = False
            self._advance_to(source, entry.facts["max_event_time"])
        return release(self.buffer)

    def _mark_idle(self, source: InputPartition) -> None:
        source.idle = True
        self.buffer.max_event_time.pop((source.number, self.partition), None)

    def _advance_to(self, source: InputPartition, max_event_time: int) -> None:
        self._set_max_event_time(source, max(max_event_time, self._max_event_time(source)))
        if source.checkpoints:
            source.checkpoints.append(ReplayCheckpoint(source.next, self._max_event_time(source), True))

    def _set_max_event_time(self, source: InputPartition, max_event_time: int) -> None:
        if source.idle and max_event_time == NO_TIME:
            self.buffer.max_event_time.pop((source.number, self.partition), None)
        else:
            self.buffer.max_event_time[(source.number, self.partition)] = max_event_time

    def note_rules(self, facts: Mapping[str, object], inputs: Mapping[str, int] | None = None) -> None:
        """The rules change here; `inputs` are where those that come after read on, where they have other streams."""
        self._note(EntryKind.RULES, **facts)
        if inputs is not None:
            self.entries[-1] = replace(self.entries[-1], inputs=inputs)

    def _note(self, kind: str, **facts: object) -> None:
        self.journaled += 1
        self.entries.append(
            JournalEntry(
                kind=kind, number=self.journaled, inputs=self.nexts(), watermark=known_time(self.watermark), facts=facts
            )
        )

    def ahead(self, now_ms: int) -> set[TopicPartition]:
        """Inputs that are ahead of the task's event time: reading them on would only fill memory. Of idle inputs that
        time is where they would let it be. It advances only when something waits for it, and what is paused is never
        idle: measured by the watermark alone, inputs could wait for each other for ever.
        """
        sources, watermark = self.sources.values(), self.idle_watermark(now_ms)
        ahead = [each.spec.topic for each in sources if self._max_event_time(each) - each.spec.slack_ms > watermark]
        return {TopicPartition(topic, self.partition) for topic in ahead}

    def behind(self, now_ms: int) -> set[TopicPartition]:
        """Inputs that event time waits for."""
        inputs = {TopicPartition(each.spec.topic, self.partition) for each in self.sources.values()}
        return inputs - self.ahead(now_ms)

    def blocked_by(self) -> tuple[str, int] | None:
        """The stream and partition that event time waits for: the one that is furthest behind."""
        slack_ms, streams = self.buffer.slack_ms, {source.number: stream for stream, source in self.sources.items()}
        times = [
            (max_event_time - slack_ms[number] if max_event_time > NO_TIME else NO_TIME, (streams[number], partition))
            for (number, partition), max_event_time in self.buffer.max_event_time.items()
            if number in streams
        ]
        return min(times, key=lambda each: each[0])[1] if times else None

    def waiting_bytes(self) -> int:
        """What the events take that wait for event time; where they are many, reckoned from some of them."""
        pending = self.buffer.pending
        rows = len(pending)
        some = slice(None, None, 1 + rows // LOOKED_AT)
        columns = [pending.column(each)[some] for each in range(pending.columns)]
        texts = sum(int(each["size"][each["tag"] >= TEXT].sum()) for each in columns)
        return rows * ROW_BYTES * (1 + pending.columns) + texts * (1 + rows // LOOKED_AT)


def numbered(position: Position | None, inputs: Sequence[InputSpec]) -> tuple[InputSpec, ...]:
    """The inputs in the order of their numbers: those a stored state knows keep theirs, new ones come after.

    A stream that is no more in the service file, with state that may name its events, is refused. Of repartition
    topics, those that no rule needs any more are retired: the rules that are left never saw their events.
    """
    if position is None:
        return tuple(inputs)
    specs = {spec.stream: spec for spec in inputs}
    if all(spec.is_forwarded for spec in inputs):
        gone = [stream for stream in position.streams if stream not in specs]
        specs |= {stream: InputSpec(stream=stream, topic="", key="", retired=True) for stream in gone}
    for stream in position.streams:
        if stream not in specs:
            raise Refused(
                "stream-removed",
                f"the stored state knows the stream `{stream}`, and the service file does not",
                "Put the stream back, or start with fresh state: stop the service and give it another name.",
            )
    return (*(specs[stream] for stream in position.streams), *(s for s in inputs if s.stream not in position.streams))


def _source(number: int, spec: InputSpec, fields: tuple[str, ...]) -> InputPartition:
    decoder = spec.decoder(fields, spec.time_field, spec.type_field, spec.stream)
    checks = []
    for column, path in enumerate(fields):
        tags = ALLOWED.get(spec.kinds.get(path, "any"))
        if tags:
            checks.append((column, path, np.array([tag == NIL or tag in tags for tag in range(6)])))
    return InputPartition(number=number, spec=spec, decoder=decoder, checks=checks, key_column=fields.index(spec.key))


def wrong_types(source: InputPartition, batch: Batch) -> dict[int, tuple[str, str]]:
    """Rows with a value of another type than the schema says."""
    found: dict[int, tuple[str, str]] = {}
    for column, path, allowed in source.checks:
        tags = batch.column(column)["tag"]
        for row in np.flatnonzero(~allowed[tags]).tolist():
            words = f"`{path}` should be {source.spec.kinds[path]}, and is {WORD[int(tags[row])]}"
            found.setdefault(row, ("WRONG_TYPE", words))
    return found


def known_time(time: int) -> int | None:
    return None if time == NO_TIME else time


def cut_at(offsets: Int64s, cuts: Sequence[int]) -> Iterator[Int64s]:
    """Row numbers in parts, a new one at the first offset that is at or after each cut."""
    edges = [0, *sorted({int(np.searchsorted(offsets, cut)) for cut in cuts}), len(offsets)]
    for start, end in pairwise(edges):
        if end > start:
            yield np.arange(start, end, dtype=np.int64)


# ---------------------------------------------------------------- what was so from one offset to another


def is_on_at(turns: Sequence[int], offset: int) -> bool:
    """Whether the check of partitions, turned on and off at these offsets, holds at this one."""
    return bisect_right(turns, offset) % 2 == 1


def needed_turns(turns: Sequence[int], replay_from: int) -> tuple[int, ...]:
    """Those that count for what may be read again, from `replay_from` on."""
    passed = bisect_right(turns, replay_from)
    return (*((0,) if passed % 2 else ()), *turns[passed:])


def turned(stretches: Sequence[UnknownSchema], schema: int, offset: int, *, known: bool) -> tuple[UnknownSchema, ...]:
    """The schema becomes known, or unknown, at an offset."""
    if not known:
        return (*stretches, UnknownSchema(schema, offset, None))
    return tuple(
        each._replace(until=offset) if each.schema == schema and each.until is None else each for each in stretches
    )


def unknown_yet(stretches: Sequence[UnknownSchema]) -> set[int]:
    return {each.schema for each in stretches if each.until is None}


def unknown_at(stretches: Sequence[UnknownSchema], offset: int) -> set[int]:
    return {each.schema for each in stretches if each.since <= offset and (each.until is None or offset < each.until)}


def edges_of(stretches: Sequence[UnknownSchema]) -> list[int]:
    """The offsets at which it changes."""
    return [edge for each in stretches for edge in (each.since, each.until) if edge is not None]


def needed(stretches: Sequence[UnknownSchema], replay_from: int) -> tuple[UnknownSchema, ...]:
    """Those that count for what may be read again, from `replay_from` on, and those that still last."""
    return tuple(each for each in stretches if each.until is None or each.until > replay_from)
