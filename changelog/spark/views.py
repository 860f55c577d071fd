"""Spark SQL for views: tables by name, a query to Parquet, faults with their place in the text.

The layers above know views and services; this module only speaks to Spark.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samovar.changelog.spark.connector_log import Range, SparkFeed
from samovar.changelog.spark.errors import refusal_in
from samovar.changelog.spark.lineage import SUBQUERIES, all_of, kind_of
from samovar.changelog.spark.progress import OnProgress, Ticker
from samovar.changelog.spark.records import raw_records
from samovar.changelog.spark.session import OpenSession
from samovar.changelog.spark.source import Frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PLACE = re.compile(r"line (\d+), pos (\d+)")
_CLASS = re.compile(r"^\s*\[([A-Z_.0-9]+)\]\s*")  # a syntax error begins with an empty line
_END = re.compile(r"\s*(?:SQLSTATE: \w+|; line \d+ pos \d+|\n).*\Z", re.DOTALL)
_SUGGESTED = re.compile(r"Did you mean one of the following\? \[(.*?)\]")
# They run any code of the Java that Spark is.
_CODE = re.compile(r"\b(?:try_)?reflect\s*\(|\bjava_method\s*\(", re.IGNORECASE)


# Spark takes our tables for as small as the list of their parts, and would send a large one to all tasks for a join.
# Whether one is small is seen when it has been read.
JOINS = {"spark.sql.autoBroadcastJoinThreshold": "-1", "spark.sql.adaptive.autoBroadcastJoinThreshold": "10485760"}
FEW = 250_000  # rows that are read to make a view
ROWS_HERE = 1_000_000  # up to so many are looked through without a job


@dataclass(kw_only=True)
class SqlFault(Exception):
    """A query that cannot run. `missing` is the table that does not exist, where that is what is wrong."""

    message: str
    start: int = 0
    stop: int = 0
    kind: str = ""  # as Spark calls it, without what comes after a dot
    missing: str | None = None
    suggested: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SqlTable:
    """A table of SQL: what to read and by how many tasks, columns to add (name to expression), and the values of an
    expression that are wanted, where not all are.
    """

    name: str
    frame: Frame
    tasks: int
    added: Mapping[str, str]
    only: tuple[str, Sequence[str | None]] | None = None
    kafka: ConnectorRanges | None = None


@dataclass(frozen=True, repr=False)
class ConnectorRanges:
    """Where a table's records are, for Spark's connector: the settings of a client, and ranges that are settled."""

    settings: Mapping[str, str]
    ranges: Sequence[Range]
    cut: bool  # whether a range may be read by several tasks
    headers: bool  # whether they are read


@contextmanager
def known_tables(session: OpenSession, tables: Sequence[SqlTable], ticks: Path) -> Iterator[None]:
    """Tables by their names, and no others of ours. When they are read, tasks tell how far they are in a folder."""
    for name, value in JOINS.items():
        session.spark.conf.set(name, value)
    try:
        for table in tables:
            _frame_of(session, table, ticks if session.is_local else None).createOrReplaceTempView(table.name)
        yield
    finally:
        for table in tables:
            session.spark.catalog.dropTempView(table.name)


def tables_in(session: OpenSession, sql: str) -> set[str]:
    """The tables that a query names, in small letters, by Spark's parser: they need not be known yet."""
    with faults(sql):
        return set(_tables_in(_parsed(session, sql), frozenset()))


def _parsed(session: OpenSession, sql: str) -> Any:
    return session.spark._jsparkSession.sessionState().sqlParser().parseQuery(sql)


def _tables_in(node: Any, hidden: frozenset[str]) -> Iterator[str]:
    """Of a plan and all queries in it. `hidden` are names of common table expressions around it."""
    kind = kind_of(node)
    if kind == "UnresolvedRelation":
        first, *more = (str(part).lower() for part in all_of(node.multipartIdentifier()))
        if not more and first not in hidden:
            yield first
    elif kind == "PlanWithUnresolvedIdentifier":  # identifier('alerts')
        yield str(node.identifierExpr()).lower()
    elif kind == "UnresolvedWith":
        for each in all_of(node.cteRelations()):
            own = frozenset({str(each._1()).lower()})
            yield from _tables_in(each._2(), hidden | own if node.allowRecursion() else hidden)
            hidden |= own
    for child in all_of(node.children()):
        yield from _tables_in(child, hidden)
    for expression in all_of(node.expressions()):
        yield from _tables_in_expression(expression, hidden)


def _tables_in_expression(expression: Any, hidden: frozenset[str]) -> Iterator[str]:
    if kind_of(expression) in SUBQUERIES:
        yield from _tables_in(expression.plan(), hidden)
    for child in all_of(expression.children()):
        yield from _tables_in_expression(child, hidden)


def _frame_of(session: OpenSession, table: SqlTable, ticks: Path | None = None) -> DataFrame:
    """A frame's rows. No data source: Spark would start two Python processes for it, only to ask what is known here."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as all who write Spark call it; with pyspark only
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - as above

    schema, parts, brought = from_arrow_schema(table.frame.schema), table.frame.parts, table.kafka
    told = None if ticks is None else str(ticks)
    if not parts or (brought is not None and not any(each.start < each.end for each in brought.ranges)):
        frame = session.spark.createDataFrame([], schema)
    elif brought is not None:
        most = table.tasks if brought.cut else min(table.tasks, len(brought.ranges))
        records = raw_records(session, brought.settings, brought.ranges, headers=brought.headers, tasks=most)
        task = _FrameTask(frame=table.frame, name=table.name, ticks=told, ranges=tuple(brought.ranges))
        frame = records.mapInArrow(task, schema)  # type: ignore[arg-type]  # it is called as a function is
    else:
        numbers = session.spark.range(0, len(parts), 1, min(table.tasks, len(parts)))
        frame = numbers.mapInArrow(_FrameTask(frame=table.frame, name=table.name, ticks=told, parts=parts), schema)  # type: ignore[arg-type]
    own = set(frame.columns)
    frame = frame.select("*", *(F.expr(text).alias(name) for name, text in table.added.items() if name not in own))
    if table.only is not None:
        expression, values = table.only
        place = F.expr(expression).cast("string")
        is_wanted = place.isin([value for value in values if value is not None])
        frame = frame.where(is_wanted | (place.isNull() if None in values else F.lit(False)))
    return frame


@dataclass(frozen=True, kw_only=True)
class _FrameTask:
    """Reads parts by number, or the records that Spark's connector brings. A class: it is pickled by its name."""

    frame: Frame
    name: str
    ticks: str | None
    parts: Sequence[Any] = ()
    ranges: Sequence[Range] = ()

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        if not self.parts:  # each task is told apart from others by where it begins
            with closing(SparkFeed(self.ranges, batches)) as feed:
                yield from self._ticking(f"{os.getpid()}-{time.monotonic_ns()}", self.frame.read_fed(feed))
            return
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._ticking(number, self.frame.read(self.parts[number]))

    def _ticking(self, task: object, batches: Iterator[Any]) -> Iterator[Any]:
        tick, rows = Ticker(self.ticks, f"{self.name}-{task}"), 0
        for found in batches:
            yield found
            rows += found.num_rows
            tick(rows)
        tick(rows, last=True)


def query(session: OpenSession, sql: str, *, files: bool = True) -> DataFrame:
    """A query, and nothing but a query, checked and not yet run. Without `files` it cannot name any by path."""
    found = _CODE.search(sql)
    if found is not None:
        raise SqlFault(message="functions that call Java are not for queries", start=found.start(), stop=found.end())
    spark = session.spark
    with faults(sql):
        _parsed(session, sql)
        spark.conf.set("spark.sql.runSQLOnFiles", str(files).lower())
        try:
            return spark.sql(sql)
        finally:
            spark.conf.set("spark.sql.runSQLOnFiles", "true")


def frame_of_files(session: OpenSession, folder: Path, schema: str, files: Any) -> DataFrame:
    """Files of a table whose log has the values of its partitions, and not the files. `files` has them by path."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as above
    from pyspark.sql.types import StructType  # noqa: PLC0415 - as above

    kinds = StructType.fromJson(json.loads(schema))
    paths, places = files.column("path").to_pylist(), files.column_names[1:]
    own = StructType([field for field in kinds.fields if field.name not in places])
    if not paths:
        return session.spark.createDataFrame([], kinds)
    frame = session.spark.read.schema(own).parquet(*(str(folder / path) for path in paths))
    if places:
        known = session.spark.createDataFrame(files.rename_columns(["_path", *places]))
        name = F.regexp_extract(F.col("_metadata.file_path"), r"([^/]*)\z", 1)
        known = known.withColumn("_path", F.regexp_extract("_path", r"([^/]*)\z", 1))
        frame = frame.withColumn("_path", name).join(F.broadcast(known), "_path")
    return frame.select(*kinds.names)


def values_of(session: OpenSession, table: SqlTable, expression: str) -> list[str | None]:
    """All values of an expression over a table, as text."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as above

    with faults(expression):
        frame = _frame_of(session, table).select(F.expr(expression).cast("string").alias("place")).distinct()
        return [row.place for row in session.run("new rows", frame.collect)]


def least_of(session: OpenSession, table: SqlTable, expression: str) -> str | None:
    """The least value of an expression over a table, as text."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as above

    frame = _frame_of(session, table).select(F.min(F.expr(expression)).cast("string").alias("place"))
    found: str | None = session.run("first rows", frame.collect)[0].place
    return found


def write(
    session: OpenSession, job: str, frame: DataFrame, folder: Path, partitioning: Sequence[str], key: Sequence[str],
    on_progress: OnProgress, total: int, ticks: Path,
) -> None:  # fmt: skip
    """Writes rows as Parquet, a folder per partition, in the order of the key; few of them in one task."""
    # With the key next to it a large partition is several files, and a small one is one.
    spread = frame.repartition(*partitioning) if partitioning else frame.coalesce(4)
    placed = frame.coalesce(1) if total <= FEW else spread
    ordered = placed.sortWithinPartitions(*partitioning, *key) if partitioning or key else placed
    writer = ordered.write.mode("error").option("compression", "snappy").partitionBy(*partitioning)
    # Spark's own default is a format that says nothing of time zones, and that others have given up.
    session.spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    # Elsewhere nobody here sees what tasks tell: their number is what is known.
    known: dict[str, Any] = {"total": total, "ticks": ticks} if session.is_local else {}
    with faults(""):
        session.run(job, lambda: writer.parquet(str(folder)), on_progress, **known)


def twice(
    session: OpenSession, frame: DataFrame, folder: Path, partitioning: Sequence[str], key: Sequence[str]
) -> list[Any] | None:
    """A key that stands in two written rows; None where all are different."""
    import pyarrow as pa  # noqa: PLC0415 - takes long to import
    import pyarrow.dataset as ds  # noqa: PLC0415 - as above

    places = ds.partitioning(pa.schema([(name, pa.string()) for name in partitioning]), flavor="hive")
    files = ds.dataset(sorted(map(str, folder.rglob("*.parquet"))), partitioning=places, partition_base_dir=str(folder))
    if files.count_rows() <= ROWS_HERE and not any(pa.types.is_nested(files.schema.field(name).type) for name in key):
        counted = files.to_table(columns=list(key)).group_by(list(key)).aggregate([([], "count_all")])
        rows = counted.filter(ds.field("count_all") > 1).select(list(key)).slice(0, 1).to_pylist()
        return list(rows[0].values()) if rows else None
    written = session.spark.read.schema(frame.schema).parquet(str(folder))
    repeated = written.groupBy(*key).count().where("count > 1").select(*key).limit(1)
    found = session.run("keys", repeated.collect)
    return list(found[0]) if found else None


def folder_of(session: OpenSession, column: str, value: str | None) -> str:
    """The name of a partition's folder."""
    utils = session.spark._jvm.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils  # type: ignore[union-attr]
    return str(utils.getPartitionPathString(column, value))


@contextmanager
def faults(sql: str) -> Iterator[None]:
    """What Spark finds wrong with a text, with its place in it."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - as above
    from pyspark.errors import AnalysisException, ParseException  # noqa: PLC0415 - with pyspark only

    try:
        yield
    except (AnalysisException, ParseException) as error:
        told = refusal_in(str(error))
        if told is not None:
            raise told from error
        raise _fault(error, sql) from error
    except Py4JJavaError as error:
        if "ParseException" not in str(error.java_exception.getClass()):
            raise
        raise _fault(error.java_exception.getMessage(), sql) from error


def _fault(error: Any, sql: str) -> SqlFault:
    text = str(error)
    start, stop = _place(error, text, sql)
    kind = _CLASS.match(text)
    message = _END.sub("", _CLASS.sub("", text, count=1)).strip()
    parameters = error.getMessageParameters() if hasattr(error, "getMessageParameters") else None
    missing = None
    if kind is not None and kind[1].startswith("TABLE_OR_VIEW_NOT_FOUND"):
        missing = str((parameters or {}).get("relationName", sql[start:stop])).replace("`", "")
    known = kind[1].partition(".")[0] if kind is not None else ""
    suggested = tuple(name.strip().replace("`", "") for found in _SUGGESTED.findall(text) for name in found.split(","))
    return SqlFault(message=message, start=start, stop=stop, kind=known, missing=missing, suggested=suggested)


def _place(error: Any, text: str, sql: str) -> tuple[int, int]:
    contexts = error.getQueryContext() if hasattr(error, "getQueryContext") else ()
    for context in contexts or ():
        start = int(context.startIndex())
        if start >= 0:
            return start, int(context.stopIndex()) + 1
    found = _PLACE.search(text)
    if found is None:
        return 0, 0
    lines = sql.split("\n")
    start = sum(len(line) + 1 for line in lines[: int(found[1]) - 1]) + int(found[2])
    return min(start, max(0, len(sql) - 1)), min(start + 1, len(sql))
