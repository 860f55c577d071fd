"""The stores of a service on this machine, to look at: a folder per task, also while a container has it open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from samovar.changelog.formats.record import POSITION, ROW, ChangelogCheckpoint, Position, unpack_position
from samovar.changelog.log import Log, TopicPartition
from samovar.changelog.restore.restore import ChangelogPartition, checkpoint_of
from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.patterns.engine.matcher import digest_of_rows
from samovar.patterns.engine.order import NO_TIME
from samovar.service.config.models import ServiceFile
from samovar.service.topology.plans import plans_of
from samovar.service.topology.rule_registry import with_published_rules
from samovar.service.topology.topics import counted_topics, partitions_of
from samovar.state.errors import StoreError, StoreMissing
from samovar.state.secondary import SecondaryStore
from samovar.state.soundness import check_sound, holds_rows
from samovar.state.store import Readable
from samovar.tasks.model.plan import MAIN, Plan
from samovar.tasks.replay.repair import plan_of_position
from samovar.tasks.runtime.stream_task import task_folder
from samovar.tasks.user.inspect import digest_of_task

ROWS_END = bytes([ROW[0] + 1])
MAIN_NAME = "main"  # as people name the stage that has no name


@dataclass(frozen=True, kw_only=True)
class StateLocation:
    """One stage of a service, its log, and where its stores lie. `plans` are those of all stages."""

    settings: ServiceFile
    log: Log
    plan: Plan
    partitions: int
    state: Path
    plans: tuple[Plan, ...] = ()

    @property
    def stage(self) -> str:
        return self.plan.stage

    def at(self, stage: str) -> StateLocation:
        """The same for another stage."""
        return replace(self, plan=next(plan for plan in self.plans if plan.stage == stage))

    def stages(self, wanted: str | None = None) -> list[StateLocation]:
        """All stages, or the one that was asked for. `main` is the first."""
        names = [plan.stage or MAIN_NAME for plan in self.plans]
        if wanted is not None and wanted not in names:
            hint = did_you_mean(wanted, names) or f"Stages are {', '.join(names)}."
            raise Refused("unknown-stage", f"the service has no stage `{wanted}`", hint)
        return [replace(self, plan=plan) for plan in self.plans if wanted in (None, plan.stage or MAIN_NAME)]

    def shared_topics(self) -> set[str]:
        """Inputs that several stages read: the group's offset is that of the one furthest behind."""
        topics = [spec.topic for plan in self.plans for spec in plan.inputs]
        return {topic for topic in topics if topics.count(topic) > 1}

    def folder(self, partition: int) -> Path:
        return task_folder(self.state, partition, self.stage)

    def placed(self, partition: int) -> dict[str, str | int]:
        """Where something is, for programs: the main stage goes without saying."""
        return {"partition": partition} | ({} if self.stage == MAIN else {"stage": self.stage})

    def short(self, partition: int) -> str:
        """Where something is, at the beginning of a line."""
        return str(partition) if self.stage == MAIN else f"{self.stage}/{partition}"

    def store(self, partition: int) -> Path:
        """The folder of a partition's store. A single store, given by `--store`, is its own folder."""
        return self.state if is_store(self.state) else self.folder(partition) / "store"

    def changelog(self, partition: int) -> ChangelogPartition:
        at = TopicPartition(self.plan.topics.changelog, partition)
        return ChangelogPartition.load(self.log, at, self.settings.changelog.delete_retention_ms, self.settings.service)

    def chosen(self, partitions: Sequence[int]) -> list[int]:
        """Those that were asked for, or all."""
        for partition in partitions:
            if partition >= self.partitions:
                hint = f"Choose from 0 to {self.partitions - 1}."
                raise Refused("unknown-partition", f"the service has no partition {partition}", hint)
        return sorted(set(partitions)) or list(range(self.partitions))

    def found(self, partitions: Sequence[int] = (), stage: str | None = None) -> list[tuple[StateLocation, int]]:
        """All stores on this machine, of all stages or of one; refused where there is none."""
        if is_store(self.state):  # a single store: which changelog it follows says whose it is
            with reading(self.state) as store:
                checkpoint = checkpoint_of(store)
            if checkpoint is None:
                return [(self, 0)]
            own = [plan.stage for plan in self.plans if plan.topics.changelog == checkpoint.topic]
            return [(self.at(own[0] if own else MAIN), checkpoint.partition)]
        chosen = [(site, each) for site in self.stages(stage) for each in site.chosen(partitions)]
        found = [(site, each) for site, each in chosen if is_store(site.store(each))]
        if not found:
            hint = "`samovar run` makes stores, `samovar restore` brings them back; `--store DIR` reads others."
            raise StoreMissing("there is no store here", self.state, hint)
        return found


def site_of(settings: ServiceFile, log: Log, state: Path | None = None) -> StateLocation:
    """Nothing is made or changed: topics that are missing stay so."""
    settings = with_published_rules(settings, log)
    partitions = partitions_of(settings, log.topics(counted_topics(settings)))
    plans = tuple(plans_of(settings, partitions))
    return StateLocation(
        settings=settings, log=log, plan=plans[0], partitions=partitions, state=state or settings.state, plans=plans
    )


def is_store(folder: Path) -> bool:
    """Also a damaged one, which is not to be passed over."""
    return holds_rows(folder)


def reading(folder: Path) -> closing[SecondaryStore]:
    """A store as it is now, anyone who has it open."""
    return closing(SecondaryStore(folder))


@dataclass(frozen=True)
class StoreStatus:
    """What is in a store's folder: its condition in a word, and where it stands."""

    condition: str  # missing, new, fine, or damaged
    checkpoint: ChangelogCheckpoint | None = None
    position: Position | None = None
    detail: str = ""

    @property
    def text(self) -> str:
        if self.checkpoint is None:
            return {"missing": "no store here", "new": "an empty store"}.get(self.condition, self.condition)
        return f"a store at changelog offset {self.checkpoint.next:,}"


def read_store_status(folder: Path) -> StoreStatus:
    if not folder.exists() or not any(path.name != "LOCK" for path in folder.iterdir()):
        return StoreStatus("missing")
    try:
        check_sound(folder)
        with reading(folder) as store:
            checkpoint = checkpoint_of(store)
            return StoreStatus("new" if checkpoint is None else "fine", checkpoint, position_of(store))
    except Refused as refused:
        if refused.code != "state-damaged":  # as what a newer version wrote: it is not ours to replace
            raise
        return StoreStatus("damaged", detail=refused.what)
    except StoreError as error:
        return StoreStatus("damaged", detail=str(error).splitlines()[0])


def position_of(store: Readable) -> Position | None:
    data = store.get(POSITION)
    return None if data is None else unpack_position(data)


def plan_for(site: StateLocation, partition: int, position: Position | None) -> Plan:
    return plan_of_position(site.log, site.plan, partition, position)


def rows_of(store: Readable) -> Iterator[tuple[bytes, bytes]]:
    """The rows of rules and history functions, as the matcher names them."""
    return ((key[1:], value) for key, value in store.range(ROW, ROWS_END))


def watermark_of(position: Position | None) -> int:
    return NO_TIME if position is None or position.watermark is None else position.watermark


def limits_of(plan: Plan) -> tuple[int, int]:
    return plan.max_partials, plan.max_events


def digest_of(plan: Plan, store: Readable) -> str:
    """The digest of a partition's state at its own watermark. The plan has the rules that made it."""
    if plan.task is not None:
        return digest_of_task(store)
    watermark = watermark_of(position_of(store))
    return digest_of_rows(plan.program, rows_of(store), watermark, limits_of(plan), plan.tunables)
