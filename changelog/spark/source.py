"""A data source for Spark in Python: who knows what a frame holds says so in Arrow, and Spark reads it in tasks.

A stream is read in batches, from offsets to offsets that Spark keeps in its checkpoint: it asks for the newest, then
for the parts between two, and again for the same two where a batch has to be repeated.

The layers above know services and states; this module only speaks to Spark. Spark 4.0 pushes no filters into a Python
source: what narrows a frame there are its options. From 4.1 on comparisons of columns reach it too; Spark looks at them
again, so that a frame may leave out less than it could.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from samovar.changelog.log import Log
from samovar.changelog.spark.connector_log import Range, SparkFeed
from samovar.changelog.spark.session import is_local
from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from samovar.changelog.spark.sink import SinkOpening

__all__ = ["BATCH_ROWS", "Condition", "DataFrame", "Frame", "Opening", "SparkSession", "map_sorted", "register"]
BATCH_ROWS = 10_000  # of an Arrow batch, at most about
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"  # without it Spark 4.1 refuses a source that takes filters
PYTHON = ("spark.pyspark.python", "spark.sql.execution.pyspark.python")
OPERATORS = {
    "EqualTo": "=", "EqualNullSafe": "=", "In": "in",
    "GreaterThan": ">", "GreaterThanOrEqual": ">=", "LessThan": "<", "LessThanOrEqual": "<=",
}  # fmt: skip


class Condition(NamedTuple):
    """A comparison that all wanted rows fulfil."""

    column: str
    operator: str
    value: Any


class Frame(Protocol):
    """What can be read. It travels to executors, so it holds no open log."""

    @property
    def schema(self) -> pa.Schema: ...
    @property
    def reads_headers(self) -> bool:
        """Whether its rows are made of headers, too: who brings records may leave them out otherwise."""

    @property
    def parts(self) -> Sequence[Any]:
        """What can be read at once by several tasks; any values that can be pickled."""

    def narrowed(self, conditions: Sequence[Condition]) -> Frame:
        """The same without what cannot fulfil the conditions, as far as that is known before it is read."""

    def read(self, part: Any) -> Iterator[pa.RecordBatch]: ...
    def ranges(self, log: Log) -> Sequence[Range]:
        """The records that it is made of, for one who brings them."""

    def read_fed(self, feed: SparkFeed) -> Iterator[pa.RecordBatch]:
        """Rows of the records that are brought, which are some of the ranges."""


Places: TypeAlias = dict[str, Any]  # offsets as Spark keeps them: JSON, and compared as text


class FrameStream(Protocol):
    """What can be read on and on. One lives in a process of the driver's; those that only read travel to executors."""

    def initial_offset(self) -> Places: ...
    def latest_offset(self) -> Places: ...
    def parts(self, start: Places, end: Places) -> Sequence[Any]: ...
    def commit(self, end: Places) -> None: ...
    def read(self, part: Any) -> Iterator[pa.RecordBatch]: ...
    def close(self) -> None: ...


def map_sorted(
    frame: DataFrame, by: Sequence[str], order: Sequence[str], do: Callable[..., Any], fields: Sequence[tuple[str, Any]]
) -> DataFrame:
    """What a function makes of Arrow batches, called with all rows of the same `by` in one task, in order."""
    placed = frame.repartition(*by) if by else frame.coalesce(1)
    return map_arrow(placed.sortWithinPartitions(*order), do, fields)


def map_arrow(frame: DataFrame, do: Callable[..., Any], fields: Sequence[tuple[str, Any]]) -> DataFrame:
    """What a function makes of a task's Arrow batches."""
    import pyarrow as pa  # noqa: PLC0415 - with pyspark only
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - as above

    return frame.mapInArrow(do, from_arrow_schema(pa.schema(list(fields))))


Opening: TypeAlias = Callable[[Mapping[str, str]], Frame]  # from the options of a reader
StreamOpening: TypeAlias = Callable[[Mapping[str, str]], FrameStream]


def register(spark: SparkSession, name: str, opening: Opening, streaming: StreamOpening, writing: SinkOpening) -> None:
    """Make a format known to a session, for `read`, `readStream`, `write` and `writeStream`.

    The functions must be ones that executors can import.
    """
    from pyspark.sql.datasource import (  # noqa: PLC0415 - with pyspark only
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        InputPartition,
    )
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - as above

    from samovar.changelog.spark.sink import FrameWriter, StreamWriter  # noqa: PLC0415 - as above

    class Reader(DataSourceReader):
        def __init__(self, frame: Frame, columns: Sequence[str]) -> None:
            self.frame, self.columns = frame, list(columns)

        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition(part) for part in self.frame.parts] or [InputPartition(None)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            batches = iter(()) if partition.value is None else self.frame.read(partition.value)
            return (batch.select(self.columns) for batch in batches)

    class NarrowingReader(Reader):
        def pushFilters(self, filters: Any) -> Any:  # noqa: N802 - as Spark calls it
            self.frame = self.frame.narrowed(conditions_in(filters))
            return filters

    class StreamReader(DataSourceStreamReader):
        def __init__(self, stream: FrameStream) -> None:
            self.stream = stream

        def initialOffset(self) -> Places:  # noqa: N802 - as Spark calls it
            return self.stream.initial_offset()

        def latestOffset(self) -> Places:  # noqa: N802 - as above
            return self.stream.latest_offset()

        def partitions(self, start: Places, end: Places) -> Sequence[InputPartition]:
            return [InputPartition(part) for part in self.stream.parts(start, end)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            return self.stream.read(partition.value)

        def commit(self, end: Places) -> None:
            self.stream.commit(end)

        def stop(self) -> None:
            self.stream.close()

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> Any:
            return from_arrow_schema(opening(self.options).schema)

        def reader(self, schema: Any) -> DataSourceReader:
            frame = opening(self.options)
            check_schema(schema, from_arrow_schema(frame.schema))
            return (NarrowingReader if takes_filters else Reader)(frame, schema.names)

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002, N802 - as above
            return StreamReader(streaming(self.options))

        def writer(self, schema: Any, overwrite: bool) -> FrameWriter:
            if overwrite:
                raise Refused("frame-option", "events are added, and replace nothing", 'Use `.mode("append")`.')
            return FrameWriter(writing(self.options, schema.simpleString(), False))

        def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:  # noqa: ARG002, N802 - as above
            return StreamWriter(writing(self.options, schema.simpleString(), True))

    takes_filters = hasattr(DataSourceReader, "pushFilters")
    if takes_filters:
        spark.conf.set(PUSHDOWN, "true")
    use_this_python(spark)
    spark.dataSource.register(Source)
    # A writer looks formats up in the session that is active in its thread: where it was started in another, in none.
    jvm: Any = getattr(spark, "_jvm", None)  # a session by Spark Connect has none
    if jvm is not None:
        jvm.SparkSession.setActiveSession(spark._jsparkSession)


def use_this_python(spark: SparkSession) -> None:
    """Spark starts the first `python3` of the path, which knows nothing of a virtual environment that is not activated.

    What somebody chose stays; and on other machines this one's path says nothing.
    """
    context = getattr(spark, "sparkContext", None)  # a session by Spark Connect has none
    if context is None or not is_local(str(context.master)) or "PYSPARK_PYTHON" in os.environ:
        return
    if not any(context.getConf().contains(name) for name in PYTHON):
        context.pythonExec = sys.executable


def conditions_in(filters: Sequence[Any]) -> list[Condition]:
    """Those of Spark's filters that compare a column with values."""
    found = []
    for each in filters:
        operator = OPERATORS.get(type(each).__name__)
        if operator is not None and len(each.attribute) == 1 and each.value is not None:
            found.append(Condition(each.attribute[0], operator, each.value))
    return found


def check_schema(asked: Any, there: Any) -> None:
    """A reader's own `.schema(...)` may choose columns and their order, but no other names and types."""
    kinds = {field.name: field.dataType.simpleString() for field in there.fields}
    for field in asked.fields:
        kind = field.dataType.simpleString()
        if field.name not in kinds:
            hint = did_you_mean(field.name, kinds) or f"Columns are {', '.join(kinds)}."
            raise Refused("frame-schema", f"the schema names a column `{field.name}`, which is not there", hint)
        if kind != kinds[field.name]:
            what = f"the schema says that `{field.name}` is {kind}, and it is {kinds[field.name]}"
            raise Refused(
                "frame-schema", what, f"Leave `.schema(...)` out, and cast it: `cast({field.name} as {kind})`."
            )
