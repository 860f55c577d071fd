"""Work in parts, one Spark task each: a task partition's state is made where one process can read its log in order.

On Kafka the records that a part reads come to its task through Spark's own connector, its ranges one after the other,
each in order of offsets: without any exchange between tasks, because a range is one partition of the connector. Parts
on an embedded log read it themselves. Parts and results travel as bytes, what is large stays in files.
"""

from __future__ import annotations

import pickle
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from samovar.changelog.archive.archived_log import log_begins
from samovar.changelog.cursors import stalled
from samovar.changelog.log import Log, TopicPartition
from samovar.changelog.spark.connector_log import Range, SparkFeed
from samovar.changelog.spark.progress import JobProgress, OnProgress, Ticker
from samovar.changelog.spark.records import Stuck, raw_records, settle
from samovar.changelog.spark.session import OpenSession
from samovar.common.errors import Refused
from samovar.state.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

P = TypeVar("P")
R = TypeVar("R")
LAST = 10  # batches that nobody wanted are taken all the same: a Python that leaves some is not used again by Spark


@dataclass(frozen=True)
class PartRanges(Generic[P]):
    """A part of the work, and what it reads, in the order in which it is read first."""

    part: P
    ranges: tuple[Range, ...]


FedDo: TypeAlias = Callable[[P, Ticker, SparkFeed | None], R]


def spread_over(
    session: OpenSession,
    job: str,
    log: Log,
    kafka: Mapping[str, str] | None,
    parts: Sequence[PartRanges[P]],
    do: FedDo[P, R],
    on_progress: OnProgress = lambda _: None,
    total: int | None = None,
    stuck: Stuck = stalled,
) -> list[R]:
    """What `do` made of each part, in order. The first refusal of a part is raised when all have ended.

    `kafka` are the settings of a log on Kafka: parts then get their records from Spark's connector, as a feed, but for
    what only an archive has; without, they have none and read the log themselves. `do` must be a function of a module
    that executors can import. It is called again where an executor was lost.
    """
    from pyspark import cloudpickle  # noqa: PLC0415 - takes long, and is not always installed

    begun = time.monotonic()

    def on_wait(at: TopicPartition, offset: int) -> None:
        what = f"an open transaction of {at}, at offset {offset:,}"
        on_progress(
            JobProgress(
                job=job,
                stages_done=0,
                stages=0,
                tasks_done=0,
                tasks=0,
                rows=0,
                total=total,
                seconds=time.monotonic() - begun,
                waits_for=what,
            )
        )

    if kafka is not None:
        parts = [replace(part, ranges=tuple(_rest_of(log, each) for each in part.ranges)) for part in parts]
    packed = [cloudpickle.dumps((each, do)) for each in parts]  # type: ignore[no-untyped-call] # ships no types
    ranges = [each for part in parts for each in part.ranges]
    made: dict[int, Any] = {}
    with tempfile.TemporaryDirectory(prefix="samovar-ticks-", ignore_cleanup_errors=True) as folder:
        told = folder if session.is_local else None
        ticks = None if told is None else Path(told)

        def run(frame: DataFrame, work: _Work) -> None:
            done = frame.mapInArrow(work, "part long, made binary")  # type: ignore[arg-type] # it is called as a function
            for row in session.run(job, done.collect, on_progress, total=total, ticks=ticks):
                made[row.part] = pickle.loads(bytes(row.made))  # noqa: S301 - our own executors wrote it

        if kafka is not None:
            settle(log, ranges, stuck, on_wait)  # type: ignore[arg-type] # it is Kafka's
            if any(each.start < each.end for each in ranges):
                owners = {each.at.partition: number for number, part in enumerate(parts) for each in part.ranges}
                run(
                    records_of(session, kafka, parts),
                    FedWork(parts=packed, ticks=told, numbers=(), has_feed=True, owners=owners),
                )
        # Of a range without any record that can be seen, or of none at all, no task of the connector heard.
        rest = [number for number in range(len(parts)) if number not in made]
        if rest:
            numbers = session.spark.range(0, len(rest), 1, len(rest))
            run(numbers, _Work(packed, told, rest, kafka is not None))
    for number in range(len(parts)):
        if isinstance(made[number], (Refused, StoreError)):
            raise made[number]
    return [made[number] for number in range(len(parts))]


def _rest_of(log: Log, whole: Range) -> Range:
    """What Spark's connector reads of a range: all, or what comes behind an archive."""
    begin = log_begins(log, whole.at, whole.start, whole.end)
    return whole if begin == whole.start else Range(whole.at, begin, whole.end, is_rest=True)


def records_of(session: OpenSession, kafka: Mapping[str, str], parts: Sequence[PartRanges[Any]]) -> DataFrame:
    """A Spark task per part: all ranges at once where each part has one, else part by part. State needs no headers."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as all who write Spark call it; with pyspark only

    ranges = [[each for each in part.ranges if each.start < each.end] for part in parts]
    numbers = Counter(each.at.partition for found in ranges for each in found)
    if all(len(found) <= 1 for found in ranges) and max(numbers.values()) == 1:
        return raw_records(session, kafka, [each for found in ranges for each in found], topic=False, headers=False)
    frames = []
    for number, found in enumerate(ranges):
        if found:
            one_by_one = [raw_records(session, kafka, [each], headers=False) for each in found]
            joined = reduce(lambda left, right: left.unionAll(right), one_by_one)
            frames.append(joined.coalesce(1).withColumn("part", F.lit(number)))
    return reduce(lambda left, right: left.unionAll(right), frames)


@dataclass(frozen=True)
class _Work:
    """Runs parts by number on an executor. A class, and not a closure, so that it is pickled by its name."""

    parts: Sequence[bytes]
    ticks: str | None
    numbers: Sequence[int]  # of the parts that are done here
    has_feed: bool  # an empty one: their ranges hold nothing that can be seen

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for place in batch.column(0).to_pylist():
                yield self._result(self.numbers[place], iter(()) if self.has_feed else None)

    def _result(self, number: int, records: Iterator[Any] | None) -> Any:
        """A row with what came of a part: a refusal travels as a result, with its code and hint."""
        import pyarrow as pa  # noqa: PLC0415 - on executors only

        reading, do = pickle.loads(self.parts[number])  # noqa: S301 - the driver wrote it
        feed = None if records is None else SparkFeed(reading.ranges, records)
        try:
            made = do(reading.part, Ticker(self.ticks, str(number)), feed)
        except (Refused, StoreError) as refused:
            made = refused
        finally:
            if feed is not None:
                feed.close()
        columns = [pa.array([number], pa.int64()), pa.array([pickle.dumps(made)], pa.binary())]
        return pa.RecordBatch.from_arrays(columns, ["part", "made"])


@dataclass(frozen=True, kw_only=True)
class FedWork(_Work):
    """What an executor runs on the records of one part."""

    owners: Mapping[int, int]  # whose a partition is, where each part has one, and another one than the others

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        is_told = "part" in first.schema.names
        number = first.column("part")[0].as_py() if is_told else self.owners[first.column("partition")[0].as_py()]
        result = self._result(number, chain([first], batches))
        for _ in islice(batches, LAST):
            pass
        yield result
