"""Records of one partition as columns, all their bytes in a few buffers; parts and joins of them.

Headers of a record are packed as (size u32, name, size u32, value) for each, little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from samovar.changelog.log import Bools, Headers, Int64s, Pair, Records, TopicPartition
from samovar.native.kernel import Messages, array_at
from samovar.native.kernel import joined as in_one_buffer

if TYPE_CHECKING:
    import pyarrow as pa

_U32 = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class RecordBlock:
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
        if self.header_bytes is None:
            return ()
        data, texts, at = self.header_bytes[row], list[bytes](), 0
        while at < len(data):
            (size,) = _U32.unpack_from(data, at)
            texts.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        return tuple((name.decode(), value) for name, value in zip(texts[::2], texts[1::2], strict=True))

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


def header_bytes_of(headers: Headers) -> bytes:
    texts = [part for name, value in headers for part in (name.encode(), value)]
    return b"".join(piece for text in texts for piece in (_U32.pack(len(text)), text))


def rows_between(records: RecordBlock, start: int, end: int, next_offset: int) -> RecordBlock:
    """Some rows, as views."""
    rows = slice(start, end)
    return _selected(records, rows, next_offset, lambda each: Messages(each.data, each.starts[rows], each.ends[rows]))


def kept(records: RecordBlock, rows: Bools) -> RecordBlock:
    """The rows that are marked, their bytes copied together."""
    return _selected(records, rows, records.next, lambda each: _picked(each, rows))


def _selected(
    records: RecordBlock, rows: slice | Bools, next_offset: int, select: Callable[[Messages], Messages]
) -> RecordBlock:
    heads = records.header_bytes
    return RecordBlock(
        records.topic, records.partition, records.offsets[rows], records.times[rows], next_offset,
        select(records.keys), select(records.values), records.keyless[rows], records.null[rows],
        heads and select(heads),
    )  # fmt: skip


def _picked(messages: Messages, rows: Bools) -> Messages:
    lengths = messages.ends - messages.starts
    inside = np.repeat(rows, lengths)
    begin, end = (int(messages.starts[0]), int(messages.ends[-1])) if len(messages) else (0, 0)
    ends = np.cumsum(lengths[rows])
    return Messages(messages.data[begin:end][inside], ends - lengths[rows], ends)


def joined(parts: Sequence[RecordBlock]) -> RecordBlock:
    """Parts of one partition, in order, as one."""
    if len(parts) == 1:
        return parts[0]
    last = parts[-1]
    heads = None
    if any(part.header_bytes is not None for part in parts):
        heads = _together([part.header_bytes or _empty(len(part)) for part in parts])
    return replace(
        last,
        offsets=np.concatenate([part.offsets for part in parts]),
        times=np.concatenate([part.times for part in parts]),
        keys=_together([part.keys for part in parts]),
        values=_together([part.values for part in parts]),
        keyless=np.concatenate([part.keyless for part in parts]),
        null=np.concatenate([part.null for part in parts]),
        header_bytes=heads,
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


def messages_at(bounds: int | None, data: int | None, count: int, owner: object) -> Messages:
    """Messages that the kernel holds, for as long as their owner lives."""
    places = array_at(bounds, count + 1, np.dtype(np.int64), owner)
    return Messages(array_at(data, int(places[-1]), np.dtype(np.uint8), owner), places[:-1], places[1:])


def nothing_up_to(topic: str, partition: int, next_offset: int) -> RecordBlock:
    """No records, and where to read on."""
    none, no = np.empty(0, np.int64), np.empty(0, np.bool_)
    return RecordBlock(topic, partition, none, none, next_offset, _empty(0), _empty(0), no, no)


def block_of(records: Records) -> RecordBlock:
    """The same records as a block, whatever they are."""
    if isinstance(records, RecordBlock):
        return records
    keyless = np.fromiter((records.key(row) is None for row in range(len(records))), np.bool_, len(records))
    heads = in_one_buffer([header_bytes_of(records.headers(row)) for row in range(len(records))])
    return RecordBlock(
        records.topic, records.partition, records.offsets, records.times, records.next, records.keys, records.values,
        keyless, records.null, heads if len(heads.data) else None,
    )  # fmt: skip


def block_of_arrow(batch: pa.RecordBatch, at: TopicPartition, next_offset: int) -> RecordBlock:
    """Columns `offset, timestamp, key, value` and perhaps `headers`; nothing is copied but bounds. Headers are packed
    already, or a list of structs as Spark has them, which are packed one by one.
    """
    import pyarrow as pa  # noqa: PLC0415 - large, and not of every process

    def messages(column: Any) -> Messages:
        _, bounds, data = column.buffers()
        places = np.frombuffer(bounds, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
        return Messages(np.frombuffer(data or b"", np.uint8), places[:-1], places[1:])

    times = batch.column("timestamp").cast(pa.timestamp("ms", batch.schema.field("timestamp").type.tz), safe=False)
    keys, values, heads = batch.column("key"), batch.column("value"), None
    column = batch.column("headers") if "headers" in batch.schema.names else None
    if column is not None and column.null_count < len(column):
        if pa.types.is_binary(column.type):
            heads = messages(column)
        else:
            structs = ([(each["key"], each["value"] or b"") for each in found or ()] for found in column.to_pylist())
            heads = in_one_buffer([header_bytes_of(tuple(each)) for each in structs])
    keyless, null = (each.is_null().to_numpy(zero_copy_only=False) for each in (keys, values))
    return RecordBlock(
        *at, batch.column("offset").to_numpy(), times.cast(pa.int64()).to_numpy(), next_offset,
        messages(keys), messages(values), keyless, null, heads,
    )  # fmt: skip
