"""The newest records of the streams, in memory while somebody asks: most questions are about what has just happened,
and what is here needs no way to the log and back.

Nothing depends on it. What is older, or newer than the last poll, is read from the log; a stream that is too quick to
be followed cheaply is not followed at all.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from samovar.changelog.batches import RecordBlock, joined
from samovar.changelog.cursors import RecordSlice
from samovar.changelog.log import Log, Records, TopicPartition
from samovar.common.errors import Fenced, LogUnavailable, Refused

IDLE_S = 30.0  # without a question
BACK_RECORDS = 20_000  # of each partition, from before the first question
MOST_BYTES = 32 << 20
MOST_PER_S = 50_000  # records: beyond it, following takes more than the questions would
RATE_OVER_S = 5.0
REST_S = 60.0  # after it was too much, or the log did not answer
POLL_RECORDS = 20_000
PIECE_RECORDS = 1_000  # that are held together
POLL_S = 0.1
CLOSE_S = 5.0


@dataclass
class RecentRecords:
    """Of one partition: every record from `first` up to `next`."""

    first: int = 0
    next: int = 0
    pieces: deque[tuple[int, Records]] = field(default_factory=deque)  # with the offset that each begins at

    def has(self, start: int, stop: int) -> bool:
        return self.first <= start and stop <= self.next

    def between(self, start: int, stop: int) -> Iterator[Records]:
        """Those of these offsets."""
        for _, records in self.pieces:
            first, after = np.searchsorted(records.offsets, (start, stop)).tolist()
            if first < after:
                yield RecordSlice(records, first, after, min(records.next, stop))


class TailingReader:
    """The source of truth for which records are in memory. Threads may share it."""

    def __init__(self, log: Log, topics: Collection[str]) -> None:
        self._log, self._topics = log, topics
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._held: dict[TopicPartition, RecentRecords] = {}
        self._bytes = 0
        self._asked_s = 0.0
        self._rests_until_s = 0.0

    def close(self) -> None:
        self._ending.set()
        if (thread := self._thread) is not None:
            thread.join(CLOSE_S)

    def ask(self) -> None:
        """Somebody asks: what comes from now on is held for a while."""
        self._asked_s = time.monotonic()
        with self._lock:
            if self._thread is None and self._asked_s >= self._rests_until_s and not self._ending.is_set():
                self._thread = threading.Thread(target=self._run, name="tail", daemon=True)
                self._thread.start()

    def partitions(self, topic: str) -> int:
        """How many of a topic it has; 0 where it does not follow it."""
        with self._lock:
            return sum(at.topic == topic for at in self._held)

    def kept(self, at: TopicPartition) -> RecentRecords:
        """What is there of a partition now; it does not change any more."""
        with self._lock:
            held = self._held.get(at, RecentRecords())
            return RecentRecords(held.first, held.next, held.pieces.copy())

    def _run(self) -> None:
        try:
            self._follow()
        except (LogUnavailable, Fenced, Refused):  # those who ask read the log themselves, and hear of it
            self._rests_until_s = time.monotonic() + REST_S
        finally:
            with self._lock:
                self._held, self._bytes, self._thread = {}, 0, None

    def _follow(self) -> None:
        topics = self._log.topics(list(self._topics)).values()
        places = [TopicPartition(topic.name, number) for topic in topics for number in range(topic.partitions)]
        bounds = self._log.bounds(places)
        starts = {at: max(begin, end - BACK_RECORDS) for at, (begin, end) in bounds.items()}
        if not starts:
            self._rests_until_s = time.monotonic() + REST_S
            return
        with self._lock:
            self._held = {at: RecentRecords(start, start) for at, start in starts.items()}
        with closing(self._log.tail(starts)) as reader:
            since_s, taken = time.monotonic() + RATE_OVER_S, 0  # what is from before does not count
            while not self._ending.wait(POLL_S) and time.monotonic() - self._asked_s < IDLE_S:
                taken += self._take(reader.poll(POLL_RECORDS, POLL_S))
                passed_s = time.monotonic() - since_s
                if passed_s < 0:
                    taken = 0
                elif passed_s >= RATE_OVER_S:
                    if taken / passed_s > MOST_PER_S:
                        self._rests_until_s = time.monotonic() + REST_S
                        return
                    since_s, taken = time.monotonic(), 0

    def _take(self, batch: Collection[Records]) -> int:
        with self._lock:
            for records in batch:
                held = self._held[TopicPartition(records.topic, records.partition)]
                if len(records):
                    self._hold(held, records)
                held.next = records.next
            while self._bytes > MOST_BYTES:  # of the partition that has the most time in memory, its oldest piece
                kept = [each for each in self._held.values() if each.pieces]
                held = min(kept, key=lambda each: int(each.pieces[0][1].times[0]))
                _, records = held.pieces.popleft()
                self._bytes -= _bytes_of(records)
                held.first = held.pieces[0][0] if held.pieces else held.next
        return sum(map(len, batch))

    def _hold(self, held: RecentRecords, records: Records) -> None:
        """Together with what came just before, where that is little: many small pieces take far more room."""
        first, before = held.pieces[-1] if held.pieces else (0, None)
        if isinstance(before, RecordBlock) and isinstance(records, RecordBlock) and len(before) < PIECE_RECORDS:
            held.pieces.pop()
            self._bytes -= _bytes_of(before)
            held.pieces.append((first, joined([before, records])))
        else:
            held.pieces.append((held.next, records))
        self._bytes += _bytes_of(held.pieces[-1][1])


def _bytes_of(records: Records) -> int:
    """About: what was copied for them, and their places."""
    return int(records.keys.data.nbytes + records.values.data.nbytes) + 64 * len(records)
