"""Three Kafka brokers on this machine, each of them a controller too, for tests that end some of them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from samovar.changelog.broker import node as broker
from samovar.changelog.broker.jars import find_java, kafka_jars
from samovar.changelog.broker.process import wait_for
from samovar.common.errors import Refused
from tests.support.kafka import HINT, low_port

NODES = (1, 2, 3)
START_S = 120.0
SMALL = ("-Xms64m", "-Xmx192m")
# Who leads the controllers, and which broker is missed since when.
TOLD = tuple(f"-Dorg.slf4j.simpleLogger.log.org.apache.kafka.{name}=info" for name in ("raft", "controller"))
# What a single node sets for itself, as Kafka has it where there are others: the time after which a broker is missed,
# how internal topics are replicated, and a broker that hands its partitions over before it ends.
AS_USUAL = {
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
    "controlled.shutdown.enable": "true",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "min.insync.replicas": "2",
}


@dataclass(frozen=True)
class Cluster:
    """Brokers by the numbers of their nodes. The source of truth for where each of them is."""

    folder: Path
    ports: Mapping[int, int]
    controllers: Mapping[int, int]
    cluster: str
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def addresses(self) -> str:
        return ",".join(f"{broker.HOST}:{port}" for port in self.ports.values())

    def start(self, nodes: Collection[int]) -> None:
        """All at once: one alone is no quorum, and answers nobody."""
        java = find_java()
        jars = kafka_jars(java, lambda _text: None)
        launched = {
            node: broker.launch(
                self._folder(node),
                self.ports[node],
                java,
                jars,
                self._settings(node),
                cluster=self.cluster,
                java_options=(*SMALL, *TOLD),
            )
            for node in nodes
        }
        for node, process in launched.items():
            broker.wait_until_answers(self._folder(node), process)
        wait_for(lambda: set(self._known()) >= set(nodes), START_S)

    def kill(self, node: int) -> None:
        """As a machine without power: nobody is told."""
        process = broker.running_in(self._folder(node))
        assert process is not None, f"broker {node} does not run"
        os.kill(process.pid, signal.SIGKILL)
        assert wait_for(lambda: broker.running_in(self._folder(node)) is None, START_S)

    def stop(self) -> None:
        """Killed: a cluster that is thrown away need not hand its partitions over."""
        for node in self.ports:
            if broker.running_in(self._folder(node)) is not None:
                self.kill(node)

    def active_controller(self) -> int:
        """As a node that runs last heard; what clients are told is any broker that passes requests on."""
        running = next(node for node in self.ports if broker.running_in(self._folder(node)) is not None)
        quorum = self._folder(running) / "data" / "__cluster_metadata-0" / "quorum-state"
        return int(json.loads(quorum.read_text())["leaderId"])

    def _known(self) -> list[int]:
        return list(self._admin().list_topics(timeout=broker.ANSWER_S).brokers)

    def _admin(self) -> Any:
        return AdminClient({"bootstrap.servers": self.addresses, "log_level": 0})

    def _folder(self, node: int) -> Path:
        return self.folder / str(node)

    def _settings(self, node: int) -> dict[str, str]:
        own = f"PLAINTEXT://{broker.HOST}:{self.ports[node]}"
        voters = ",".join(f"{each}@{broker.HOST}:{port}" for each, port in self.controllers.items())
        return {
            **AS_USUAL,
            "node.id": str(node),
            "listeners": f"{own},CONTROLLER://{broker.HOST}:{self.controllers[node]}",
            "advertised.listeners": own,
            "controller.quorum.voters": voters,
            **self.extra,
        }


@contextmanager
def three_brokers(folder: Path, extra: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    ports = {node: low_port(broker.HOST) for node in NODES}
    controllers = {node: low_port(broker.HOST) for node in NODES}
    cluster = Cluster(folder, ports, controllers, broker.cluster_of(folder), extra or {})
    try:
        for node in NODES:
            cluster._folder(node).mkdir(parents=True)
        try:
            cluster.start(NODES)
        except Refused as refused:
            pytest.fail(f"{refused}\n{HINT}", pytrace=False)
        yield cluster
    finally:
        cluster.stop()
