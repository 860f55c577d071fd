"""The engine of backtests that runs on Spark: one task per fold, by the function that the local engine runs.

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
        parts = []
        for fold in folds:
            ranges = (
                Range(TopicPartition(settings.streams[name].topic, span.partition), span.start[name], span.stop[name])
                for span in fold.stretches
                for name in fold.streams
            )
            parts.append(PartRanges(BacktestPart(settings, fold), tuple(ranges)))
        kafka = kafka_of(settings)
        for result in spread_over(session(), "backtest", log, kafka, parts, do_fold, on_progress, total):
            tally.add(result.tally)
            for chunk in result.chunks:
                yield from (FoldedMatch(*row) for row in pickle.loads(zlib.decompress(chunk)))  # noqa: S301 - our executors'

    return run


def do_fold(part: BacktestPart, tick: Ticker, feed: SparkFeed | None) -> BacktestPartResult:
    """Runs one fold, on an executor."""
    tally, read = Tally(), 0
    chunks: list[bytes] = []
    waiting: list[tuple[object, ...]] = []

    def on_events(records: int) -> None:
        nonlocal read
        read += records
        tick(read)

    def pack() -> None:
        if waiting:
            chunks.append(zlib.compress(pickle.dumps(waiting), 1))
            waiting.clear()

    with opened(part.settings) as own:
        log = own if feed is None else fed_log(own, feed)
        for found in run_fold(part.settings, log, part.fold, tally, on_events):
            waiting.append(tuple(found))
            if len(waiting) >= CHUNK:
                pack()
    pack()
    tick(read, last=True)
    return BacktestPartResult(tuple(chunks), tally)
