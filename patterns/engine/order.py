"""`order`: events as they arrive, to events in event-time order, up to each stream's slack.

    released, late, watermark = order(batch, buffer)

A partition's watermark is the largest time seen in it, less its stream's slack; the buffer's is the least of its
partitions'. An event behind its own partition's watermark is late. What is not behind the buffer's watermark yet
waits, so that the same events in any arrival order within the slack are released in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from samovar.native.kernel import Batch, Int64s

NO_TIME = -(1 << 62)  # the watermark before any event
Partition: TypeAlias = tuple[int, int]  # stream, partition


@dataclass(kw_only=True)
class Buffer:
    """What `order` remembers between batches.

    `max_event_time` is the largest time of each partition, `pending` the events that still wait. Partitions that are expected
    but idle hold event time back: name them at the start. `low_watermark` is where event time already was: it never goes
    back, also where a partition that was left out of `max_event_time` comes in again.
    """

    columns: int
    slack_ms: Sequence[int]  # one per stream
    partitions: Sequence[Partition] = ((0, 0),)
    max_event_time: dict[Partition, int] = field(default_factory=dict)
    low_watermark: int = NO_TIME
    pending: Batch = field(init=False)

    def __post_init__(self) -> None:
        self.pending = Batch(self.columns)
        for partition in self.partitions:
            self.max_event_time.setdefault(partition, NO_TIME)

    def watermark(self) -> int:
        """The least of the partitions' watermarks."""
        times = (
            time - self.slack_ms[stream] if time > NO_TIME else NO_TIME
            for (stream, _), time in self.max_event_time.items()
        )
        return max(self.low_watermark, min(times, default=NO_TIME))


class OrderedEvents(NamedTuple):
    """Events in order; rows of the batch that came too late, with how many ms; event time now."""

    released: Batch
    late: Int64s
    late_by_ms: Int64s
    watermark: int


def order(batch: Batch, buffer: Buffer) -> OrderedEvents:
    """Take a batch in arrival order; give back what can be released. The batch must not be used afterwards."""
    late, late_by_ms = take_times(batch, buffer)
    watermark = buffer.low_watermark = buffer.watermark()
    all_due = bool(due_at(batch.time[-1:], buffer, watermark).all())
    if not len(late) and not len(buffer.pending) and all_due and _in_order(batch):
        return OrderedEvents(batch, late, late_by_ms, watermark)
    keep = np.ones(len(batch), bool)
    keep[late] = False
    buffer.pending.append(batch, np.flatnonzero(keep))
    return OrderedEvents(_release(buffer, watermark), late, late_by_ms, watermark)


def release(buffer: Buffer) -> OrderedEvents:
    """What can be released now that event time moved on without an event."""
    watermark = buffer.low_watermark = buffer.watermark()
    nothing = np.empty(0, np.int64)
    return OrderedEvents(_release(buffer, watermark), nothing, nothing, watermark)


def drain(buffer: Buffer) -> Batch:
    """Everything that still waits, in order: there is no more input."""
    released, buffer.pending = buffer.pending, Batch(buffer.columns)
    released.select(_sorted_rows(released))
    return released


def take_times(batch: Batch, buffer: Buffer) -> tuple[Int64s, Int64s]:
    """Move the partitions' times on; rows that are behind their own partition's watermark, and by how much."""
    late_rows: list[Int64s] = []
    late_by: list[Int64s] = []
    for partition, rows in _by_partition(batch).items():
        times = batch.time[rows]
        before = np.maximum.accumulate(np.concatenate(([buffer.max_event_time.get(partition, NO_TIME)], times)))
        behind = before[:-1] - buffer.slack_ms[partition[0]] - times
        late = np.flatnonzero(behind > 0)
        late_rows.append(rows[late])
        late_by.append(behind[late])
        buffer.max_event_time[partition] = int(before[-1])
    if not late_rows:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    rows, by = np.concatenate(late_rows), np.concatenate(late_by)
    arrival = np.argsort(rows, kind="stable")
    return rows[arrival], by[arrival]


def _by_partition(batch: Batch) -> Mapping[Partition, Int64s]:
    if not len(batch):
        return {}
    code = batch.stream.astype(np.int64) << 32 | batch.partition
    if (code == code[0]).all():
        return {(int(code[0]) >> 32, int(code[0]) & 0xFFFFFFFF): np.arange(len(code))}
    return {(int(each) >> 32, int(each) & 0xFFFFFFFF): np.flatnonzero(code == each) for each in np.unique(code)}


def _in_order(batch: Batch) -> bool:
    in_one_partition = not np.diff(batch.stream).any() and not np.diff(batch.partition).any()
    return in_one_partition and bool((np.diff(batch.time) >= 0).all() and (np.diff(batch.offset) > 0).all())


def due_at(times: NDArray[Any], buffer: Buffer, watermark: int) -> NDArray[np.bool_]:
    # With several partitions, another may still bring an event of the watermark's own time that comes first.
    due: NDArray[np.bool_] = times <= watermark if len(buffer.partitions) == 1 else times < watermark
    return due


def _release(buffer: Buffer, watermark: int) -> Batch:
    pending = buffer.pending
    due = due_at(pending.time, buffer, watermark)
    released, rest = Batch(buffer.columns), Batch(buffer.columns)
    released.append(pending, np.flatnonzero(due))
    rest.append(pending, np.flatnonzero(~due))
    buffer.pending = rest
    released.select(_sorted_rows(released))
    return released


def _sorted_rows(batch: Batch) -> Int64s:
    return np.lexsort((batch.offset, batch.partition, batch.stream, batch.time)).astype(np.int64)
