"""A Kafka cluster as a state machine: topics, transactions, groups. Nothing in it waits; all time comes from a clock.

Clients see it through `tests.simulation.memory_log`. Requests are methods; a client that has been replaced gets Fenced.

    offsets       a transaction's marker takes one, aborted records keep theirs, compaction leaves gaps
    stable end    the first offset of an open transaction, or the end: nobody reads beyond it
    producer      a transactional id with an epoch; to begin again raises the epoch and aborts what is open
    group         members by name (static membership). While it rebalances every member has to join again; with the last
                  of them comes a new generation. One that is not heard of for its session time-out is removed
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import count
from random import Random
from typing import NamedTuple, Protocol

from samovar.changelog.log import Append, Bounds, Headers, Pair, Topic, TopicPartition, TopicSpec
from samovar.changelog.partitioner import partition_of
from samovar.common.errors import Fenced, LogUnavailable, Refused
from samovar.tasks.model.clock import Clock

SESSION_MS = 6_000
TRANSACTION_MS = 10_000
BREAK_MS = 3_000  # between two looks at an end, after which they are two stretches
DAY_MS = 86_400_000
MAX_RECORD_BYTES = 1 << 20
NO_HEADERS: Headers = ()


class MovableClock(Clock, Protocol):
    """A clock that calls which are slow can move."""

    def pass_ms(self, ms: int) -> None: ...


class Outcome(Enum):
    """What became of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class StoredRecord(NamedTuple):
    """A record where it stands."""

    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    transaction: Transaction | None


class VisibleRecord(NamedTuple):
    """A committed record, for checks."""

    partition: int
    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


# ---------------------------------------------------------------- partitions


class PartitionLog:
    """One partition of one topic: the source of truth for its records."""

    __slots__ = ("_offsets", "begin", "end", "horizons", "open", "records")

    def __init__(self) -> None:
        self.records: list[StoredRecord] = []
        self._offsets: list[int] = []
        self.begin = 0
        self.end = 0
        self.open: dict[Transaction, int] = {}  # to the first offset of each
        self.horizons: dict[int, int] = {}  # of tombstones that a compaction has seen: when they may go

    @property
    def stable_end(self) -> int:
        return min(self.open.values()) if self.open else self.end

    def append(
        self, pairs: Iterable[Pair], headers: Sequence[Headers] | None, time_ms: int, transaction: Transaction | None
    ) -> None:
        offset = self.end
        if transaction is not None and transaction not in self.open:
            self.open[transaction] = offset
            transaction.partitions.append(self)
        for row, (key, value) in enumerate(pairs):
            own = NO_HEADERS if headers is None else headers[row]
            self.records.append(StoredRecord(offset, time_ms, key, value, own, transaction))
            self._offsets.append(offset)
            offset += 1
        self.end = offset

    def mark(self, transaction: Transaction) -> None:
        """Write the marker that ends a transaction."""
        del self.open[transaction]
        self.end += 1

    def place_of(self, offset: int) -> int:
        """Which of the records is the first at or after an offset."""
        return bisect_left(self._offsets, offset)

    def fetch(self, position: int, most: int) -> tuple[list[StoredRecord], int, bool]:
        """Committed records from a position on, where to read on, and whether that is all there is."""
        end = self.stable_end
        if position >= end:
            return [], position, True
        found: list[StoredRecord] = []
        records = self.records
        for place in range(bisect_left(self._offsets, position), len(records)):
            record = records[place]
            if record.offset >= end:
                break
            if record.transaction is None or record.transaction.outcome is Outcome.COMMITTED:
                if len(found) == most:
                    return found, found[-1].offset + 1, False
                found.append(record)
        return found, end, True

    def keep(self, records: list[StoredRecord]) -> None:
        """Hold these of the records only."""
        self.records = records
        self._offsets = [record.offset for record in records]


def compact(log: PartitionLog, limit: int, delete_retention_ms: int, now_ms: int) -> None:
    """Of each key keep the last record below an offset. The first pass that meets a tombstone sets its horizon."""
    last: dict[bytes | None, int] = {}
    for record in log.records:
        if record.offset < limit and is_committed(record):
            last[record.key] = record.offset
    kept: list[StoredRecord] = []
    for record in log.records:
        if record.offset < limit:
            if not is_committed(record) or last[record.key] != record.offset:
                continue
            if record.value is None and now_ms >= log.horizons.setdefault(record.offset, now_ms + delete_retention_ms):
                continue
        kept.append(record)
    log.keep(kept)


def is_committed(record: StoredRecord) -> bool:
    return record.transaction is None or record.transaction.outcome is Outcome.COMMITTED


@dataclass
class StoredTopic:
    """A topic and its partitions."""

    topic: Topic
    logs: list[PartitionLog]

    def setting(self, name: str, default: int) -> int:
        return int(self.topic.settings.get(name, default))

    def has_policy(self, policy: str) -> bool:
        return policy in self.topic.settings.get("cleanup.policy", "delete")


# ---------------------------------------------------------------- transactions


class Transaction:
    """What a producer writes as one. Its outcome is decided at once; its markers may come later."""

    __slots__ = ("groups", "outcome", "partitions", "producer", "since_ms")

    def __init__(self, producer: Producer, since_ms: int) -> None:
        self.producer = producer
        self.since_ms = since_ms
        self.outcome = Outcome.OPEN
        self.partitions: list[PartitionLog] = []
        self.groups: list[Group] = []


@dataclass
class Producer:
    """A transactional id. Requests of an older epoch are those of a zombie."""

    name: str
    timeout_ms: int
    epoch: int = 0
    transaction: Transaction | None = None  # open, or decided and without its markers


# ---------------------------------------------------------------- groups


@dataclass
class GroupMember:
    """A member as the group knows it. Another one under the same name has another number."""

    number: int
    subscription: tuple[str, ...]
    heard_ms: int
    round: int  # of the last rebalance that it joined


class Membership(NamedTuple):
    """What a member says with its offsets: who it is, and since which assignment."""

    name: str
    number: int
    generation: int


class UnknownMember(Fenced):
    """The group went on without this member."""


@dataclass
class Group:
    """Who is in it, who has what, and how far it has read."""

    name: str
    generation: int = 0
    round: int = 0
    is_stable: bool = True
    members: dict[str, GroupMember] = field(default_factory=dict)
    assignment: dict[str, list[TopicPartition]] = field(default_factory=dict)
    # An offset that was sent earlier never replaces one that was sent later, whichever commits first.
    offsets: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)  # to the order of sending, and offset
    pending: dict[Transaction, dict[TopicPartition, tuple[int, int]]] = field(default_factory=dict)

    def mark(self, transaction: Transaction) -> None:
        """The outcome of a transaction with offsets has come."""
        sent = self.pending.pop(transaction)
        if transaction.outcome is Outcome.COMMITTED:
            self.take(sent)

    def take(self, sent: Mapping[TopicPartition, tuple[int, int]]) -> None:
        for at, found in sent.items():
            if found > self.offsets.get(at, (-1, 0)):
                self.offsets[at] = found

    def rebalance(self) -> None:
        """From now on all have to join again."""
        if self.is_stable:
            self.is_stable = False
            self.round += 1

    def known(self, name: str, number: int) -> GroupMember:
        member = self.members.get(name)
        if member is None:
            raise UnknownMember(f"{name} is not a member of group {self.name} any more")
        if member.number != number:
            raise Fenced(f"another container is {name} of group {self.name} now")
        return member

    def refuse_stale(self, membership: Membership) -> None:
        """What every commit of offsets asks for."""
        self.known(membership.name, membership.number)
        if membership.generation != self.generation:
            raise Fenced(
                f"{membership.name} is of generation {membership.generation} of group {self.name},"
                f" which is at {self.generation}"
            )


# ---------------------------------------------------------------- the cluster


class Broker:
    """The cluster: the source of truth for everything that outlives a client."""

    def __init__(self, clock: MovableClock, session_ms: int = SESSION_MS, transaction_ms: int = TRANSACTION_MS) -> None:
        self.clock = clock
        self.session_ms = session_ms
        self.transaction_ms = transaction_ms
        self.break_ms = BREAK_MS
        self.heard: dict[TopicPartition, list[tuple[int, int]]] = {}  # looks, each with since when there was no break
        self.topics: dict[str, StoredTopic] = {}
        self.groups: dict[str, Group] = {}
        self.producers: dict[str, Producer] = {}
        self._numbers = count(1)
        self._expired_ms = -1
        self._partitions: dict[tuple[bytes, int], int] = {}

    # ------------------------------------------------------------ what the clock does

    def wait(self, seconds: float) -> None:
        """A reader waits for so long, in the middle of its process's step. A scheduler may let others go on here."""
        self.clock.pass_ms(int(seconds * 1000))

    def expire(self) -> int:
        """Do what is due: sessions, transactions, markers that were late. The time by which it was done."""
        now_ms = self.clock.steady_ms()
        if now_ms == self._expired_ms:
            return now_ms
        self._expired_ms = now_ms
        for group in self.groups.values():
            late = [name for name, member in group.members.items() if now_ms - member.heard_ms > self.session_ms]
            for name in late:
                self._remove(group, name)
        for producer in self.producers.values():
            found = producer.transaction
            if found is not None and now_ms - found.since_ms > producer.timeout_ms:
                if found.outcome is Outcome.OPEN:
                    producer.epoch += 1  # anyone who began it must not go on with it
                    found.outcome = Outcome.ABORTED
                self._mark(producer)
        return now_ms

    def settle(self) -> None:
        """Write all markers that are late."""
        for producer in self.producers.values():
            if producer.transaction is not None and producer.transaction.outcome is not Outcome.OPEN:
                self._mark(producer)

    def compact(self, random: Random) -> None:
        """Clean compacted topics, each partition up to some place below which nothing is undecided or too young."""
        now_ms = self.clock.wall_ms()
        for stored in self.topics.values():
            if not stored.has_policy("compact"):
                continue
            young_ms = now_ms - stored.setting("min.compaction.lag.ms", 0)
            for log in stored.logs:
                limit = next((each.offset for each in log.records if each.time_ms > young_ms), log.end)
                limit = random.randint(log.begin, min(limit, log.stable_end))
                compact(log, limit, stored.setting("delete.retention.ms", DAY_MS), now_ms)

    def retain(self) -> None:
        """Delete what is older than retention.ms; without that setting everything is kept."""
        now_ms = self.clock.wall_ms()
        for stored in self.topics.values():
            period_ms = stored.setting("retention.ms", -1)
            if period_ms < 0 or not stored.has_policy("delete"):
                continue
            for log in stored.logs:
                end = log.stable_end
                old = (each.offset for each in log.records if each.time_ms >= now_ms - period_ms)
                self.truncate(log, min(next(old, end), end))

    def truncate(self, log: PartitionLog, begin: int) -> None:
        """Delete what is before an offset."""
        log.keep(log.records[log.place_of(begin) :])
        log.begin = max(log.begin, begin)

    # ------------------------------------------------------------ for checks

    def heard_at(self, at: TopicPartition) -> None:
        """Somebody looked at the end of a partition; each look is kept with since when there was no break."""
        now_ms = self.clock.steady_ms()
        looks = self.heard.setdefault(at, [])
        last_ms, since_ms = looks[-1] if looks else (now_ms, now_ms)
        looks.append((now_ms, since_ms if now_ms - last_ms <= self.break_ms else now_ms))

    def open_transactions(self) -> int:
        """How many are undecided, or decided and not yet seen by everyone."""
        return sum(producer.transaction is not None for producer in self.producers.values())

    def written(self) -> int:
        """How many offsets were ever given out, but for those of heartbeats."""
        topics = [stored for name, stored in self.topics.items() if not name.endswith("-containers")]
        return sum(log.end for stored in topics for log in stored.logs)

    def committed_records(self, topic: str) -> list[VisibleRecord]:
        """What a reader of the whole topic would get, by partition."""
        return [
            VisibleRecord(partition, record.offset, record.time_ms, record.key, record.value, record.headers)
            for partition, log in enumerate(self.topics[topic].logs)
            for record in log.fetch(log.begin, len(log.records))[0]
        ]

    # ------------------------------------------------------------ topics

    def create(self, spec: TopicSpec) -> None:
        if spec.name in self.topics:
            return
        if spec.partitions < 1:
            raise Refused(
                "topic-without-partitions", f"topic {spec.name} is to have no partitions", "Give it at least one."
            )
        number = f"topic-{next(self._numbers):06}"
        topic = Topic(
            name=spec.name,
            partitions=spec.partitions,
            settings=dict(spec.settings),
            id=number,
            replication=spec.replication,
        )
        self.topics[spec.name] = StoredTopic(topic, [PartitionLog() for _ in range(spec.partitions)])

    def delete(self, name: str) -> None:
        """Offsets of groups go with the topic. Its members are told nothing: they find out."""
        if self.topics.pop(name, None) is None:
            return
        for group in self.groups.values():
            for sent in (group.offsets, *group.pending.values()):
                for at in [at for at in sent if at.topic == name]:
                    del sent[at]

    def add_partitions(self, name: str, partitions: int) -> None:
        """Let a topic grow to so many. Groups that read it share them out again."""
        stored = self.topics[name]
        stored.logs += [PartitionLog() for _ in range(partitions - len(stored.logs))]
        stored.topic = replace(stored.topic, partitions=len(stored.logs))
        for group in self.groups.values():
            if any(name in member.subscription for member in group.members.values()):
                group.rebalance()

    def topic(self, name: str) -> StoredTopic:
        found = self.topics.get(name)
        if found is None:
            raise missing(name)
        return found

    def log(self, at: TopicPartition) -> PartitionLog:
        found = self.topics.get(at.topic)
        if found is None or at.partition >= len(found.logs):
            raise missing(str(at) if found else at.topic)
        return found.logs[at.partition]

    def bounds(self, at: TopicPartition) -> Bounds:
        log = self.log(at)
        return Bounds(log.begin, log.end)

    def offset_at(self, at: TopicPartition, time_ms: int) -> int:
        log = self.log(at)
        return next((record.offset for record in log.records if record.time_ms >= time_ms), log.end)

    # ------------------------------------------------------------ records

    def write(self, append: Append, transaction: Transaction | None) -> PartitionLog | None:
        """Append records; the partition's log where the partition was named."""
        if not append.records:
            return None
        stored = self.topic(append.topic)
        if append.headers and len(append.headers) != len(append.records):
            raise ValueError(f"{len(append.headers)} headers for {len(append.records)} records of topic {append.topic}")
        _refuse_records(stored, append)
        now_ms = self.clock.wall_ms()
        if append.partition is not None:
            log = self.log(TopicPartition(append.topic, append.partition))
            log.append(append.records, append.headers or None, now_ms, transaction)
            return log
        for row, pair in enumerate(append.records):
            partition = self._partition_of(pair[0], append.among or len(stored.logs), row)
            headers = [append.headers[row]] if append.headers else None
            stored.logs[partition].append([pair], headers, now_ms, transaction)
        return None

    def _partition_of(self, key: bytes | None, partitions: int, row: int) -> int:
        if key is None:
            return row % partitions
        found = self._partitions.get((key, partitions))
        if found is None:
            found = self._partitions[key, partitions] = partition_of(key, partitions)
        return found

    # ------------------------------------------------------------ transactions

    def start_producer(self, name: str) -> Producer:
        """Take over a transactional id: who had it is fenced, what it left open is aborted."""
        producer = self.producers.setdefault(name, Producer(name, self.transaction_ms))
        if producer.transaction is not None:
            if producer.transaction.outcome is Outcome.OPEN:
                producer.transaction.outcome = Outcome.ABORTED
            self._mark(producer)
        producer.epoch += 1
        return producer

    def begin(self, producer: Producer, epoch: int) -> Transaction:
        refuse_zombie(producer, epoch)
        if producer.transaction is not None:
            assert producer.transaction.outcome is not Outcome.OPEN, producer.name
            self._mark(producer)
        producer.transaction = Transaction(producer, self.clock.steady_ms())
        return producer.transaction

    def send_offsets(
        self, transaction: Transaction, group: Group, membership: Membership, offsets: Mapping[TopicPartition, int]
    ) -> None:
        group.refuse_stale(membership)
        for at in offsets:
            self.log(at)
        if transaction not in group.pending:
            transaction.groups.append(group)
        order = next(self._numbers)
        sent = group.pending.setdefault(transaction, {})
        sent.update({at: (order, offset) for at, offset in offsets.items()})

    def end(self, producer: Producer, epoch: int, outcome: Outcome, *, late: bool = False) -> None:
        """Decide a transaction. Where markers are late it is seen by nobody yet."""
        refuse_zombie(producer, epoch)
        assert producer.transaction is not None, producer.name
        producer.transaction.outcome = outcome
        if not late:
            self._mark(producer)

    def _mark(self, producer: Producer) -> None:
        transaction, producer.transaction = producer.transaction, None
        assert transaction is not None, producer.name
        for log in transaction.partitions:
            log.mark(transaction)
        for group in transaction.groups:
            group.mark(transaction)

    # ------------------------------------------------------------ groups

    def group(self, name: str) -> Group:
        found = self.groups.get(name)
        if found is None:
            found = self.groups[name] = Group(name)
        return found

    def join(self, group: Group, name: str, subscription: tuple[str, ...]) -> int:
        """Enter a group under a fixed name. Where that name is in it already, the newcomer takes its place: it gets its
        partitions, and nothing is shared out again. The newcomer's number.
        """
        before = group.members.get(name)
        if before is None or before.subscription != subscription:
            group.rebalance()
        number = next(self._numbers)
        group.members[name] = GroupMember(number, subscription, self.clock.steady_ms(), group.round)
        self._complete(group)
        return number

    def heartbeat(self, group: Group, name: str, number: int) -> bool:
        """Whether all is as it was; else the member has to give up its partitions and join again."""
        member = group.known(name, number)
        member.heard_ms = self.clock.steady_ms()
        return group.is_stable or member.round == group.round

    def rejoin(self, group: Group, name: str, number: int) -> None:
        group.known(name, number).round = group.round
        self._complete(group)

    def leave(self, group: Group, name: str, number: int) -> None:
        member = group.members.get(name)
        if member is not None and member.number == number:
            self._remove(group, name)

    def _remove(self, group: Group, name: str) -> None:
        del group.members[name]
        group.rebalance()
        self._complete(group)

    def _complete(self, group: Group) -> None:
        """With the last one that joins begins a generation."""
        if group.is_stable or any(member.round != group.round for member in group.members.values()):
            return
        group.is_stable = True
        group.generation += 1
        group.assignment = self._shares(group.members)

    def _shares(self, members: Mapping[str, GroupMember]) -> dict[str, list[TopicPartition]]:
        """Kafka's range assignor: of every topic a range each, the first ones longer."""
        shares: dict[str, list[TopicPartition]] = {name: [] for name in members}
        for topic in sorted({topic for member in members.values() for topic in member.subscription}):
            stored = self.topics.get(topic)
            names = sorted(name for name, member in members.items() if topic in member.subscription)
            each, more = divmod(0 if stored is None else len(stored.logs), len(names))
            start = 0
            for place, name in enumerate(names):
                size = each + (place < more)
                shares[name] += [TopicPartition(topic, number) for number in range(start, start + size)]
                start += size
        return shares

    def commit_offsets(self, group: Group, offsets: Mapping[TopicPartition, int]) -> None:
        """Outside any transaction. Who may do that has been asked."""
        for at in offsets:
            self.log(at)
        order = next(self._numbers)
        group.take({at: (order, offset) for at, offset in offsets.items()})

    def committed(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Only what is certain: nobody is told an offset while another may be about to take its place."""
        found = self.groups.get(group)
        if found is None:
            return dict.fromkeys(partitions)
        for sent in found.pending.values():
            undecided = sorted(str(at) for at in sent if at in partitions)
            if undecided:
                raise LogUnavailable(f"offsets of group {group} are pending: {', '.join(undecided)}")
        return {at: found.offsets[at][1] if at in found.offsets else None for at in partitions}


def refuse_zombie(producer: Producer, epoch: int) -> None:
    if producer.epoch != epoch:
        raise Fenced(f"another producer is {producer.name} now: epoch {epoch}, and it is at {producer.epoch}")


def missing(what: str) -> Refused:
    return Refused(
        "topic-missing",
        "the log does not know the topic or partition",
        "Create it, or correct its name; `samovar topics plan` lists all topics.",
        what,
    )


def _refuse_records(stored: StoredTopic, append: Append) -> None:
    if stored.has_policy("compact") and any(key is None for key, _ in append.records):
        raise Refused(
            "record-without-key",
            f"a record for topic {append.topic} has no key",
            "The topic is compacted: it keeps the newest record of each key, so every record needs one.",
        )
    limit = stored.setting("max.message.bytes", MAX_RECORD_BYTES)
    largest = max(len(key or b"") + len(value or b"") for key, value in append.records)
    if largest > limit:
        raise Refused(
            "record-too-large",
            f"a record for topic {append.topic} has {largest} bytes; the topic takes {limit}",
            "Write smaller records, or make the topic with a larger max.message.bytes.",
        )
