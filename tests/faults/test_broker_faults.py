"""What a broker and the network to it can do to a service: lost replies, delays, half-open connections, open
transactions of the dead, restarts.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer

from samovar.changelog.broker import node
from samovar.changelog.kafka import ends
from samovar.changelog.kafka.log import KafkaLog
from samovar.changelog.log import Append, Pair
from samovar.common.errors import LogUnavailable, Refused
from tests.contracts.log_driving import unique
from tests.faults import world
from tests.faults.ending import ends_right, open_transactions, processed
from tests.faults.harness import Service, make_service, wait_until
from tests.faults.network import through
from tests.faults.proxy import BOTH, Delay, Leg, Proxy, Way
from tests.faults.stage import staged
from tests.support.kafka import low_port, start_one

BATCH = 12
SOON = {"session.timeout.ms": "1500", "heartbeat.interval.ms": "200", "transaction.timeout.ms": "2000"}
COMMIT_S = 0.8  # for which a container waits for what does not come
AGAIN = {"reconnect.backoff.ms": "50", "reconnect.backoff.max.ms": "500"}  # how soon a client asks a broker again
# A broker that comes back is let in once the one before it is missed.
MISSED = {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "200"}


@pytest.fixture
def proxy(kafka: str) -> Iterator[Proxy]:
    made = Proxy(kafka)
    yield made
    made.close()


# ---------------------------------------------------------------- lost replies

# What gets lost, and what the container must make of it. A reply that is lost alone the client may ask for again.
LOSSES: list[tuple[str, Way, str]] = [
    ("EndTxn", "reply", ""),
    ("EndTxn", "silence", "CommitUnknown"),
    ("EndTxn", "request", "CommitUnknown"),
    ("TxnOffsetCommit", "reply", ""),
    ("TxnOffsetCommit", "silence", "LogUnavailable"),
    ("Produce", "reply", ""),  # here the client hangs for ever if nobody watches it
    ("Produce", "reply", ""),
]


def test_lost_replies_lose_nothing_and_write_nothing_twice(
    kafka: str, tmp_path: Path, services: list[Service], make_twin: Callable[[Service], Service], proxy: Proxy
) -> None:
    """P1, P5: where the outcome of a commit is unknown the producer is thrown away, and the log says what happened."""
    service = make_service(tmp_path / "s", world.RULES, world.STREAMS, bootstrap=kafka, client=SOON)
    services.append(service)
    source = world.events(41)
    running = service.start("--slot", "0", poll=BATCH, commit_s=COMMIT_S, config=through(service, proxy))
    for api, way, meant in LOSSES:
        before = len(running.text)
        lost = proxy.lose(api, way)
        service.append_pairs(world.STREAM, world.take(source, 60))
        wait_until(lost.is_set, f"a {way} of {api} is lost")
        if way != "reply":
            wait_until(lambda before=before: "starts again" in running.text[before:], f"{api}, {way}: it gives up")  # type: ignore[misc]
            proxy.light()
        wait_until(lambda: processed(service), f"{api}, {way}: all is processed")
        assert meant == "" or f"starts again: {meant}" in running.text[before:], (api, way, running.text[before:])
    assert running.terminate() == 0, running.text
    service.nobody_there()
    ends_right(service, make_twin)


# ---------------------------------------------------------------- a slow network, and connections that are dead

# To the broker, and back. The last is slower than a heartbeat, and a commit there takes seconds.
DELAYS = [
    (Delay(0.01, 0.03), Delay(0.01, 0.03)),
    (Delay(), Delay(0.05, 0.15)),
    (Delay(0.1, 0.1), Delay(0.0, 0.2)),
]


def test_a_slow_network_loses_nothing_and_writes_nothing_twice(
    kafka: str, tmp_path: Path, services: list[Service], make_twin: Callable[[Service], Service], proxy: Proxy
) -> None:
    """P1, P6: with latency and jitter on each way, and another one for each part of the input; no event is late."""
    service = make_service(tmp_path / "s", world.RULES, world.STREAMS, bootstrap=kafka, client=SOON)
    services.append(service)
    source = world.events(45)
    running = [service.start("--slot", str(slot), poll=BATCH, config=through(service, proxy)) for slot in (0, 1)]
    for request, reply in DELAYS:
        proxy.delay(request, reply)
        service.append_pairs(world.STREAM, world.take(source, 30))
        wait_until(lambda: processed(service), f"{request}, {reply}: all is processed")
    proxy.delay(Delay(), Delay())
    assert [each.terminate() for each in running] == [0, 0], running[0].text + running[1].text
    service.nobody_there()
    ends_right(service, make_twin)


# Which connections go dead, and which ways: the one that records are fetched by, that of a producer, that of the
# transaction's or the group's coordinator, and all at once.
DEAD: list[tuple[str | None, Sequence[Leg]]] = [
    ("Fetch", ["request"]),
    ("Produce", ["reply"]),
    ("EndTxn", BOTH),
    ("Heartbeat", ["reply"]),
    (None, BOTH),
]
# After so long a client gives up a connection on which it gets no answer.
ANSWERED = {"socket.timeout.ms": "1000"}


def test_half_open_connections_lose_nothing_and_write_nothing_twice(
    kafka: str, tmp_path: Path, services: list[Service], make_twin: Callable[[Service], Service], proxy: Proxy
) -> None:
    """P1, P5, P7: the other end is gone without a word, for the broker or the container; new connections work."""
    client = {**SOON, **AGAIN, **ANSWERED}
    service = make_service(tmp_path / "s", world.RULES, world.STREAMS, bootstrap=kafka, client=client)
    services.append(service)
    source = world.events(46)
    running = service.start("--slot", "0", poll=BATCH, commit_s=COMMIT_S, config=through(service, proxy))
    for api, legs in DEAD:
        service.append_pairs(world.STREAM, world.take(source, 12))
        wait_until(lambda: processed(service), f"before {api}, {legs}: it is at work")
        swallowed = proxy.half_open(legs, api)
        service.append_pairs(world.STREAM, world.take(source, 40))
        wait_until(swallowed.is_set, f"{api}, {legs}: a message is lost")
        wait_until(lambda: processed(service), f"{api}, {legs}: all is processed")
    assert running.terminate() == 0, running.text
    service.nobody_there()
    ends_right(service, make_twin)


def test_a_half_open_connection_makes_no_event_late(
    kafka: str, tmp_path: Path, services: list[Service], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: producers write while the container gets nothing. Event time does not go on by the clock: the log can still
    be asked for its ends, and they are not where the container is.
    """
    for name, seconds in {"LOOK_S": 0.05, "FRESH_S": 0.4, "BREAK_S": 0.8}.items():
        monkeypatch.setattr(ends, name, seconds)
    streams = {world.STREAM: {"key": "card", "type": "kind", "idle": "5s", "partitions": 1}}
    service = make_service(tmp_path / "s", {"forgotten": FORGOTTEN}, streams, bootstrap=proxy.address)
    services.append(service)
    beside = KafkaLog({"bootstrap.servers": kafka})
    with closing(beside), staged(service) as here:
        here.feed(world.STREAM, use("login", 0))
        proxy.half_open(BOTH, "Fetch")
        topic = service.settings.streams[world.STREAM].topic
        beside.append([Append(topic=topic, records=[(b"c", json.dumps(use("logout", 20)).encode())], partition=0)])
        written_s = time.monotonic()
        wait_until(lambda: time.monotonic() > written_s + 1, "what the log said before says nothing any more")
        here.clock.pass_ms(100_000)
        for _ in range(20):
            here.container.cycle()
        proxy.light()

        def go_on() -> None:
            try:
                here.container.cycle()
            except LogUnavailable:  # its connections are gone: it starts again
                here.crash()

        wait_until(lambda: processed(service), "what was written meanwhile is processed", go_on)
        assert service.late() == []
        assert service.alerts() == []
        assert [entry.kind for entry in service.journal()] == ["rules"]


# ---------------------------------------------------------------- open transactions of the dead


class DeadWriter:
    """A producer that stops in the middle of its transaction and is never heard of again."""

    def __init__(self, kafka: str, timeout_ms: int) -> None:
        settings = {"bootstrap.servers": kafka, "transactional.id": unique("dead")}
        self.producer = Producer({**settings, "transaction.timeout.ms": timeout_ms})
        self.producer.init_transactions(30)
        self.producer.begin_transaction()

    def write(self, topic: str, partition: int, pairs: Sequence[Pair]) -> None:
        for key, value in pairs:
            self.producer.produce(topic, value, key, partition)
        assert self.producer.flush(30) == 0


def test_a_restore_passes_an_open_transaction_of_a_dead_writer(
    kafka: str, tmp_path: Path, services: list[Service], make_twin: Callable[[Service], Service]
) -> None:
    """P3, P7: what it wrote is not restored, and what was committed above it is not missed (KAFKA-10167)."""
    service = make_service(tmp_path / "s", world.RULES, world.STREAMS, bootstrap=kafka, client=SOON)
    services.append(service)
    source = world.events(42)
    service.append_pairs(world.STREAM, world.take(source, 150))
    service.run_to_end(poll=BATCH)
    topic = service.settings.changelog.topic
    stolen = [(row.key, row.value) for row in service.changelog() if row.at.partition == 0]
    running = service.start(poll=BATCH)
    wait_until(lambda: "running partitions 0, 1" in running.text, "it is at work again")
    # Rows of long ago and tombstones: anyone who took them would have another state.
    DeadWriter(kafka, 8_000).write(topic, 0, [*stolen[: len(stolen) // 2], *[(key, None) for key, _ in stolen[-3:]]])
    service.append_pairs(world.STREAM, world.take(source, 150))
    wait_until(lambda: processed(service), "it commits above the open transaction")
    running.kill()
    assert f"{topic}/0" in open_transactions(service)

    service.wipe()
    restored = service.start("--until-caught-up", poll=BATCH)
    wait_until(lambda: "restoring 0" in restored.text, "it waits for the outcome")
    assert f"{topic}/0" in open_transactions(service), "the transaction ended too soon for this test"
    assert restored.ended() == 0, restored.text
    ends_right(service, make_twin)


# ---------------------------------------------------------------- the broker itself


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[node.Broker, Path]]:
    """A broker that a test may end."""
    started, folder = start_one(tmp_path_factory.mktemp("own-kafka"), low_port, MISSED)
    yield started, folder
    node.stop(folder)


FORGOTTEN = """
rule: forgotten
match: |
  sequence by card with maxspan=60s
    [login where true] as came
    ![logout where true]
"""


def use(kind: str, at_s: int, card: str = "c") -> dict[str, object]:
    return {"card": card, "kind": kind, "ts": world.START_MS + at_s * 1_000}


def test_an_outage_makes_no_event_late(
    own_kafka: tuple[node.Broker, Path], tmp_path: Path, services: list[Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1: event time does not go on by the clock while the log cannot be reached, nor right after it: producers could
    not write either, and what they kept comes with the time that it had.
    """
    for name, seconds in {"LOOK_S": 0.05, "FRESH_S": 0.4, "BREAK_S": 0.8}.items():
        monkeypatch.setattr(ends, name, seconds)
    streams = {world.STREAM: {"key": "card", "type": "kind", "idle": "5s", "partitions": 1}}
    service = make_service(tmp_path / "s", {"forgotten": FORGOTTEN}, streams, bootstrap=own_kafka[0].address)
    services.append(service)
    process = node.running_in(own_kafka[1])
    assert process is not None
    with staged(service) as here:
        here.feed(world.STREAM, use("login", 0))
        os.kill(process.pid, signal.SIGSTOP)
        try:
            stopped_s = time.monotonic()
            wait_until(lambda: time.monotonic() > stopped_s + 1, "it is away for longer than any look says something")
            here.clock.pass_ms(100_000)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        for _ in range(20):
            here.container.cycle()  # before a producer gets to it
        here.feed(world.STREAM, use("logout", 20))
        assert service.late() == []
        assert [entry.kind for entry in service.journal()] == ["rules"]
        here.feed(world.STREAM, use("login", 30, "d"))
        end = world.START_MS + 90_000

        def later() -> None:
            here.clock.pass_ms(1_000)
            here.container.cycle()

        wait_until(lambda: bool(service.alerts()), "idle in earnest, event time goes on", later)
        assert [(alert["key"], alert["at"]) for alert in service.alerts()] == [({"card": "d"}, end)]


def test_the_broker_is_restarted_under_load(
    own_kafka: tuple[node.Broker, Path],
    tmp_path: Path,
    services: list[Service],
    make_twin: Callable[[Service], Service],
) -> None:
    """P1, P5: ended cleanly, then killed. Two containers go on by themselves when it is back."""
    address, folder = own_kafka[0].address, own_kafka[1]
    service = make_service(tmp_path / "s", world.RULES, world.STREAMS, bootstrap=address, client={**SOON, **AGAIN})
    services.append(service)
    source = world.events(43)
    running = [service.start("--slot", str(slot), poll=3, commit_s=COMMIT_S) for slot in (0, 1)]
    for how in (signal.SIGTERM, signal.SIGKILL):
        aim = service.written() + 60
        service.append_pairs(world.STREAM, world.take(source, 300))
        wait_until(lambda aim=aim: service.committed() > aim, "they are in the middle of it")  # type: ignore[misc]
        with told_all(service, [each.process.pid or 0 for each in running]):
            port = ended(folder, how)
        node.start(folder, port, lambda _text: None, MISSED)
        service.append_pairs(world.STREAM, world.take(source, 100))
        wait_until(lambda: processed(service), f"all is processed after {how.name}")
    assert [each.terminate() for each in running] == [0, 0], running[0].text + running[1].text
    service.nobody_there()
    ends_right(service, make_twin)


@contextmanager
def told_all(service: Service, pids: Sequence[int]) -> Iterator[None]:
    """With the containers stopped where they are, and no commit of theirs only half told. A single Kafka node (4.3.1)
    that ends between a commit and its markers never writes these: "Couldn't find leader endpoint ... likely deleted".
    """
    wait_until(lambda: stopped_between_two(service, pids), "no transaction is open")
    try:
        service.committed()  # waits for what is pending
        yield
    finally:
        send(pids, signal.SIGCONT)


def stopped_between_two(service: Service, pids: Sequence[int]) -> bool:
    """Stop all; where that was in the middle of a transaction, which would stay open for long, let them go on."""
    send(pids, signal.SIGSTOP)
    if not open_transactions(service):
        return True
    send(pids, signal.SIGCONT)
    return False


def send(pids: Sequence[int], what: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, what)


def ended(folder: Path, how: signal.Signals) -> int:
    process = node.running_in(folder)
    assert process is not None
    os.kill(process.pid, how)
    wait_until(lambda: node.running_in(folder) is None and is_free(process.port), "the broker is gone")
    return process.port


def is_free(port: int) -> bool:
    """A process that was killed may be gone a moment before its sockets are."""
    with suppress(Refused):
        node.refuse_taken(port)
        return True
    return False
