"""The tables of `samovar sql`: those that views read (samovar.service.views.sources), and published views by name.

Each stands for what was committed up to the ends that its topics had when it was opened, and is read batch by batch:
only the columns that a query needs are decoded, and only offsets that its conditions leave are read. DuckDB is given a
table as a dataset of pyarrow's, which it asks for a scan with columns and a filter as often as a query needs one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from samovar.changelog.log import Log, TopicPartition
from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.service.config.models import ServiceFile
from samovar.service.spark.frames.events import RecordFrame
from samovar.service.spark.frames.frame import FrameRange, ranges_of, records_of
from samovar.service.sql.masking import MaskedFrame, TableMask, TableMasks
from samovar.service.views.files import table_name
from samovar.service.views.sources import Sources
from samovar.service.views.store import ViewManifest, ViewStore, published

TYPES = {
    "string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_(),
    "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"),
}  # fmt: skip
CUTS = 64  # guesses at a time of where wanted offsets and times begin
MOST = 1 << 62
LAST_MS = 1 << 47


@dataclass(kw_only=True)
class ScanWatch:
    """How far the scans of one query are, and whether they shall end. Threads share it."""

    total: int = 0  # records
    done: int = 0
    table: str = ""
    begun: float = field(default_factory=time.monotonic)
    failure: BaseException | None = None
    held: int = 0  # batches that were made and not yet let go of; the most at once
    is_cancelled: threading.Event = field(default_factory=threading.Event)

    def text(self) -> str:
        seconds = max(time.monotonic() - self.begun, 0.001)
        rate, left = self.done / seconds, max(self.total - self.done, 0)
        ends = f", {left / rate:,.0f} s left" if rate and left else ""
        return f"{self.table}: {self.done:,} of {self.total:,} records, {rate:,.0f}/s{ends}"


class ScannedTable:
    """A table of one query."""

    name: str
    schema: pa.Schema

    def read(self, names: Sequence[str], condition: pc.Expression | None, watch: ScanWatch) -> Iterator[pa.RecordBatch]:
        """Batches with these columns at least, of rows of which some may not fulfil the condition."""
        raise NotImplementedError


@dataclass
class FrameTable(ScannedTable):
    """Records of a topic, or states; with `time`, also the day of that column."""

    name: str
    frame: Any
    log: Log
    time: str | None

    @property
    def has_day(self) -> bool:
        return self.time is not None and "day" not in self.frame.schema.names

    @cached_property
    def schema(self) -> pa.Schema:
        return self.frame.schema.append(pa.field("day", pa.date32())) if self.has_day else self.frame.schema

    def chosen(self, names: Sequence[str]) -> Any:
        """The frame with these columns, and the one that the day comes from."""
        more = [self.time] if self.has_day and self.time is not None and "day" in names else []
        return self.frame.choosing([*names, *more]) if hasattr(self.frame, "choosing") else self.frame

    def with_day(self, batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
        if not self.has_day or "day" not in names:
            return batch
        day = batch.column(self.time).cast(pa.date32())
        return pa.RecordBatch.from_arrays([*batch.columns, day], [*batch.schema.names, "day"])

    def read(self, names: Sequence[str], condition: pc.Expression | None, watch: ScanWatch) -> Iterator[pa.RecordBatch]:
        frame = self.chosen(names)
        inner = frame.frame if isinstance(frame, MaskedFrame) else frame
        parts = ranges_of(frame.parts) if isinstance(inner, RecordFrame) else []
        ranges = [FrameRange(topic=r.at.topic, partition=r.at.partition, start=r.start, end=r.end) for r in parts]
        log = self.log if ranges else None
        wanted = narrowed(self.schema, condition, ranges or list(frame.parts), log)
        watch.table, watch.total = self.name, watch.total + sum(part.end - part.start for part in wanted)
        columns = frame.columns() if ranges else None
        for part in wanted:
            done = part.start
            if columns is None:
                yield from (self.with_day(batch, names) for batch in frame.read(part))
            else:
                for records in records_of(self.log, part):
                    yield from (self.with_day(batch, names) for batch in frame.batches(records, columns))
                    watch.done += records.next - done
                    done = records.next
            watch.done += part.end - done


@dataclass
class ViewTable(ScannedTable):
    """A published version of a view, from its Parquet or its Delta table."""

    name: str
    store: ViewStore
    manifest: ViewManifest
    mask: TableMask | None = None

    @cached_property
    def dataset(self) -> ds.Dataset:
        if self.manifest.table is not None:
            return self.store.rows(self.manifest)
        folder = self.store.path(self.manifest.version)
        files = sorted(map(str, folder.rglob("*.parquet")))
        fields = [(name, TYPES.get(self.manifest.columns[name], pa.string())) for name in self.manifest.partitioning]
        places = ds.partitioning(pa.schema(fields), flavor="hive")
        return ds.dataset(files, format="parquet", partitioning=places, partition_base_dir=str(folder))

    @cached_property
    def schema(self) -> pa.Schema:
        there = self.dataset.schema
        own = pa.schema([there.field(name) for name in self.manifest.columns if name in there.names])
        return own if self.mask is None else self.mask.schema(own)

    def read(self, names: Sequence[str], condition: pc.Expression | None, watch: ScanWatch) -> Iterator[pa.RecordBatch]:
        watch.table, watch.total = self.name, watch.total + self.manifest.rows
        if self.mask is not None:
            yield from self.mask.rows_of_view(self.dataset, list(names))
            watch.done += self.manifest.rows
            return
        for batch in self.dataset.scanner(columns=list(names), filter=condition).to_batches():
            watch.done += batch.num_rows
            yield batch


class Catalog:
    """The tables of a service by name, each opened when a query names it: all of one query see the same moment."""

    def __init__(self, settings: ServiceFile, log: Log, masks: TableMasks) -> None:
        self.settings, self.log, self.masks = settings, log, masks
        self.sources = MaskedSources(settings, log, masks)
        self.views: dict[str, ViewStore] = {}
        for store in published(settings.views.store):
            name = table_name(store.name)
            self.views[name if name not in self.sources else f"view_{name}"] = store
        self.names = [*self.sources, *self.views]
        self._opened: dict[str, ScannedTable] = {}

    def find(self, name: str) -> str | None:
        """As SQL has it: in small letters or large ones."""
        return next((known for known in self.names if known.lower() == name.lower()), None)

    def open(self, name: str) -> ScannedTable:
        if name not in self._opened:
            if name in self.views:
                manifest = self.views[name].current_manifest()
                assert manifest is not None
                mask = self.masks.of_view(manifest)
                self._opened[name] = ViewTable(name, self.views[name], manifest, mask)
            else:
                self._opened[name] = FrameTable(name, self.sources.frame(name), self.log, self.sources[name].time)
        return self._opened[name]

    def refuse_unknown(self, name: str) -> NoReturn:
        hint = did_you_mean(name, self.names) or f"Tables are {', '.join(self.names)}."
        raise Refused("sql-query", f"there is no table `{name}`", hint)


class MaskedSources(Sources):
    """As views have them, for those who may not see marked fields."""

    def __init__(self, settings: ServiceFile, log: Log, masks: TableMasks) -> None:
        super().__init__(settings, log)
        self._masks = masks

    def frame(self, name: str) -> Any:
        frame = super().frame(name)
        mask = self._masks.of_table(name, frame.schema.names)
        return frame if mask is None else MaskedFrame(frame=frame, mask=mask, parts=tuple(frame.parts))


# ---------------------------------------------------------------- scans


class TableDataset(ds.Dataset):  # type: ignore[misc]  # it is not typed
    """A table as DuckDB scans it. Each scan reads again, so that a query may name a table twice."""

    def __init__(self, table: ScannedTable, watch: ScanWatch) -> None:
        self._table, self._watch = table, watch

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> _Scan:
        names = self.schema.names if columns is None else list(columns)
        wanted = pa.schema([self.schema.field(name) for name in names])
        return _Scan(pa.RecordBatchReader.from_batches(wanted, self._batches(names, filter)))

    def _batches(self, names: Sequence[str], condition: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        # An expression does not say which columns it is about; its text has their names, and perhaps others'.
        said = "" if condition is None else str(condition)
        read = [name for name in self.schema.names if name in names or name in said]
        watch = self._watch
        try:
            for batch in self._table.read(read, condition, watch):
                if watch.is_cancelled.is_set():
                    return
                table = pa.Table.from_batches([batch])
                found = (table if condition is None else table.filter(condition)).select(list(names))
                yield from found.to_batches() if found.num_rows else ()
        except Exception as failure:  # DuckDB only passes its text on
            watch.failure = watch.failure or failure
            raise


@dataclass(frozen=True)
class _Scan:
    """What DuckDB takes of a scanner."""

    reader: pa.RecordBatchReader

    def to_reader(self) -> pa.RecordBatchReader:
        return self.reader


def narrowed(
    schema: pa.Schema, condition: pc.Expression | None, parts: Sequence[FrameRange], log: Log | None = None
) -> list[FrameRange]:
    """Ranges without partitions that cannot fulfil a condition; with a log, also without such offsets and times."""
    if condition is None or not parts:
        return list(parts)
    numbers = sorted({part.partition for part in parts})
    possible = _possible(schema, condition, [pc.field("_partition") == number for number in numbers])
    left = {number for number, is_possible in zip(numbers, possible, strict=True) if is_possible}
    found = [part for part in parts if part.partition in left]
    if log is None:
        return found
    kind = schema.field("_time").type
    first_ms = _first(schema, condition, lambda ms: pc.field("_time") < pa.scalar(ms * 1000, kind), LAST_MS)
    first = _first(schema, condition, lambda offset: pc.field("_offset") < offset, MOST)
    last = MOST - _first(schema, condition, lambda back: pc.field("_offset") >= MOST - back, MOST)
    ranges = []
    for part in found:
        start = max(part.start, first)
        if first_ms > 0 and start < part.end:
            start = max(start, log.offset_at(TopicPartition(part.topic, part.partition), first_ms))
        if start < min(part.end, last):
            ranges.append(replace(part, start=start, end=min(part.end, last)))
    return ranges


def _first(schema: pa.Schema, condition: pc.Expression, below: Any, most: int) -> int:
    """The largest number below which nothing can fulfil the condition."""
    low, high = 0, most  # it is at least low, and below high if anything is
    while high - low > 1:
        step = max((high - low) // CUTS, 1)
        cuts = [*range(low + step, high, step), high]
        possible = _possible(schema, condition, [below(cut) for cut in cuts])
        at = possible.index(True) if True in possible else len(cuts)
        low, high = ([low, *cuts][at], cuts[at]) if at < len(cuts) else (high, high)
    return low


def _possible(schema: pa.Schema, condition: pc.Expression, known: Sequence[pc.Expression]) -> list[bool]:
    """Whether rows of which something is known can fulfil a condition: Arrow leaves files out in this way."""
    parquet = ds.ParquetFileFormat()
    files = LocalFileSystem()
    parts = [parquet.make_fragment(str(n), files, partition_expression=each) for n, each in enumerate(known)]
    left = {each.path for each in ds.FileSystemDataset(parts, schema, parquet, files).get_fragments(filter=condition)}
    return [str(number) in left for number in range(len(known))]


def describe(kind: pa.DataType) -> str:
    """A type as DuckDB calls it."""
    names: Mapping[Any, str] = {
        pa.string(): "varchar", pa.int32(): "integer", pa.int64(): "bigint", pa.float64(): "double",
        pa.bool_(): "boolean", pa.binary(): "blob", pa.date32(): "date",
    }  # fmt: skip
    if pa.types.is_timestamp(kind):
        return "timestamptz" if kind.tz else "timestamp"
    if pa.types.is_map(kind):
        return f"map({describe(kind.key_type)}, {describe(kind.item_type)})"
    if pa.types.is_list(kind):
        return f"{describe(kind.value_type)}[]"
    if pa.types.is_struct(kind):
        fields = (kind.field(at) for at in range(kind.num_fields))
        return f"struct({', '.join(f'{each.name} {describe(each.type)}' for each in fields)})"
    return names.get(kind, str(kind))
