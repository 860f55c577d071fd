"""Reading a changelog for a restore, part by part: `ChangelogReader` where it is asked, and `Ahead` in a thread.

The thread reads and puts the newest rows in order while the one who restores writes what came before, or goes on with
other work. Most of what it does needs no Python.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass

import numpy as np

from samovar.changelog.log import Log, TopicPartition
from samovar.changelog.newest import Newest

POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a changelog up to an offset, the newest of each key since the part before."""

    rows: Newest
    next: int
    time_ms: int | None  # log time of the last record; None where there was none, only gaps
    records: int


class ChangelogReader:
    """One partition, read up to an offset. `position` is how far it is."""

    def __init__(self, log: Log, at: TopicPartition, start: int, end: int) -> None:
        self.position = start
        self._at, self._end, self._tunables = at, end, log.tunables
        self._reader = log.reader({at: start})
        self._rows, self._records = Newest(), 0
        self._time_ms: int | None = None

    def take(self, timeout_s: float) -> Part | None:
        """Poll once. A part, where enough has come for one or the end is reached."""
        if self.position >= self._end:
            return None
        most = self._tunables
        for each in self._reader.poll(most.restore_records, timeout_s):
            count = int(np.searchsorted(each.offsets, self._end))
            if count:
                self._rows.add(each, count)
                self._records, self._time_ms = self._records + count, int(each.times[count - 1])
        self.position = min(self._reader.position(self._at), self._end)
        is_full = len(self._rows) >= most.restore_rows or self._rows.bytes >= most.restore_bytes
        if self.position < self._end and not is_full:
            return None
        rows, records = self._rows, self._records
        rows.sort()
        self._rows, self._records = Newest(), 0
        return Part(rows, self.position, self._time_ms, records)

    def close(self) -> None:
        self._reader.close()


class Ahead:
    """A ChangelogReader in a thread; at most one part waits to be taken."""

    def __init__(self, log: Log, at: TopicPartition, start: int, end: int) -> None:
        self.position = start
        self._end = end
        self._parts: queue.Queue[Part | BaseException] = queue.Queue(1)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(log, at), name=f"restore {at}", daemon=True)
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

    def _run(self, log: Log, at: TopicPartition) -> None:
        try:
            reader = ChangelogReader(log, at, self.position, self._end)
            try:
                self._read(reader)
            finally:
                reader.close()
        except BaseException as error:
            self._put(error)

    def _read(self, reader: ChangelogReader) -> None:
        while self.position < self._end and not self._stopped.is_set():
            part = reader.take(POLL_S)
            self.position = reader.position
            if part is not None:
                self._put(part)

    def _put(self, part: Part | BaseException) -> None:
        while not self._stopped.is_set():
            try:
                self._parts.put(part, timeout=POLL_S)
            except queue.Full:
                continue
            return
