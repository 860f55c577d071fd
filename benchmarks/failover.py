"""How long a service stands still when one of three brokers is killed: the longest time between two commits.

Brokers have Kafka's own settings, or those of `--broker NAME=VALUE`, each is a controller too, and all runs on one
machine: three brokers, two containers and a producer of a hundred events per second. With `--folder` the brokers' logs
stay there.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from confluent_kafka import Producer

from benchmarks.figures import machine
from tests.faults import world
from tests.faults.harness import Service, make_service, wait_until
from tests.support.kafka_cluster import NODES, Cluster, three_brokers
from tests.support.tunables import USUAL

EVERY_S = 0.01  # between two events
CALM_S = 10.0  # before a broker is killed, and after it is back
AWAY_S = 30.0
EACH = ("the active controller", "another broker")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks failover")
    parser.add_argument("--rounds", type=int, default=2, help="so many of each kind are killed")
    parser.add_argument("--broker", action="append", default=[], metavar="NAME=VALUE", help="a setting of the brokers")
    parser.add_argument("--client", action="append", default=[], metavar="NAME=VALUE", help="one of the containers'")
    parser.add_argument("--folder", type=Path, help="an empty folder for logs and data, which is kept")
    asked = parser.parse_args(arguments)
    print(machine(), *asked.broker, *asked.client, sep="\n")
    with tempfile.TemporaryDirectory(prefix="samovar-failover-") as folder:
        measure(asked.folder or Path(folder), asked.rounds, settings_of(asked.broker), settings_of(asked.client))
    return 0


def settings_of(given: Sequence[str]) -> dict[str, str]:
    return dict(each.split("=", 1) for each in given)


def measure(folder: Path, rounds: int, brokers: Mapping[str, str], client: Mapping[str, str]) -> None:
    with three_brokers(folder / "kafka", brokers) as cluster:
        addresses = cluster.addresses
        options = {"bootstrap": addresses, "replication": 3, "client": client, **USUAL}
        service = make_service(folder / "s", world.RULES, world.STREAMS, **options)
        try:
            running = [service.start("--slot", str(slot)) for slot in range(service.partitions)]
            wait_until(lambda: all("running partitions" in each.text for each in running), "they run")
            with loaded(service, addresses):
                for which in EACH * rounds:
                    killed = f"{time.strftime('%H:%M:%S', time.gmtime(time.time() + CALM_S))} {which}"
                    found = ", ".join(f"{pause:.1f} s" for pause in pauses(cluster, service, which))
                    print(f"{killed}: {found}", flush=True)
        finally:
            service.close()


def pauses(cluster: Cluster, service: Service, which: str) -> list[float]:
    """Of each partition, without this broker."""
    time.sleep(CALM_S)
    active = cluster.active_controller()
    node = active if which == EACH[0] else next(each for each in NODES if each != active)
    killed_ms = time.time() * 1000
    cluster.kill(node)
    time.sleep(AWAY_S)
    cluster.start([node])
    found = []
    for partition in range(service.partitions):
        times = [row.time for row in service.changelog() if row.at.partition == partition]
        times = sorted(each for each in times if killed_ms - 2_000 < each < killed_ms + AWAY_S * 1000)
        found.append(max(after - before for before, after in pairwise(times)) / 1000)
    return found


@contextmanager
def loaded(service: Service, addresses: str) -> Iterator[None]:
    ended = threading.Event()

    def write() -> None:
        producer = Producer({"bootstrap.servers": addresses, "enable.idempotence": True, "log_level": 0})
        topic = service.settings.streams[world.STREAM].topic
        for key, value in world.events(1):
            producer.produce(topic, value, key)
            producer.poll(0)
            if ended.wait(EVERY_S):
                break
        producer.flush(AWAY_S)

    thread = threading.Thread(target=write, name="load")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
