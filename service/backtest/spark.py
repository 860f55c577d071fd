"""The engine of backtests that runs on Spark: a fold a task, by the function that the local engine runs.

Each task gets its partitions in their order, of Kafka by Spark's own connector, and keeps its states as the local
engine does; what it found comes back packed. A rule that is keyed by another field than its topics is one task over all
partitions.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from samovar.changelog.log import Log, TopicPartition
from samovar.changelog.spark.connector_log import Range, SparkFeed, fed_log
from samovar.changelog.spark.parts import PartRanges, spread_over
from samovar.changelog.spark.progress import OnProgress, Ticker
from samovar.changelog.spark.session import OpenSession
from samovar.service.backtest.fold import Fold, FoldedMatch, Tally, run_fold
from samovar.service.backtest.run import Engine
from samovar.service.config.models import ServiceFile
from samovar.service.spark.jobs import refuse_away
from samovar.service.topology.logs import kafka_of, opened

CHUNK = 20_000  # matches that are packed together


@dataclass(frozen=True)
class BacktestPart:
    """One task's work."""

    settings: ServiceFile
    fold: Fold


@dataclass(frozen=True)
class BacktestPartResult:
    """What came of it. A chunk is a list of matches, pickled and zipped."""

    chunks: tuple[bytes, ...]
    tally: Tally


def engine_on(session: Callable[[], OpenSession], on_progress: OnProgress) -> Engine:
    """Runs folds on a session, which is asked for when it is needed: it starts while rules are loaded and checked."""

    def run(
        settings: ServiceFile, log: Log, folds: Sequence[Fold], tally: Tally, _on_events: Callable[[int], None]
    ) -> Iterator[FoldedMatch]:
        refuse_away(settings, session())
        total = sum(fold.records for fold in folds)
        parts = [PartRanges(BacktestPart(settings, fold), _ranges(settings, fold)) for fold in folds]
        kafka = kafka_of(settings)
        for made in spread_over(session(), "backtest", log, kafka, parts, do_fold, on_progress, total):
            tally.add(made.tally)
            for chunk in made.chunks:
                yield from (FoldedMatch(*row) for row in pickle.loads(zlib.decompress(chunk)))  # noqa: S301 - our executors'

    return run


def _ranges(settings: ServiceFile, fold: Fold) -> tuple[Range, ...]:
    topics = {stream: settings.streams[stream].topic for stream in fold.streams}
    return tuple(
        Range(TopicPartition(topic, each.partition), each.start[stream], each.stop[stream])
        for each in fold.stretches
        for stream, topic in topics.items()
    )


def do_fold(part: BacktestPart, tick: Ticker, feed: SparkFeed | None) -> BacktestPartResult:
    """On an executor: run one fold."""
    tally, read = Tally(), 0
    chunks: list[bytes] = []
    waiting: list[tuple[object, ...]] = []

    def moved(records: int) -> None:
        nonlocal read
        read += records
        tick(read)

    def pack() -> None:
        if waiting:
            chunks.append(zlib.compress(pickle.dumps(waiting), 1))
            waiting.clear()

    with opened(part.settings) as own:
        log = own if feed is None else fed_log(own, feed)
        for found in run_fold(part.settings, log, part.fold, tally, moved):
            waiting.append(tuple(found))
            if len(waiting) >= CHUNK:
                pack()
    pack()
    tick(read, last=True)
    return BacktestPartResult(tuple(chunks), tally)
