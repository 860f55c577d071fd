"""A continuous query: what it gives now, and how that changes as records are committed.

A query that reads one table row by row (no aggregate, order, limit, join) is run over new records alone, and prints its
rows. Of a table whose rows are only added, that is: a stream, alerts, sessions, dead letters, late events, labels.

Any other one is evaluated again when its tables have new records, or, where it asks for the time, at each interval; and
what changed is printed: rows that went with `-`, those that came with `+`. So its result must be small; what it reads
need not be.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from samovar.changelog.cursors import available_reader
from samovar.changelog.log import Log, TopicPartition
from samovar.common.errors import Refused
from samovar.service.query.read import offset_of
from samovar.service.spark.frames.events import RecordFrame
from samovar.service.spark.frames.frame import ranges_of
from samovar.service.sql.local import BoundQuery, LocalEngine, Statement
from samovar.service.sql.masking import MaskedFrame
from samovar.service.sql.output import Printer, rows_of
from samovar.service.sql.tables import Catalog, FrameTable, ScannedTable, ScanWatch, TableDataset, ViewTable

MOST_ROWS = 10_000  # of a result that is compared with the one before
POLL_RECORDS = 20_000
POLL_S = 0.2
LOOK_S = 10.0  # between two looks at how many partitions there are
ROW_BY_ROW = {"PROJECTION", "FILTER", "PYTHON_ARROW_SCAN", "UNNEST"}  # operators of DuckDB
_CLOCK = re.compile(
    r"\b(now|today|get_current_timestamp|transaction_timestamp|current_(date|time|timestamp|localtime|localtimestamp))\b",
    re.IGNORECASE,
)
CHANGE = "_change"


@dataclass
class NewRows(ScannedTable):
    """In the place of a table: those of its rows that came since."""

    name: str
    schema: pa.Schema
    batches: tuple[pa.RecordBatch, ...] = ()

    def read(self, names: Any, condition: pc.Expression | None, watch: ScanWatch) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - as a table has it
        return iter(self.batches)


@dataclass(kw_only=True)
class ContinuousQuery:
    """A continuous query that prints until `stopped` says so."""

    engine: LocalEngine
    statement: Statement
    printer: Printer
    start: str | None  # of new rows: begin, end, an offset, -N, a time
    every_s: float
    stopped: Callable[[float], bool]  # waits so long

    def run(self) -> None:
        tables, self.printer.grows = self.engine.tables(), True
        with self.engine.opened(self.statement, tables) as query:
            if self.statement.text[:7].lower() == "explain" or not query.used:
                raise Refused(
                    "sql-follow", "the query reads no table, so it can never change", "Follow a `select ... from`."
                )
            if len(query.used) == 1 and _operators(query.plan) <= ROW_BY_ROW:
                (table,) = (tables.open(name) for name in query.used)
                if isinstance(table, FrameTable) and isinstance(_inner(table.frame), RecordFrame):
                    self._follow_rows(query, table)
                    return
            if self.start is not None:
                raise Refused(
                    "sql-follow",
                    "`--from` is for queries that read one table row by row: this one is evaluated as a whole",
                    "Leave it out, or ask for a time in the query: where _time > now() - interval 1 hour.",
                )
        self._follow_result(tables)

    # ------------------------------------------------------------ row by row

    def _follow_rows(self, query: BoundQuery, table: FrameTable) -> None:
        log, names = self.engine.log, _columns(query.plan, table.schema.names)
        frame = table.chosen(names)
        columns = frame.columns()
        topic = _inner(frame).topic
        positions = {
            at: offset_of(log, at, bounds, self.start or "end")
            for at, bounds in log.bounds(_places(log, topic)).items()
        }
        new = NewRows(table.name, table.schema)
        query.base.register(table.name, TableDataset(new, query.watch))
        self.printer.header(query.relation.columns, ())
        self.printer.out.flush()
        while not self.stopped(0.0):
            if not positions:
                positions = dict.fromkeys(_places(log, topic), 0)
                if self.stopped(POLL_S):
                    return
                continue
            looked_s = time.monotonic()
            with closing(available_reader(log, positions)) as reader:
                while time.monotonic() - looked_s < LOOK_S and not self.stopped(0.0):
                    for records in reader.poll(POLL_RECORDS, POLL_S):
                        if len(records):
                            found = (table.with_day(batch, names) for batch in frame.batches(records, columns))
                            new.batches = tuple(found)
                            self.printer.lines(rows_of(query.again()))
                            self.printer.out.flush()
                        positions[TopicPartition(records.topic, records.partition)] = records.next
            positions = dict.fromkeys(_places(log, topic), 0) | positions  # a topic may be given more

    # ------------------------------------------------------------ as a whole

    def _follow_result(self, tables: Catalog) -> None:
        has_clock = _CLOCK.search(self.statement.text) is not None
        before: Counter[str] = Counter()
        told: tuple[str, ...] | None = None
        ends: Any = None
        while True:
            begun = time.monotonic()
            with self.engine.opened(self.statement, tables) as query:
                now = _ends(tables, query)
                if now != ends or has_clock:
                    columns = tuple(query.relation.columns)
                    rows = self._result(query)
                    if told is None:
                        told = columns
                        first = [["+", *row] for row in rows] if self.printer.mode == "table" else ()
                        self.printer.header((CHANGE, *columns), first)
                    before = self._print_changes(before, rows)
                    ends = now
            # An evaluation that takes long is not begun again at once.
            if self.stopped(max(self.every_s, time.monotonic() - begun)):
                return
            tables = self.engine.tables()

    def _result(self, query: BoundQuery) -> list[list[Any]]:
        rows: list[list[Any]] = []
        for row in rows_of(query.batches()):
            rows.append(row)
            if len(rows) > MOST_ROWS:
                raise Refused(
                    "sql-follow",
                    f"the query gives more than {MOST_ROWS:,} rows, which are compared each time",
                    "Aggregate, or take fewer: `limit`, `where`. A select from one stream without order is followed"
                    " row by row, however many there are.",
                )
        return rows

    def _print_changes(self, before: Counter[str], rows: list[list[Any]]) -> Counter[str]:
        now = Counter(map(json.dumps, rows))
        gone, come = before - now, now - before
        self.printer.lines(["-", *json.loads(text)] for text in gone.elements())
        new: list[list[Any]] = []
        for row in rows:  # in the order of the query
            text = json.dumps(row)
            if come[text] > 0:
                come[text] -= 1
                new.append(["+", *row])
        self.printer.lines(new)
        self.printer.out.flush()
        return now


def _inner(frame: Any) -> Any:
    return frame.frame if isinstance(frame, MaskedFrame) else frame


def _operators(plan: Any) -> set[str]:
    nodes = plan if isinstance(plan, list) else [plan]
    return {name for node in nodes for name in (str(node["name"]), *_operators(node.get("children", [])))}


def _columns(plan: Any, known: list[str]) -> list[str]:
    """What a plan of one scan says of its columns, and perhaps more."""
    text = json.dumps(plan, ensure_ascii=False)
    return [name for name in known if name in text]


def _places(log: Log, topic: str) -> list[TopicPartition]:
    found = log.topics([topic]).get(topic)
    return [] if found is None else [TopicPartition(topic, number) for number in range(found.partitions)]


def _ends(tables: Catalog, query: BoundQuery) -> Mapping[str, Any]:
    """What the tables of a query stand for."""
    found: dict[str, Any] = {}
    for name in query.used:
        table = tables.open(name)
        if isinstance(table, ViewTable):
            found[name] = table.manifest.version
        elif isinstance(table, FrameTable):
            found[name] = {(each.at, each.end) for each in ranges_of(table.frame.parts)}
    return found
