"""The stores of a service on this machine, to look at: a folder a partition, also while a container has it open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from samovar.changelog.errors import Refused
from samovar.changelog.log import Log, TopicPartition
from samovar.changelog.record import POSITION, ROW, Following, Position, unpack_position
from samovar.changelog.restore import Changelog, following_of
from samovar.patterns.matcher import digest_of_rows
from samovar.patterns.order import NO_TIME
from samovar.service.running import plan_of
from samovar.service.settings_models import ServiceFile
from samovar.service.topics import partitions_of, plan
from samovar.state.errors import StoreError, StoreMissing
from samovar.state.secondary import SecondaryStore
from samovar.state.store import Readable
from samovar.tasks.plan import Plan
from samovar.tasks.restoring import plan_of_position
from samovar.tasks.task import task_folder

ROWS_END = bytes([ROW[0] + 1])


@dataclass(frozen=True)
class Site:
    """A service, its log, and where its stores lie."""

    settings: ServiceFile
    log: Log
    plan: Plan
    partitions: int
    state: Path

    def folder(self, partition: int) -> Path:
        return task_folder(self.state, partition)

    def store(self, partition: int) -> Path:
        """The folder of a partition's store. A single store, given by `--store`, is its own folder."""
        return self.state if is_store(self.state) else self.folder(partition) / "store"

    def changelog(self, partition: int) -> Changelog:
        at = TopicPartition(self.plan.topics.changelog, partition)
        return Changelog.look(self.log, at, self.settings.changelog.delete_retention_ms)

    def chosen(self, partitions: Sequence[int]) -> list[int]:
        """Those that were asked for, or all."""
        for partition in partitions:
            if partition >= self.partitions:
                hint = f"Choose from 0 to {self.partitions - 1}."
                raise Refused("unknown-partition", f"the service has no partition {partition}", hint)
        return sorted(set(partitions)) or list(range(self.partitions))

    def present(self, partitions: Sequence[int] = ()) -> list[int]:
        """Partitions whose store is on this machine; refused where there is none."""
        if is_store(self.state):
            return [_own_partition(self.state)]
        found = [each for each in self.chosen(partitions) if is_store(self.store(each))]
        if not found:
            hint = "`samovar run` makes stores, `samovar restore` brings them back; `--store DIR` reads others."
            raise StoreMissing("there is no store here", self.state, hint)
        return found


def site_of(settings: ServiceFile, log: Log, state: Path | None = None) -> Site:
    """Nothing is made or changed: topics that are missing stay so."""
    existing = log.topics([spec.name for spec in plan(settings)])
    partitions = partitions_of(settings, existing)
    return Site(settings, log, plan_of(settings, partitions), partitions, state or settings.state)


def is_store(folder: Path) -> bool:
    return (folder / "CURRENT").exists()


def _own_partition(folder: Path) -> int:
    with reading(folder) as store:
        following = following_of(store)
    return 0 if following is None else following.partition


@contextmanager
def reading(folder: Path) -> Iterator[SecondaryStore]:
    """A store as it is now, whoever has it open."""
    store = SecondaryStore(folder)
    try:
        yield store
    finally:
        store.close()


# ---------------------------------------------------------------- what is there


@dataclass(frozen=True)
class Standing:
    """What is in a store's folder: its condition in a word, and where it stands."""

    condition: str  # missing, new, fine, or damaged
    following: Following | None = None
    position: Position | None = None
    detail: str = ""

    @property
    def text(self) -> str:
        if self.following is None:
            return {"missing": "no store here", "new": "an empty store"}.get(self.condition, self.condition)
        return f"a store at changelog offset {self.following.next:,}"


def look_at(folder: Path) -> Standing:
    if not folder.exists() or not any(path.name != "LOCK" for path in folder.iterdir()):
        return Standing("missing")
    try:
        with reading(folder) as store:
            following = following_of(store)
            return Standing("new" if following is None else "fine", following, position_of(store))
    except Refused as refused:
        if refused.code != "state-damaged":  # as what a newer version wrote: it is not ours to replace
            raise
        return Standing("damaged", detail=refused.what)
    except StoreError as error:
        return Standing("damaged", detail=str(error).splitlines()[0])


def position_of(store: Readable) -> Position | None:
    data = store.get(POSITION)
    return None if data is None else unpack_position(data)


def plan_for(site: Site, partition: int, position: Position | None) -> Plan:
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
    return digest_of_rows(plan.program, rows_of(store), watermark_of(position_of(store)), limits_of(plan))


def at_state(site: Site, state: Path | None) -> Site:
    return site if state is None else replace(site, state=state)
