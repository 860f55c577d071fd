"""Three brokers, of which one or two are killed under load: what a service on a real cluster goes through."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from samovar.changelog.kafka.log import KafkaLog
from samovar.changelog.log import Append, Pair, TopicPartition, TopicSpec
from samovar.common.errors import LogUnavailable
from tests.contracts.log_driving import unique
from tests.faults import world
from tests.faults.ending import ends_right, processed
from tests.faults.harness import Service, make_service, wait_until
from tests.support.kafka_cluster import NODES, Cluster, three_brokers

BATCH = 12
# As Kafka has it, but that a broker is missed sooner: after 9 s this would be a test of patience.
MISSED = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
TOPICS = 12
TIMES = 3
TRIES = 100


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with three_brokers(tmp_path_factory.mktemp("cluster"), MISSED) as started:
        yield started


def test_topics_just_made_are_there_whichever_broker_is_asked(cluster: Cluster) -> None:
    """Brokers learn of a topic one after the other. A first start makes topics, and asks for them at once."""
    for _ in range(TIMES):
        specs = [TopicSpec(unique("t"), 2, {"cleanup.policy": "delete"}, 3) for _ in range(TOPICS)]
        names = [spec.name for spec in specs]
        log, other = (KafkaLog({"bootstrap.servers": cluster.addresses}) for _ in range(2))
        log.create(specs)
        for _ in range(3):  # one broker after the other
            assert set(log.topics(names)) == set(names)
        places = [TopicPartition(name, 0) for name in names]
        assert set(log.bounds(places)) == set(places)
        log.append([Append(topic=name, records=[(b"k", b"v")], partition=0) for name in names])
        reader = log.reader(dict.fromkeys(places, 0))
        wait_until(lambda: reader.poll(100, 0.1) == [] and all(reader.position(at) == 1 for at in places), "all read")  # noqa: B023
        other.create(specs)  # as another container that was a little later
        assert set(other.topics(names)) == set(names)
        reader.close()
        log.close()
        other.close()


def test_one_broker_and_then_two_are_killed_under_load(
    cluster: Cluster, tmp_path: Path, services: list[Service], make_twin: Callable[[Service], Service]
) -> None:
    """P1, P5: nothing is lost and nothing comes twice, no event is late for it, and two brokers go on by themselves."""
    service = make_service(tmp_path / "s", world.RULES, world.STREAMS, bootstrap=cluster.addresses, replication=3)
    services.append(service)
    running = [service.start("--slot", str(slot), poll=BATCH) for slot in (0, 1)]
    source = world.events(44)
    with loaded(service, source) as load:
        goes_on(service, "before")
        one = cluster.active_controller()  # which leads partitions, and coordinates, as the others do
        asking = one_that_asks(cluster, one)
        before = ends_of(asking, service)
        cluster.kill(one)
        input_topic = service.settings.streams[world.STREAM].topic
        assert set(asking.topics([input_topic])) == {input_topic}, "it asks the one that is gone"
        assert_ends_are_told(asking, service, before)
        asking.close()
        goes_on(service, f"without broker {one}")
        cluster.start([one])
        first, second = (node for node in NODES if node != one)
        cluster.kill(first)
        cluster.kill(second)
        said = [len(each.text) for each in running]
        wait_until(
            lambda: all("starts again" in each.text[before:] for each, before in zip(running, said, strict=True)),
            "both notice that there is no quorum",
        )
        cluster.start([first, second])
        goes_on(service, "with all of them back")
        load.set()
    wait_until(lambda: processed(service), "all is processed")
    assert [each.terminate() for each in running] == [0, 0], running[0].text + running[1].text
    service.nobody_there()
    ends_right(service, make_twin)


def one_that_asks(cluster: Cluster, node: int) -> KafkaLog:
    """A log whose client takes this broker for the one to ask. In KRaft it is told any."""
    for _ in range(TRIES):
        log = KafkaLog({"bootstrap.servers": cluster.addresses})
        if log._admin.list_topics(timeout=10).controller_id == node:
            return log
        log.close()
    pytest.fail(f"no client is told to ask broker {node}")


def ends_of(log: KafkaLog, service: Service) -> dict[TopicPartition, int]:
    """Of all partitions of the service: each broker leads some."""
    settings = service.settings
    topics = [settings.streams[world.STREAM].topic, settings.changelog.topic, settings.journal.topic]
    places = [TopicPartition(topic, partition) for topic in topics for partition in range(service.partitions)]
    return {at: bounds.end for at, bounds in log.bounds(places).items()}


def assert_ends_are_told(log: KafkaLog, service: Service, before: Mapping[TopicPartition, int]) -> None:
    """As they are, or not at all: anyone who took an offset that stands for none would restore nothing."""
    found: dict[TopicPartition, int] = {}

    def is_told() -> bool:
        with suppress(LogUnavailable):
            found.update(ends_of(log, service))
        return bool(found)

    wait_until(is_told, "the ends are told by those that lead now")
    assert all(end >= before[at] for at, end in found.items()), found


@contextmanager
def loaded(service: Service, source: Iterator[Pair]) -> Iterator[threading.Event]:
    """Events come all the time, until told otherwise; one that the log does not take is tried again."""
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(0.05):
            pairs = world.take(source, 5)
            written = False
            while not written:
                with suppress(LogUnavailable):
                    service.append_pairs(world.STREAM, pairs)
                    written = True

    thread = threading.Thread(target=write, name="load")
    thread.start()
    try:
        yield ended
    finally:
        ended.set()
        thread.join()


def goes_on(service: Service, when: str) -> None:
    before = committed(service)
    wait_until(lambda: committed(service) > before + 30, f"it goes on {when}")


def committed(service: Service) -> int:
    with suppress(LogUnavailable):
        return service.committed()
    return 0
