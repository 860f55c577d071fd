"""The log: partitioned topics of records, read from positions, written in transactions. Two implementations, one
contract (tests/contracts/log.py): `EmbeddedLog`, one SQLite file and no server, and `KafkaLog`.

A Log leaves out what its users do not need: there is no callback a record, no automatic offset, no retry that could
write twice. An offset is a place, never a count: compacted and transactional logs have gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from samovar.common.tunables import Tunables
from samovar.native.kernel import Messages

Int64s: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Headers: TypeAlias = tuple[tuple[str, bytes], ...]
Pair: TypeAlias = tuple[bytes | None, bytes | None]  # key, value; a value of None is a tombstone


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class Bounds(NamedTuple):
    """What a partition holds: offsets from `begin` up to, not including, `end` (the high watermark)."""

    begin: int
    end: int


class Delivery(Enum):
    """Whether a crash can repeat output."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


@dataclass(frozen=True)
class TopicSpec:
    """A topic as it should be. Settings are named as Kafka names them (`cleanup.policy`, `retention.ms`, ...)."""

    name: str
    partitions: int
    settings: Mapping[str, str] = field(default_factory=dict)
    replication: int = 1


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A topic as it is. `id` is another one when a topic was deleted and made again under the same name."""

    name: str
    partitions: int
    settings: Mapping[str, str]
    id: str
    replication: int = 1


class Records(Protocol):
    """Records of one partition, in order of offset. Row i is the i-th of them; there may be none, and only `next`."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offsets(self) -> Int64s: ...
    @property
    def times(self) -> Int64s:
        """The log's time of each record, in ms: set by the producer or the broker, by the embedded log on append."""

    @property
    def next(self) -> int:
        """Where to read on: past the last record and past any gap behind it that is known."""

    @property
    def keys(self) -> Messages:
        """All keys in one buffer. A record without one has an empty one here: see `key`."""

    @property
    def values(self) -> Messages:
        """All values in one buffer, for the decoder. A null value is an empty message here: see `null`."""

    @property
    def null(self) -> Bools: ...

    def __len__(self) -> int: ...
    def value(self, row: int) -> bytes | None: ...
    def key(self, row: int) -> bytes | None: ...
    def headers(self, row: int) -> Headers: ...
    def pairs(self) -> list[Pair]:
        """Keys and values of all rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Records for one topic. Without a partition each goes where murmur2 of its key says (no key: any partition), among
    all that the topic has, or among the first so many.
    """

    topic: str
    records: Sequence[Pair]
    partition: int | None = None
    headers: Sequence[Headers] | None = None  # one per record, or none at all
    among: int | None = None


class Reader(Protocol):
    """Reads committed records of given partitions, with no group. Not for two threads at once."""

    def poll(self, max_records: int, timeout_s: float) -> list[Records]:
        """What is there, as soon as something is there; an empty list when the time is over."""

    def position(self, at: TopicPartition) -> int:
        """Where this partition is read next. Passes gaps and transaction markers, so that it reaches the end."""

    def seek(self, at: TopicPartition, offset: int) -> None:
        """Read this partition on from here. It is one of those that were asked for in the beginning."""

    def close(self) -> None: ...


class Member(Protocol):
    """One container of a service, in its group: the partitions it owns, their records, and its transactions.

    Not for two threads at once. Callbacks run inside `poll`, `close` and `leave`.
    """

    def poll(self, max_records: int, timeout_s: float) -> list[Records]:
        """Records of owned partitions that are not paused. Raises Fenced when the membership is lost."""

    def seek(self, at: TopicPartition, offset: int) -> None:
        """Read on from here. A partition just assigned is paused and has no position until it is sought."""

    def pause(self, partitions: Collection[TopicPartition]) -> None: ...
    def resume(self, partitions: Collection[TopicPartition]) -> None: ...
    def position(self, at: TopicPartition) -> int:
        """As of a Reader."""

    def at_end(self, at: TopicPartition) -> bool:
        """Whether all that was committed at the last look has been given out."""

    def standing(self) -> Mapping[TopicPartition, int]:
        """Partitions of which a look at the log, since this was last asked, said that all has been given out. Looks
        that follow each other without a break are one stretch, and have its number: after an outage it is another one.
        """

    def has_assignment(self) -> bool:
        """Whether the group has said what is this member's, be it nothing. Not before it joined, nor while it waits."""

    def transact(
        self, appends: Sequence[Append], offsets: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """Append everything and commit the group's offsets, as one: all of it happens or nothing.

        Returns the offset of the last record appended to each partition that an Append named. Raises Fenced where
        another container owns a partition of `offsets` by now, CommitUnknown where nobody can say, LogUnavailable
        where nothing happened. After any of them only `close` may be called. With at_least_once records are durable
        before the offsets are. Passes the points produce, offsets, flush and commit of samovar.common.failpoints.
        """

    def close(self) -> None:
        """End: partitions are revoked, no transaction stays open, no lock is left. A log may keep the partitions for
        this slot for a while, so that a restart moves nothing.
        """

    def leave(self) -> None:
        """Close for good: others need not wait for this slot, and get its partitions at once."""


OnPartitions: TypeAlias = Callable[[Collection[TopicPartition]], None]


@dataclass(frozen=True, kw_only=True)
class GroupConfig:
    """What a container says when it joins a group. `slot` is its number: fixed, so that a restart is the same member.

    Partition p of all topics is always owned by one member. A revoked partition is already another's when it was lost
    (`on_lost`): nothing may be written for it any more.

    `lead` is a topic with as many partitions as the group works on: those are shared out, and of `topics` each member
    gets the same ones; what these have beyond is nobody's. Without it, all that the topics have is shared out.
    """

    group: str
    slot: int
    topics: Sequence[str]
    delivery: Delivery
    on_assigned: OnPartitions
    on_revoked: OnPartitions
    on_lost: OnPartitions
    lead: str | None = None


class Log(Protocol):
    """A partitioned, transactional log. `tunables` say how much of it is read and written at once."""

    @property
    def tunables(self) -> Tunables: ...

    def topics(self, names: Collection[str]) -> Mapping[str, Topic]:
        """Those of the topics that exist."""

    def create(self, specs: Sequence[TopicSpec]) -> None:
        """Make topics. One that exists already is left as it is."""

    def delete(self, names: Collection[str]) -> None: ...
    def bounds(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Bounds]: ...
    def offset_at(self, at: TopicPartition, time_ms: int) -> int:
        """The first offset whose log time is at or after this time; the end where there is none."""

    def committed(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int | None]:
        """The group's offsets, waiting for a pending transaction's outcome; None where nothing was ever committed."""

    def members(self, group: str) -> Sequence[str]:
        """The containers that are in the group now."""

    def reader(self, positions: Mapping[TopicPartition, int]) -> Reader: ...
    def point_reader(self, positions: Mapping[TopicPartition, int], records: int) -> Reader:
        """A reader for about so many records from each place on: had quickly, and not quick where there are more."""

    def tail(self, positions: Mapping[TopicPartition, int]) -> Reader:
        """A reader for one who reads on and on and is in no hurry: what comes may wait a moment for more."""

    def append(self, appends: Sequence[Append]) -> int:
        """Append durably, outside any group. Returns how many records were written."""

    def join(self, joining: GroupConfig) -> Member: ...
    def close(self) -> None: ...
