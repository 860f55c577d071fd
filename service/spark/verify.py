"""`samovar verify --engine spark`: every store of this machine held against changelog and source, a Spark task each.

Replays go to a RocksDB of the executor, so that a state may be larger than memory. Stores are read where they lie, also
while containers use them: so each node verifies its own. On a cluster, which cannot reach them, it is the changelogs of
all partitions that are held against the source.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from samovar.changelog.restore.point_in_time import last_position
from samovar.changelog.spark.connector_log import Range, SparkFeed
from samovar.changelog.spark.parts import PartRanges, spread_over
from samovar.changelog.spark.progress import OnProgress, Ticker
from samovar.changelog.spark.session import OpenSession
from samovar.common.errors import Refused
from samovar.service.query.verify import Verdict, verify, verify_logs
from samovar.service.spark.jobs import ShippedService, arrived, shipped, source_ranges
from samovar.service.spark.session import connector_settings, refuse_remote_executors
from samovar.service.topology.stores import StateLocation, read_store_status
from samovar.state.rocks import RocksStore

KEYS = 10_000  # that differ are listed, of each task


@dataclass(frozen=True)
class VerifyPart:
    """One store to verify."""

    service: ShippedService
    stage: str
    partition: int
    has_store: bool  # where it runs


def verify_all(
    session: OpenSession, site: StateLocation, found: Sequence[tuple[StateLocation, int]], on_progress: OnProgress
) -> list[Verdict]:
    """The verdicts on stores, as `StateLocation.found` lists them; on a cluster, on changelogs."""
    refuse_remote_executors(site.settings, is_local=session.is_local)
    service = shipped(site)
    parts = [
        PartRanges(
            VerifyPart(service, here.stage, partition, session.is_local), _ranges(here, partition, session.is_local)
        )
        for here, partition in found
    ]
    total = sum(each.end - each.start for part in parts for each in part.ranges)
    kafka = connector_settings(site.settings)
    return spread_over(session, "verify", site.log, kafka, parts, _verify_part, on_progress, total)


def _ranges(site: StateLocation, partition: int, has_store: bool) -> tuple[Range, ...]:
    """What is read of the changelog, and then of the inputs. What moves on meanwhile is followed."""
    changelog = site.changelog(partition)
    begin, end = changelog.bounds.begin, changelog.bounds.end
    if has_store:
        status = read_store_status(site.store(partition))
        position, end = status.position, begin if status.checkpoint is None else max(status.checkpoint.next, begin)
    else:
        position = last_position(site.log, changelog)
    read = Range(changelog.at, begin, end)
    ends = {} if position is None else {stream: each.next for stream, each in position.inputs.items()}
    try:
        inputs = source_ranges(site, partition, ends)
    except Refused:
        return (read,)
    bounds = site.log.bounds([each.at for each in inputs])
    is_whole = all(bounds[each.at].begin <= each.start <= each.end <= bounds[each.at].end for each in inputs)
    # Where inputs no longer hold what the state was made from, that is for the verdict to say.
    return (read, *inputs) if is_whole else (read,)


def _verify_part(part: VerifyPart, tick: Ticker, feed: SparkFeed | None) -> Verdict:
    """On an executor."""
    with ExitStack() as stack:
        site = stack.enter_context(arrived(part.service, part.stage, feed))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="samovar-verify-")))
        numbers, done = count(), dict[str, int]()

        def scratch() -> RocksStore:
            return stack.enter_context(closing(RocksStore(folder / str(next(numbers)))))

        def on_progress(what: str, records: int) -> None:
            done[what] = records  # one thing is read after the other, and shown as one
            tick(sum(done.values()))

        if not part.has_store:
            return verify_logs(site, part.partition, on_progress, scratch=scratch, keys=KEYS)
        return verify(site, part.partition, int(time.time() * 1000), on_progress, scratch=scratch, keys=KEYS)
