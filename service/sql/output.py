"""Rows as people and programs read them: an aligned table, a line for each value, JSON lines, CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice
from typing import IO, Any

import pyarrow as pa

from samovar.patterns.syntax.findings import visible
from samovar.service.views.commands import plain

MODES = ("table", "line", "json", "csv")
WIDE = 60  # to which columns grow on a terminal
LEAST_WIDTH = 8  # to which the widest columns are cut, where a terminal is narrow
SECOND_NS = 1_000_000_000


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[list[Any]]:
    """Rows with values as JSON has them. Columns may have the same name."""
    for batch in batches:
        columns = [[_plain(value, kind) for value in column.to_pylist()] for column, kind in _typed(batch)]
        yield from (list(row) for row in zip(*columns, strict=True))


def _typed(batch: pa.RecordBatch) -> Iterator[tuple[pa.Array, pa.DataType]]:
    return zip(batch.columns, (each.type for each in batch.schema), strict=True)


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A map as an object, an interval as text, a time with its zone as UTC; numbers that JSON lacks as text."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {str(name): _plain(inner, kind.item_type) for name, inner in value}
    if pa.types.is_struct(kind):
        return {each.name: _plain(value[each.name], each.type) for each in map(kind.field, range(kind.num_fields))}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [_plain(inner, kind.value_type) for inner in value]
    if isinstance(value, pa.MonthDayNano):
        return _interval(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        exactness = "microseconds" if value.microsecond % 1000 else "milliseconds"
        return value.astimezone(UTC).isoformat(timespec=exactness).replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return int(value) if kind.scale == 0 else float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return plain(value)


def _interval(value: Any) -> str:
    """
    >>> _interval(pa.MonthDayNano((14, 3, 3_661_500_000_000)))
    '1 year 2 months 3 days 01:01:01.500'
    """
    years, months = divmod(abs(value.months), 12)
    sign = "-" if value.months < 0 else ""
    counts = ((years, f"{sign}{years} year"), (months, f"{sign}{months} month"), (value.days, f"{value.days} day"))
    parts = [f"{text}{'s' * (abs(count) != 1)}" for count, text in counts if count]
    nanos = abs(value.nanoseconds)
    if nanos or not parts:
        seconds, rest = divmod(nanos, SECOND_NS)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        clock += f".{rest // 1_000_000:03}" if rest % 1_000_000 == 0 and rest else f".{rest // 1000:06}" if rest else ""
        parts.append(("-" if value.nanoseconds < 0 else "") + clock)
    return " ".join(parts)


class Printer:
    """Writes the rows of one query after another."""

    def __init__(self, out: IO[str], mode: str = "table", *, is_terminal: bool = False) -> None:
        self.out, self.mode, self.is_terminal = out, mode, is_terminal
        self.grows = False  # columns become as wide as later rows need them
        self._widths: list[int] = []

    def write(self, columns: Sequence[str], rows: Iterable[list[Any]], limit: int | None) -> tuple[int, bool]:
        """How many rows were written, and whether there are more than the limit."""
        rows = iter(rows)
        count = 0
        if self.mode == "table":
            shown = list(islice(rows, limit))
            self.header(columns, shown)
            self.lines(shown)
            count = len(shown)
        else:
            self.header(columns, ())
            for row in islice(rows, limit):
                self.lines([row])
                count += 1
        self.out.flush()
        return count, limit is not None and next(rows, None) is not None

    def plans(self, rows: Iterable[list[Any]]) -> None:
        """What `explain` says, a drawing of several lines, which no cell of a table can hold."""
        for row in rows:
            self.out.write("\n".join(visible(line) for line in str(row[-1]).rstrip("\n").split("\n")) + "\n")
        self.out.flush()

    def header(self, columns: Sequence[str], shown: Iterable[list[Any]]) -> None:
        """What stands before the rows; a table's columns are as wide as these need them."""
        self._columns = unique(columns)
        if self.mode == "csv":
            self._csv(columns)
        elif self.mode == "table":
            cells = [[visible(name) for name in columns], *(list(map(_cell, row)) for row in shown)]
            self._widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
            if self.is_terminal:
                self._fit()
            self._line(cells[0], [False] * len(columns))
            self.out.write("  ".join("-" * width for width in self._widths) + "\n")

    def _fit(self) -> None:
        """Cuts the widest columns until a line fits into the terminal."""
        room = shutil.get_terminal_size().columns - 2 * (len(self._widths) - 1)
        self._widths = [min(width, max(room, LEAST_WIDTH)) for width in self._widths]
        while sum(self._widths) > room and max(self._widths, default=0) > LEAST_WIDTH:
            self._widths[self._widths.index(max(self._widths))] -= 1

    def lines(self, rows: Iterable[list[Any]]) -> None:
        for row in rows:
            if self.mode == "json":
                self.out.write(json.dumps(dict(zip(self._columns, row, strict=True)), ensure_ascii=False) + "\n")
            elif self.mode == "csv":
                self._csv([json_text(value) for value in row])
            elif self.mode == "line":
                wide = max(map(_width, self._columns), default=0)
                for name, value in zip(self._columns, row, strict=True):
                    self.out.write(f"{visible(name):>{wide}} = {_cell(value)}\n")
                self.out.write("\n")
            else:
                right = [isinstance(value, int | float) and not isinstance(value, bool) for value in row]
                self._line(list(map(_cell, row)), right)

    def _line(self, cells: Sequence[str], right: Sequence[bool]) -> None:
        if self.grows:
            most = WIDE if self.is_terminal else sys.maxsize
            self._widths = [
                max(width, min(_width(cell), most)) for width, cell in zip(self._widths, cells, strict=True)
            ]
        shown = (_padded(*each) for each in zip(cells, self._widths, right, strict=True))
        self.out.write("  ".join(shown).rstrip() + "\n")

    def _csv(self, cells: Sequence[Any]) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(cells)
        self.out.write(line.getvalue())


def unique(columns: Sequence[str]) -> list[str]:
    """
    >>> unique(["a", "b", "a"])
    ['a', 'b', 'a_2']
    """
    found: list[str] = []
    for name in columns:
        count = sum(each == name for each in columns[: len(found)]) + 1
        found.append(name if count == 1 else f"{name}_{count}")
    return found


def json_text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _cell(value: Any) -> str:
    return visible(json_text(value)).replace("\t", "\\t")


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def _padded(text: str, width: int, right: bool) -> str:
    if _width(text) > width:
        while text and _width(text) > width - 1:
            text = text[: min(len(text) - 1, width - 1)]
        text += "…"
    pad = " " * (width - _width(text))
    return pad + text if right else text + pad
