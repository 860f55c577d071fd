"""What executors do for a restore: read a task partition's log, or fold its input again, and leave table files.

One Spark task does one task partition, with the same functions as a restore on one machine: a changelog partition is
read in order, so that its newest rows are found where it is read and nothing has to be sorted across the cluster.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from samovar.changelog.formats.record import FORMATS, POSITION
from samovar.changelog.formats.staged import StagedManifest, StagedTables, attempt, finish, place_of
from samovar.changelog.log import Log, TopicPartition
from samovar.changelog.restore.restore import Restore, checkpoint_of
from samovar.changelog.spark.connector_log import Range, SparkFeed
from samovar.changelog.spark.parts import PartRanges, spread_over
from samovar.changelog.spark.progress import Ticker
from samovar.changelog.spark.session import OpenSession
from samovar.common.errors import Refused
from samovar.common.folders import make_private
from samovar.service.config.models import ServiceFile
from samovar.service.recovery.restore.plan import RestorePlan
from samovar.service.topology.archives import opened_with_archive
from samovar.service.topology.plans import plans_of
from samovar.service.topology.stores import StateLocation, digest_of, plan_for, position_of
from samovar.state.rocks import RocksStore
from samovar.state.tables import TableStore
from samovar.tasks.model.plan import Plan
from samovar.tasks.replay.point_in_time import rebuild_at
from samovar.tasks.replay.rebuild import journal_of, rebuild


@dataclass(frozen=True)
class ShippedService:
    """A service as it travels to executors. Plans with code of the user's are made there from the service's folder."""

    settings: ServiceFile
    plans: tuple[Plan, ...] | None
    partitions: int
    state: Path


def shipped(site: StateLocation) -> ShippedService:
    has_code = any(plan.task is not None for plan in site.plans)
    return ShippedService(site.settings, None if has_code else site.plans, site.partitions, site.state)


@contextmanager
def arrived(service: ShippedService, stage: str, feed: SparkFeed | None = None) -> Iterator[StateLocation]:
    """The service on an executor, with a log of its own, or one that Spark feeds."""
    settings = service.settings
    with opened_with_archive(settings, feed=feed) as log:
        plans = service.plans or tuple(plans_of(settings, service.partitions))
        yield StateLocation(
            settings=settings, log=log, plan=plans[0], partitions=service.partitions, state=service.state, plans=plans
        ).at(stage)


def refuse_unshared(session: OpenSession, log: Log, folder: Path) -> None:
    """What executors write to a folder that is not this machine's would be lost, and the job end well."""
    if session.is_local:
        return
    make_private(folder)
    token = folder / f".seen-{uuid4().hex}"
    token.touch()
    try:
        tasks = 2 * session.spark.sparkContext.defaultParallelism
        seen = spread_over(session, "shared folder", log, None, [PartRanges(token, ())] * tasks, _is_seen)
    finally:
        token.unlink()
    if not all(seen):
        raise Refused(
            "folder-unshared",
            f"executors of the cluster do not see the folder {folder} of this machine, and are to write there",
            "Name a folder that all machines reach by the same path: `--staging` of a restore, `views: {store: PATH}`"
            " of the service file for views. Or leave `--master` out: Spark then runs here.",
        )


def _is_seen(token: Path, _tick: Ticker, _feed: SparkFeed | None) -> bool:
    return token.exists()


@dataclass(frozen=True)
class JobPart:
    """One task partition to be staged."""

    service: ShippedService
    planned: RestorePlan
    staging: Path


def ranges_of(site: StateLocation, planned: RestorePlan) -> tuple[Range, ...]:
    """What a restore reads: of a changelog, or of all inputs."""
    if planned.until is None:
        assert planned.changelog is not None
        return (Range(planned.changelog.at, planned.start, planned.end),)
    return source_ranges(site.at(planned.stage), planned.partition, planned.until.inputs)


def source_ranges(site: StateLocation, partition: int, ends: Mapping[str, int]) -> tuple[Range, ...]:
    """What a fold reads of the inputs up to some offsets: from where the journal says that it began."""
    starts: dict[str, int] = {}
    for entry in journal_of(site.log, site.plan, partition):
        starts = {**entry.inputs, **starts}
    return tuple(
        Range(TopicPartition(spec.topic, partition), starts[spec.stream], ends[spec.stream])
        for spec in (*site.plan.inputs, *site.plan.others)
        if spec.stream in starts and spec.stream in ends
    )


def stage(part: JobPart, tick: Ticker, feed: SparkFeed | None = None) -> StagedTables:
    """On an executor: makes the table files of one task partition."""
    planned = part.planned
    place = place_of(part.staging, planned.stage, planned.partition)
    with (
        arrived(part.service, planned.stage, feed) as site,
        tempfile.TemporaryDirectory(prefix="samovar-stage-") as scratch,
    ):
        folder = attempt(place)
        try:
            tables = TableStore(folder)
            with closing(RocksStore(Path(scratch) / "store")) as store:
                records = _fill(site, planned, store, tables, tick)
                checkpoint, position, row = checkpoint_of(store), position_of(store), store.get(POSITION)
                manifest = StagedManifest(
                    service=site.settings.service,
                    stage=planned.stage,
                    partition=planned.partition,
                    source=planned.source,
                    topic=None if checkpoint is None else checkpoint.topic,
                    topic_id=None if checkpoint is None else checkpoint.topic_id,
                    partitions=None if checkpoint is None else checkpoint.partitions,
                    offset=None if checkpoint is None else checkpoint.next,
                    time_ms=None if checkpoint is None else checkpoint.time_ms,
                    moment_ms=planned.moment_ms,
                    position=None if row is None else row.decode(),
                    records=records,
                    rows=tables.rows,
                    digest=digest_of(plan_for(site, planned.partition, position), store),
                    formats={} if position is None else FORMATS,
                    created_ms=int(time.time() * 1000),
                )
            return finish(folder, place, manifest, tables.files)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _fill(site: StateLocation, planned: RestorePlan, store: RocksStore, tables: TableStore, tick: Ticker) -> int:
    """Makes a state as tables and as a store: the newest rows of the changelog, or the inputs folded again."""
    if planned.until is None:
        assert planned.changelog is not None
        with closing(Restore(tables, site.log, planned.changelog, planned.start, to=planned.end)) as restore:
            while not restore.advance():
                tick(restore.next - planned.start)
        tick(planned.todo, last=True)
        store.ingest_tables(tables.files)
        return restore.records
    plan, partition = site.plan, planned.partition
    if planned.moment_ms is None:
        folded = rebuild(site.log, plan, partition, store, planned.until, on_progress=tick)
    else:
        folded = rebuild_at(site.log, plan, partition, store, planned.until, planned.moment_ms, tick)
    tick(folded.events, last=True)
    tables.copy(store.range())
    return folded.events
