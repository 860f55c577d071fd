"""A log whose records Spark brings: what a task of Spark's connector hands over, read as any other log is.

    with opened(settings) as log:
        fed = fed_log(log, Feed(ranges, batches))
        Restore(store, fed, changelog, start, to=end)

Records of the ranges come from Spark. All else is asked of the log itself: topics and bounds, a journal, a few records
before a range or after its end. Where an archive has what is before a range, this log begins with the range: an
archived log goes around it, and hands over there. Anyone who reads two ranges by turns finds the one that came first in
files of the executor: a stretch of a partition is handed over as a whole, one after the other.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from samovar.changelog.batches import RecordBlock, block_of_arrow, nothing_up_to
from samovar.changelog.log import Bounds, Log, Reader, Records, TopicPartition
from samovar.common.tunables import DEFAULTS

if TYPE_CHECKING:
    import pyarrow as pa


class Range(NamedTuple):
    """Offsets of one partition from `start` up to, not including, `end`."""

    at: TopicPartition
    start: int
    end: int
    is_rest: bool = False  # of one that an archive has the beginning of


class SparkFeed:
    """What comes from Spark. The source of truth for how far each range was given out."""

    def __init__(self, ranges: Sequence[Range], batches: Iterator[pa.RecordBatch]) -> None:
        self.ranges = {each.at: each for each in ranges}
        self.given = 0  # records
        self.tunables = DEFAULTS
        self._coming = batches
        self._pieces: deque[tuple[TopicPartition, pa.RecordBatch]] = deque()
        self._waiting: dict[TopicPartition, _Waiting] = {}
        self._begun: set[TopicPartition] = set()
        self._over: set[TopicPartition] = set()
        self._last: TopicPartition | None = None

    def begins_at(self, at: TopicPartition, offset: int) -> bool:
        """Whether a range begins here, and nobody reads it yet."""
        return at in self.ranges and self.ranges[at].start == offset and at not in self._begun

    def take(self, at: TopicPartition) -> RecordBlock | None:
        """The next records of a range; None where there are no more."""
        self._begun.add(at)
        waiting = self._waiting.get(at)
        batch = None if waiting is None else waiting.take()
        while batch is None and at not in self._over and (piece := self._next()) is not None:
            if piece[0] == at:
                batch = piece[1]
                continue
            if piece[0] not in self._waiting:
                self._waiting[piece[0]] = _Waiting(self.tunables.feed_bytes)
            self._waiting[piece[0]].add(piece[1])
        if batch is None:
            return None
        self.given += batch.num_rows
        return block_of_arrow(batch, at, int(batch.column("offset")[-1].as_py()) + 1)

    def coming(self) -> TopicPartition | None:
        """Whose records come next, those first that came while another range was read; None where nothing does."""
        waiting = next((at for at in self._waiting if at not in self._begun), None)
        if waiting is not None:
            return waiting
        piece = self._next()
        if piece is not None:
            self._pieces.appendleft(piece)
        return None if piece is None else piece[0]

    def _next(self) -> tuple[TopicPartition, pa.RecordBatch] | None:
        while not self._pieces:
            batch = next(self._coming, None)
            if batch is None:
                return None
            self._pieces.extend(_by_partition(batch, self.ranges))
        at, batch = self._pieces.popleft()
        if self._last not in (None, at):
            self._over.add(self._last)
        if at in self._over:
            raise AssertionError(f"{at} came in two stretches: its order is not known")
        self._last = at
        return at, batch

    def close(self) -> None:
        for waiting in self._waiting.values():
            waiting.close()


def fed_log(log: Log, feed: SparkFeed) -> Log:
    """A log, but for the records that a feed has."""
    feed.tunables = log.tunables
    found: Any = _FedLog(log, feed)
    return found  # type: ignore[no-any-return]  # what it does not do itself, the log does


class _FedLog:
    def __init__(self, log: Log, feed: SparkFeed) -> None:
        self._log, self._feed = log, feed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def bounds(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        rests = {at: each.start for at, each in self._feed.ranges.items() if each.is_rest}
        return {at: Bounds(rests.get(at, begin), end) for at, (begin, end) in self._log.bounds(partitions).items()}

    def reader(self, positions: Mapping[TopicPartition, int]) -> Reader:
        if len(positions) == 1:
            (at, offset), *_ = positions.items()
            if self._feed.begins_at(at, offset):
                return _FedReader(self._log, self._feed, at)
        return self._log.reader(positions)


class _FedReader:
    """One range, and what comes after it in the log."""

    def __init__(self, log: Log, feed: SparkFeed, at: TopicPartition) -> None:
        self._log, self._feed, self._at = log, feed, at
        self._next, self._end = feed.ranges[at].start, feed.ranges[at].end
        self._after: Reader | None = None

    def poll(self, max_records: int, timeout_s: float) -> list[Records]:
        if self._next >= self._end:
            if self._after is None:
                self._after = self._log.reader({self._at: self._end})
            return self._after.poll(max_records, timeout_s)
        records = self._feed.take(self._at)
        if records is None:  # what is left are markers and gaps
            records = nothing_up_to(*self._at, self._end)
        self._next = records.next
        return [records]

    def position(self, at: TopicPartition) -> int:
        return self._next if self._after is None else self._after.position(at)

    def seek(self, at: TopicPartition, offset: int) -> None:
        """From here on it is the log that is read."""
        self.close()
        self._next, self._after = self._end, self._log.reader({at: offset})

    def close(self) -> None:
        if self._after is not None:
            self._after.close()


class _Waiting:
    """Records of one range that came before they were asked for, in order."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes  # in memory
        self._held: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._file: Any = None
        self._writer: Any = None
        self._read: Iterator[pa.RecordBatch] | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa  # noqa: PLC0415 - on executors only

        if self._writer is None and self._bytes + batch.nbytes <= self._most_bytes:
            self._held.append(batch)
            self._bytes += batch.nbytes
            return
        if self._writer is None:
            self._file = tempfile.TemporaryFile(prefix="samovar-feed-")  # noqa: SIM115 - see close
            self._writer = pa.ipc.new_stream(self._file, batch.schema)
        self._writer.write_batch(batch)

    def take(self) -> pa.RecordBatch | None:
        import pyarrow as pa  # noqa: PLC0415 - as above

        if self._held:
            return self._held.popleft()
        if self._writer is None:
            return None
        if self._read is None:
            self._writer.close()
            self._file.seek(0)
            self._read = iter(pa.ipc.open_stream(self._file))
        return next(self._read, None)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _by_partition(
    batch: pa.RecordBatch, ranges: Collection[TopicPartition]
) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """A batch cut where another partition begins. Without topics in it, no two ranges have a partition's number."""
    if not batch.num_rows:
        return
    partitions = batch.column("partition").to_numpy()
    is_cut = np.diff(partitions) != 0
    topics = batch.column("topic").dictionary_encode() if "topic" in batch.schema.names else None
    if topics is not None:
        is_cut |= np.diff(topics.indices.to_numpy()) != 0
    for start, stop in pairwise([0, *(np.flatnonzero(is_cut) + 1).tolist(), batch.num_rows]):
        number = int(partitions[start])
        if topics is not None:
            at = TopicPartition(topics[start].as_py(), number)
        else:
            (at,) = (each for each in ranges if each.partition == number)
        yield at, batch.slice(start, stop - start)


def records_of_topic(batch: pa.RecordBatch, topic: str) -> Iterator[RecordBlock]:
    """A batch of records of one topic, cut by partition."""
    numbers = set(batch.column("partition").unique().to_pylist())
    for at, piece in _by_partition(batch, [TopicPartition(topic, number) for number in numbers]):
        yield block_of_arrow(piece, at, int(piece.column("offset")[-1].as_py()) + 1)
