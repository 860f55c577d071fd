"""What is in a repartition topic: events of a stream under another key, and marks of how far each source partition is.
Format 1.

A record's value is a head of 24 bytes, little-endian, and then the value of the source's record as it was:

    format u8 = 1 | kind u8 | flags u16 | source partition u32 | offset i64 | time i64

    event (kind 0)   offset and log time of the source's record; flags are 0
    mark (kind 1)    offset: all records before it were forwarded, or put aside. time: the maximum event time of the
                     partition, or what it was advanced to while the partition is idle; -2^62 where there is none yet.
                     flag 1: the partition is idle, and holds event time back no more. After the head: since i64, the
                     offset from which on all was forwarded without a break

An event's key is the text of the field that the topic is keyed by, and murmur2 of it says the partition. Marks have no
key, and each goes to every partition, after the events of its commit. Of one source partition, events come in order of
offset; an offset that came before comes again only where a commit was repeated, and is passed over.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from samovar.changelog.formats.record import newer
from samovar.changelog.log import Bools, Headers, Int64s, Pair, Records
from samovar.native.kernel import Messages

FORMAT = 1
NO_FORMAT = 32  # and above: texts begin so, and no version of ours
EVENT, MARK = 0, 1
IDLE = 1
NO_TIME = -(1 << 62)  # as samovar.patterns.engine.order has it
HEAD = np.dtype(
    [("format", "u1"), ("kind", "u1"), ("flags", "<u2"), ("partition", "<u4"), ("offset", "<i8"), ("time", "<i8")]
)
HEAD_BYTES = HEAD.itemsize
_SINCE = struct.Struct("<q")
Heads: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkMarker:
    """How far a source partition is."""

    partition: int
    next: int
    max_event_time: int
    idle: bool
    since: int


def pack_events(partition: int, offsets: Int64s, times: Int64s, values: Messages) -> list[bytes]:
    """The values of forwarded events of one source partition."""
    if not len(values):
        return []
    heads = np.zeros(len(offsets), HEAD)
    heads["format"], heads["kind"], heads["partition"] = FORMAT, EVENT, partition
    heads["offset"], heads["time"] = offsets, times
    head, places = heads.tobytes(), range(0, len(offsets) * HEAD_BYTES, HEAD_BYTES)
    first = int(values.starts.min())
    data = values.data[first : int(values.ends.max())].tobytes()
    starts, ends = (values.starts - first).tolist(), (values.ends - first).tolist()
    return [head[at : at + HEAD_BYTES] + data[start:end] for at, start, end in zip(places, starts, ends, strict=True)]


def pack_mark(mark: WatermarkMarker) -> bytes:
    head = np.zeros(1, HEAD)
    head["format"], head["kind"], head["flags"] = FORMAT, MARK, IDLE if mark.idle else 0
    head["partition"], head["offset"], head["time"] = mark.partition, mark.next, mark.max_event_time
    return head.tobytes() + _SINCE.pack(mark.since)


def heads_of(values: Messages) -> Heads:
    """The head of each value; format 0 where it is too short. A newer format is refused; it is not a dead letter."""
    heads = np.zeros(len(values), HEAD)
    whole = np.flatnonzero(values.ends - values.starts >= HEAD_BYTES)
    if len(whole):
        places = values.starts[whole, None] + np.arange(HEAD_BYTES)
        heads[whole] = values.data[places].view(HEAD)[:, 0]
    later = heads["format"][(heads["format"] > FORMAT) & (heads["format"] < NO_FORMAT)]
    if len(later):
        raise newer("a record of a repartition topic", int(later.max()), FORMAT)
    return heads


def marks_of(heads: Heads, values: Messages) -> list[WatermarkMarker]:
    """The marks among records, in their order."""
    found = []
    for row in np.flatnonzero((heads["format"] == FORMAT) & (heads["kind"] == MARK)).tolist():
        head, rest = heads[row], values[row][HEAD_BYTES:]
        (since,) = _SINCE.unpack(rest[: _SINCE.size]) if len(rest) >= _SINCE.size else (0,)
        idle = bool(int(head["flags"]) & IDLE)
        found.append(
            WatermarkMarker(
                partition=int(head["partition"]),
                next=int(head["offset"]),
                max_event_time=int(head["time"]),
                idle=idle,
                since=int(since),
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class OriginalRecords:
    """Rows of a repartition topic's records with the offsets and values of the source; `heads` tell its partition."""

    whole: Records
    heads: Heads
    rows: Int64s

    @property
    def topic(self) -> str:
        return self.whole.topic

    @property
    def partition(self) -> int:
        return self.whole.partition

    @property
    def next(self) -> int:
        return self.whole.next

    @property
    def offsets(self) -> Int64s:
        return self.heads["offset"][self.rows].astype(np.int64)

    @property
    def times(self) -> Int64s:
        return self.heads["time"][self.rows].astype(np.int64)

    @property
    def partitions(self) -> NDArray[np.int32]:
        return self.heads["partition"][self.rows].astype(np.int32)

    @property
    def keys(self) -> Messages:
        whole = self.whole.keys
        return Messages(whole.data, whole.starts[self.rows], whole.ends[self.rows])

    @property
    def values(self) -> Messages:
        whole = self.whole.values
        return Messages(whole.data, whole.starts[self.rows] + HEAD_BYTES, whole.ends[self.rows])

    @property
    def null(self) -> Bools:
        return self.whole.null[self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def value(self, row: int) -> bytes | None:
        value = self.whole.value(int(self.rows[row]))
        return None if value is None else value[HEAD_BYTES:]

    def key(self, row: int) -> bytes | None:
        return self.whole.key(int(self.rows[row]))

    def headers(self, row: int) -> Headers:
        return self.whole.headers(int(self.rows[row]))

    def pairs(self) -> list[Pair]:
        return [(self.key(row), self.value(row)) for row in range(len(self))]
