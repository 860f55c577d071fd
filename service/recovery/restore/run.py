"""`samovar restore` at work: each partition's store is built in a folder next to it and takes its place at the end.

    STATE/restore.lock                     held while a restore runs: there is never a second one
    STATE/<partition>/restore-<from>.part  being built; of a changelog or snapshot, a later run goes on with it
    STATE/<partition>/store                replaced by a rename, while its RocksDB lock is held

A further stage's stores lie in the same way under STATE/<stage>.

A kill at any moment leaves the old store, or none and a finished one next to it; the next run ends what was begun.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from samovar.changelog.embedded.locks import holder, take
from samovar.changelog.formats.record import (
    CHECKPOINT,
    POSITION,
    ROW,
    UNKNOWN_SINCE,
    ChangelogCheckpoint,
    EmittedWatermark,
    Position,
    pack_checkpoint,
    pack_position,
    row_parts,
)
from samovar.changelog.log import Delivery, TopicPartition
from samovar.changelog.restore.point_in_time import materialize_at
from samovar.changelog.restore.restore import Restore, checkpoint_of, next_step
from samovar.common.errors import Refused
from samovar.common.folders import PART, make_private, remove, rename_into_place
from samovar.service.query.state.view import position_data
from samovar.service.query.verify import canonical, differences
from samovar.service.recovery.restore.plan import SOURCES, STAGING, RestorePlan, RestoreRequest
from samovar.service.topology.archives import history_of
from samovar.service.topology.stores import ROWS_END, StateLocation, digest_of, plan_for, position_of, watermark_of
from samovar.state import snapshots
from samovar.state.errors import StoreError, StoreLocked
from samovar.state.memory import MemoryStore
from samovar.state.rocks import RocksStore
from samovar.state.store import Change
from samovar.state.store_lock import holding
from samovar.tasks.input.startup_checks import check_against_changelog, check_against_offsets
from samovar.tasks.model.plan import MAIN
from samovar.tasks.replay.point_in_time import rebuild_at
from samovar.tasks.replay.rebuild import rebuild
from samovar.tasks.replay.repair import (
    ChangelogRepair,
    RepairPlan,
    changes_between,
    is_same_position,
    repaired_offsets,
    split_changes,
)
from samovar.tasks.rules.replay_dedup import dedup_rows
from samovar.tasks.rules.timer_index import overdue_rows

OnProgress = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class RestoreResult:
    """What a restore ended with."""

    partition: int
    source: str
    digest: str
    position: Position | None
    offset: int | None  # of the changelog; None where the store follows none
    records: int
    seconds: float
    rows_to_repair: int | None = None  # of the changelog, where it was made to agree
    states_differ: int | None = None  # states that the changelog has otherwise, as a digest sees them
    stage: str = MAIN

    def data(self) -> dict[str, Any]:
        found = {
            "partition": self.partition,
            **({} if self.stage == MAIN else {"stage": self.stage}),
            "from": self.source,
            "digest": self.digest,
            **position_data(self.position),
            "offset": self.offset,
            "records": self.records,
            "seconds": round(self.seconds, 3),
        }
        repaired = {"rows_to_repair": self.rows_to_repair, "states_differ": self.states_differ}
        return found | (repaired if self.rows_to_repair is not None else {})


# ---------------------------------------------------------------- alone


@contextmanager
def alone(state: Path) -> Iterator[None]:
    """Hold the lock of restores in a state folder."""
    held = take(state / "restore.lock")
    if held is None:
        raise Refused(
            "restore-running",
            f"another restore runs on {state}: {holder(state / 'restore.lock')}",
            "Wait for it, or stop it: a restore can be stopped at any moment.",
        )
    try:
        yield
    finally:
        held.release()


def refuse_running(site: StateLocation) -> None:
    """The embedded log knows the containers of this machine, also those that are about to open their stores."""
    members = site.log.members(site.settings.service) if site.settings.log.embedded is not None else ()
    if members:
        raise Refused(
            "group-active",
            f"the service {site.settings.service} runs on this machine: {', '.join(members)}",
            "Stop its containers first: a store is replaced only when nobody uses it. State can be read while it runs:"
            " `samovar state`, `samovar verify`.",
        )


# ---------------------------------------------------------------- restoring


@dataclass(frozen=True)
class BuildResult:
    """A store that was filled: how many records that took, and its digest where it is known already."""

    records: int
    digest: str | None = None


class Engine:
    """Who fills stores: this process, one partition after the other; Spark, or what was staged before, in its
    subclasses. Locks are held while it does.
    """

    def prepare(self, site: StateLocation, plans: Sequence[RestorePlan]) -> None:
        """What is done for all partitions at once."""

    def build(self, site: StateLocation, planned: RestorePlan, part: Path, on_progress: OnProgress) -> BuildResult:
        """Fill a store in a folder that may hold what an earlier run left."""
        if planned.snapshot is not None and not part.exists():
            snapshots.open_copy(planned.snapshot, part)
        log, plan, partition, until = site.log, site.plan, planned.partition, planned.until
        with closing(RocksStore(part)) as store:
            if until is None:
                return BuildResult(replay(site, planned, store, on_progress))
            if planned.moment_ms is None:
                return BuildResult(rebuild(log, plan, partition, store, until, on_progress=on_progress).events)
            return BuildResult(rebuild_at(log, plan, partition, store, until, planned.moment_ms, on_progress).events)


def replay(site: StateLocation, planned: RestorePlan, store: RocksStore, on_progress: OnProgress) -> int:
    """Bring a store to the planned offset of its changelog, from where it is; how many records that took."""
    assert planned.changelog is not None
    checkpoint = checkpoint_of(store)
    start = planned.changelog.bounds.begin if checkpoint is None else checkpoint.next
    history = history_of(site.settings, site.log) if planned.is_history else None
    log = site.log if history is None else history[1]
    with closing(Restore(store, log, planned.changelog, start, to=planned.end)) as restore:
        while not restore.advance():
            on_progress(restore.next - planned.start)
    return restore.records


def restore_all(
    site: StateLocation,
    asked: RestoreRequest,
    plans: Sequence[RestorePlan],
    on_progress: Callable[[RestorePlan, int], None],
    engine: Engine | None = None,
) -> Iterator[RestoreResult]:
    """Restore one partition after the other. Those that are done stay done, whatever becomes of the next."""
    engine = engine or Engine()
    with ExitStack() as stack:
        stack.enter_context(alone(site.state))
        repair = None
        if asked.out is None:
            refuse_running(site)
            for planned in plans:
                stack.enter_context(holding(site.at(planned.stage).store(planned.partition)))
        if asked.source == "source" and asked.out is None:
            settings = site.settings
            wanted = [planned.partition for planned in plans]
            repair = ChangelogRepair(site.log, site.plans, settings.service, settings.delivery, wanted)
            stack.callback(repair.close)
        engine.prepare(site, plans)
        for planned in plans:
            here = site.at(planned.stage)
            yield _restore(here, asked, planned, repair, engine, partial(on_progress, planned))


def _restore(
    site: StateLocation,
    asked: RestoreRequest,
    planned: RestorePlan,
    repair: ChangelogRepair | None,
    engine: Engine,
    on_progress: OnProgress,
) -> RestoreResult:
    begun = time.monotonic()
    if asked.out is not None:
        target = asked.out / planned.stage / str(planned.partition) / "store"
        part = target.with_name(f"store{PART}")
        shutil.rmtree(part, ignore_errors=True)
    else:
        target = site.store(planned.partition)
        part = _begun(site, planned)
    make_private(part.parent)
    built = engine.build(site, planned, part, on_progress)
    to_repair = states_differ = None
    with closing(RocksStore(part)) as store:
        position = position_of(store)
        if repair is not None:  # the source was taken for right: the changelog follows
            repaired = _repair(site, planned, store, repair)
            to_repair, states_differ = len(repaired.repaired), repaired.states_differ
        elif asked.out is None:
            _check(site, planned, position)
        checkpoint = checkpoint_of(store)
        digest = built.digest or digest_of(plan_for(site, planned.partition, position), store)
        store.flush()
    replace_store(part, target)
    return RestoreResult(
        partition=planned.partition,
        source=planned.source,
        digest=digest,
        position=position,
        offset=None if checkpoint is None else checkpoint.next,
        records=built.records,
        seconds=time.monotonic() - begun,
        rows_to_repair=to_repair,
        states_differ=states_differ,
        stage=planned.stage,
    )


def _begun(site: StateLocation, planned: RestorePlan) -> Path:
    """The folder to build in. What another way of restoring left is removed; a fold of the source begins again."""
    folder = site.folder(planned.partition)
    for source in (*SOURCES, STAGING):
        part = folder / f"restore-{source}{PART}"
        if source != planned.source or source in ("source", STAGING) or not _goes_on(planned, part):
            shutil.rmtree(part, ignore_errors=True)
            shutil.rmtree(part.with_name(part.name + PART), ignore_errors=True)
    return folder / f"restore-{planned.source}{PART}"


def _goes_on(planned: RestorePlan, part: Path) -> bool:
    """Whether an unfinished build can be gone on with."""
    assert planned.changelog is not None
    if not (part / "CURRENT").exists():
        return False
    try:
        with closing(RocksStore(part)) as store:
            checkpoint = checkpoint_of(store)
            return checkpoint is not None and next_step(checkpoint, planned.changelog, _now_ms()) is not None
    except (StoreError, Refused):
        return False


def replace_store(part: Path, target: Path) -> None:
    remove(target)
    try:
        rename_into_place(part, target)
    except OSError as error:
        hint = "Stop the service, and run this again: what was restored stands next to it."
        raise StoreLocked("a container made a store here meanwhile", target, hint, str(error)) from error


def _check(site: StateLocation, planned: RestorePlan, position: Position | None) -> None:
    """An empty changelog never takes the place of a state. Offsets move while containers elsewhere run."""
    settings = site.settings
    if planned.changelog is not None:
        check_against_changelog(position, planned.changelog.topic, planned.partition)
    inputs = [TopicPartition(spec.topic, planned.partition) for spec in site.plan.inputs]
    committed = site.log.committed(settings.service, inputs)
    own = {at: offset for at, offset in committed.items() if at.topic not in site.shared_topics()}
    runs = bool(site.log.members(settings.service))
    check_against_offsets(position, own, planned.partition, Delivery.AT_LEAST_ONCE if runs else settings.delivery)


# ---------------------------------------------------------------- the changelog follows the source


@dataclass(frozen=True)
class ChangelogComparison:
    """A rebuilt store against a changelog: rows to append to it, rows that the store takes over, states that differ."""

    repaired: Sequence[Change]
    adopted: Sequence[Change]
    states_differ: int


def compare(site: StateLocation, partition: int, store: RocksStore, image: MemoryStore) -> ChangelogComparison:
    """States are compared as a digest sees them, at the event time of the rebuilt store."""
    position = position_of(store)
    plan, watermark = plan_for(site, partition, position), watermark_of(position)
    rows = differences(canonical(plan, store, watermark), canonical(plan, image, watermark))
    differing = {row_parts(ROW + row)[:2] for row, _, _ in rows}
    # A row whose deadline has passed may be equal as a digest sees it; no commit leaves one, and so no restore may.
    overdue = {row_parts(row)[:2] for row, _ in overdue_rows(image.range(ROW, ROWS_END), watermark)}
    same_place = is_same_position(position, position_of(image))
    repaired, adopted = split_changes(changes_between(store, image), image, differing | overdue, same_place)
    return ChangelogComparison(repaired, adopted, len(differing))


def _repair(
    site: StateLocation, planned: RestorePlan, store: RocksStore, repair: ChangelogRepair
) -> ChangelogComparison:
    changelog = site.changelog(planned.partition)  # as it is now that nobody else writes
    end = changelog.bounds.end
    image = materialize_at(site.log, changelog, end)
    keep_emitted_watermarks(site, store, image)
    found = compare(site, planned.partition, store, image)
    store.write([*found.adopted, *dedup_rows(image)])
    position = position_of(store)
    assert position is not None, "a rebuild ends with its position"
    if found.repaired:
        service, shared = site.settings.service, site.shared_topics()
        offsets = repaired_offsets(site.log, service, position, planned.partition, shared)
        end = repair.repair(RepairPlan(changelog.at, found.repaired, pack_position(position), offsets))
    topic, at = changelog.topic, changelog.at
    checkpoint = ChangelogCheckpoint(
        topic=at.topic,
        topic_id=topic.id,
        partition=at.partition,
        partitions=topic.partitions,
        next=end,
        time_ms=_now_ms(),
    )
    store.put(CHECKPOINT, pack_checkpoint(checkpoint))
    return found


def keep_emitted_watermarks(site: StateLocation, store: RocksStore, image: MemoryStore) -> None:
    """What was told to repartition topics is not in the source: it is taken from the changelog, or is unknown."""
    position, before = position_of(store), position_of(image)
    if position is None or not site.plan.forwards:
        return
    unknown = {each.topic: EmittedWatermark(UNKNOWN_SINCE, None, False) for each in site.plan.forwards}
    told = {**unknown, **({} if before is None else before.forwards)}
    store.put(POSITION, pack_position(replace(position, forwards=told)))


def compared(site: StateLocation, planned: RestorePlan, on_progress: OnProgress) -> ChangelogComparison:
    """What `--from source` would do to the changelog. Touches nothing."""
    with tempfile.TemporaryDirectory(prefix="samovar-restore-") as folder:
        part, changelog = Path(folder) / "store", planned.changelog
        Engine().build(site, planned, part, on_progress)
        with closing(RocksStore(part)) as store:
            image = MemoryStore() if changelog is None else materialize_at(site.log, changelog, changelog.bounds.end)
            return compare(site, planned.partition, store, image)


def _now_ms() -> int:
    return int(time.time() * 1000)
