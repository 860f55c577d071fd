"""`samovar restore --engine spark`: executors make table files, this machine takes them into its stores.

    local     STATE/restore-tables.part holds the files for as long as the restore runs; they are moved, not copied
    cluster   `--staging PATH` is all that is made; `samovar restore --ingest PATH` on a node takes its part of it

A kill at any moment leaves the stores as they were or replaced whole, as every restore does; files that are left are
removed by the next run.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from samovar.changelog.cursors import stalled
from samovar.changelog.formats.record import unpack_position
from samovar.changelog.formats.staged import StagedTables, look, place_of, verify
from samovar.changelog.restore.point_in_time import last_position
from samovar.changelog.restore.restore import next_step, stuck
from samovar.changelog.spark.parts import PartRanges, spread_over
from samovar.changelog.spark.progress import OnProgress as OnJob
from samovar.changelog.spark.session import OpenSession
from samovar.common.errors import Refused
from samovar.common.folders import PART, tidy
from samovar.service.recovery.restore.plan import STAGING, RestorePlan, RestoreRequest
from samovar.service.recovery.restore.run import BuildResult, Engine, OnProgress, alone, refuse_running, replay
from samovar.service.spark.jobs import JobPart, ranges_of, refuse_unshared, shipped, stage
from samovar.service.spark.session import connector_settings, refuse_remote_executors
from samovar.service.topology.stores import StateLocation, read_store_status
from samovar.state.rocks import RocksStore
from samovar.tasks.replay.rebuild import ReplayEnd
from samovar.tasks.replay.repair import is_same_position


def stage_all(
    session: OpenSession, site: StateLocation, plans: Sequence[RestorePlan], staging: Path, on_job: OnJob
) -> list[StagedTables]:
    """Make the table files of all partitions. Those that are there already are made again."""
    service, total = shipped(site), sum(planned.todo for planned in plans)
    parts = [PartRanges(JobPart(service, planned, staging), ranges_of(site, planned)) for planned in plans]
    says = stuck if all(planned.until is None for planned in plans) else stalled
    kafka = connector_settings(site.settings)
    return spread_over(session, "restore", site.log, kafka, parts, stage, on_job, total, says)


def stage_to(
    session: OpenSession, site: StateLocation, plans: Sequence[RestorePlan], staging: Path, on_job: OnJob
) -> list[StagedTables]:
    """The same into a folder that stays. What executors that were killed left there half made is removed."""
    places = {place_of(staging, planned.stage, 0).parent for planned in plans}
    with alone(staging):
        refuse_unshared(session, site.log, staging)
        try:
            for place in places:
                tidy(place)
            return [look(each.folder) for each in stage_all(session, site, plans, staging, on_job)]
        finally:
            for place in places:
                tidy(place)


def refuse_unreachable(site: StateLocation, session: OpenSession, staging: Path | None) -> None:
    """On a cluster, what executors write must be where all can read it, and so must the log be."""
    if session.is_local:
        return
    if staging is None:
        raise Refused(
            "staging-needed",
            "executors on other machines cannot write to the stores of this one",
            "Add `--staging PATH`, a folder that all machines reach, and then run `samovar restore CONFIG --ingest"
            " PATH` on the node.",
        )
    refuse_remote_executors(site.settings, is_local=session.is_local)


class OnSpark(Engine):
    """Tables by Spark, taken here at once."""

    def __init__(self, session: OpenSession, on_job: OnJob) -> None:
        self._session, self._on_job = session, on_job
        self._made: dict[tuple[str, int], StagedTables] = {}

    @contextmanager
    def tables(self, site: StateLocation) -> Iterator[None]:
        """While this lasts, files are there. Left ones of a killed run are removed first."""
        self._folder = site.state / f"restore-tables{PART}"
        shutil.rmtree(self._folder, ignore_errors=True)
        try:
            yield
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def prepare(self, site: StateLocation, plans: Sequence[RestorePlan]) -> None:
        made = stage_all(self._session, site, plans, self._folder, self._on_job)
        self._made = {(each.manifest.stage, each.manifest.partition): each for each in made}

    def build(self, site: StateLocation, planned: RestorePlan, part: Path, on_progress: OnProgress) -> BuildResult:  # noqa: ARG002 - as an engine has it
        staged = self._made[planned.stage, planned.partition]
        _take(staged, part)
        on_progress(planned.todo)
        return BuildResult(staged.manifest.records, staged.manifest.digest)


class FromStaging(Engine):
    """What was staged before, and what came after it."""

    def prepare(self, site: StateLocation, plans: Sequence[RestorePlan]) -> None:  # noqa: ARG002 - as an engine has it
        for planned in plans:
            assert planned.staged is not None
            verify(planned.staged)

    def build(self, site: StateLocation, planned: RestorePlan, part: Path, on_progress: OnProgress) -> BuildResult:
        assert planned.staged is not None
        manifest = planned.staged.manifest
        _take(planned.staged, part)
        if manifest.checkpoint is None:
            return BuildResult(manifest.records, manifest.digest)
        with closing(RocksStore(part)) as store:
            tail = replay(site, planned, store, on_progress)
        return BuildResult(manifest.records + tail, None if tail else manifest.digest)


def _take(staged: StagedTables, part: Path) -> None:
    shutil.rmtree(part, ignore_errors=True)
    with closing(RocksStore(part)) as store:
        store.ingest_tables(staged.files)


def plan_ingest(site: StateLocation, asked: RestoreRequest, staging: Path, now_ms: int) -> list[RestorePlan]:
    """What of a staging folder this node would take. Nothing is changed."""
    refuse_running(site)
    chosen = [
        (here, partition)
        for here in site.stages(asked.stage)
        for partition in here.chosen(asked.partitions)
        if asked.partitions or place_of(staging, here.stage, partition).exists()
    ]
    if not chosen:
        look(place_of(staging, site.stage, 0))  # says what is missing
    plans = [_planned(here, look(place_of(staging, here.stage, partition)), now_ms) for here, partition in chosen]
    if len({planned.until is None for planned in plans}) > 1:
        raise _unfit(staging, "some of it was folded from the source and some read from changelogs")
    return plans


def _planned(site: StateLocation, staged: StagedTables, now_ms: int) -> RestorePlan:
    manifest, partition = staged.manifest, staged.manifest.partition
    if manifest.service != site.settings.service:
        raise _unfit(staged.folder, f"it is of the service {manifest.service}")
    if manifest.moment_ms is not None:
        raise _unfit(staged.folder, "it is a state of the past, which never goes over a live store")
    changelog, now = site.changelog(partition), read_store_status(site.store(partition))
    checkpoint = manifest.checkpoint
    if checkpoint is None:
        position = None if manifest.position is None else unpack_position(manifest.position.encode())
        last = last_position(site.log, changelog)
        if position is None or (last is not None and not is_same_position(position, last)):
            raise _unfit(staged.folder, "the service ran since it was folded from the source")
        until = ReplayEnd({stream: each.next for stream, each in position.inputs.items()}, position.journal)
        return RestorePlan(
            partition=partition,
            now=now,
            source=STAGING,
            start=0,
            end=0,
            changelog=changelog,
            until=until,
            stage=site.stage,
            staged=staged,
        )
    start = next_step(checkpoint, changelog, now_ms)
    if start is None:
        raise _unfit(staged.folder, "it is too old: deletes may be missing from what came after it")
    return RestorePlan(
        partition=partition,
        now=now,
        source=STAGING,
        start=start,
        end=changelog.bounds.end,
        changelog=changelog,
        stage=site.stage,
        staged=staged,
    )


def _unfit(folder: Path, reason: str) -> Refused:
    return Refused(
        "staging-unfit",
        f"what is staged in {folder} is not for this service as it is now: {reason}",
        "Stage it again: `samovar restore CONFIG --engine spark --staging PATH`.",
    )
