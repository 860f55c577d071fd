"""Rounds of `make chaos`: each is a world of its own, drawn from SAMOVAR_SEED, with SAMOVAR_KILLS faults in it and all
checks at its end. Named so that `make test` does not collect them; to repeat one, give pytest this file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.faults import world
from tests.faults.conftest import Making
from tests.faults.ending import ends_right
from tests.faults.harness import Service, make_service
from tests.faults.killing import SNAPSHOTS, KillLoop, kills_of_round, strike_all
from tests.faults.network import CLIENT, disturb
from tests.faults.proxy import Proxy
from tests.support.kafka_cluster import Cluster, three_brokers
from tests.support.tunables import random_of_test, tiny_section

SIZE = int(os.environ.get("SAMOVAR_KILLS", "5"))
# As Kafka has it, but that a broker is missed sooner.
MISSED = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with three_brokers(tmp_path / "cluster", MISSED) as started:
        yield started


def test_kills(make: Making, make_twin: Callable[[Service], Service]) -> None:
    """P1 to P5: killed at every point and at random moments, on one broker or none."""
    random_ = random_of_test()
    service = make(world.RULES, world.STREAMS, snapshots=SNAPSHOTS, **tiny_section(random_, clock_goes_on=True))
    loop = KillLoop(service, random_, draws_poll=True)
    strike_all(loop, kills_of_round(random_, SIZE), make_twin)


def test_kills_on_three_brokers(
    cluster: Cluster, tmp_path: Path, services: list[Service], make_twin: Callable[[Service], Service]
) -> None:
    """P1 to P5: the same with three replicas, of which two must have a record, and with brokers that are killed too."""
    random_ = random_of_test()
    options: dict[str, Any] = {"bootstrap": cluster.addresses, "replication": 3, "snapshots": SNAPSHOTS}
    options |= tiny_section(random_, clock_goes_on=True)
    services.append(make_service(tmp_path / "service", world.RULES, world.STREAMS, **options))
    loop = KillLoop(services[0], random_, cluster, draws_poll=True)
    strike_all(loop, kills_of_round(random_, SIZE, brokers=True), make_twin)


def test_network_faults(
    kafka: str, tmp_path: Path, services: list[Service], make_twin: Callable[[Service], Service]
) -> None:
    """P1, P5, P6: two containers, and between them and their broker whatever a network can do, one after the other."""
    random_ = random_of_test()
    options: dict[str, Any] = {"bootstrap": kafka, "client": CLIENT, **tiny_section(random_, clock_goes_on=True)}
    services.append(make_service(tmp_path / "service", world.RULES, world.STREAMS, **options))
    with closing(Proxy(kafka)) as proxy:
        disturb(services[0], proxy, random_, SIZE)
    ends_right(services[0], make_twin)
