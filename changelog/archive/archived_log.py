"""A log that an archive continues into the past: an offset that the log's retention has taken is read from the archive.

    log = archived_log(log, archive)

`bounds` begin where the unbroken files begin that reach the log, and readers give the records from there on: first the
files, then the log, each offset once. What neither has is refused (`archive-gap`). Of a compacted topic the log says
what it is, as ever; `history_log` has all of its records that the archive saw, those before compaction among them.

All else the log does itself: this one leaves groups and writing alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from samovar.changelog.archive.archive import Archive, Chain
from samovar.changelog.batches import RecordBlock, nothing_up_to, rows_between
from samovar.changelog.cursors import GONE
from samovar.changelog.log import Bounds, Log, Reader, Records, Topic, TopicPartition
from samovar.common.errors import Refused


def archived_log(log: Log, archive: Archive, *, prefers_archive: bool = False) -> Log:
    """With `prefers_archive` what both have is read from the archive, which is quicker: for a backtest."""
    found: Any = _ArchivedLog(log, archive, prefers_archive, lambda topic: not is_compacted(topic))
    return found  # type: ignore[no-any-return]  # what it does not do itself, the log does


def history_log(log: Log, archive: Archive) -> Log:
    """Also of compacted topics all that the archive has, and what came since from the log."""
    found: Any = _ArchivedLog(log, archive, True, lambda _: True)
    return found  # type: ignore[no-any-return]  # as above


def log_begins(log: Log, at: TopicPartition, start: int, end: int) -> int:
    """From which offset on the log itself gives a range, where an archive has what is before; refused where none has.

    Of a range whose beginning retention took this is where its files end: what is read next must not be what retention
    takes next.
    """
    return log.log_begins(at, start, end) if isinstance(log, _ArchivedLog) else start


def is_compacted(topic: Topic) -> bool:
    return "compact" in topic.settings.get("cleanup.policy", "")


class _ArchivedLog:
    def __init__(self, log: Log, archive: Archive, prefers: bool, continues: Callable[[Topic], bool]) -> None:
        self.log, self.archive, self.prefers = log, archive, prefers
        self._continues = continues
        self._topics: dict[str, Topic | None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)

    def topic(self, name: str) -> Topic | None:
        """One that the archive continues. Its id is the one of the first question: another topic is another log."""
        if name not in self._topics:
            topic = self.log.topics([name]).get(name)
            self._topics[name] = topic if topic is not None and self._continues(topic) else None
        return self._topics[name]

    def chain(self, at: TopicPartition) -> Chain:
        topic = self.topic(at.topic)
        return Chain(()) if topic is None else self.archive.chain(topic, at.partition)

    def bounds(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        found = self.log.bounds(partitions)
        return {at: Bounds(self.chain(at).begin_of(each.begin), each.end) for at, each in found.items()}

    def offset_at(self, at: TopicPartition, time_ms: int) -> int:
        topic, chain, (begin, _) = self.topic(at.topic), self.chain(at), self.log.bounds([at])[at]
        start, end = (0, chain.end) if self.prefers else (chain.begin_of(begin), begin)
        for span in chain.spans if topic is not None else ():
            if span.next <= start or span.first >= end:
                continue
            file = self.archive.open(topic, at.partition, span)  # type: ignore[arg-type]  # there is one
            if file.facts.times and file.facts.times[1] >= time_ms:
                for offsets, times in file.times():
                    rows = np.flatnonzero((times >= time_ms) & (offsets >= span.first) & (offsets < end))
                    if len(rows):
                        return int(offsets[rows[0]])
        return self.log.offset_at(at, time_ms)

    def missing(self, at: TopicPartition, start: int | None) -> Refused | None:
        """Why offsets from here on cannot be read, where that is a hole, and not that both begin later."""
        topic, begin = self.topic(at.topic), self.log.bounds([at])[at].begin
        if topic is None or not (chain := self.chain(at)).spans:
            return None
        start = chain.spans[0].first if start is None else start
        if start < chain.spans[0].first:
            return None
        gap = chain.missing(start, begin)
        return None if gap is None else self.archive.refusal(at, topic, gap)

    def log_begins(self, at: TopicPartition, start: int, end: int) -> int:
        begin, chain = self.log.bounds([at])[at].begin, self.chain(at)
        if start >= min(begin, end) or not chain.spans or start < chain.spans[0].first:
            return start  # the log has it, or says that it has not
        if (gap := self.missing(at, start)) is not None:
            raise gap
        gap_behind = chain.missing(start, max(chain.end, begin))
        return min(end, max(begin, chain.end if gap_behind is None else gap_behind.first))

    def reader(self, positions: Mapping[TopicPartition, int]) -> Reader:
        return _ArchivedReader(self, positions, self.log.reader)

    def point_reader(self, positions: Mapping[TopicPartition, int], records: int) -> Reader:
        return _ArchivedReader(self, positions, lambda at: self.log.point_reader(at, records))

    def tail(self, positions: Mapping[TopicPartition, int]) -> Reader:
        return _ArchivedReader(self, positions, self.log.tail)


@dataclass
class _Place:
    """A partition that is read from the archive now, up to an offset that the log has."""

    blocks: Iterator[RecordBlock]
    end: int
    rest: RecordBlock | None = None


class _ArchivedReader:
    """The source of truth for where each partition is read next. The log is not asked before the files are read."""

    def __init__(
        self,
        log: _ArchivedLog,
        positions: Mapping[TopicPartition, int],
        open_reader: Callable[[Mapping[TopicPartition, int]], Reader],
    ) -> None:
        self._log, self._open = log, open_reader
        self._positions = dict(positions)
        self._places: dict[TopicPartition, _Place] = {}
        self._reader: Reader | None = None

    def _look(self) -> None:
        """Decide for every partition who has its next record. Refused where nobody has."""
        for at, bounds in self._log.log.bounds(list(self._positions)).items():
            position, topic = self._positions[at], self._log.topic(at.topic)
            if topic is None or at in self._places or (position >= bounds.begin and not self._log.prefers):
                continue
            chain = self._log.chain(at)
            if not chain.spans or position < chain.spans[0].first:
                continue  # the log has it, or says that it has not
            if position < bounds.begin and (gap := chain.missing(position, bounds.begin)):
                raise self._log.archive.refusal(at, topic, gap)
            gap = chain.missing(position, max(chain.end, position))
            end = gap.first if gap is not None else chain.end
            end = max(end, bounds.begin) if self._log.prefers else bounds.begin
            if chain.at(position) is not None and end > position:
                blocks = self._log.archive.blocks(topic, at.partition, position, end)
                self._places[at] = _Place(blocks, end)

    def poll(self, max_records: int, timeout_s: float) -> list[Records]:
        found: list[Records] = []
        for at, place in list(self._places.items()):
            block = place.rest or next(place.blocks, None)
            if block is None:  # what is left are offsets of no record
                block = nothing_up_to(*at, place.end)
            place.rest = None
            if len(block) > max_records:
                place.rest = rows_between(block, max_records, len(block), block.next)
                block = rows_between(block, 0, max_records, int(block.offsets[max_records]))
            self._positions[at] = block.next
            if block.next >= place.end:
                del self._places[at]
            found.append(block)
        if found:
            return found
        if self._reader is None:
            self._look()  # retention may have passed meanwhile
            if self._places:
                return self.poll(max_records, timeout_s)
            self._reader = self._open(self._positions)
        try:
            return list(self._reader.poll(max_records, timeout_s))
        except Refused as refused:
            if refused.code not in GONE:
                raise
            for at in self._positions:
                self._positions[at] = self._reader.position(at)
            self._look()
            if not self._places:  # it was not retention, or the archive has nothing of it
                raise
            self._close()
            return []

    def position(self, at: TopicPartition) -> int:
        return self._positions[at] if self._reader is None else self._reader.position(at)

    def seek(self, at: TopicPartition, offset: int) -> None:
        if self._reader is not None:
            self._positions |= {each: self._reader.position(each) for each in self._positions}
            self._close()
        self._places.pop(at, None)
        self._positions[at] = offset

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def close(self) -> None:
        self._places.clear()
        self._close()
