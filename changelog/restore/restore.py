"""A store brought up to the end of its changelog, in small steps that can stop and go on at any moment.

    (nothing) --from the beginning, or a snapshot--> behind --tail--> caught up

`next_step` decides where a store may go on, or refuses (P4, P10); `Restore` then reads and writes. What is written is
the newest value of each key so far, with the changelog offset it stands for, in one batch. Restore ends at the high
watermark that was seen first: an open transaction of a dead writer below it is waited for, because it may commit (P7).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from samovar.changelog.formats.record import (
    CHECKPOINT,
    INDEXED,
    POSITION,
    ChangelogCheckpoint,
    Position,
    deadline_rows,
    pack_checkpoint,
    refuse_others,
    unpack_checkpoint,
    unpack_position,
)
from samovar.changelog.log import Bounds, Log, Topic, TopicPartition
from samovar.changelog.restore.latest_by_key import LatestByKey, NewestTable
from samovar.common.errors import Refused
from samovar.common.failpoints import hit
from samovar.state.store import Readable, TaskStore

STUCK_S = 120.0  # with no record and no progress for so long, a restore fails loudly

POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class ChangelogSlice:
    """Rows of a changelog up to an offset, the newest of each key since the part before."""

    rows: LatestByKey
    next: int
    time_ms: int | None  # log time of the last record; None where there was none, only gaps
    records: int


class ChangelogReader:
    """One partition, read up to an offset. `position` is how far it is."""

    def __init__(self, log: Log, at: TopicPartition, start: int, end: int) -> None:
        self.position = start
        self._at, self._end, self._tunables = at, end, log.tunables
        self._reader = log.reader({at: start})
        self._rows, self._records = LatestByKey(), 0
        self._time_ms: int | None = None

    def take(self, timeout_s: float) -> ChangelogSlice | None:
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
        self._rows, self._records = LatestByKey(), 0
        return ChangelogSlice(rows, self.position, self._time_ms, records)

    def close(self) -> None:
        self._reader.close()


class ChangelogPrefetcher:
    """A ChangelogReader in a thread; at most one part waits to be taken."""

    def __init__(self, log: Log, at: TopicPartition, start: int, end: int) -> None:
        self.position = start
        self._end = end
        self._parts: queue.Queue[ChangelogSlice | BaseException] = queue.Queue(1)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(log, at), name=f"restore {at}", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float) -> ChangelogSlice | None:
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
            with closing(ChangelogReader(log, at, self.position, self._end)) as reader:
                while self.position < self._end and not self._stopped.is_set():
                    part = reader.take(POLL_S)
                    self.position = reader.position
                    if part is not None:
                        self._put(part)
        except BaseException as error:
            self._put(error)

    def _put(self, part: ChangelogSlice | BaseException) -> None:
        while not self._stopped.is_set():
            try:
                self._parts.put(part, timeout=POLL_S)
            except queue.Full:
                continue
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogPartition:
    """One task's part of a service's changelog, as the log describes it now."""

    at: TopicPartition
    topic: Topic
    bounds: Bounds
    delete_retention_ms: int
    service: str = ""  # whose it must be; "": anyone's

    @classmethod
    def load(cls, log: Log, at: TopicPartition, delete_retention_ms: int, service: str = "") -> ChangelogPartition:
        topic = log.topics([at.topic]).get(at.topic)
        if topic is None:
            raise Refused(
                "topic-missing",
                f"the changelog topic {at.topic} does not exist",
                "Start the service once with `topics: create`, or make it as `samovar topics plan` says.",
            )
        bounds = log.bounds([at])[at]
        return cls(at=at, topic=topic, bounds=bounds, delete_retention_ms=delete_retention_ms, service=service)

    def refuse_others(self, position: Position | None) -> None:
        """A position that another service wrote to it."""
        if self.service:
            refuse_others(position, self.service, f"the changelog {self.at}")


def checkpoint_of(store: Readable) -> ChangelogCheckpoint | None:
    """Where a store stands, None where it is new."""
    data = store.get(CHECKPOINT)
    return None if data is None else unpack_checkpoint(data)


def next_step(checkpoint: ChangelogCheckpoint | None, changelog: ChangelogPartition, now_ms: int) -> int | None:
    """The offset to read on from; None where the store must be replaced whole, because deletes may be missing from
    what it would read. A store that cannot belong to this changelog is refused.
    """
    if checkpoint is None:
        return changelog.bounds.begin
    topic = changelog.topic
    if checkpoint.partitions != topic.partitions:
        raise Refused(
            "changelog-repartitioned",
            f"the changelog {topic.name} has {topic.partitions} partitions, and the store was made for"
            f" {checkpoint.partitions}",
            "Keys are in other partitions now. Put the partition count back, or rebuild the state under a new service"
            " name with `samovar restore --from source`.",
        )
    if checkpoint.topic_id != topic.id:
        raise Refused(
            "changelog-recreated",
            f"the changelog {topic.name} is not the one that the store of partition {changelog.at.partition} followed:"
            " it was deleted and made again",
            "If the new one is empty by mistake, rebuild from the input: `samovar restore --from source`.",
            f"topic id {topic.id}, the store knows {checkpoint.topic_id}",
        )
    begin, end = changelog.bounds
    if checkpoint.next > end:
        raise Refused(
            "store-ahead",
            f"the store of partition {changelog.at.partition} is at offset {checkpoint.next:,} of its changelog,"
            f" which ends at {end:,}",
            "The changelog lost records, or this is another one. If the changelog is right:"
            " `samovar restore --from changelog`; if the store is: `samovar restore --from source`.",
            f"changelog {changelog.at}",
        )
    if checkpoint.next == end:
        return end
    too_old = now_ms - checkpoint.time_ms > changelog.delete_retention_ms // 2
    return None if too_old or checkpoint.next < begin else checkpoint.next


def stuck(at: TopicPartition, offset: int, end: int) -> Refused:
    """What a restore says that waited for too long."""
    return Refused(
        "restore-stuck",
        f"no record of {at} came for {STUCK_S:.0f} s, at offset {offset:,} of {end:,}",
        "A transaction may be open, or records are missing: look at the broker, then run it again.",
    )


class Restore:
    """One store on its way to the end of its changelog. The source of truth for how far that is."""

    def __init__(
        self,
        store: TaskStore,
        log: Log,
        changelog: ChangelogPartition,
        start: int,
        *,
        to: int | None = None,
        in_thread: bool = True,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`in_thread`: what comes next is read while `advance` writes."""
        self.store = store
        self.changelog = changelog
        self.start = start
        self.end = changelog.bounds.end if to is None else to
        self.next = start
        self.records = 0
        self._tunables = log.tunables
        self._empty = next(store.range(), None) is None
        self._indexed = store.get(INDEXED) is not None  # or begun: from then on rows are written with their entries
        checkpoint = checkpoint_of(store)
        self._time_ms = 0 if checkpoint is None else checkpoint.time_ms
        read = ChangelogPrefetcher if in_thread else ChangelogReader
        self._ahead = read(log, changelog.at, start, self.end) if start < self.end else None
        self._now_s = now_s
        self._last_progress_s = now_s()
        hit("restore.before")

    @property
    def done(self) -> bool:
        return self._ahead is None

    def advance(self, timeout_s: float = 0.1) -> bool:
        """Write what was read meanwhile; True when the store is caught up."""
        if self._ahead is None:
            return True
        part = self._ahead.take(timeout_s)
        position = self._ahead.position
        if position > self.next:
            self.next, self._last_progress_s = position, self._now_s()
        elif self._now_s() - self._last_progress_s > STUCK_S and position < self.end:
            raise stuck(self.changelog.at, self.next, self.end)
        if part is not None:
            self._write(part)
            self.records += part.records
            if part.next >= self.end:
                self.close()
                hit("restore.after")
        return self.done

    def _write(self, part: ChangelogSlice) -> None:
        first = part.rows.first()
        if first is not None and first[0] == POSITION and first[1] is not None:
            # Of a newer version, or of another service: refused before anything of it is in the store.
            self.changelog.refuse_others(unpack_position(first[1]))
        self._time_ms = self._time_ms if part.time_ms is None else part.time_ms
        topic, at = self.changelog.topic, self.changelog.at
        checkpoint = ChangelogCheckpoint(
            topic=at.topic,
            topic_id=topic.id,
            partition=at.partition,
            partitions=topic.partitions,
            next=part.next,
            time_ms=self._time_ms,
        )
        follows = (CHECKPOINT, pack_checkpoint(checkpoint))  # its key is before those of all rows logged
        # A small state is kept in memory and has no index; a large one gets it here, where it costs least.
        is_large = len(part.rows) > self._tunables.whole_states or part.next < self.end
        is_begun = self._empty and is_large
        if self._empty or len(part.rows) > self._tunables.table_rows:
            has_index = self._indexed or is_begun
            self.store.ingest_table(NewestTable(follows, part.rows, keep_tombstones=not self._empty, index=has_index))
        else:
            rows = part.rows.changes()
            index = deadline_rows(rows) if self._indexed else []
            self.store.write([*rows, *index, follows])
        if is_begun:
            self._indexed = True
            self.store.put(INDEXED, b"")
        self._empty = False

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
