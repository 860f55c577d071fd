"""A file of an archive: the committed records of one partition from one offset up to, not including, another. Parquet
with zstd, format 1:

    offset      int64            as in the log
    timestamp   timestamp[ms]    the log's time
    key         binary           null: no key
    value       binary           null: a tombstone
    headers     binary           packed as samovar.changelog.batches says; null: none
    event_time  timestamp[ms]    what the event says, where the topic is a stream and the record an event; else null

    metadata `samovar`           JSON: `v`, what FileFacts holds, and `crc`, the CRC-32 of that

Row groups have at most `archive_group_records`. Every page has a checksum that a reader compares; the facts have
theirs, and so have the columns of a row group as they were written: Parquet's own headers have none, and one that is
damaged can make a column empty. Offsets that no record has, of compaction and of transaction markers, are within the
file's range all the same: `first` and `next` are places, and the file says that nothing else is between them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from samovar.changelog.archive.folder import ArchiveFolder
from samovar.changelog.batches import RecordBlock, block_of_arrow, rows_between
from samovar.changelog.formats.record import newer
from samovar.changelog.log import Bools, Int64s, TopicPartition
from samovar.common.errors import Refused
from samovar.common.wire import from_wire, stored, to_wire
from samovar.native.kernel import Messages

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1
FACTS = b"samovar"
COLUMNS = ["offset", "timestamp", "key", "value", "headers"]
LEVEL = 3  # of zstd
# What pyarrow, JSON and numpy raise over bytes that nobody wrote; pyarrow's own errors are among these.
DAMAGED = (OSError, ValueError, LookupError, TypeError, NotImplementedError, MemoryError, ArithmeticError)
NO_EVENT = np.iinfo(np.int64).min  # in a column of event times


@stored(
    "service topic topic_id partition first next records times events field written_ms head_ms began_ms log_end whole"
    " deletes begins sums"
)
@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """What a file says of itself. Of a compacted topic also what compaction may have taken before it was written."""

    service: str
    topic: str
    topic_id: str
    partition: int
    first: int
    next: int
    records: int
    times: tuple[int, ...] = ()  # the smallest and the largest log time; none where there are no records
    events: tuple[int, ...] = ()  # the same of event times
    field: str = ""  # that these are from
    written_ms: int = 0
    head_ms: int = 0  # when it had all that the log had; 0: it had not
    began_ms: int = 0  # when the unbroken reading began that it is part of
    log_end: int = 0  # when it was written
    whole: bool = True  # False: compaction may have removed records that are superseded before `log_end`
    deletes: bool = True  # False: tombstones of keys in earlier files may be missing
    begins: tuple[int, ...] = ()  # of each row group: its first offset
    sums: tuple[int, ...] = ()  # and the CRC-32 of its columns, as they are in memory

    @property
    def name(self) -> str:
        return file_name(self.first, self.next)


def file_name(first: int, following: int) -> str:
    """Names sort as offsets do."""
    return f"{first:020}-{following:020}.parquet"


def schema() -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415 - large

    time = pa.timestamp("ms", "UTC")
    return pa.schema(
        [
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", time, nullable=False),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("headers", pa.binary()),
            pa.field("event_time", time),
        ]
    )


class FileWriter:
    """One file on its way, a row group in memory at most."""

    def __init__(self, path: Path, group_records: int, group_bytes: int) -> None:
        import pyarrow.parquet as pq  # noqa: PLC0415 - large

        self._most, self._most_bytes = group_records, group_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._begins: list[int] = []
        self._sums: list[int] = []
        self.records = self.bytes = self._rows = self._bytes = 0
        times = ["offset", "timestamp", "event_time"]
        self._writer = pq.ParquetWriter(
            path,
            schema(),
            compression="zstd",
            compression_level=LEVEL,
            use_dictionary=["key"],
            column_encoding=dict.fromkeys(times, "DELTA_BINARY_PACKED"),
            write_statistics=times,
            write_page_checksum=True,
        )

    def add(self, records: RecordBlock, event_times: Int64s | None) -> None:
        start = 0
        while start < len(records):
            stop = min(len(records), start + self._most - self._rows)
            sizes = np.cumsum(np.diff(records.values.ends[start:stop], prepend=records.values.starts[start]))
            stop = start + max(1, int(np.searchsorted(sizes, self._most_bytes - self._bytes, "right")))
            part = rows_between(records, start, stop, records.next)
            self._waiting.append(_arrow_of(part, None if event_times is None else event_times[start:stop]))
            self.records, self._rows = self.records + len(part), self._rows + len(part)
            size = int(sizes[stop - start - 1])
            self.bytes, self._bytes = self.bytes + size, self._bytes + size
            if self._rows >= self._most or self._bytes >= self._most_bytes:
                self._flush()
            start = stop

    def _flush(self) -> None:
        import pyarrow as pa  # noqa: PLC0415 - large

        if self._waiting:
            table = pa.Table.from_batches(self._waiting).combine_chunks()
            self._begins.append(table["offset"][0].as_py())
            self._sums.append(_checksum(table))
            self._writer.write_table(table, row_group_size=self._rows)
        self._waiting, self._rows, self._bytes = [], 0, 0

    def finish(self, facts: FileFacts) -> None:
        self._flush()
        sealed = replace(facts, begins=tuple(self._begins), sums=tuple(self._sums))
        text = json.dumps({"v": FORMAT, **to_wire(sealed)}, separators=(",", ":"))
        self._writer.add_key_value_metadata({FACTS: json.dumps({"facts": text, "crc": zlib.crc32(text.encode())})})
        self._writer.close()

    def close(self) -> None:
        self._writer.close()


def _checksum(table: pa.Table) -> int:
    """Of the columns that are records, whatever buffers they lie in."""
    found = 0
    for name in COLUMNS:
        (column,) = table[name].chunks
        found = zlib.crc32(np.packbits(column.is_null().to_numpy(zero_copy_only=False)).data, found)
        _, *buffers = column.buffers()
        if len(buffers) == 1:
            values = np.frombuffer(buffers[0], np.int64)[column.offset : column.offset + len(column)]
            found = zlib.crc32(values.data, found)
        else:
            ends = np.frombuffer(buffers[0], np.int32)[column.offset : column.offset + len(column) + 1]
            found = zlib.crc32(np.diff(ends).data, found)
            if buffers[1] is not None:
                found = zlib.crc32(np.frombuffer(buffers[1], np.uint8)[ends[0] : ends[-1]].data, found)
    return found


def _arrow_of(records: RecordBlock, event_times: Int64s | None) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415 - large

    count, time = len(records), pa.timestamp("ms", "UTC")
    heads, events = records.header_bytes, event_times
    headers = pa.nulls(count, pa.binary()) if heads is None else _binary(heads, heads.starts == heads.ends)
    is_none = np.ones(count, np.bool_) if events is None else events == NO_EVENT
    columns = [
        pa.array(records.offsets, pa.int64()),
        pa.array(records.times, pa.int64()).cast(time),
        _binary(records.keys, records.keyless),
        _binary(records.values, records.null),
        headers,
        pa.array(np.zeros(count, np.int64) if events is None else events, pa.int64(), mask=is_none).cast(time),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema())


def _binary(messages: Messages, missing: Bools) -> pa.Array:
    """Messages as a column, their bytes where they are: those of a row follow those of the row before."""
    import pyarrow as pa  # noqa: PLC0415 - large

    base = int(messages.starts[0])
    assert (messages.ends[:-1] == messages.starts[1:]).all()
    places = np.append(messages.starts - base, messages.ends[-1] - base).astype(np.int32)
    data = np.ascontiguousarray(messages.data[base : messages.ends[-1]])
    there = pa.py_buffer(np.packbits(~missing, bitorder="little")) if missing.any() else None
    buffers = [there, pa.py_buffer(places), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(messages), buffers)


class ArchiveFile:
    """A published file, opened: what it says of itself, and its records. Anything but what was written is refused."""

    def __init__(self, folder: ArchiveFolder, name: str) -> None:
        """Raises FileNotFoundError."""
        import pyarrow.parquet as pq  # noqa: PLC0415 - large

        self.name, self._url = name, folder.url
        source = folder.source(name)
        with self._reading():
            self._file = pq.ParquetFile(source, page_checksum_verification=True)
            sealed = json.loads(self._file.metadata.metadata[FACTS])
            if zlib.crc32(sealed["facts"].encode()) != sealed["crc"]:
                raise ValueError("the checksum of what it says of itself is wrong")
            raw = json.loads(sealed["facts"])
            if (version := raw.pop("v")) > FORMAT:
                raise newer(f"{name} in the archive", version, FORMAT)
            self.facts = from_wire(FileFacts, raw)
            if self._file.metadata.num_rows != self.facts.records:
                raise ValueError(f"it has {self._file.metadata.num_rows} records, and says {self.facts.records}")
            if self._file.metadata.num_row_groups != len(self.facts.sums) or self._file.schema_arrow != schema():
                raise ValueError("its columns and row groups are not those that it says")

    def damaged(self, why: object) -> Refused:
        return Refused(
            "archive-damaged",
            f"{self.name} in the archive {self._url} is not what was written: {why}",
            "Put a good copy of the file back; `samovar archive CONFIG --verify` looks at all of them. While the log"
            " still has its records the file may be deleted: it is written again.",
        )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except DAMAGED as error:
            raise self.damaged(error) from error

    def blocks(self, start: int = 0, end: int | None = None) -> Iterator[RecordBlock]:
        """The records from `start` up to `end`, a row group at a time; the next one is read meanwhile."""
        facts = self.facts
        at, end = TopicPartition(facts.topic, facts.partition), facts.next if end is None else min(end, facts.next)
        wanted = [group for group in self._groups() if group[1] < end and group[2] > start]
        with ThreadPoolExecutor(1) as pool:
            ahead = [pool.submit(self._read, number) for number, _, _ in wanted[:1]]
            for place, (_, first, following) in enumerate(wanted):
                batch = ahead.pop().result()
                ahead = [pool.submit(self._read, number) for number, _, _ in wanted[place + 1 : place + 2]]
                with self._reading():
                    records = block_of_arrow(batch, at, following)
                    offsets = records.offsets
                    if offsets[0] < first or offsets[-1] >= following or not (np.diff(offsets) > 0).all():
                        raise ValueError(f"offsets are not in order between {first:,} and {following:,}")
                rows = np.searchsorted(offsets, [start, end])
                following = min(following, end)
                if rows[0] > 0 or rows[1] < len(records):
                    records = rows_between(records, int(rows[0]), int(rows[1]), following)
                yield records

    def _groups(self) -> list[tuple[int, int, int]]:
        """Of each row group its number, where it begins, and where the next one does."""
        begins = self.facts.begins
        bounds = [self.facts.first, *begins[1:], self.facts.next] if begins else []
        return [(number, *pair) for number, pair in enumerate(pairwise(bounds))]

    def _read(self, number: int) -> pa.RecordBatch:
        with self._reading():
            table = self._file.read_row_group(number, columns=COLUMNS).combine_chunks()
            if _checksum(table) != self.facts.sums[number]:
                raise ValueError(f"the checksum of its row group {number + 1} is wrong")
            (batch,) = table.to_batches()
            return batch

    def times(self) -> Iterator[tuple[Int64s, Int64s]]:
        """Offsets and log times of the records."""
        for number in range(self._file.metadata.num_row_groups):
            with self._reading():
                table: Any = self._file.read_row_group(number, columns=["offset", "timestamp"])
                yield (
                    table["offset"].to_numpy(),
                    table["timestamp"].to_numpy().astype("datetime64[ms]").astype(np.int64),
                )
