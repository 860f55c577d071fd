"""A segment: records of one partition, packed into one value of the embedded log's `segment` table. Little-endian:

    version u8 = 1 | flags u8 | 0 u16 | crc32 u32          of all bytes that follow
    records u32 | bytes of keys u32 | of values u32 | of headers u32
    places       i64 x records   flag 1: offset less the segment's first; without the flag 0, 1, 2, ...
    times        i64 x records   flag 2: log times in ms; without the flag all have the row's time
    key sizes    i32 x records   -1: no key
    value sizes  i32 x records   -1: null, a tombstone
    header sizes u32 x records   flag 4; without the flag no record has headers
    keys | values | headers      contiguous, in order

    headers of a record: (size u32, name, size u32, value) for each

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

from samovar.changelog.log import Headers, Int64s, Pair
from samovar.patterns.native import Messages, data_of

VERSION = 1
SEGMENT_BYTES = 1 << 20  # a segment ends before it passes this, unless one record alone does
PLACES, TIMES, HEADERS = 1, 2, 4

_HEAD = struct.Struct("<BBHI")
_SIZES = struct.Struct("<IIII")
_U32 = struct.Struct("<I")
_KNOWN_FLAGS = PLACES | TIMES | HEADERS

Int32s: TypeAlias = NDArray[np.int32]
Bools: TypeAlias = NDArray[np.bool_]


class DamagedSegmentError(ValueError):
    """The bytes are not what was written."""


class Standing(NamedTuple):
    """Where a segment stands: what its row says beside the bytes."""

    topic: str
    partition: int
    first: int
    next: int
    time: int


@dataclass(frozen=True, slots=True)
class Packed:
    """Records of one partition as columns, as samovar.changelog.log.Records says."""

    topic: str
    partition: int
    offsets: Int64s
    times: Int64s
    next: int
    keys: Messages
    values: Messages
    keyless: Bools
    null: Bools
    header_bytes: Messages | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def key(self, row: int) -> bytes | None:
        return None if self.keyless[row] else self.keys[row]

    def value(self, row: int) -> bytes | None:
        return None if self.null[row] else self.values[row]

    def headers(self, row: int) -> Headers:
        return () if self.header_bytes is None else _headers_of(self.header_bytes[row])

    def pairs(self) -> list[Pair]:
        return list(zip(objects(self.keys, self.keyless), objects(self.values, self.null), strict=True))


def objects(messages: Messages, missing: Bools) -> list[bytes | None]:
    """The messages one by one, None for the missing."""
    if len(messages) == 0:
        return []
    base = int(messages.starts[0])
    data = messages.data[base : messages.ends[-1]].tobytes()
    starts, ends = (messages.starts - base).tolist(), (messages.ends - base).tolist()
    found: list[bytes | None] = [data[start:end] for start, end in zip(starts, ends, strict=True)]
    for row in np.flatnonzero(missing).tolist():
        found[row] = None
    return found


# ---------------------------------------------------------------- packing


@dataclass(frozen=True, slots=True)
class Columns:
    """Records to be packed: their parts, and the sizes of the parts."""

    keys: Sequence[bytes]
    values: Sequence[bytes]
    heads: Sequence[bytes]
    key_sizes: Int32s
    value_sizes: Int32s
    head_sizes: Int32s | None

    def rows(self, rows: Int64s) -> Columns:
        """Some of them, in this order."""
        chosen = _chooser(rows)
        return Columns(
            chosen(self.keys),
            chosen(self.values),
            chosen(self.heads) if self.heads else (),
            self.key_sizes[rows],
            self.value_sizes[rows],
            None if self.head_sizes is None else self.head_sizes[rows],
        )

    def sizes(self) -> Int64s:
        """The bytes of each record."""
        total: Int64s = np.maximum(self.key_sizes, 0).astype(np.int64) + np.maximum(self.value_sizes, 0)
        return total if self.head_sizes is None else total + self.head_sizes


def columns(records: Sequence[Pair], headers: Sequence[Headers] | None = None) -> Columns:
    flat = list(chain.from_iterable(records))  # half the time of two comprehensions
    assert len(flat) == 2 * len(records)
    keys, key_sizes = _column(flat[::2])
    values, value_sizes = _column(flat[1::2])
    if not headers:
        return Columns(keys, values, (), key_sizes, value_sizes, None)
    heads, head_sizes = _column([_header_bytes(each) for each in headers])
    return Columns(keys, values, heads, key_sizes, value_sizes, head_sizes)


def _chooser(rows: Int64s) -> Callable[[Sequence[bytes]], Sequence[bytes]]:
    """Takes these rows of a sequence. itemgetter is quicker than a loop, and gives no sequence for one row."""
    if len(rows) == 1:
        row = int(rows[0])
        return lambda items: items[row : row + 1]
    return cast(Callable[[Sequence[bytes]], Sequence[bytes]], itemgetter(*rows.tolist()))


def pack(records: Columns) -> Iterator[tuple[int, bytes]]:
    """Segments of bounded size: how many records each has, and its bytes."""
    flags = 0 if records.head_sizes is None else HEADERS
    for start, end in cuts(np.cumsum(records.sizes())):
        rows = slice(start, end)
        sizes = [records.key_sizes[rows], records.value_sizes[rows]]
        if records.head_sizes is not None:
            sizes.append(records.head_sizes[rows])
        parts = [b"".join(part[rows]) for part in (records.keys, records.values, records.heads)]
        yield end - start, _sealed(end - start, flags, sizes, parts)


def repack(records: Packed, first: int, row_time: int) -> bytes:
    """One segment of these records, each at its own place and with its own time."""
    flags, arrays = 0, list[NDArray[np.generic]]()
    places = records.offsets - first
    if not np.array_equal(places, np.arange(len(records))):
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
    return _sealed(len(records), flags, arrays, parts)


def cuts(total: Int64s) -> Iterator[tuple[int, int]]:
    """Ranges of rows of up to SEGMENT_BYTES, given the bytes up to and with each row."""
    start, passed = 0, 0
    while start < len(total):
        end = max(start + 1, int(np.searchsorted(total, passed + SEGMENT_BYTES, "right")))
        yield start, end
        start, passed = end, int(total[end - 1])


def _sealed(count: int, flags: int, arrays: Sequence[NDArray[np.generic]], parts: Sequence[bytes]) -> bytes:
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


def _header_bytes(headers: Headers) -> bytes:
    texts = [part for name, value in headers for part in (name.encode(), value)]
    return b"".join(piece for text in texts for piece in (_U32.pack(len(text)), text))


def _headers_of(data: bytes) -> Headers:
    texts: list[bytes] = []
    at = 0
    while at < len(data):
        (size,) = _U32.unpack_from(data, at)
        texts.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return tuple((name.decode(), value) for name, value in zip(texts[::2], texts[1::2], strict=True))


# ---------------------------------------------------------------- unpacking


def unpack(standing: Standing, data: bytes) -> Packed:
    """The records of a segment. Their bytes are views of `data`."""
    count, flags, part_sizes = _checked(data)
    at = _HEAD.size + _SIZES.size
    places, times = np.arange(count, dtype=np.int64), np.full(count, standing.time, np.int64)
    if flags & PLACES:
        places, at = np.frombuffer(data, "<i8", count, at), at + 8 * count
    if flags & TIMES:
        times, at = np.frombuffer(data, "<i8", count, at), at + 8 * count
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
    return Packed(
        *standing[:2],
        places + standing.first,
        times,
        standing.next,
        messages[0],
        messages[1],
        sizes[0] < 0,
        sizes[1] < 0,
        messages[2] if flags & HEADERS else None,
    )


def _checked(data: bytes) -> tuple[int, int, list[int]]:
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


# ---------------------------------------------------------------- parts and wholes


def rows_between(records: Packed, start: int, end: int, next_offset: int) -> Packed:
    """Some rows, as views."""
    rows = slice(start, end)
    heads = records.header_bytes
    return Packed(
        records.topic,
        records.partition,
        records.offsets[rows],
        records.times[rows],
        next_offset,
        Messages(records.keys.data, records.keys.starts[rows], records.keys.ends[rows]),
        Messages(records.values.data, records.values.starts[rows], records.values.ends[rows]),
        records.keyless[rows],
        records.null[rows],
        heads and Messages(heads.data, heads.starts[rows], heads.ends[rows]),
    )


def kept(records: Packed, rows: Bools) -> Packed:
    """The rows that are marked, their bytes copied together."""
    heads = records.header_bytes
    return Packed(
        records.topic,
        records.partition,
        records.offsets[rows],
        records.times[rows],
        records.next,
        _picked(records.keys, rows),
        _picked(records.values, rows),
        records.keyless[rows],
        records.null[rows],
        heads and _picked(heads, rows),
    )


def _picked(messages: Messages, rows: Bools) -> Messages:
    lengths = messages.ends - messages.starts
    inside = np.repeat(rows, lengths)
    begin, end = (int(messages.starts[0]), int(messages.ends[-1])) if len(messages) else (0, 0)
    ends = np.cumsum(lengths[rows])
    return Messages(messages.data[begin:end][inside], ends - lengths[rows], ends)


def joined(parts: Sequence[Packed]) -> Packed:
    """Parts of one partition, in order, as one."""
    if len(parts) == 1:
        return parts[0]
    last = parts[-1]
    heads = None
    if any(part.header_bytes is not None for part in parts):
        heads = _together([part.header_bytes or _empty(len(part)) for part in parts])
    return Packed(
        last.topic,
        last.partition,
        np.concatenate([part.offsets for part in parts]),
        np.concatenate([part.times for part in parts]),
        last.next,
        _together([part.keys for part in parts]),
        _together([part.values for part in parts]),
        np.concatenate([part.keyless for part in parts]),
        np.concatenate([part.null for part in parts]),
        heads,
    )


def _together(many: Sequence[Messages]) -> Messages:
    """Messages of several buffers in one. Each one's bytes are contiguous, as a segment has them."""
    many = [each for each in many if len(each)]
    if not many:
        return _empty(0)
    data = np.concatenate([each.data[each.starts[0] : each.ends[-1]] for each in many])
    lengths = np.concatenate([each.ends - each.starts for each in many])
    ends = np.cumsum(lengths)
    return Messages(data, ends - lengths, ends)


def _empty(count: int) -> Messages:
    nothing = np.zeros(count, np.int64)
    return Messages(np.empty(0, np.uint8), nothing, nothing)


def nothing_up_to(topic: str, partition: int, next_offset: int) -> Packed:
    """No records, and where to read on."""
    none, no = np.empty(0, np.int64), np.empty(0, np.bool_)
    return Packed(topic, partition, none, none, next_offset, _empty(0), _empty(0), no, no)
