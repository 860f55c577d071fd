"""`samovar repartition --engine spark`: executors copy the rows of old tasks to their new places, and compare them.

One Spark task reads the changelog of one old task, as a restore does, and writes its rows in transactions of its own.
It is called again where an executor was lost: then the one before can write nothing any more, and a task that is whole
says so in the log, after its last row. Another job reads the copies again, a task per partition.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from samovar.changelog.broker.jars import Say
from samovar.changelog.log import TopicPartition
from samovar.changelog.restore.point_in_time import fill
from samovar.changelog.restore.restore import ChangelogPartition, stuck
from samovar.changelog.spark.connector_log import Range, SparkFeed
from samovar.changelog.spark.parts import FedDo, P, PartRanges, R, spread_over
from samovar.changelog.spark.progress import OnProgress, Ticker
from samovar.changelog.spark.session import OpenSession
from samovar.service.config.models import ServiceFile
from samovar.service.recovery.repartition import CopyEngine, CopyPart, copied_sum, copy_part
from samovar.service.spark.jobs import ShippedService, arrived, shipped
from samovar.service.spark.session import connector_settings, refuse_remote_executors, starting_for
from samovar.service.topology.stores import StateLocation
from samovar.state.rocks import RocksStore


@contextmanager
def copying_on_spark(settings: ServiceFile, master: str | None, on_job: OnProgress, say: Say) -> Iterator[CopyEngine]:
    with starting_for(settings, "samovar repartition", master, say) as start:
        session = start.ready()
        refuse_remote_executors(settings, is_local=session.is_local)
        yield SparkCopies(session, on_job)


@dataclass(frozen=True)
class SparkCopies:
    """The engine, in a session."""

    session: OpenSession
    on_job: OnProgress

    def copy(self, site: StateLocation, parts: Sequence[CopyPart]) -> None:
        service = shipped(site)
        self._spread("repartition", site, [_reading(service, site, each) for each in parts], _copy)

    def sums(self, site: StateLocation, copies: Sequence[TopicPartition]) -> list[int]:
        service, bounds = shipped(site), site.log.bounds(copies)
        parts = [PartRanges((service, Range(at, *bounds[at])), (Range(at, *bounds[at]),)) for at in copies]
        return self._spread("proof", site, parts, _sum)

    def _spread(self, job: str, site: StateLocation, parts: Sequence[PartRanges[P]], do: FedDo[P, R]) -> list[R]:
        total = sum(each.end - each.start for part in parts for each in part.ranges)
        kafka = connector_settings(site.settings)
        return spread_over(self.session, job, site.log, kafka, parts, do, self.on_job, total, stuck)


def _reading(
    service: ShippedService, site: StateLocation, part: CopyPart
) -> PartRanges[tuple[ShippedService, CopyPart]]:
    at = site.at(part.stage).changelog(part.partition).at
    return PartRanges((service, part), (Range(at, part.start, part.end),))


@contextmanager
def _scratch() -> Iterator[RocksStore]:
    with (
        tempfile.TemporaryDirectory(prefix="samovar-copy-") as folder,
        closing(RocksStore(Path(folder) / "s")) as store,
    ):
        yield store


def _copy(shipment: tuple[ShippedService, CopyPart], tick: Ticker, feed: SparkFeed | None) -> None:
    """On an executor."""
    service, part = shipment
    with arrived(service, part.stage, feed) as site, _scratch() as store:
        fill(store, site.log, site.changelog(part.partition), part.end, tick)
        tick(part.end - part.start, last=True)
        copy_part(site, part, store)


def _sum(shipment: tuple[ShippedService, Range], tick: Ticker, feed: SparkFeed | None) -> int:
    """On an executor."""
    service, copied = shipment
    with arrived(service, "", feed) as site, _scratch() as store:
        fill(store, site.log, ChangelogPartition.load(site.log, copied.at, 0), copied.end, tick)
        tick(copied.end - copied.start, last=True)
        return copied_sum(store)
