"""One partition of history: its inputs from some offsets on, to events in the order in which a live task takes them.

The journal says where event time passed with no event, so that what was late then is late now; what it says of rules
does not matter here. A stream that ends holds nothing back any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from samovar.changelog.cursors import PartitionCursor
from samovar.changelog.formats.journal import EntryKind, JournalEntry
from samovar.changelog.log import Log, TopicPartition
from samovar.native.kernel import Batch
from samovar.patterns.engine.matcher import END_OF_TIME
from samovar.patterns.engine.order import Buffer, release
from samovar.tasks.input.placement import checked_streams
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

    def __init__(self, log: Log, plan: Plan, span: OffsetSpan, entries: Sequence[JournalEntry], until_ms: int) -> None:
        self.span, self.until_ms = span, until_ms
        self.source = StreamSource(plan.inputs, plan.fields, span.partition)
        self.source.replay()
        self.source.check_places(checked_streams(plan), None)  # as the live task puts such records aside
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
        return entry.kind == EntryKind.SCHEMA or any(at > start[stream] for stream, at in places)

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
                self._cursors[stream] = PartitionCursor(self._log, at, source.next)
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


def merged(lanes: Sequence[Lane], columns: int) -> Iterator[tuple[Batch, int]]:
    """Events of several partitions in one order (event time, stream, partition, offset), with event time after them.

    The partition that is behind is read first, so that memory holds a batch or two of each.
    """
    if len(lanes) == 1:
        for batch in lanes[0].batches():
            yield batch, lanes[0].watermark
        return
    buffer = Buffer(columns=columns, slack_ms=[0], partitions=[(0, place) for place in range(len(lanes))])
    going = {place: lane.batches() for place, lane in enumerate(lanes)}
    while going:
        place = min(going, key=lambda each: lanes[each].watermark)
        more = next(going[place], None)
        if more is None:
            del going[place]
        else:
            _add_all(buffer, more)
        before, buffer.max_event_time[(0, place)] = buffer.low_watermark, lanes[place].watermark
        if buffer.watermark() > before:
            ordered = release(buffer)
            yield ordered.released, ordered.watermark


def _add_all(buffer: Buffer, batch: Batch) -> None:
    buffer.pending.append(batch, np.arange(len(batch), dtype=np.int64))
