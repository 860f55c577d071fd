"""Reading a partition up to an exact offset, and on from there: what a replay needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from samovar.changelog.log import Bools, Headers, Int64s, Log, Pair, Reader, Records, TopicPartition
from samovar.common.errors import Refused
from samovar.native.kernel import Messages

STUCK_S = 120.0  # with no record for so long, a replay fails loudly
POLL_S = 0.1
GONE = frozenset({"log-truncated", "offset-gone"})  # what logs say of a position that they do not hold


@dataclass(frozen=True, slots=True)
class RecordSlice:
    """Rows [start, stop) of some records, which are records themselves."""

    whole: Records
    start: int
    stop: int
    next: int

    @property
    def topic(self) -> str:
        return self.whole.topic

    @property
    def partition(self) -> int:
        return self.whole.partition

    @property
    def offsets(self) -> Int64s:
        return self.whole.offsets[self.start : self.stop]

    @property
    def times(self) -> Int64s:
        return self.whole.times[self.start : self.stop]

    @property
    def keys(self) -> Messages:
        return self._part(self.whole.keys)

    @property
    def values(self) -> Messages:
        return self._part(self.whole.values)

    @property
    def null(self) -> Bools:
        return self.whole.null[self.start : self.stop]

    def _part(self, whole: Messages) -> Messages:
        return Messages(whole.data, whole.starts[self.start : self.stop], whole.ends[self.start : self.stop])

    def __len__(self) -> int:
        return self.stop - self.start

    def value(self, row: int) -> bytes | None:
        return self.whole.value(self.start + row)

    def key(self, row: int) -> bytes | None:
        return self.whole.key(self.start + row)

    def headers(self, row: int) -> Headers:
        return self.whole.headers(self.start + row)

    def pairs(self) -> list[Pair]:
        return self.whole.pairs()[self.start : self.stop]


def in_pieces(records: Records, rows: int) -> Iterator[Records]:
    """The records, at most so many at a time."""
    for first in range(0, len(records), rows):
        end = min(first + rows, len(records))
        yield RecordSlice(records, first, end, records.next if end == len(records) else int(records.offsets[end]))
    if not len(records):
        yield records


def stalled(at: TopicPartition, offset: int, until: int) -> Refused:
    """What a replay says that waited for too long."""
    return Refused(
        "read-stalled",
        f"no record of {at} came for {STUCK_S:.0f} s, at offset {offset:,} of {until:,}",
        "Look for a transaction left open and for partitions without a leader, then run it again.",
    )


class AvailableReader:
    """Reads what is there: of records that retention takes before they are read, it goes on to the first that is left.

    For questions, as `auto.offset.reset=earliest` is in Kafka. What promises to be whole reads by the log's own reader,
    which refuses.
    """

    def __init__(self, log: Log, reader: Reader, partitions: Collection[TopicPartition]) -> None:
        self._log, self._reader, self._partitions = log, reader, partitions

    def poll(self, max_records: int, timeout_s: float) -> list[Records]:
        try:
            return self._reader.poll(max_records, timeout_s)
        except Refused as refused:
            if refused.code not in {*GONE, "archive-gap"}:
                raise
            begins = {at: bounds.begin for at, bounds in self._log.bounds(self._partitions).items()}
            gone = {at: begin for at, begin in begins.items() if self._reader.position(at) < begin}
            if not gone:  # it was not retention
                raise
            for at, begin in gone.items():
                self._reader.seek(at, begin)
            return []

    def position(self, at: TopicPartition) -> int:
        return self._reader.position(at)

    def seek(self, at: TopicPartition, offset: int) -> None:
        self._reader.seek(at, offset)

    def close(self) -> None:
        self._reader.close()


def available_reader(log: Log, starts: Mapping[TopicPartition, int], few: int | None = None) -> Reader:
    """What is there from these positions on; where only a few records are wanted, by a reader for so many."""
    return AvailableReader(log, log.reader(starts) if few is None else log.point_reader(starts, few), list(starts))


def refuse_gap(log: Log, at: TopicPartition, start: int | None = None) -> None:
    """Where an archive has a hole, that is what is to be said of records that are gone: from `start`, or all it has."""
    missing: Any = getattr(log, "missing", None)
    refusal = None if missing is None else missing(at, start)
    if refusal is not None:
        raise refusal


@contextmanager
def expired_if_gone(hint: str) -> Iterator[None]:
    """Refuses a replay whose records retention takes on the way with the code of one that finds them gone before."""
    try:
        yield
    except Refused as refused:
        if refused.code not in GONE:
            raise
        what = f"retention deleted records while they were read: {refused.what}"
        raise Refused("input-expired", what, hint, refused.detail) from refused


class PartitionCursor:
    """One partition, read from a position on. The source of truth for what was given out."""

    def __init__(
        self, log: Log, at: TopicPartition, start: int, end: int | None = None, *, available: bool = False
    ) -> None:
        """With an end, and not much before it, the reader is one for a few records. With `available` it reads what is
        there, as an AvailableReader does; else all of it, or refuses.
        """
        self.at = at
        self.next = start
        self._at_once = log.tunables.replay_records
        few = end is not None and end - start <= log.tunables.few_records
        reader = log.point_reader({at: start}, log.tunables.few_records) if few else log.reader({at: start})
        self._reader: Reader = AvailableReader(log, reader, [at]) if available else reader
        self._waiting: deque[Records] = deque()

    def next_records(self, until: int) -> Records | None:
        """The next records before an offset; None when there is none before it any more."""
        waited_s = 0.0  # counted, not measured: the same with a log that is not of this time
        while self.next < until:
            if self._waiting:
                return self._cut(self._waiting.popleft(), until)
            found = self._reader.poll(self._at_once, POLL_S)
            self._waiting += [each for each in found if len(each)]
            if not self._waiting:
                self.next = max(self.next, min(self._reader.position(self.at), until))
            waited_s += 0.0 if found else POLL_S
            if waited_s > STUCK_S:
                raise stalled(self.at, self.next, until)
        return None

    def _cut(self, records: Records, until: int) -> Records | None:
        rows = int(np.searchsorted(records.offsets, until))
        if rows < len(records):
            self._waiting.appendleft(RecordSlice(records, rows, len(records), records.next))
            self.next = until
            return RecordSlice(records, 0, rows, until) if rows else None
        self.next = min(records.next, until)
        return RecordSlice(records, 0, rows, self.next)

    def read_to(self, until: int) -> Iterator[Records]:
        """All that is before an offset; the cursor is closed then."""
        with closing(self):
            while (records := self.next_records(until)) is not None:
                yield records

    def close(self) -> None:
        self._reader.close()


def read_all(log: Log, at: TopicPartition) -> list[Records]:
    """Everything that a partition holds now."""
    begin, end = log.bounds([at])[at]
    return list(PartitionCursor(log, at, begin, end, available=True).read_to(end))
