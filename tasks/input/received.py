"""What is known of a repartition topic's source partitions, and small steps over its records."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samovar.changelog.forwarded import FORMAT, MARK
from samovar.changelog.log import Int64s, Records
from samovar.changelog.record import UNKNOWN_SINCE, Part
from samovar.patterns.native import Batch, Messages
from samovar.patterns.order import NO_TIME
from samovar.tasks.input.source import Dead, Fed
from samovar.tasks.model.plan import InputSpec

UNKNOWN = Part(-1, None, False, 0, UNKNOWN_SINCE)


class Bookmark(NamedTuple):
    """A place in a repartition topic to read on from, and its source partitions as they were there."""

    offset: int
    parts: dict[int, Part]


class Join(NamedTuple):
    """A silent source partition that spoke again: its event time from there on."""

    offset: int
    partition: int
    largest: int


@dataclass
class Received:
    """What is known of one stream's source partitions. Their largest times stand in the buffer."""

    parts: dict[int, Part] = field(default_factory=dict)
    bookmarks: deque[Bookmark] = field(default_factory=deque)
    joins: deque[Join] = field(default_factory=deque)

    def at(self, partition: int) -> Part:
        return self.parts.get(partition, UNKNOWN)


class Taken(NamedTuple):
    """Records of one stretch: their events, the rows they come from, what is no event, and what came too late."""

    batch: Batch
    rows: Int64s
    dead: list[Dead]
    late: Int64s  # rows of the batch
    late_by_ms: Int64s


def is_ours(heads: Any, spec: InputSpec) -> Any:
    """Which heads are of records that a repartition topic of this stream can have."""
    return (heads["format"] == FORMAT) & (heads["kind"] <= MARK) & (heads["partition"] < spec.source_partitions)


def first_of(holds: NDArray[np.bool_], start: int) -> int:
    """The first row from here on of which it holds; the end where there is none."""
    found = np.flatnonzero(holds[start:])
    return start + int(found[0]) if len(found) else len(holds)


def messages_at(records: Records, rows: Int64s) -> Messages:
    values = records.values
    return Messages(values.data, values.starts[rows], values.ends[rows])


def known_time(time: int) -> int | None:
    return None if time == NO_TIME else time


def nothing() -> Int64s:
    return np.empty(0, np.int64)


def together(one: Fed | None, other: Fed) -> Fed:
    """What became of two stretches, one after the other."""
    if one is None:
        return other
    released = one.ordered.released
    released.append(other.ordered.released, np.arange(len(other.ordered.released), dtype=np.int64))
    ordered = other.ordered._replace(released=released)
    return Fed(ordered, [*one.dead, *other.dead], [*one.late, *other.late], np.concatenate((one.rows, other.rows)))
