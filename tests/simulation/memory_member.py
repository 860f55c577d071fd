"""A container in its simulated group, as samovar.changelog.kafka.member.KafkaMember is in Kafka's.

join      the slot's producer begins anew: the one before is fenced, its transaction ended
poll      enters the group at the first time; gives up its partitions and joins again while others come or go
transact  begin, produce, offsets with the membership of the last assignment, commit
close     abort what is open, go; the group misses it when its session is over
leave     tell the group first
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from samovar.changelog.log import Append, Delivery, GroupConfig, Records, TopicPartition
from samovar.common import failpoints
from samovar.common.errors import CommitUnknown, Fenced, LogUnavailable, Refused
from tests.simulation.broker import Membership, Outcome, PartitionLog, Transaction, UnknownMember, refuse_zombie
from tests.simulation.faults import Fault, Killed
from tests.simulation.memory_client import Client, Places


class Look(NamedTuple):
    """The last look at the end of a partition."""

    stretch: int
    end: int
    at_ms: int


class MemoryMember:
    """One container of a group. The source of truth for what it owns, and for whether its transaction is open."""

    def __init__(self, client: Client, joining: GroupConfig) -> None:
        self._client, self._joining = client, joining
        self._broker = client.broker
        self._name = f"{joining.group}-{joining.slot}"
        self._exactly_once = joining.delivery is Delivery.EXACTLY_ONCE
        self._subscription = tuple(joining.topics) if joining.lead is None else (joining.lead,)
        self._places = Places(client.broker)
        self._group = self._broker.group(joining.group)
        self._number: int | None = None  # in the group, once it has entered it
        self._membership: Membership | None = None  # of the last assignment: an old one is refused, as it should be
        self._owned: set[TopicPartition] = set()
        self._has_share = False
        self._looks: dict[TopicPartition, Look] = {}
        self._told: dict[TopicPartition, Look] = {}
        self._stretches = count(1)
        self._open: Transaction | None = None  # that is to be aborted
        self._usable, self._closed = True, False
        self._producer = self._broker.start_producer(self._name) if self._exactly_once else None
        self._epoch = 0 if self._producer is None else self._producer.epoch
        client.heartbeats.append(self._heartbeat)

    # ------------------------------------------------------------ reading

    def poll(self, max_records: int, timeout_s: float) -> list[Records]:
        self._refuse_unusable()
        with self._client.call("poll") as fault:
            if fault is Fault.NOTHING:
                return []
            if self._attend():
                return []
            if fault is Fault.TIMEOUT_AFTER:
                return []  # what was fetched is lost on the way, and will be fetched again
            records = self._places.fetch(max_records)
            self._look()
            return records

    def seek(self, at: TopicPartition, offset: int) -> None:
        if at not in self._owned:
            raise ValueError(f"{at} does not belong to {self._name}")
        self._places.seek(at, offset)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self._places.paused.update(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self._places.paused.difference_update(partitions)

    def position(self, at: TopicPartition) -> int:
        return self._places.position(at)

    def at_end(self, at: TopicPartition) -> bool:
        return at in self._places.ended

    def standing(self) -> Mapping[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for at, position in self._places.ends():
            look = self._looks.get(at)
            if look is not None and look.end == position and self._told.get(at) is not look:
                self._told[at] = look
                found[at] = look.stretch
        return found

    def _look(self) -> None:
        """Every poll that succeeds is a look at all ends."""
        now_ms = self._broker.clock.steady_ms()
        for at, _ in self._places.ends():
            end, before = self._broker.log(at).stable_end, self._looks.get(at)
            is_same = before is not None and before.end == end and now_ms - before.at_ms <= self._broker.break_ms
            stretch = before.stretch if before is not None and is_same else next(self._stretches)
            self._looks[at] = Look(stretch, end, now_ms)
            self._broker.heard_at(at)

    def has_assignment(self) -> bool:
        return self._has_share

    # ------------------------------------------------------------ partitions

    def _attend(self) -> bool:
        """Look after the group. Whether partitions came or went: then who polls has something to do first."""
        broker, group = self._broker, self._group
        for topic in self._subscription:
            broker.topic(topic)
        try:
            if self._number is None:
                self._number = broker.join(group, self._name, self._subscription)
            elif not broker.heartbeat(group, self._name, self._number):
                self._give_up()
                broker.rejoin(group, self._name, self._number)
        except UnknownMember:
            self._usable = False
            self._lose()
            raise
        except Fenced:
            self._usable = False
            raise
        is_known = self._membership is not None and self._membership.generation == group.generation
        if group.is_stable and not (is_known and self._has_share):
            self._take()
            return True
        return not self._has_share

    def _heartbeat(self) -> None:
        """As Kafka's client does in a thread. What the group answers is heard at the next poll."""
        if self._number is not None:
            with suppress(Fenced):
                self._broker.heartbeat(self._group, self._name, self._number)

    def _take(self) -> None:
        assert self._number is not None, self._name
        self._membership = Membership(self._name, self._number, self._group.generation)
        given = self._given(self._group.assignment[self._name])
        self._owned, self._has_share = set(given), True
        self._places.forget()
        if given:
            self._joining.on_assigned(given)
        failpoints.hit("assign.after")

    def _given(self, places: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Partitions of the leading topic count for all topics that have them."""
        if self._joining.lead is None:
            return sorted(places)
        topics = [self._broker.topic(name) for name in self._joining.topics]
        return sorted(
            TopicPartition(stored.topic.name, at.partition)
            for stored in topics
            for at in places
            if at.partition < len(stored.logs)
        )

    def _give_up(self) -> None:
        # First told, then given up: until then the member may still commit what it has done.
        failpoints.hit("revoke.before")
        try:
            if self._owned:
                (self._joining.on_revoked if self._usable else self._joining.on_lost)(sorted(self._owned))
        finally:
            self._owned, self._has_share = set(), False
            self._places.forget()
        failpoints.hit("revoke.after")

    def _lose(self) -> None:
        lost, self._owned, self._has_share = sorted(self._owned), set(), False
        self._places.forget()
        if lost:
            self._joining.on_lost(lost)

    # ------------------------------------------------------------ writing

    def transact(
        self, appends: Sequence[Append], offsets: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        self._refuse_unusable()
        self._usable = False  # until all of it has happened
        foreign = sorted(str(at) for at in offsets if at not in self._owned)
        if foreign:
            raise Fenced(f"{', '.join(foreign)} of group {self._joining.group} does not belong to {self._name}")
        try:
            with self._client.call("transact") as fault:
                how = self._transact if self._exactly_once else self._write_then_commit
                ends = how(appends, offsets, fault)
        except Killed:
            self._client.kill()
            raise
        self._usable = True
        return ends

    def _transact(
        self, appends: Sequence[Append], offsets: Mapping[TopicPartition, int], fault: Fault | None
    ) -> Mapping[TopicPartition, int]:
        assert self._producer is not None, self._name
        try:
            self._open = self._broker.begin(self._producer, self._epoch)
            failpoints.hit("produce.before")
            ends = self._produce(appends, self._open)
            failpoints.hit("produce.after")
            if fault is Fault.CRASH_MIDDLE:
                raise self._client.killed("transact")
            failpoints.hit("offsets.before")
            self._send_offsets(offsets, self._open)
            failpoints.hit("offsets.after")
            failpoints.hit("flush.after")
        except (Fenced, Refused):
            self._abort()
            raise
        except LogUnavailable:
            self._open = None  # whom it does not reach it cannot tell either: the slot's next one does
            raise
        failpoints.hit("commit.before")
        self._commit()
        if fault is Fault.TIMEOUT_AFTER:
            raise CommitUnknown(f"committing as {self._name}: no answer")
        failpoints.hit("commit.after")
        return ends

    def _produce(self, appends: Sequence[Append], transaction: Transaction | None) -> dict[TopicPartition, int]:
        ends: dict[TopicPartition, int] = {}
        with self._client.call("produce") as fault:
            some = len(appends) // 2 if fault is Fault.CRASH_MIDDLE else len(appends)
            for append in appends[:some]:
                self._refuse_zombie()
                written = self._broker.write(append, transaction)
                if written is not None and append.partition is not None:
                    ends[TopicPartition(append.topic, append.partition)] = last_offset(written)
        return ends

    def _send_offsets(self, offsets: Mapping[TopicPartition, int], transaction: Transaction) -> None:
        if not offsets:
            return
        with self._client.call("offsets"):
            self._refuse_zombie()
            assert self._membership is not None, self._name
            self._broker.send_offsets(transaction, self._group, self._membership, offsets)

    def _commit(self) -> None:
        assert self._producer is not None, self._name
        try:
            with self._client.call("commit") as fault:
                late = fault is Fault.LATE_MARKERS
                self._broker.end(self._producer, self._epoch, Outcome.COMMITTED, late=late)
                self._open = None
        except LogUnavailable as error:
            self._open = None  # nobody knows, so nothing can be aborted
            raise CommitUnknown(f"committing as {self._name}: {error}") from None

    def _abort(self) -> None:
        if self._open is not None and self._producer is not None:
            self._open = None
            with suppress(Fenced):  # a zombie's was ended by those who fenced it
                self._broker.end(self._producer, self._epoch, Outcome.ABORTED)

    def _write_then_commit(
        self, appends: Sequence[Append], offsets: Mapping[TopicPartition, int], fault: Fault | None
    ) -> Mapping[TopicPartition, int]:
        failpoints.hit("produce.before")
        ends = self._produce(appends, None)
        failpoints.hit("produce.after")
        failpoints.hit("flush.after")
        if fault is Fault.CRASH_MIDDLE:
            raise self._client.killed("transact")
        failpoints.hit("offsets.before")
        failpoints.hit("commit.before")
        if offsets:
            try:
                with self._client.call("commit"):
                    assert self._membership is not None, self._name
                    self._group.refuse_stale(self._membership)
                    self._broker.commit_offsets(self._group, offsets)
            except LogUnavailable as error:
                raise CommitUnknown(f"committing offsets as {self._name}: {error}") from None
        if fault is Fault.TIMEOUT_AFTER:
            raise CommitUnknown(f"committing offsets as {self._name}: no answer")
        failpoints.hit("offsets.after")
        failpoints.hit("commit.after")
        return ends

    def _refuse_zombie(self) -> None:
        if self._producer is not None:
            refuse_zombie(self._producer, self._epoch)

    def _refuse_unusable(self) -> None:
        if self._client.is_dead:
            raise Killed(self._name)
        if self._closed or not self._usable:
            raise ValueError("after a failed transaction, or a close, a member can only be closed")

    # ------------------------------------------------------------ leaving

    def leave(self) -> None:
        if self._closed:
            return
        try:
            if self._usable:
                self._give_up()
                with self._client.call("leave"):
                    if self._number is not None:
                        self._broker.leave(self._group, self._name, self._number)
        finally:
            self.close()

    def close(self) -> None:
        if self._closed:
            return
        try:
            with self._client.call("close"):
                self._abort()
        finally:
            if not self._client.is_dead:
                (self._give_up if self._usable else self._lose)()
            self._closed = True
            self._client.heartbeats.remove(self._heartbeat)


def last_offset(log: PartitionLog) -> int:
    return log.end - 1
