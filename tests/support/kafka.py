"""A real Kafka for the tests: a given one, else one in Docker, else one on this machine. None at all is a failure."""

from __future__ import annotations

import fcntl
import os
import random
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import docker  # type: ignore[import-untyped] # ships no types
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from testcontainers.core.container import DockerContainer

from samovar.changelog.broker import node
from samovar.changelog.broker.jars import VERSION
from samovar.changelog.broker.process import free_port, wait_for
from samovar.common.errors import Refused

GIVEN = "SAMOVAR_TEST_KAFKA"
HINT = f"These tests need a real Kafka: set {GIVEN} to the address of one, or install Docker or Java."
START_S = 120
TRIES = 3
ANSWER_S = 2
USED_S = 3_600  # for which the one that started a broker waits for the others
# A dead writer's transaction ends soon after its time. Not for a broker that is restarted: while it starts, such an end
# would be forgotten for good by a single node.
SOON = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker on which tests may make and delete topics. Names must be a test's own."""
    given = os.environ.get(GIVEN)
    if given is not None:
        if not wait_for(lambda: answers(given), ANSWER_S):
            pytest.fail(f"no Kafka answers at {GIVEN}={given}\n{HINT}")
        yield given
    elif "PYTEST_XDIST_WORKER" in os.environ:
        with shared(tmp_path_factory.getbasetemp().parent / "kafka") as address:
            yield address
    else:
        with one_of_ours(tmp_path_factory.mktemp("kafka")) as address:
            yield address


@contextmanager
def shared(folder: Path) -> Iterator[str]:
    """One broker for all workers of a run. The first one that asks starts it, and ends it when no other uses it.

    FOLDER/address is there while it runs; each user holds a lock on FOLDER/users, which ends with its process.
    """
    folder.mkdir(exist_ok=True)
    told = folder / "address"
    with (folder / "users").open("w") as users, ExitStack() as started:
        with locked(folder):
            is_first = not told.exists()
            if is_first:
                told.write_text(started.enter_context(one_of_ours(folder)))
                started.callback(told.unlink)
            fcntl.flock(users, fcntl.LOCK_SH)
            address = told.read_text()
        yield address
        if is_first:
            wait_for(lambda: ended_unused(folder, users, started), USED_S)


def ended_unused(folder: Path, users: IO[str], started: ExitStack) -> bool:
    """Whether nobody else uses the broker; then it is ended. One who comes meanwhile waits, and starts another."""
    with locked(folder):
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        started.close()
        return True


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    with (folder / "starting").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def one_of_ours(folder: Path) -> Iterator[str]:
    with in_docker() if docker_answers() else on_this_machine(folder) as address:
        yield address


@contextmanager
def on_this_machine(folder: Path) -> Iterator[str]:
    started, folder = start_one(folder)
    try:
        yield started.address
    finally:
        node.stop(folder)


def start_one(
    folder: Path, port_of: Callable[[str], int] = free_port, extra: Mapping[str, str] = SOON
) -> tuple[node.Broker, Path]:
    """A port that was free may be another's a moment later: then once more, on another one and with nothing there."""
    told = ""
    for number in range(TRIES):
        try:
            there = folder / str(number)
            return node.start(there, port_of(node.HOST), lambda _text: None, extra), there
        except Refused as refused:
            told = str(refused)
    pytest.fail(f"{told}\n{HINT}", pytrace=False)


def low_port(host: str) -> int:
    """A free port that the system gives to no client: one that asks for a broker that is away could otherwise be
    connected with itself, and the port would be taken when the broker comes back.
    """
    for port in random.sample(range(20_000, 30_000), 100):
        with suppress(OSError), socket.socket() as probe:
            probe.bind((host, port))
            return port
    pytest.fail("no port is free", pytrace=False)


@contextmanager
def in_docker() -> Iterator[str]:
    """The same Kafka with the same settings. The port is one inside and outside, since clients are told it."""
    port = free_port(node.HOST)
    container = DockerContainer(f"apache/kafka:{VERSION}").with_bind_ports(port, port)
    host = container.get_container_host_ip()
    settings = (
        node.SETTINGS
        | SOON
        | {
            "listeners": f"PLAINTEXT://0.0.0.0:{port},CONTROLLER://0.0.0.0:9093",
            "advertised.listeners": f"PLAINTEXT://{host}:{port}",
            "controller.quorum.voters": "1@localhost:9093",
        }
    )
    for name, value in settings.items():
        container.with_env(f"KAFKA_{name.upper().replace('.', '_')}", value)
    with container:
        if not wait_for(lambda: answers(f"{host}:{port}"), START_S):
            pytest.fail(f"Kafka in Docker did not answer within {START_S} s\n{HINT}")
        yield f"{host}:{port}"


def docker_answers() -> bool:
    if not os.environ.get("DOCKER_HOST") and not Path("/var/run/docker.sock").exists():
        return False  # asking anyway would leave a socket open
    with suppress(docker.errors.DockerException):
        client = docker.from_env(timeout=ANSWER_S)
        try:
            return bool(client.ping())
        finally:
            client.close()
    return False


def answers(address: str) -> bool:
    with suppress(KafkaException):
        client = AdminClient({"bootstrap.servers": address, "log_level": 0})
        return bool(client.list_topics(timeout=ANSWER_S).brokers)
    return False
