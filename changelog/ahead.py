"""Reading ahead of a restore: a thread that reads a changelog and puts its newest rows in order, while the one who
restores writes what came before, or goes on with other work. Most of what it does needs no Python.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass

import numpy as np

from samovar.changelog.log import Log, Reader, TopicPartition
from samovar.changelog.newest import Newest

POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a changelog up to an offset, the newest of each key since the part before."""

    rows: Newest
    next: int
    time_ms: int | None  # log time of the last record; None where there was none, only gaps
    records: int


class Ahead:
    """One partition, read up to an offset. `position` is how far it is; at most one part waits to be taken."""

    def __init__(self, log: Log, at: TopicPartition, start: int, end: int) -> None:
        self.position = start
        self._at, self._end, self._tunables = at, end, log.tunables
        self._parts: queue.Queue[Part | BaseException] = queue.Queue(1)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(log,), name=f"restore {at}", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float) -> Part | None:
        """The next part, or None where there is none yet. What went wrong is raised here."""
        try:
            part = self._parts.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(part, BaseException):
            raise part
        return part

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self, log: Log) -> None:
        try:
            reader = log.reader({self._at: self.position})
            try:
                self._read(reader)
            finally:
                reader.close()
        except BaseException as error:
            self._put(error)

    def _read(self, reader: Reader) -> None:
        rows, records, most = Newest(), 0, self._tunables
        time_ms: int | None = None
        while self.position < self._end and not self._stopped.is_set():
            for each in reader.poll(most.restore_records, POLL_S):
                count = int(np.searchsorted(each.offsets, self._end))
                if count:
                    rows.add(each, count)
                    records, time_ms = records + count, int(each.times[count - 1])
            self.position = min(reader.position(self._at), self._end)
            is_full = len(rows) >= most.restore_rows or rows.bytes >= most.restore_bytes
            if self.position >= self._end or is_full:
                rows.sort()
                self._put(Part(rows, self.position, time_ms, records))
                rows, records = Newest(), 0

    def _put(self, part: Part | BaseException) -> None:
        while not self._stopped.is_set():
            try:
                self._parts.put(part, timeout=POLL_S)
            except queue.Full:
                continue
            return
