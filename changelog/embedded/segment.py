"""A segment: records of one partition, packed into one value of the embedded log's `segment` table. Little-endian:

    version u8 = 1 | flags u8 | 0 u16 | crc32 u32          of all bytes that follow
    records u32 | bytes of keys u32 | of values u32 | of headers u32
    places       i64 x records   flag 1: offset less the segment's first; without it 0, 1, 2, ... and no gap
    times        i64 x records   flag 2: log times in ms; without the flag all have the row's time
    key sizes    i32 x records   -1: no key
    value sizes  i32 x records   -1: null, a tombstone
    header sizes u32 x records   flag 4; without the flag no record has headers
    keys | values | headers      contiguous, in order

    headers of a record: see samovar.changelog.batches

The row holds the first offset and the time, so that a segment is packed before anybody knows where it will stand.
Flags 1 and 2 come from compaction, which leaves gaps and joins segments of different times.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import itemgetter
from typing import NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from samovar.changelog.batches import RecordBlock, header_bytes_of
from samovar.changelog.log import Bools, Headers, Int64s, Pair
from samovar.common.tunables import DEFAULTS
from samovar.native.kernel import Messages, data_of

VERSION = 1
PLACES, TIMES, HEADERS = 1, 2, 4

_HEAD = struct.Struct("<BBHI")
_SIZES = struct.Struct("<IIII")
_KNOWN_FLAGS = PLACES | TIMES | HEADERS

Int32s: TypeAlias = NDArray[np.int32]


class DamagedSegmentError(ValueError):
    """The bytes are not what was written."""


class SegmentInfo(NamedTuple):
    """Where a segment stands: what its row says next to the bytes."""

    topic: str
    partition: int
    first: int
    next: int
    time: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentColumns:
    """Records to be packed: their parts, and the sizes of the parts."""

    keys: Sequence[bytes]
    values: Sequence[bytes]
    heads: Sequence[bytes]
    key_sizes: Int32s
    value_sizes: Int32s
    head_sizes: Int32s | None

    def rows(self, rows: Int64s) -> SegmentColumns:
        """Some of them, in this order."""
        # itemgetter is quicker than a loop, and gives no sequence for one row.
        chosen: Callable[[Sequence[bytes]], Sequence[bytes]] = itemgetter(slice(int(rows[0]), int(rows[0]) + 1))
        if len(rows) > 1:
            chosen = itemgetter(*rows.tolist())
        return SegmentColumns(
            keys=chosen(self.keys),
            values=chosen(self.values),
            heads=chosen(self.heads) if self.heads else (),
            key_sizes=self.key_sizes[rows],
            value_sizes=self.value_sizes[rows],
            head_sizes=None if self.head_sizes is None else self.head_sizes[rows],
        )

    def sizes(self) -> Int64s:
        """The bytes of each record."""
        total: Int64s = np.maximum(self.key_sizes, 0).astype(np.int64) + np.maximum(self.value_sizes, 0)
        return total if self.head_sizes is None else total + self.head_sizes


def columns(records: Sequence[Pair], headers: Sequence[Headers] | None = None) -> SegmentColumns:
    flat = list(chain.from_iterable(records))  # half the time of two comprehensions
    assert len(flat) == 2 * len(records)
    keys, key_sizes = _column(flat[::2])
    values, value_sizes = _column(flat[1::2])
    if not headers:
        return SegmentColumns(
            keys=keys, values=values, heads=(), key_sizes=key_sizes, value_sizes=value_sizes, head_sizes=None
        )
    heads, head_sizes = _column([header_bytes_of(each) for each in headers])
    return SegmentColumns(
        keys=keys, values=values, heads=heads, key_sizes=key_sizes, value_sizes=value_sizes, head_sizes=head_sizes
    )


def pack(records: SegmentColumns, segment_bytes: int = DEFAULTS.segment_bytes) -> Iterator[tuple[int, bytes]]:
    """Segments of bounded size: how many records each has, and its bytes."""
    flags = 0 if records.head_sizes is None else HEADERS
    for start, end in cuts(np.cumsum(records.sizes()), segment_bytes):
        rows = slice(start, end)
        sizes = [records.key_sizes[rows], records.value_sizes[rows]]
        if records.head_sizes is not None:
            sizes.append(records.head_sizes[rows])
        parts = [b"".join(part[rows]) for part in (records.keys, records.values, records.heads)]
        yield end - start, _seal(end - start, flags, sizes, parts)


def repack(records: RecordBlock, first: int, following: int, row_time: int) -> bytes:
    """One segment of these records, from `first` up to `following`, each at its own place and with its own time."""
    flags, arrays = 0, list[NDArray[np.generic]]()
    places = records.offsets - first
    if not np.array_equal(places, np.arange(following - first)):
        flags |= PLACES
        arrays.append(places)
    if not (records.times == row_time).all():
        flags |= TIMES
        arrays.append(records.times)
    arrays += [_sizes_of(records.keys, records.keyless), _sizes_of(records.values, records.null)]
    parts = [_bytes_of(records.keys), _bytes_of(records.values), b""]
    if records.header_bytes is not None:
        flags |= HEADERS
        arrays.append(_sizes_of(records.header_bytes, np.zeros(len(records), np.bool_)))
        parts[2] = _bytes_of(records.header_bytes)
    return _seal(len(records), flags, arrays, parts)


def cuts(total: Int64s, segment_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows of up to so many bytes, given the bytes up to and with each row."""
    start, passed = 0, 0
    while start < len(total):
        end = max(start + 1, int(np.searchsorted(total, passed + segment_bytes, "right")))
        yield start, end
        start, passed = end, int(total[end - 1])


def _seal(count: int, flags: int, arrays: Sequence[NDArray[np.generic]], parts: Sequence[bytes]) -> bytes:
    pieces = (_SIZES.pack(count, *map(len, parts)), *(array.tobytes() for array in arrays), *parts)
    crc = 0
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
    return b"".join((_HEAD.pack(VERSION, flags, 0, crc), *pieces))


def _column(items: Sequence[bytes | None]) -> tuple[Sequence[bytes], Int32s]:
    try:
        return cast(Sequence[bytes], items), np.fromiter(map(len, cast(Sequence[bytes], items)), np.int32, len(items))
    except TypeError:  # some are None: rare, so that nobody asks before
        sizes = np.fromiter((-1 if item is None else len(item) for item in items), np.int32, len(items))
        return [b"" if item is None else item for item in items], sizes


def _sizes_of(messages: Messages, missing: Bools) -> Int32s:
    sizes = (messages.ends - messages.starts).astype(np.int32)
    sizes[missing] = -1
    return sizes


def _bytes_of(messages: Messages) -> bytes:
    return messages.data[messages.starts[0] : messages.ends[-1]].tobytes() if len(messages) else b""


def unpack(standing: SegmentInfo, data: bytes) -> RecordBlock:
    """The records of a segment. Their bytes are views of `data`."""
    count, flags, part_sizes = _check_head(data)
    at = _HEAD.size + _SIZES.size
    places, times = np.arange(count, dtype=np.int64), np.full(count, standing.time, np.int64)
    if flags & PLACES:
        places, at = np.frombuffer(data, "<i8", count, at), at + 8 * count
    if flags & TIMES:
        times, at = np.frombuffer(data, "<i8", count, at), at + 8 * count
    room = standing.next - standing.first
    if places.max(initial=-1) >= room or not (flags & PLACES or count == room):
        raise DamagedSegmentError(f"{count} records do not fit the offsets {standing.first} to {standing.next}")
    sizes = [
        np.frombuffer(data, "<i4", count, at + 4 * count * column) for column in range(3 if flags & HEADERS else 2)
    ]
    at += 4 * count * len(sizes)
    starts = accumulate(part_sizes, initial=at)
    buffer = data_of(data)
    messages = [
        _messages(buffer[start : start + size], each)
        for start, size, each in zip(starts, part_sizes, sizes, strict=False)
    ]
    return RecordBlock(
        topic=standing.topic,
        partition=standing.partition,
        offsets=places + standing.first,
        times=times,
        next=standing.next,
        keys=messages[0],
        values=messages[1],
        keyless=sizes[0] < 0,
        null=sizes[1] < 0,
        header_bytes=messages[2] if flags & HEADERS else None,
    )


def _check_head(data: bytes) -> tuple[int, int, list[int]]:
    """The number of records, the flags and the sizes of the three parts, once all is seen to be whole."""
    fixed = _HEAD.size + _SIZES.size
    if len(data) < fixed:
        raise DamagedSegmentError(f"a segment of {len(data)} bytes")
    version, flags, _, crc = _HEAD.unpack_from(data)
    if version != VERSION or flags & ~_KNOWN_FLAGS:
        raise DamagedSegmentError(f"a segment of version {version}, flags {flags}; known is version {VERSION}")
    if zlib.crc32(memoryview(data)[_HEAD.size :]) != crc:
        raise DamagedSegmentError("the checksum of a segment is wrong")
    count, *part_sizes = _SIZES.unpack_from(data, _HEAD.size)
    width = 8 + 8 * bool(flags & PLACES) + 8 * bool(flags & TIMES) + 4 * bool(flags & HEADERS)
    if len(data) != fixed + width * count + sum(part_sizes):
        raise DamagedSegmentError(f"a segment of {len(data)} bytes says that it has another size")
    return count, flags, part_sizes


def _messages(data: NDArray[np.uint8], sizes: Int32s) -> Messages:
    lengths = np.maximum(sizes, 0, dtype=np.int64)
    ends = np.cumsum(lengths)
    return Messages(data, ends - lengths, ends)
