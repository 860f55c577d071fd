"""The real container on the log and the disks of the simulator: no thread, no file, no sleep."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from samovar.changelog.cursors import read_all
from samovar.changelog.log import Append, Delivery, Pair, TopicPartition
from samovar.common.errors import Refused
from samovar.common.tunables import Tunables
from samovar.service.config.loading import load_service
from samovar.service.config.models import ServiceFile
from samovar.service.topology.plans import plans_of
from samovar.service.topology.topics import ensure
from samovar.state.rocks import RocksMemory
from samovar.tasks.model.clock import SetClock
from samovar.tasks.runtime.container import Container
from samovar.tasks.runtime.stream_task import TaskConfig
from tests.faults import world
from tests.simulation.broker import Broker
from tests.simulation.faults import Fault, Faults, Killed
from tests.simulation.memory_log import MemoryLog
from tests.simulation.memory_storage import Disk
from tests.simulation.rocks_disk import RocksDisk

NOWHERE = Path("of-no-machine")
TINY = Tunables(poll_records=7, restore_records=5, replay_records=6, snapshot_every_ms=400, whole_states=8)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> ServiceFile:
    folder = tmp_path_factory.mktemp("service")
    (folder / "rules").mkdir()
    for name, text in world.RULES.items():
        (folder / "rules" / f"{name}.yml").write_text(text)
    streams = {world.STREAM: {"topic": "use", "repartition": False, **world.STREAMS[world.STREAM]}}
    (folder / "service.yml").write_text(json.dumps({"service": "cards", "streams": streams}))
    return load_service(folder / "service.yml")


class Cluster:
    """A broker, a disk per slot, and containers that a seed moves."""

    def __init__(
        self, settings: ServiceFile, seed: int, faults: Sequence[Fault], disks: Sequence[Disk | RocksDisk]
    ) -> None:
        self.settings, self.random, self.faults = settings, Random(seed), faults
        self.clock = SetClock()
        self.broker = Broker(self.clock)
        self.log = MemoryLog(self.broker, TINY)
        self.partitions = ensure(self.log, settings)[0].partitions
        self.disks = disks
        self.running: dict[int, tuple[Container, MemoryLog]] = {}
        self.wait_until_ms = {0: 0, 1: 0}
        self.is_quiet = False
        self.kills = 0

    def fault(self, _call: str) -> Fault | None:
        if self.is_quiet or not self.faults or self.random.random() > 0.01:
            return None
        return self.random.choice(self.faults)

    def start(self, slot: int) -> None:
        faults: Faults = self.fault
        log = MemoryLog(self.broker, TINY, faults)
        task_config = TaskConfig(
            folder=NOWHERE,
            memory=RocksMemory(),
            group=self.settings.service,
            delivery=Delivery.EXACTLY_ONCE,
            delete_retention_ms=self.settings.changelog.delete_retention_ms,
            snapshot_keep=2,
            has_threads=False,
            storage=self.disks[slot].storage_of(log),
        )
        plans = plans_of(self.settings, self.partitions)
        self.running[slot] = Container(plans, log, slot, task_config, self.clock), log
        self.wait_until_ms[slot] = 0

    def step(self, slot: int) -> None:
        if slot not in self.running:
            self.start(slot)
        if self.clock.now_ms < self.wait_until_ms[slot]:
            return
        container, _ = self.running[slot]
        try:
            self.wait_until_ms[slot] = self.clock.now_ms + int(container.step() * 1000)
        except Killed:
            self.kill(slot)

    def kill(self, slot: int) -> None:
        """The process ends where it stands; nothing of it is cleaned up."""
        self.kills += 1
        self.running.pop(slot)[1].kill()
        disk = self.disks[slot]
        left: list[Callable[[], None]] = [lambda: None, disk.lose, disk.keep_snapshots_only]
        if isinstance(disk, Disk):
            left.append(lambda: disk.undo(2))
        self.random.choice(left)()

    def move(self) -> None:
        slot = self.random.choice((0, 0, 1))
        if self.faults and self.random.random() < 0.01 and slot in self.running:
            self.kill(slot)
        self.step(slot)
        self.clock.pass_ms(self.random.choice((0, 5, 50, 200)))
        if self.random.random() < 0.05:
            self.broker.compact(self.random)

    def settle(self) -> None:
        """No more faults: all input is processed within so many steps."""
        self.is_quiet = True
        places = [TopicPartition("use", number) for number in range(self.partitions)]
        for _ in range(3_000):
            self.step(0)
            self.step(1)
            self.clock.pass_ms(20)
            if not self.broker.open_transactions() and self.read_all(places):
                return
        raise AssertionError("no end")

    def read_all(self, places: Sequence[TopicPartition]) -> bool:
        committed = self.broker.committed(self.settings.service, places)
        return all(committed[at] == self.broker.bounds(at).end for at in places)

    def alerts(self) -> Counter[bytes | None]:
        return Counter(each.value for each in self.broker.committed_records(self.settings.alerts.topic))

    def append(self, pairs: Sequence[Pair]) -> None:
        self.log.append([Append(topic="use", records=pairs)])


def run(
    settings: ServiceFile, seed: int, faults: Sequence[Fault], disks: Sequence[Disk | RocksDisk] | None = None
) -> Cluster:
    cluster, source = Cluster(settings, seed, faults, disks or [Disk(), Disk()]), world.events(3)
    for _ in range(12):
        cluster.append(world.take(source, 5))
        for _ in range(20):
            cluster.move()
    cluster.settle()
    return cluster


FAULTS = [fault for fault in Fault if fault is not Fault.SLOW]


def test_alerts_are_those_of_a_straight_run_whatever_is_killed(settings: ServiceFile) -> None:
    threads = threading.active_count()
    expected = run(settings, 0, []).alerts()
    assert len(expected) > 3
    kills = 0
    for seed in range(1, 13):
        cluster = run(settings, seed, FAULTS)
        assert cluster.alerts() == expected, seed
        kills += cluster.kills
    assert kills > 5
    assert threading.active_count() == threads
    assert not NOWHERE.exists()


def test_alerts_are_the_same_on_rocksdb(settings: ServiceFile, tmp_path: Path) -> None:
    threads, expected = threading.active_count(), run(settings, 0, []).alerts()
    for seed in range(20, 23):
        disks = [RocksDisk(tmp_path / f"{seed}-{slot}") for slot in (0, 1)]
        cluster = run(settings, seed, FAULTS, disks)
        assert cluster.kills > 0
        assert cluster.alerts() == expected, seed
        for slot in list(cluster.running):
            cluster.kill(slot)
            disks[slot].lose()
    assert threading.active_count() == threads


def test_one_seed_is_one_history(settings: ServiceFile) -> None:
    def history(seed: int) -> object:
        cluster = run(settings, seed, FAULTS)
        topics = [cluster.broker.committed_records(name) for name in sorted(cluster.broker.topics)]
        return cluster.clock.now_ms, cluster.kills, topics

    assert history(7) == history(7)


def started(settings: ServiceFile, events: int = 0) -> tuple[Cluster, Container, MemoryLog]:
    cluster = Cluster(settings, 1, [], [Disk(), Disk()])
    cluster.append(world.take(world.events(3), events))
    cluster.start(0)
    return cluster, *cluster.running[0]


def test_a_container_runs_to_the_end_of_its_input(settings: ServiceFile) -> None:
    cluster, container, _ = started(settings, 60)
    assert container.run(until_caught_up=True).events == 60
    assert cluster.read_all([TopicPartition("use", number) for number in range(cluster.partitions)])
    assert cluster.broker.open_transactions() == 0
    assert cluster.log.members("cards") == []


def test_a_container_without_a_log_waits_longer_and_longer_and_then_fails_loudly(settings: ServiceFile) -> None:
    """By its own clock: a step says how long to wait, and does not wait itself."""
    cluster, container, log = started(settings)
    log.faults = lambda _call: Fault.TIMEOUT_BEFORE
    began_ms, waits = cluster.clock.now_ms, list[float]()

    def step() -> None:
        waits.append(container.step())
        assert cluster.clock.now_ms == began_ms + int(sum(waits[:-1]) * 1000)
        cluster.clock.pass_ms(int(waits[-1] * 1000))

    assert refused_within(100, step) == "log-unusable"
    assert waits[:8] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    assert 120 <= sum(waits) <= 130


def refused_within(steps: int, step: Callable[[], object]) -> str | None:
    """The code of the refusal that ends it; None where nothing does."""
    try:
        for _ in range(steps):
            step()
    except Refused as refused:
        return refused.code
    return None


def test_what_never_comes_is_refused_by_the_clock_of_the_simulator(settings: ServiceFile) -> None:
    cluster, container, log = started(settings, 60)
    for _ in range(30):
        container.step()
    container.close()
    cluster.disks[0].lose()
    log.faults = lambda call: Fault.NOTHING if call == "read" else None
    for code, step in (
        ("restore-stuck", container.step),
        ("read-stalled", lambda: read_all(log, TopicPartition("use", 0))),
    ):
        began_ms = cluster.clock.now_ms
        assert refused_within(3_000, step) == code
        assert 120_000 <= cluster.clock.now_ms - began_ms <= 130_000
