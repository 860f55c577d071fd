"""Groups on the embedded log: members are processes of one machine, and the kernel knows which of them live.

Partition p of all topics belongs to one member: ranges over the live slots, in order. Each member works that out by
itself from the locks, gives up what is no longer its own, and takes what is once its lock is free: then the old owner
has closed its store. Taking a partition raises its epoch; a commit checks the epochs of all partitions held.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from samovar.changelog.embedded.file import (
    Clock,
    existing_partition,
    existing_topics,
    failing,
    missing,
    writing,
)
from samovar.changelog.embedded.locks import HeldLock, folder_of, holder, live_slots, take
from samovar.changelog.embedded.maintenance import LogMaintenance
from samovar.changelog.embedded.read import ReadCursor, ReadPlace
from samovar.changelog.embedded.write import packed_appends, write
from samovar.changelog.log import Append, GroupConfig, Records, TopicPartition
from samovar.common import failpoints
from samovar.common.errors import Fenced, Refused
from samovar.common.tunables import DEFAULTS, Tunables

LOOK_S = 0.5
LOOK_WHILE_WAITING_S = 0.02
# Anyone who looks whether a member lives holds its lock for a moment: a slot is taken only if it stays so.
SLOT_WAIT_S = 0.25


def share(partitions: int, slots: Sequence[int], slot: int) -> range:
    """The partitions of a slot: ranges as equal as can be, the first ones longer.

    >>> [list(share(5, [0, 3], slot)) for slot in (0, 3)]
    [[0, 1, 2], [3, 4]]
    """
    each, more = divmod(partitions, len(slots))
    place = list(slots).index(slot)
    start = place * each + min(place, more)
    return range(start, start + each + (place < more))


class EmbeddedMember:
    """A container in its group. The source of truth for which partitions this process holds."""

    def __init__(self, folder: Path, joining: GroupConfig, clock: Clock, tunables: Tunables = DEFAULTS) -> None:
        self._joining = joining
        self._tunables = tunables
        self._clock = clock
        self._path = folder / "log.db"
        self._locks = folder_of(folder, joining.group)
        self._cursor = ReadCursor(self._path, tunables.fetch_bytes)
        self._connection = self._cursor.connection
        self._maintenance = LogMaintenance(self._connection, self._path, clock, tunables)
        self._held: dict[int, tuple[HeldLock, int]] = {}  # by partition: its lock and our epoch
        self._next_look_s = 0.0
        self._is_assigned = False
        self._is_usable = True
        self._is_closed = False
        try:
            with failing(self._path):
                self._topics = existing_topics(self._connection, joining.topics)
                lead = [] if joining.lead is None else [joining.lead]
                led_by = existing_topics(self._connection, lead) or self._topics
                self._partitions = max((each.topic.partitions for each in led_by.values()), default=0)
            path = self._locks / f"slot-{joining.slot}"
            with failing(path):
                slot = take(path, SLOT_WAIT_S)
            if slot is None:
                raise Refused(
                    "slot-taken",
                    f"slot {joining.slot} of group {joining.group} is taken by {holder(path)}",
                    "Stop the other container, or start this one in another slot.",
                )
            self._slot = slot
        except BaseException:
            self._cursor.close()
            raise

    # ---------------------------------------------------------------- reading

    def poll(self, max_records: int, timeout_s: float) -> list[Records]:
        return self._cursor.poll(max_records, timeout_s, self._look_at_group)

    def seek(self, at: TopicPartition, offset: int) -> None:
        self._cursor.seek(at, offset)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        for at in partitions:
            self._cursor.place(at).paused = True

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        for at in partitions:
            self._cursor.place(at).paused = False
        self._cursor.look_again()

    def position(self, at: TopicPartition) -> int:
        return self._cursor.position(at)

    def at_end(self, at: TopicPartition) -> bool:
        place = self._cursor.place(at)
        return place.position is not None and place.end is not None and place.position >= place.end

    def standing(self) -> Mapping[TopicPartition, int]:
        return {at: 0 for at in self._cursor.places if self.at_end(at)}  # every poll is a look, and the file is here

    def has_assignment(self) -> bool:
        return self._is_assigned

    # ---------------------------------------------------------------- partitions

    def _look_at_group(self) -> None:
        self._refuse_unusable()
        if time.monotonic() < self._next_look_s:
            return
        if not self._slot.is_current() or not self._epochs_are_ours():
            self._is_usable = False
            self._tell_lost()
            raise Fenced(f"slot {self._joining.slot} of group {self._joining.group} was taken by another container")
        slots = sorted({*live_slots(self._locks), self._joining.slot})
        wanted = set(share(self._partitions, slots, self._joining.slot))
        self._give_up(sorted(self._held.keys() - wanted))
        self._take(sorted(wanted - self._held.keys()))
        is_waiting = bool(wanted - self._held.keys())
        self._is_assigned = not is_waiting
        self._next_look_s = time.monotonic() + (LOOK_WHILE_WAITING_S if is_waiting else LOOK_S)

    def _give_up(self, partitions: Sequence[int]) -> None:
        if not partitions:
            return
        failpoints.hit("revoke.before")
        self._joining.on_revoked(self._all_of(partitions))
        self._release(partitions)
        failpoints.hit("revoke.after")

    def _release(self, partitions: Sequence[int]) -> None:
        for partition in partitions:
            self._held.pop(partition)[0].release()
            for topic in self._topics:
                self._cursor.places.pop(TopicPartition(topic, partition), None)

    def _take(self, partitions: Sequence[int]) -> None:
        with failing(self._path):
            locks = {partition: take(self._locks / f"partition-{partition}") for partition in partitions}
        free = {partition: lock for partition, lock in locks.items() if lock is not None}
        if not free:
            return
        try:
            with writing(self._connection, self._path):
                before = self._epochs()
                epochs = {partition: before.get(partition, 0) + 1 for partition in free}
                self._connection.executemany(
                    "INSERT OR REPLACE INTO epoch (grp, partition, epoch) VALUES (?, ?, ?)",
                    [(self._joining.group, partition, epoch) for partition, epoch in epochs.items()],
                )
        except BaseException:
            for lock in free.values():
                lock.release()
            raise
        self._held.update({partition: (lock, epochs[partition]) for partition, lock in free.items()})
        taken = self._all_of(list(free))
        for at in taken:
            self._cursor.places[at] = ReadPlace(number=self._topics[at.topic].number, position=None)
        self._cursor.look_again()
        self._joining.on_assigned(taken)
        failpoints.hit("assign.after")

    def _all_of(self, partitions: Sequence[int]) -> list[TopicPartition]:
        return [
            TopicPartition(topic, partition)
            for topic, stored in self._topics.items()
            for partition in partitions
            if partition < stored.topic.partitions
        ]

    def _epochs(self) -> dict[int, int]:
        found = self._connection.execute("SELECT partition, epoch FROM epoch WHERE grp = ?", (self._joining.group,))
        return dict(found.fetchall())

    def _epochs_are_ours(self) -> bool:
        with failing(self._path):
            epochs = self._epochs()
        return all(epochs.get(partition) == epoch for partition, (_, epoch) in self._held.items())

    def _tell_lost(self) -> None:
        lost = sorted(self._held)
        if lost:
            self._release(lost)
            self._joining.on_lost(self._all_of(lost))

    # ---------------------------------------------------------------- writing

    def transact(
        self, appends: Sequence[Append], offsets: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        self._refuse_unusable()
        self._is_usable = False  # until all of it has happened
        with failing(self._path):
            segments = packed_appends(self._connection, appends, self._tunables.segment_bytes)
            topics = existing_topics(self._connection, [at.topic for at in offsets])
        with writing(self._connection, self._path):
            lost = sorted(str(at) for at in offsets if at.partition not in self._held)
            if lost or not self._epochs_are_ours():
                where = ", ".join(lost) or f"a partition of slot {self._joining.slot}"
                raise Fenced(f"{where} of group {self._joining.group} belongs to another container now")
            failpoints.hit("produce.before")
            ends = write(self._connection, segments, self._clock())
            failpoints.hit("produce.after")
            failpoints.hit("offsets.before")
            for at, offset in offsets.items():
                number = existing_partition(topics, at.topic, at.partition)
                if self._connection.execute("SELECT 1 FROM topic WHERE number = ?", (number,)).fetchone() is None:
                    raise missing(at.topic)
                self._connection.execute(
                    "INSERT OR REPLACE INTO place (grp, topic, partition, offset) VALUES (?, ?, ?, ?)",
                    (self._joining.group, number, at.partition, offset),
                )
            failpoints.hit("offsets.after")
            failpoints.hit("flush.after")
            failpoints.hit("commit.before")
        failpoints.hit("commit.after")
        self._is_usable = True
        self._maintenance.after((segment.stored, segment.partition) for segment in segments)
        if any(segment.at in self._cursor.places for segment in segments):
            self._cursor.look_again()
        return {segment.at: ends[segment.at] - 1 for segment in segments if segment.named}

    def _refuse_unusable(self) -> None:
        if self._is_closed or not self._is_usable:
            raise ValueError("after a failed transaction, or a close, a member can only be closed")

    # ---------------------------------------------------------------- leaving

    def leave(self) -> None:
        """Its locks are all that others see of it."""
        self.close()

    def close(self) -> None:
        if self._is_closed:
            return
        try:
            if self._is_usable:
                self._give_up(sorted(self._held))
            else:
                self._tell_lost()
        finally:
            self._is_closed = True
            self._release(sorted(self._held))
            self._slot.release()
            self._cursor.close()
