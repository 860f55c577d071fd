"""Work in parts with the records that each part reads: on Kafka they come to its task through Spark's own connector.

A part is one task, and gets the ranges it reads one after the other, each in order of offsets: without any exchange
between tasks, because a range is one partition of Spark's connector. Parts on an embedded log read it themselves.
"""

from __future__ import annotations

import pickle
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from samovar.changelog.cursors import stalled
from samovar.changelog.log import Log, TopicPartition
from samovar.changelog.spark.connector_log import Range, SparkFeed
from samovar.changelog.spark.progress import JobProgress, OnProgress, Ticker
from samovar.changelog.spark.records import Stuck, raw_records, settle
from samovar.changelog.spark.session import OpenSession
from samovar.changelog.spark.tasks import SCHEMA, done, loaded, results, spread

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
    """What `do` made of each part, in order. `kafka` are the settings of a log on Kafka: parts then get their records
    from Spark's connector, as a feed; without, they have none and read the log themselves.
    """
    if kafka is None:
        return spread(session, job, [each.part for each in parts], _Unfed(do), on_progress, total)
    begun = time.monotonic()

    def waiting(at: TopicPartition, offset: int) -> None:
        what = f"an open transaction of {at}, at offset {offset:,}"
        on_progress(JobProgress(job, 0, 0, 0, 0, 0, total, time.monotonic() - begun, what))

    settle(log, [each for part in parts for each in part.ranges], stuck, waiting)  # type: ignore[arg-type] # Kafka's
    made = _fed(session, job, kafka, parts, do, on_progress, total)
    # Of a range without any record that can be seen, or of none at all, no task heard.
    rest = [number for number in range(len(parts)) if number not in made]
    found = spread(session, job, [parts[number] for number in rest], _Empty(do), on_progress, total)
    return results(made | dict(zip(rest, found, strict=True)), len(parts))


def _fed(
    session: OpenSession,
    job: str,
    kafka: Mapping[str, str],
    parts: Sequence[PartRanges[P]],
    do: FedDo[P, R],
    on_progress: OnProgress,
    total: int | None,
) -> dict[int, Any]:
    from pyspark import cloudpickle  # noqa: PLC0415 - takes long, and is not always installed

    if not any(each.start < each.end for part in parts for each in part.ranges):
        return {}
    ticks = Path(tempfile.mkdtemp(prefix="samovar-ticks-"))
    packed = [cloudpickle.dumps((each, do)) for each in parts]  # type: ignore[no-untyped-call] # ships no types
    work = _FedWork(packed, _owners(parts), str(ticks) if session.is_local else None)
    try:
        frame = _records_of(session, kafka, parts).mapInArrow(work, SCHEMA)  # type: ignore[arg-type] # as a function
        rows = session.run(job, frame.collect, on_progress, total=total, ticks=ticks if session.is_local else None)
    finally:
        shutil.rmtree(ticks, ignore_errors=True)
    return {row.part: loaded(row) for row in rows}


def _records_of(session: OpenSession, kafka: Mapping[str, str], parts: Sequence[PartRanges[Any]]) -> DataFrame:
    """A task of Spark's for each part: of one range each, all at once; otherwise part by part, its ranges together.

    Without headers, which change no state and no match.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as all who write Spark call it; with pyspark only

    ranges = [[each for each in part.ranges if each.start < each.end] for part in parts]
    alone = [found[0] for found in ranges if len(found) == 1]
    numbers = Counter(each.at.partition for found in ranges for each in found)
    if all(len(found) <= 1 for found in ranges) and max(numbers.values()) == 1:
        return raw_records(session, kafka, alone, topic=False, headers=False)

    def of_part(number: int) -> DataFrame:
        one_by_one = [raw_records(session, kafka, [each], headers=False) for each in ranges[number]]
        return reduce(_union, one_by_one).coalesce(1).withColumn("part", F.lit(number))

    return reduce(_union, [of_part(number) for number, found in enumerate(ranges) if found])


def _union(left: DataFrame, right: DataFrame) -> DataFrame:
    return left.unionAll(right)


def _owners(parts: Sequence[PartRanges[Any]]) -> dict[int, int]:
    """Whose a partition is, where each part has one, and another one than the others."""
    return {each.at.partition: number for number, part in enumerate(parts) for each in part.ranges}


@dataclass(frozen=True)
class _Unfed:
    """A function for parts that read the log themselves."""

    do: Any

    def __call__(self, part: Any, tick: Ticker) -> Any:
        return self.do(part, tick, None)


@dataclass(frozen=True)
class _Empty:
    """A function for parts whose ranges hold nothing that can be seen."""

    do: Any

    def __call__(self, reading: PartRanges[Any], tick: Ticker) -> Any:
        return self.do(reading.part, tick, SparkFeed(reading.ranges, iter(())))


@dataclass(frozen=True)
class _FedWork:
    """What an executor runs on the records of one part."""

    parts: Sequence[bytes]
    owners: Mapping[int, int]
    ticks: str | None

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 - on executors only

        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        is_told = "part" in first.schema.names
        number = first.column("part")[0].as_py() if is_told else self.owners[first.column("partition")[0].as_py()]
        made = pickle.dumps(self._made(number, first, batches))
        for _ in islice(batches, LAST):
            pass
        columns = [pa.array([number], pa.int64()), pa.array([made], pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, ["part", "made"])

    def _made(self, number: int, first: Any, batches: Iterator[Any]) -> Any:
        reading, do = pickle.loads(self.parts[number])  # noqa: S301 - the driver wrote it
        feed = SparkFeed(reading.ranges, _chained(first, batches))
        try:
            return done(partial(do, reading.part, Ticker(self.ticks, str(number)), feed))
        finally:
            feed.close()


def _chained(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest
