"""The engine of backtests that runs on Spark: one task per fold, by the function that the local engine runs.

Each task gets its partitions in their order, of Kafka by Spark's own connector, and keeps its states as the local
engine does; what it found comes back packed. Rules that are keyed by another field than their topics are as many tasks
as there are partitions, each of which reads all partitions and works on a share of the keys.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeAlias

from samovar.changelog.log import Log, TopicPartition
from samovar.changelog.spark.connector_log import Range, SparkFeed
from samovar.changelog.spark.parts import PartRanges, spread_over
from samovar.changelog.spark.progress import OnProgress, Ticker
from samovar.changelog.spark.session import OpenSession
from samovar.service.backtest.fold import Fold, FoldedMatch, Tally, run_fold
from samovar.service.backtest.run import Engine
from samovar.service.config.models import ServiceFile
from samovar.service.spark.session import connector_settings, refuse_remote_executors
from samovar.service.topology.archives import opened_with_archive

CHUNK = 20_000  # matches that are packed together

Part: TypeAlias = tuple[ServiceFile, Fold]  # one task's work
PartResult: TypeAlias = tuple[list[bytes], Tally]  # chunks: lists of matches, pickled and zipped


def engine_on(session: Callable[[], OpenSession], on_progress: OnProgress) -> Engine:
    """Runs folds on a session, which is asked for when it is needed: it starts while rules are loaded and checked."""

    def run(
        settings: ServiceFile, log: Log, whole: Fold, tally: Tally, _on_events: Callable[[int], None]
    ) -> Iterator[FoldedMatch]:
        refuse_remote_executors(settings, is_local=session().is_local)
        folds = list(whole.parts())
        total = sum(fold.records for fold in folds)
        parts = []
        for fold in folds:
            ranges = (
                Range(TopicPartition(settings.streams[name].topic, span.partition), span.start[name], span.stop[name])
                for span in fold.spans
                for name in fold.streams
            )
            parts.append(PartRanges((settings, fold), tuple(ranges)))
        kafka = connector_settings(settings)
        for chunks, counted in spread_over(session(), "backtest", log, kafka, parts, do_fold, on_progress, total):
            tally.add(counted)
            for chunk in chunks:
                yield from (FoldedMatch(*row) for row in pickle.loads(zlib.decompress(chunk)))  # noqa: S301 - our executors'

    return run


def do_fold(part: Part, tick: Ticker, feed: SparkFeed | None) -> PartResult:
    """Runs one fold, on an executor."""
    settings, fold = part
    chunks, tally, read = [], Tally(), 0

    def on_events(records: int) -> None:
        nonlocal read
        read += records
        tick(read)

    with opened_with_archive(settings, feed=feed) as log:
        matches = run_fold(settings, log, fold, tally, on_events)
        while some := [tuple(match) for match in islice(matches, CHUNK)]:
            chunks.append(zlib.compress(pickle.dumps(some), 1))
    tick(read, last=True)
    return chunks, tally
