"""How the log contract drives readers and members: polled until something is so, never slept."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import pytest

from samovar.changelog.log import (
    Delivery,
    GroupConfig,
    Headers,
    Log,
    Member,
    Reader,
    Records,
    TopicPartition,
    TopicSpec,
)
from samovar.tasks.model.clock import SystemClock

DEADLINE_S = 30.0
POLL_S = 0.05

NewLog: TypeAlias = Callable[[], Log]


class Row(NamedTuple):
    """A record as a test sees it."""

    at: TopicPartition
    offset: int
    key: bytes | None
    value: bytes | None
    time: int = 0
    headers: Headers = ()


class Making(Protocol):
    """Makes a topic under a name of its own."""

    def __call__(self, partitions: int = 1, **settings: str) -> str: ...


def rows_of(records: Records) -> list[Row]:
    at = TopicPartition(records.topic, records.partition)
    offsets, times = records.offsets.tolist(), records.times.tolist()
    return [
        Row(at, offsets[row], records.key(row), records.value(row), times[row], records.headers(row))
        for row in range(len(records))
    ]


def values(rows: Iterable[Row]) -> list[bytes | None]:
    return [row.value for row in rows]


def until(holds: Callable[[], bool], step: Callable[[], object] = lambda: None, what: str = "") -> None:
    """Take steps until it holds. A log that never gets there fails the test, it does not hang it."""
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:.0f} s{': ' if what else ''}{what}"
        step()


def read_to_end(log: Log, topic: str, start: int = 0) -> list[Row]:
    """All committed records of a topic, by partition, read by positions up to the ends."""
    partitions = [TopicPartition(topic, number) for number in range(log.topics([topic])[topic].partitions)]
    ends = {at: bounds.end for at, bounds in log.bounds(partitions).items()}
    reader = log.reader(dict.fromkeys(partitions, start))
    try:
        found = read_until(reader, lambda _: all(reader.position(at) >= end for at, end in ends.items()))
    finally:
        reader.close()
    return sorted(found, key=lambda row: (row.at, row.offset))


def read_until(reader: Reader | Member, enough: Callable[[list[Row]], bool], max_records: int = 10_000) -> list[Row]:
    found: list[Row] = []

    def poll() -> None:
        for records in reader.poll(max_records, POLL_S):
            found.extend(rows_of(records))

    until(lambda: enough(found), poll, f"{len(found)} records so far")
    return found


@dataclass
class Seat:
    """A member and what it was told. It seeks what it was assigned to `start`, unless that is None."""

    log: Log
    group: str
    topics: Sequence[str]
    slot: int = 0
    delivery: Delivery = Delivery.EXACTLY_ONCE
    start: int | None = 0
    lead: str | None = None
    owned: set[TopicPartition] = field(default_factory=set)
    lost: set[TopicPartition] = field(default_factory=set)
    told: list[str] = field(default_factory=list)
    found: list[Row] = field(default_factory=list)
    member: Member = field(init=False)

    def __post_init__(self) -> None:
        self._unsought: set[TopicPartition] = set()
        joining = GroupConfig(
            group=self.group,
            slot=self.slot,
            topics=self.topics,
            delivery=self.delivery,
            on_assigned=self._on_assigned,
            on_revoked=self._on_revoked,
            on_lost=self._on_lost,
            lead=self.lead,
        )
        self.member = self.log.join(joining)

    def _on_assigned(self, partitions: Collection[TopicPartition]) -> None:
        assert self.owned.isdisjoint(partitions), "assigned twice"
        self.told.append("assigned")
        self.owned.update(partitions)
        self._unsought.update(partitions)

    def _on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        assert self.owned.issuperset(partitions), "revoked what was never assigned"
        self.told.append("revoked")
        self._gone(partitions)

    def _on_lost(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append("lost")
        self.lost.update(partitions)
        self._gone(partitions)

    def _gone(self, partitions: Collection[TopicPartition]) -> None:
        self.owned.difference_update(partitions)
        self._unsought.difference_update(partitions)

    def poll(self, max_records: int = 10_000) -> list[Row]:
        rows = [row for records in self.member.poll(max_records, POLL_S) for row in rows_of(records)]
        self.found.extend(rows)
        if self.start is not None:
            for at in sorted(self._unsought):
                self.member.seek(at, self.start)
            self._unsought.clear()
        return rows


def drive(holds: Callable[[], bool], *seats: Seat, what: str = "") -> None:
    """Poll all members in turn until it holds."""
    until(holds, lambda: [seat.poll() for seat in seats], what)


def seated(seat: Seat, count: int) -> Seat:
    """The seat, once it owns so many partitions."""
    drive(lambda: len(seat.owned) == count, seat, what=f"slot {seat.slot} owns {count} partitions")
    return seat


def commit_offsets(log: Log, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commits a group's offsets, as a member that comes and goes."""
    topics = sorted({at.topic for at in offsets})
    count = sum(topic.partitions for topic in log.topics(topics).values())
    member = seated(Seat(log, group, topics, start=None), count).member
    member.transact([], offsets)
    member.leave()


def unique(stem: str) -> str:
    return f"{stem}-{uuid.uuid4().hex[:12]}"


Seating: TypeAlias = Callable[..., Seat]


class LogParts:
    """What the tests are given, next to the `log` and `new_log` of the subclass."""

    @pytest.fixture
    def loosen(self) -> Callable[[str], None]:
        """Lets a slot of a group be joined again while its member lives. Nothing to do where the newer member wins."""
        return lambda _group: None

    @pytest.fixture
    def now_ms(self) -> Callable[[], int]:
        """The time of day, as the log has it."""
        return SystemClock().wall_ms

    @pytest.fixture
    def topic(self, log: Log) -> Making:
        def make(partitions: int = 1, **settings: str) -> str:
            name = unique("t")
            log.create([TopicSpec(name, partitions, {key.replace("_", "."): value for key, value in settings.items()})])
            return name

        return make

    @pytest.fixture
    def group(self) -> str:
        return unique("g")

    @pytest.fixture
    def seat(self, log: Log, group: str) -> Iterator[Seating]:
        """Joins the group; members are closed after the test."""
        seats: list[Seat] = []

        def join(*topics: str, at: Log = log, **more: Any) -> Seat:
            seats.append(Seat(at, group, topics, **more))
            return seats[-1]

        yield join
        for each in reversed(seats):
            each.member.close()
