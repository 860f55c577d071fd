"""Data frames as events: the columns of an Arrow table become a kernel batch.

Whole numbers stay whole, decimals become floats, instants become epoch ms, text stays text; lists, maps and structs
that a rule reads as a whole become their JSON text. A dotted field reads a struct's member first and then a column of
that very name, as in JSON events; null counts as absent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from samovar.common.suggest import did_you_mean
from samovar.native.kernel import BOOL, FLOAT, INT, NIL, OTHER, TEXT, Batch, Int32s, Int64s, address_of, kernel
from samovar.patterns.engine.decode import GREATEST_TIME_MS, LEAST_TIME_MS, RefusedError, sentence, time_of

MS_OF_UNIT = {"s": 1_000, "ms": 1, "us": 1 / 1_000, "ns": 1 / 1_000_000}
DAY_MS = 86_400_000


class EventsError(ValueError):
    """Events that cannot be used: a column is missing, or of a type that no event has."""


@dataclass(frozen=True, slots=True)
class KernelColumn:
    """A column as the kernel takes it: its kind, values, offsets of text, and a byte a row that says what is there."""

    kind: int
    data: np.ndarray[Any, Any]
    offsets: Int64s | None
    valid: np.ndarray[Any, Any] | None


def batches_of(events: Any) -> Iterator[pa.RecordBatch]:
    """The record batches of a table, a batch, a reader, a data frame, or an iterator of batches."""
    if isinstance(events, pa.RecordBatch):
        yield events
    elif isinstance(events, pa.Table):
        yield from events.to_batches()
    elif isinstance(events, pa.RecordBatchReader):
        yield from events
    elif hasattr(events, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(events)
    elif hasattr(events, "__dataframe__") or type(events).__module__.startswith("pandas"):
        yield from pa.Table.from_pandas(events, preserve_index=False).to_batches()
    else:
        for one in events:
            yield from batches_of(one)


@dataclass(kw_only=True)
class Frames:
    """Turns record batches into kernel batches; an event's offset is its row number over all of them, if `places` (its
    stream, partition and offset) gives no other.

    `time` and `type` name columns; without `type` every event is of `fixed_type`. `on_bad` is told of rows without a
    usable time or type. `missing="null"` reads absent columns as null.
    """

    fields: Sequence[str]
    time: str
    type: str | None
    fixed_type: str
    on_bad: Callable[[int, str], None]
    missing: str
    count: int = 0
    places: Callable[[pa.RecordBatch], tuple[Int32s, Int32s, Int64s]] | None = None

    def take(self, frame: pa.RecordBatch) -> Batch:
        self._refuse_missing(frame)
        rows = frame.num_rows
        first, self.count = self.count, self.count + rows
        times, timely = self._times(frame, first)
        types, typed = self._types(frame, first, timely)
        good = np.flatnonzero(timely & typed)
        batch = Batch(len(self.fields))
        if self.places is None:
            streams = partitions = np.zeros(rows, np.int32)
            offsets = np.arange(first, self.count, dtype=np.int64)
        else:
            streams, partitions, offsets = self.places(frame)
        kernel().samovar_batch_rows_set(
            batch.handle, rows, times.ctypes.data, streams.ctypes.data, partitions.ctypes.data, offsets.ctypes.data
        )
        _fill(batch, -1, types)
        for number, path in enumerate(self.fields):
            for column in found_columns(frame, path)[:1]:
                _fill(batch, number, array_of(column, path))
        if len(good) < rows:
            batch.select(good)
        return batch

    def _refuse_missing(self, frame: pa.RecordBatch) -> None:
        for what, path in (("time", self.time), ("type", self.type)):
            if path is not None and not found_columns(frame, path):
                tip = did_you_mean(path, frame.schema.names)
                how = f"name it with {what}=..." + (
                    ", or pass type=None, fixed_type='purchase' where all events are of one type" * (what == "type")
                )
                raise EventsError(f"the events have no column `{path}` for their {what}; {tip or how}")
        absent = [path for path in self.fields if not found_columns(frame, path)]
        if absent and self.missing == "error":
            tip = did_you_mean(absent[0], frame.schema.names)
            raise EventsError(
                f"the rules read {', '.join(f'`{path}`' for path in absent)}, and the events have no such column; "
                + (tip or 'missing="null" reads it as null')
            )

    def _times(self, frame: pa.RecordBatch, first: int) -> tuple[Int64s, np.ndarray[Any, Any]]:
        name = self.time
        (column, *_) = found_columns(frame, name)
        column = _plain(column)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            times, good = np.zeros(len(column), np.int64), np.ones(len(column), bool)
            for row, value in enumerate(column.to_pylist()):
                try:
                    times[row] = time_of(value)
                except RefusedError as refused:
                    good[row] = False
                    self.on_bad(first + row, sentence(refused.code, refused.shown, name, ""))
            return times, good
        array = array_of(column, name)
        if array.kind not in (INT, FLOAT):
            raise EventsError(f"the time column `{name}` is {column.type}: it must be an instant, epoch ms or ISO 8601")
        values = np.nan_to_num(np.floor(array.data), nan=2**62, posinf=2**62, neginf=-(2**62))
        times = values.astype(np.int64)
        inside = (times >= LEAST_TIME_MS) & (times <= GREATEST_TIME_MS)
        there = np.ones(len(times), bool) if array.valid is None else array.valid.astype(bool)
        for row in np.flatnonzero(~there).tolist():
            self.on_bad(first + row, sentence("MISSING_TIME", "", name, ""))
        for row in np.flatnonzero(there & ~inside).tolist():
            self.on_bad(first + row, sentence("TIME_OUT_OF_RANGE", str(array.data[row]), name, ""))
        return np.where(there & inside, times, 0), there & inside

    def _types(
        self, frame: pa.RecordBatch, first: int, timely: np.ndarray[Any, Any]
    ) -> tuple[KernelColumn, np.ndarray[Any, Any]]:
        name = self.type
        if name is None:
            same = pa.array([self.fixed_type] * frame.num_rows, pa.large_string())
            return array_of(same, "type"), np.ones(frame.num_rows, bool)
        array = array_of(found_columns(frame, name)[0], name)
        if array.kind != TEXT:
            raise EventsError(f"the type column `{name}` is not text")
        there = np.ones(frame.num_rows, bool) if array.valid is None else array.valid.astype(bool)
        for row in np.flatnonzero(timely & ~there).tolist():
            self.on_bad(first + row, sentence("MISSING_TYPE", "", self.time, name))
        return array, there


def found_columns(frame: pa.RecordBatch, path: str) -> list[Any]:
    """The column of a dotted path: where several spellings exist, joined so that the first that is not null counts."""
    names = path.split(".")
    found = list(_member_path(list(zip(frame.schema.names, frame.columns, strict=True)), names))
    if len(found) > 1 and all(column.type == found[0].type for column in found):
        return [pc.coalesce(*found)]
    return found


def _member_path(members: list[tuple[str, Any]], names: Sequence[str]) -> Iterator[Any]:
    known = dict(members)
    for cut in range(1, len(names) + 1):
        column = known.get(".".join(names[:cut]))
        if column is None:
            continue
        if cut == len(names):
            yield column
        elif pa.types.is_struct(column.type):
            # A struct that is null has null members: flatten, unlike field(), says so.
            inner = [column.type.field(place).name for place in range(column.type.num_fields)]
            yield from _member_path(list(zip(inner, column.flatten(), strict=True)), names[cut:])


def array_of(column: Any, name: str) -> KernelColumn:
    column = _plain(column)
    kind = column.type
    valid = None if column.null_count == 0 else _bytes_of(column.is_valid())
    if pa.types.is_null(kind):
        return KernelColumn(NIL, np.zeros(len(column), np.int64), None, np.zeros(len(column), np.uint8))
    if pa.types.is_boolean(kind):
        return KernelColumn(BOOL, _bytes_of(column.fill_null(False)), None, valid)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _text(column.cast(pa.large_string()), TEXT, valid)
    if pa.types.is_temporal(kind) and not pa.types.is_time(kind):
        return KernelColumn(INT, _milliseconds(column), None, valid)
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return KernelColumn(INT, _numbers(column, pa.int64()), None, valid)
    if pa.types.is_integer(kind):
        whole = pc.max(column).as_py() is None or pc.max(column).as_py() < 2**63
        target = pa.int64() if whole else pa.float64()
        return KernelColumn(INT if whole else FLOAT, _numbers(column, target), None, valid)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return KernelColumn(FLOAT, _numbers(column, pa.float64()), None, valid)
    if pa.types.is_time(kind):
        return _text(column.cast(pa.string()).cast(pa.large_string()), TEXT, valid)
    if pa.types.is_nested(kind):
        texts = [None if item is None else json.dumps(item, default=str) for item in column.to_pylist()]
        return _text(pa.array(texts, pa.large_string()), OTHER, valid)
    raise EventsError(f"the column `{name}` is {kind}, which no event can hold; leave it out, or cast it to text")


def _plain(column: Any) -> Any:
    """One array of a plain type: dictionaries, views and extension types unwrapped."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    if str(column.type) == "string_view":
        column = column.cast(pa.large_string())
    return column


def _numbers(column: Any, target: Any) -> np.ndarray[Any, Any]:
    numbers = column.cast(target, safe=False).fill_null(0)
    return np.ascontiguousarray(numbers.to_numpy(zero_copy_only=False))


def _milliseconds(column: Any) -> Int64s:
    kind = column.type
    if pa.types.is_date(kind):
        return _numbers(column.cast(pa.date32()).cast(pa.int32()), pa.int64()) * DAY_MS
    if not (pa.types.is_timestamp(kind) or pa.types.is_duration(kind)):
        raise EventsError(f"{kind} is no instant")
    ticks = _numbers(column.cast(pa.int64()), pa.int64())
    factor = MS_OF_UNIT[kind.unit]
    # Cut downwards, before 1970 too, as the digits of ISO text are.
    return ticks * int(factor) if factor >= 1 else np.floor_divide(ticks, round(1 / factor))


def _text(column: Any, kind: int, valid: np.ndarray[Any, Any] | None) -> KernelColumn:
    _, offset_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64, len(column) + 1, column.offset * 8)
    data = (
        np.frombuffer(data_buffer, np.uint8) if data_buffer is not None and data_buffer.size else np.zeros(1, np.uint8)
    )
    return KernelColumn(kind, data, offsets, valid)


def _bytes_of(column: Any) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(column.to_numpy(zero_copy_only=False), np.uint8)


def _fill(batch: Batch, column: int, array: KernelColumn) -> None:
    if array.kind == NIL:
        return
    kernel().samovar_batch_fill(
        batch.handle, column, array.kind, array.data.ctypes.data, address_of(array.offsets), address_of(array.valid)
    )
