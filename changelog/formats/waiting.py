"""Events that waited for event time when a service was repartitioned. Format 1.

A task reads again what waits, from its own partition of the input. Behind a repartition that may be another task's
partition, so they are rows of its store and of its changelog until event time has passed the last of them:

    b"q" + stream + 0 + partition, 4 bytes + offset, 8 bytes     big end first: where the event stands in its source
    format 1, 1 byte | log time, 8 bytes | size of the key, 4 bytes, -1: none | key | value as the source has it
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samovar.changelog.formats.record import WAITING, newer
from samovar.changelog.log import Bools, Headers, Int64s, Pair
from samovar.native.kernel import Messages, joined
from samovar.state.store import Readable

FORMAT = 1
WAITING_END = bytes([WAITING[0] + 1])
_PLACE, _HEAD = struct.Struct(">Iq"), struct.Struct(">Bqi")


class WaitingEvent(NamedTuple):
    """One event, by its place in the source."""

    partition: int
    offset: int
    time_ms: int  # of the log
    key: bytes | None
    value: bytes

    def row(self, stream: str) -> bytes:
        return WAITING + stream.encode() + b"\0" + _PLACE.pack(self.partition, self.offset)

    def packed(self) -> bytes:
        size = -1 if self.key is None else len(self.key)
        return _HEAD.pack(FORMAT, self.time_ms, size) + (self.key or b"") + self.value


def waiting_events(store: Readable) -> dict[str, list[WaitingEvent]]:
    """All that a store has, by stream."""
    found: dict[str, list[WaitingEvent]] = {}
    for row, data in store.range(WAITING, WAITING_END):
        version, time_ms, size = _HEAD.unpack_from(data)
        if version > FORMAT:
            raise newer("an event that waits", version, FORMAT)
        key, rest = (None, _HEAD.size) if size < 0 else (data[_HEAD.size : _HEAD.size + size], _HEAD.size + size)
        partition, offset = _PLACE.unpack(row[-_PLACE.size :])
        event = WaitingEvent(partition, offset, time_ms, key, data[rest:])
        found.setdefault(row[1 : -_PLACE.size - 1].decode(), []).append(event)
    return found


@dataclass(frozen=True)
class WaitingRecords:
    """Events of one stream as records, for its decoder; what that makes of them points into `values`."""

    topic: str
    partition: int
    events: Sequence[WaitingEvent]

    @property
    def next(self) -> int:
        return max((event.offset + 1 for event in self.events), default=0)

    @property
    def offsets(self) -> Int64s:
        return np.array([event.offset for event in self.events], np.int64)

    @property
    def times(self) -> Int64s:
        return np.array([event.time_ms for event in self.events], np.int64)

    @property
    def partitions(self) -> NDArray[np.int32]:
        return np.array([event.partition for event in self.events], np.int32)

    @property
    def keys(self) -> Messages:
        return joined([event.key or b"" for event in self.events])

    @cached_property
    def values(self) -> Messages:
        return joined([event.value for event in self.events])

    @property
    def null(self) -> Bools:
        return np.zeros(len(self.events), np.bool_)

    def __len__(self) -> int:
        return len(self.events)

    def value(self, row: int) -> bytes:
        return self.events[row].value

    def key(self, row: int) -> bytes | None:
        return self.events[row].key

    def headers(self, row: int) -> Headers:  # noqa: ARG002 - they are not kept
        return ()

    def pairs(self) -> list[Pair]:
        return [(event.key, event.value) for event in self.events]
