"""The contract of a Log on a real Kafka, and what only Kafka can do wrong."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPlace
from confluent_kafka.admin import AdminClient

from samovar.changelog.broker import node
from samovar.changelog.broker.process import free_port
from samovar.changelog.cursors import available_reader
from samovar.changelog.kafka import log as kafka_log
from samovar.changelog.kafka import member
from samovar.changelog.kafka import settings as kafka_settings
from samovar.changelog.kafka.log import KafkaLog
from samovar.changelog.kafka.settings import Settings
from samovar.changelog.log import Append, Bounds, Log, Reader, TopicPartition, TopicSpec
from samovar.common import failpoints
from samovar.common.errors import Fenced, LogUnavailable, Refused
from tests.contracts.log import LogContract
from tests.contracts.log_driving import (
    NewLog,
    Seat,
    commit_offsets,
    read_to_end,
    read_until,
    seated,
    unique,
    until,
    values,
)
from tests.support.kafka import SOON

# A member that closes is counted until its session is over.
MISSED_SOON = {"session.timeout.ms": "1500", "heartbeat.interval.ms": "300"}


@pytest.fixture(scope="module")
def log(kafka: str) -> Iterator[Log]:
    log = KafkaLog({"bootstrap.servers": kafka, **MISSED_SOON})
    yield log
    log.close()


@pytest.fixture
def new_log(kafka: str) -> Iterator[NewLog]:
    logs: list[KafkaLog] = []

    def make() -> Log:
        logs.append(KafkaLog({"bootstrap.servers": kafka, **MISSED_SOON}))
        return logs[-1]

    yield make
    for each in logs:
        each.close()


class TestKafkaLog(LogContract):
    """Every sentence of samovar.changelog.log."""


# ---------------------------------------------------------------- dead writers


class DeadWriter:
    """A producer that stops in the middle of its transaction and is never heard of again."""

    def __init__(self, kafka: str, timeout_ms: int) -> None:
        name = unique("dead")
        self.producer = Producer(
            {"bootstrap.servers": kafka, "transactional.id": name, "transaction.timeout.ms": timeout_ms}
        )
        self.producer.init_transactions(30)
        self.producer.begin_transaction()

    def write(self, at: TopicPartition, value: bytes) -> None:
        self.producer.produce(at.topic, value, partition=at.partition)
        assert self.producer.flush(30) == 0

    def send_offsets(self, kafka: str, group: str, at: TopicPartition, offset: int) -> None:
        consumer = Consumer({"bootstrap.servers": kafka, "group.id": group})
        self.producer.send_offsets_to_transaction([KafkaPlace(*at, offset)], consumer.consumer_group_metadata(), 30)
        consumer.close()


def test_the_end_is_the_high_watermark_and_a_reader_gets_there(log: Log, kafka: str) -> None:
    """P7: records above a dead writer's open transaction are waited for, and come when its time is over."""
    at = made(log)
    log.append([Append(topic=at.topic, records=[(b"k", b"before")], partition=0)])
    DeadWriter(kafka, 2_000).write(at, b"never")
    log.append([Append(topic=at.topic, records=[(b"k", b"above")], partition=0)])
    end = log.bounds([at])[at].end
    assert end == 3
    with closing(log.reader({at: 0})) as reader:
        first = read_until(reader, lambda found: len(found) == 1)
        assert values(first) == [b"before"]
        assert reader.position(at) == 1
        rest = read_until(reader, lambda _: reader.position(at) >= end)
        assert values(rest) == [b"above"]


def test_committed_waits_for_the_outcome(log: Log, kafka: str) -> None:
    """P3: an offset that may yet be committed, or not, is no answer."""
    at, group = made(log), unique("g")
    commit_offsets(log, group, {at: 1})
    with ThreadPoolExecutor() as pool:
        for offset, ended, expected in ((5, "commit_transaction", 5), (9, "abort_transaction", 5)):
            writer = DeadWriter(kafka, 20_000)
            writer.write(at, b"x")
            writer.send_offsets(kafka, group, at, offset)
            asking = pool.submit(log.committed, group, [at])
            with pytest.raises(TimeoutError):  # no answer while the transaction is open
                asking.result(0.5)
            getattr(writer.producer, ended)(30)
            assert asking.result(30) == {at: expected}


# ---------------------------------------------------------------- zombies


def test_a_member_that_was_away_for_too_long_is_fenced(log: Log, kafka: str) -> None:
    """P6: one of another slot, whose partitions were given to others while it did not poll."""
    soon = {"session.timeout.ms": "1000", "heartbeat.interval.ms": "200", "max.poll.interval.ms": "1000"}
    late = {"linger.ms": "1000"}  # what it writes is still in its queue when it is refused
    at, out, group = made(log), made(log), unique("g")
    zombie = seated(Seat(KafkaLog({"bootstrap.servers": kafka, **soon, **late}), group, [at.topic]), 1)
    heir = seated(Seat(log, group, [at.topic], slot=1), 1)
    heir.member.transact([Append(topic=out.topic, records=[(b"k", b"heir")], partition=0)], {at: 1})
    with pytest.raises(Fenced):
        zombie.member.transact([Append(topic=out.topic, records=[(b"k", b"zombie")], partition=0)], {at: 9})
    zombie.member.close()
    heir.member.close()
    assert log.committed(group, [at]) == {at: 1}
    assert values(read_to_end(log, out.topic)) == [b"heir"]


def test_offsets_of_a_foreign_partition_are_fenced(log: Log) -> None:
    at, group = made(log), unique("g")
    seat = seated(Seat(log, group, [at.topic]), 1)
    with pytest.raises(Fenced):
        seat.member.transact([], {TopicPartition(made(log).topic, 0): 1})
    seat.member.close()


# ---------------------------------------------------------------- a broker that goes away


def test_a_broker_that_goes_away_is_told_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P5, P7: nothing hangs, nothing is written later, and the next member goes on."""
    for name in ("OFFSETS_S", "COMMIT_S", "ABORT_S"):
        monkeypatch.setattr(member, name, 2.0)
    port, group = free_port(node.HOST), unique("g")
    address = node.start(tmp_path, port, lambda _text: None, SOON).address
    fresh = KafkaLog({"bootstrap.servers": address})
    assert fresh.members(group) == []  # of a broker where no group ever was, too
    fresh.close()

    def passing(point: str) -> None:
        process = node.running_in(tmp_path)
        if point == "produce.before" and process is not None:
            os.kill(process.pid, signal.SIGKILL)

    try:
        log = KafkaLog({"bootstrap.servers": address, "transaction.timeout.ms": "3000", **MISSED_SOON})
        at, out = made(log), made(log)
        seat = seated(Seat(log, group, [at.topic]), 1)
        seat.member.transact([Append(topic=out.topic, records=[(b"k", b"1")], partition=0)], {at: 1})
        assert log.committed(group, [at]) == {at: 1}  # a single node that ends before it has told all may never do so
        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "hit", passing)
            with pytest.raises(LogUnavailable):
                seat.member.transact([Append(topic=out.topic, records=[(b"k", b"lost")], partition=0)], {at: 2})
        seat.member.close()
        node.start(tmp_path, port, lambda _text: None, SOON)
        assert log.members(group) in ([], [f"{group}-0"])  # a session may outlive the broker that held it
        assert log.committed(group, [at]) == {at: 1}
        again = seated(Seat(log, group, [at.topic]), 1)
        again.member.transact([Append(topic=out.topic, records=[(b"k", b"2")], partition=0)], {at: 2})
        again.member.close()
        assert values(read_to_end(log, out.topic)) == [b"1", b"2"]
        log.close()
    finally:
        node.stop(tmp_path)


def test_polling_a_broker_that_is_away_says_so() -> None:
    log = KafkaLog({"bootstrap.servers": f"{node.HOST}:{free_port(node.HOST)}"})
    with closing(log.reader({TopicPartition("t", 0): 0})) as reader, pytest.raises(LogUnavailable):
        until(lambda: False, lambda: reader.poll(1, 0.1), "poll raises LogUnavailable")


# ---------------------------------------------------------------- a broker that lags


@contextmanager
def not_known_at_first(log: Log, kafka: str, for_s: float = 0.5) -> Iterator[str]:
    """A topic that was made, and that the broker knows only a moment later: as one of several that learns of it last.
    There is one broker here, so the topic is away for that moment.
    """
    spec = TopicSpec(unique("t"), 1, {})
    log.create([spec])
    other = KafkaLog({"bootstrap.servers": kafka})
    other.delete([spec.name])
    learning = Timer(for_s, other.create, ([spec],))
    learning.start()
    yield spec.name
    learning.join()
    other.close()


def test_a_topic_just_made_is_there_though_a_broker_does_not_know_it_yet(new_log: NewLog, kafka: str) -> None:
    log = new_log()
    with not_known_at_first(log, kafka) as name:
        assert set(log.topics([name])) == {name}


def test_offsets_of_a_topic_just_made_are_asked_for_until_they_are_known(new_log: NewLog, kafka: str) -> None:
    log = new_log()
    with not_known_at_first(log, kafka) as name:
        assert log.bounds([TopicPartition(name, 0)]) == {TopicPartition(name, 0): (0, 0)}


def test_a_group_that_reads_a_topic_just_made_is_not_refused(new_log: NewLog, kafka: str) -> None:
    """It may have to be joined again; never is it said that the topic is not there."""
    log = new_log()
    with not_known_at_first(log, kafka, 3.0) as name:
        seat = Seat(log, unique("g"), [name])
        with suppress(LogUnavailable):
            seated(seat, 1)
        seat.member.close()


def test_a_topic_that_is_gone_for_long_is_missing(new_log: NewLog, kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log, other = new_log(), new_log()
    name = made(log).topic
    other.delete([name])
    monkeypatch.setattr(kafka_settings, "LAG_S", 0.0)
    assert log.topics([name]) == {}


def first_answer(log: KafkaLog, monkeypatch: pytest.MonkeyPatch, question: str, answer: Any, *, times: int = 1) -> None:
    """The first time that this is asked, or the first times, all answers are this one, or fail with it."""
    ask, asked = getattr(log._admin, question), list[Any]()

    def answers(names: Collection[Any], **more: Any) -> Any:
        asked.append(names)
        if len(asked) > times:
            return ask(names, **more)
        futures = {name: Future[Any]() for name in names}
        for future in futures.values():
            (future.set_exception if isinstance(answer, Exception) else future.set_result)(answer)
        return futures

    monkeypatch.setattr(log._admin, question, answers)


def test_a_topic_just_made_is_there_though_the_broker_that_has_its_settings_does_not_know_it_yet(
    new_log: NewLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log()
    assert isinstance(log, KafkaLog)
    name = made(log).topic
    first_answer(log, monkeypatch, "describe_configs", KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
    assert set(log.topics([name])) == {name}


def test_a_controller_that_is_gone_is_waited_for_while_other_brokers_answer(
    new_log: NewLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that starts in the seconds in which a cluster still names a dead broker would end."""
    log = new_log()
    assert isinstance(log, KafkaLog)
    name, away = made(log).topic, KafkaException(KafkaError(KafkaError._TIMED_OUT, "waiting for controller"))
    first_answer(log, monkeypatch, "describe_configs", away, times=2 * len(kafka_log.TRIES_S))
    assert set(log.topics([name])) == {name}
    monkeypatch.setattr(kafka_log, "ASK_S", 0.0)
    first_answer(log, monkeypatch, "describe_configs", away, times=len(kafka_log.TRIES_S))
    with pytest.raises(LogUnavailable, match="waiting for controller"):
        log.topics([name])


def test_an_offset_that_stands_for_none_is_no_answer(new_log: NewLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """P7: the client gives it for a partition whose leader is gone. A restore up to there would restore nothing."""
    log = new_log()
    assert isinstance(log, KafkaLog)
    at = made(log)
    log.append([Append(topic=at.topic, records=[(b"k", b"v")], partition=at.partition)])
    first_answer(log, monkeypatch, "list_offsets", SimpleNamespace(offset=OFFSET_INVALID))
    assert log.bounds([at])[at] == Bounds(0, 1)
    first_answer(log, monkeypatch, "list_offsets", SimpleNamespace(offset=OFFSET_INVALID))
    assert log._ends_now([at]) == {}
    assert log._ends_now([at]) == {at: 1}


def test_looking_at_topics_leaves_nothing_behind(log: Log) -> None:
    """A service looks at its topics every second, for months."""
    name = made(log).topic

    def ids() -> int:
        return sum(type(each).__name__ == "Uuid" for each in gc.get_objects())

    before = ids()
    assert len({log.topics([name])[name].id for _ in range(20)}) == 1
    assert ids() <= before


def test_a_topic_may_be_asked_for_twice_at_once(log: Log) -> None:
    """Two stages may read the same one."""
    name = made(log).topic
    assert set(log.topics([name, name])) == {name}


# ---------------------------------------------------------------- what cannot be read or written


@pytest.mark.parametrize("start", [0, 99])
def test_a_position_outside_of_the_log_is_refused(log: Log, kafka: str, start: int) -> None:
    """P4: records that were deleted, or a position beyond the end."""
    at = made(log)
    log.append([Append(topic=at.topic, records=[(b"k", b"%d" % number) for number in range(5)], partition=0)])
    admin = AdminClient({"bootstrap.servers": kafka})
    for deleted in admin.delete_records([KafkaPlace(*at, 3)]).values():
        deleted.result(30)
    with closing(log.reader({at: start})) as reader, pytest.raises(Refused) as refused:
        read_until(reader, lambda _: False)
    assert refused.value.code == "log-truncated"
    assert f"offset {start}" in refused.value.what


def test_who_asks_for_what_is_there_goes_on_with_the_first_record_that_is_left(log: Log, kafka: str) -> None:
    """Of the partition that was cut; another one that is read with it loses nothing."""
    name = unique("t")
    log.create([TopicSpec(name, 2)])
    cut, whole = TopicPartition(name, 0), TopicPartition(name, 1)
    for at in (cut, whole):
        log.append(
            [Append(topic=name, records=[(b"k", b"%d" % number) for number in range(5)], partition=at.partition)]
        )
    admin = AdminClient({"bootstrap.servers": kafka})
    for deleted in admin.delete_records([KafkaPlace(*cut, 3)]).values():
        deleted.result(30)
    found: dict[TopicPartition, list[int]] = {cut: [], whole: []}
    with closing(available_reader(log, {cut: 0, whole: 0})) as reader:
        while any(reader.position(at) < 5 for at in found):
            for records in reader.poll(10, 0.1):
                found[TopicPartition(records.topic, records.partition)] += records.offsets.tolist()
    assert found == {cut: [3, 4], whole: [0, 1, 2, 3, 4]}


def test_a_record_that_is_too_large_is_refused_and_nothing_is_written(log: Log) -> None:
    name, group = unique("t"), unique("g")
    log.create([TopicSpec(name, 1, {"max.message.bytes": "2000"})])
    at = TopicPartition(name, 0)
    large = os.urandom(3000)  # cannot be compressed
    with pytest.raises(Refused) as refused:
        log.append([Append(topic=name, records=[(b"k", large)], partition=0)])
    assert refused.value.code == "record-too-large"
    seat = seated(Seat(log, group, [name]), 1)
    with pytest.raises(Refused) as refused:
        seat.member.transact(
            [
                Append(topic=name, records=[(b"k", b"small")], partition=0),
                Append(topic=name, records=[(b"k", large)], partition=0),
            ],
            {at: 1},
        )
    assert refused.value.code == "record-too-large"
    seat.member.close()
    assert log.committed(group, [at]) == {at: None}
    assert read_to_end(log, name) == []


def test_a_transaction_that_failed_before_its_offsets_says_why(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    name, group = unique("t"), unique("g")
    log.create([TopicSpec(name, 1, {"max.message.bytes": "2000"})])
    at = TopicPartition(name, 0)
    seat = seated(Seat(log, group, [name]), 1)
    assert isinstance(seat.member, member.KafkaMember)
    producer = seat.member._writer.producer
    monkeypatch.setattr(failpoints, "hit", lambda point: producer.flush(30) if point == "offsets.before" else None)
    with pytest.raises(Refused) as refused:
        seat.member.transact(
            [Append(topic=name, records=[(b"k", os.urandom(3000)), (b"k", b"small")], partition=0)], {at: 1}
        )
    assert refused.value.code == "record-too-large"
    seat.member.close()
    assert log.committed(group, [at]) == {at: None}


def test_a_full_queue_keeps_the_order(kafka: str, log: Log) -> None:
    at = made(log)
    narrow = KafkaLog({"bootstrap.servers": kafka, "queue.buffering.max.messages": "100"})
    pairs = [(b"k", b"%d" % number) for number in range(5_000)]
    assert narrow.append([Append(topic=at.topic, records=pairs, partition=0)]) == 5_000
    narrow.close()
    assert values(read_to_end(log, at.topic)) == [value for _, value in pairs]


def test_a_topic_that_is_missing_is_refused(log: Log) -> None:
    nowhere = TopicPartition(unique("missing"), 0)
    with pytest.raises(Refused) as refused:
        log.bounds([nowhere])
    assert refused.value.code == "topic-missing"


# ---------------------------------------------------------------- settings


SECRETS = {"sasl.password": "hunter2-password", "sasl.oauthbearer.client.secret": "hunter2-secret"}
PEM = "-----BEGIN hunter2 KEY-----"


def test_secrets_do_not_show() -> None:
    log = KafkaLog({"bootstrap.servers": "127.0.0.1:1", **SECRETS})
    assert "hunter2" not in repr(log)
    assert "sasl.password=***" in repr(log)
    log.close()


@pytest.mark.parametrize("wrong", [{"ssl.key.pem": PEM, "security.protocol": "ssl"}, {"no.such.setting": "x"}])
def test_secrets_do_not_show_in_refusals(wrong: dict[str, str]) -> None:
    with pytest.raises(Refused) as refused:
        KafkaLog({"bootstrap.servers": "127.0.0.1:1", **SECRETS, **wrong})
    assert refused.value.code == "kafka-setting-unknown"
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_texts_of_others_are_scrubbed() -> None:
    settings = Settings({"bootstrap.servers": "x:1", **SECRETS})
    assert settings.scrubbed("login with hunter2-password failed") == "login with *** failed"


@pytest.mark.parametrize("name", ["group.id", "isolation.level", "transactional.id", "partitioner"])
def test_what_exactly_once_stands_on_cannot_be_set(name: str) -> None:
    with pytest.raises(Refused) as refused:
        KafkaLog({"bootstrap.servers": "x:1", name: "x"})
    assert refused.value.code == "kafka-setting-owned"


def test_an_address_is_needed() -> None:
    with pytest.raises(Refused) as refused:
        KafkaLog({})
    assert refused.value.code == "kafka-setting-missing"


# ---------------------------------------------------------------- records


def test_partitions_of_several_topics_are_told_apart(log: Log) -> None:
    names = unique("a"), unique("b")
    log.create([TopicSpec(name, 2) for name in names])
    places = [TopicPartition(name, number) for name in names for number in (0, 1)]
    for turn in range(3):
        log.append(
            [Append(topic=at.topic, records=[(b"k", f"{at} {turn}".encode())], partition=at.partition) for at in places]
        )
    found: dict[TopicPartition, list[bytes]] = {at: [] for at in places}
    reader = log.reader(dict.fromkeys(places, 0))
    until(lambda: _taken(reader, found) == 12)
    reader.close()
    assert found == {at: [f"{at} {turn}".encode() for turn in range(3)] for at in places}


def _taken(reader: Reader, found: dict[TopicPartition, list[bytes]]) -> int:
    for records in reader.poll(100, 0.05):
        found[TopicPartition(records.topic, records.partition)] += [value or b"" for _, value in records.pairs()]
    return sum(map(len, found.values()))


def test_what_a_record_has_comes_back(log: Log) -> None:
    at = made(log)
    pairs = [(b"k", b"v"), (None, b"no key"), (b"gone", None), (b"", b""), (b"x" * 5_000, b"y" * 50_000)]
    headers = [(("a", b"1"), ("b", b"")), (), (("a", "ü".encode()),), (), ()]
    log.append([Append(topic=at.topic, records=pairs, partition=0, headers=headers)])
    reader = log.reader({at: 0})
    came: list[tuple[object, ...]] = []

    def take() -> bool:
        for records in reader.poll(100, 0.05):
            rows = range(len(records))
            came.extend((records.key(row), records.value(row), records.headers(row)) for row in rows)
            assert records.pairs() == [(records.key(row), records.value(row)) for row in rows]
        return len(came) == len(pairs)

    until(take)
    reader.close()
    assert came == [(*pair, own) for pair, own in zip(pairs, headers, strict=True)]


def made(log: Log) -> TopicPartition:
    name = unique("t")
    log.create([TopicSpec(name, 1)])
    return TopicPartition(name, 0)
