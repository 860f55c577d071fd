"""One partition of history: its inputs from some offsets on, to events in the order in which a live task takes them.

The journal says where event time passed with no event, so that what was late then is late now; what it says of rules
does not matter here. A stream that ends holds nothing back any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor, wait
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from samovar.changelog.cursors import PartitionCursor
from samovar.changelog.formats.journal import EntryKind, JournalEntry
from samovar.changelog.log import Log, TopicPartition
from samovar.native.kernel import Batch
from samovar.patterns.engine.matcher import END_OF_TIME
from samovar.patterns.engine.order import NO_TIME, Buffer, release
from samovar.tasks.input.source import StreamSource
from samovar.tasks.model.plan import Plan

TIME_ENTRIES = (EntryKind.ADVANCE, EntryKind.IDLE, EntryKind.ACTIVE)


@dataclass(frozen=True)
class OffsetSpan:
    """What is read of one partition: offsets by stream."""

    partition: int
    start: Mapping[str, int]
    stop: Mapping[str, int]

    @property
    def records(self) -> int:
        return sum(max(0, self.stop[stream] - self.start[stream]) for stream in self.stop)

    def of(self, streams: Collection[str]) -> OffsetSpan:
        """Of these streams only."""
        start, stop = ({name: each[name] for name in streams} for each in (self.start, self.stop))
        return OffsetSpan(self.partition, start, stop)


@dataclass(frozen=True)
class PartitionCounts:
    """What was met in one partition of one stream. Nothing is passed over without being counted."""

    records: int = 0
    dead: int = 0
    late: int = 0

    def __add__(self, other: PartitionCounts) -> PartitionCounts:
        return PartitionCounts(self.records + other.records, self.dead + other.dead, self.late + other.late)


class Lane:
    """A partition on its way through history. The source of truth for how far it is."""

    def __init__(
        self,
        log: Log,
        plan: Plan,
        span: OffsetSpan,
        entries: Sequence[JournalEntry],
        until_ms: int,
        checked: Collection[str],
        *,
        make: Callable[..., StreamSource] = StreamSource,
        resumes: bool = False,
    ) -> None:
        """Of `checked` streams, records in another partition than their key's are put aside, as the live task does.

        One that `resumes` goes on where another stopped: what happened at its first records counts.
        """
        self.span, self.until_ms, self._resumes = span, until_ms, resumes
        self.source = make(plan.inputs, plan.fields, span.partition)
        self.source.replay()
        self.source.check_places(checked, None)
        self.watermark = self.source.watermark
        self.counts = {stream: PartitionCounts() for stream in self.source.sources}
        self._entries = [entry for entry in entries if self._matters(entry)]
        self._cursors: dict[str, PartitionCursor] = {}
        self._ended: set[str] = set()
        self._log = log
        for stream, source in self.source.sources.items():
            source.next = span.start[stream]

    def _matters(self, entry: JournalEntry) -> bool:
        if entry.kind not in (*TIME_ENTRIES, EntryKind.SCHEMA) or entry.facts["stream"] not in self.source.sources:
            return False
        start, stop = self.span.start, self.span.stop
        places = [(stream, at) for stream, at in entry.inputs.items() if stream in start]
        if any(at > stop[stream] for stream, at in places):
            return False
        # What happened to event time before the first record is not known of the records either.
        return entry.kind == EntryKind.SCHEMA or any(at > start[stream] - self._resumes for stream, at in places)

    @property
    def records(self) -> int:
        return sum(counts.records for counts in self.counts.values())

    def batches(self) -> Iterator[Batch]:
        """Events in order; after each batch `watermark` says how far event time is."""
        try:
            for entry in self._entries:
                yield from self._read(entry.inputs, to_the_end=False)
                if self.watermark >= self.until_ms:
                    break
                if entry.facts["stream"] not in self._ended:
                    yield self._advance(self.source.apply(entry).released)
            yield from self._read(self.span.stop, to_the_end=True)
            # There is no more: what still waits for event time.
            buffer = Buffer(
                columns=len(self.source.fields), slack_ms=[0], partitions=[(0, 0)], max_event_time={(0, 0): END_OF_TIME}
            )
            _add_all(buffer, self.source.buffer.pending)
            self.watermark = END_OF_TIME
            yield release(buffer).released
        finally:
            self.close()

    def _read(self, inputs: Mapping[str, int], *, to_the_end: bool) -> Iterator[Batch]:
        """All inputs up to these offsets, the one that is behind in event time first."""
        left = {stream: at for stream, at in inputs.items() if stream in self.source.sources}
        while left and self.watermark < self.until_ms:
            stream = min(left, key=self.source.max_event_time)
            source = self.source.sources[stream]
            if stream not in self._cursors:
                at = TopicPartition(source.spec.topic, self.span.partition)
                self._cursors[stream] = PartitionCursor(self._log, at, source.next, available=True)
            records = self._cursors[stream].next_records(left[stream])
            if records is not None:
                decoded = self.source.feed(records)
                self.counts[stream] += PartitionCounts(len(records), len(decoded.dead), len(decoded.late))
                yield self._advance(decoded.ordered.released)
                continue
            source.next = max(source.next, left.pop(stream))
            if to_the_end:
                self._ended.add(stream)
                idle = JournalEntry(
                    kind=EntryKind.IDLE,
                    number=self.source.journaled,
                    inputs=self.source.nexts(),
                    watermark=None,
                    facts={"stream": stream},
                )
                yield self._advance(self.source.apply(idle).released)

    def _advance(self, released: Batch) -> Batch:
        self.watermark = self.source.watermark
        return released

    def close(self) -> None:
        for cursor in self._cursors.values():
            cursor.close()
        self._cursors = {}


class LaneBatch(NamedTuple):
    """The next events of a lane, with how far event time and reading are after them."""

    lane: int
    events: Batch
    watermark: int
    records: int


def read_lanes(lanes: Sequence[Lane], pool: Executor) -> Generator[LaneBatch, None, None]:
    """The batches of all lanes, of the one that is furthest behind in event time first; each is read one ahead."""

    def take(place: int) -> LaneBatch | None:
        batch = next(batches[place], None)
        return None if batch is None else LaneBatch(place, batch, lanes[place].watermark, lanes[place].records)

    batches = [lane.batches() for lane in lanes]
    ahead = {place: pool.submit(take, place) for place in range(len(lanes))}
    watermarks = dict.fromkeys(ahead, NO_TIME)
    try:
        while ahead:
            place = min(ahead, key=watermarks.__getitem__)
            found = ahead.pop(place).result()
            if found is not None:
                ahead[place] = pool.submit(take, place)
                watermarks[place] = found.watermark
                yield found
    finally:
        wait(ahead.values())
        for lane in lanes:
            lane.close()


class Merge:
    """Events of several partitions in one order: event time, stream, partition, offset."""

    def __init__(self, lanes: int, columns: int) -> None:
        self._buffer = Buffer(columns=columns, slack_ms=[0], partitions=[(0, place) for place in range(lanes)])

    def add(self, found: LaneBatch) -> tuple[Batch, int] | None:
        """What can be released now, with event time after it. Of one lane that is all; its batch is handed on."""
        buffer = self._buffer
        if len(buffer.partitions) == 1:
            return found.events, found.watermark
        _add_all(buffer, found.events)
        before, buffer.max_event_time[(0, found.lane)] = buffer.low_watermark, found.watermark
        if buffer.watermark() <= before:
            return None
        ordered = release(buffer)
        return ordered.released, ordered.watermark


def _add_all(buffer: Buffer, batch: Batch) -> None:
    buffer.pending.append(batch, np.arange(len(batch), dtype=np.int64))
