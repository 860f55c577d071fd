"""The newest records in memory: anyone who asks gets what the log has, whether that is in memory, too old or too
new.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from unittest.mock import Mock

import pytest

from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.log import Append, Log, TopicPartition, TopicSpec
from samovar.changelog.partitioner import partition_of
from samovar.common.errors import Refused
from samovar.service.query import tailing_reader
from samovar.service.query.events import Events, Place, StreamEvent
from samovar.service.query.key_events import events_near
from samovar.service.query.tailing_reader import TailingReader
from samovar.service.topology.logs import opened
from tests.support.http_server import wait_for
from tests.support.small_service import Service, make, purchase

TOPIC = "purchase"
PARTITIONS = 2


class Writing:
    """Purchases put into the log, a piece at a time."""

    def __init__(self, log: Log) -> None:
        self.log, self.count = log, 0
        self.random = Random(3)
        if not log.topics([TOPIC]):
            log.create([TopicSpec(TOPIC, PARTITIONS, {})])

    def more(self, many: int) -> None:
        pairs: dict[int, list[tuple[bytes, bytes]]] = {}
        for _ in range(many):
            card = f"c{self.random.randrange(5)}"
            event = json.dumps(purchase(card, self.count, self.count)).encode()
            pairs.setdefault(partition_of(card.encode(), PARTITIONS), []).append((card.encode(), event))
            self.count += 1
        self.log.append([Append(topic=TOPIC, records=own, partition=partition) for partition, own in pairs.items()])

    def places(self) -> list[Place]:
        bounds = self.log.bounds([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
        return [(TOPIC, at.partition, offset) for at, (begin, end) in bounds.items() for offset in range(begin, end)]


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return make(tmp_path / "s")


@contextmanager
def asked(service: Service, log: Log, *, with_tail: bool) -> Iterator[Events]:
    events = Events(settings=service.settings, log=log, tail=TailingReader(log, [TOPIC]) if with_tail else None)
    try:
        yield events
    finally:
        events.close()


def held(events: Events) -> int:
    assert events.tail is not None
    kept = [events.tail.kept(TopicPartition(TOPIC, number)) for number in range(PARTITIONS)]
    return sum(each.next - each.first for each in kept)


def amounts(found: dict[Place, StreamEvent]) -> dict[Place, int]:
    return {place: event.event["amount"] for place, event in found.items()}


def test_what_is_in_memory_too_old_for_it_or_too_new_is_all_there(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never a record that the log does not have at that place, and none that is left out, whatever memory let go of."""
    monkeypatch.setattr(tailing_reader, "BACK_RECORDS", 20)
    monkeypatch.setattr(tailing_reader, "MOST_BYTES", 20_000)
    monkeypatch.setattr(tailing_reader, "POLL_S", 0.01)
    with opened(service.settings) as log, asked(service, log, with_tail=True) as events:
        writing = Writing(log)
        writing.more(100)
        sizes = set()
        for _ in range(30):
            writing.more(writing.random.randint(1, 40))  # too new at first: asked for before anybody has polled
            places = writing.places()
            wanted = writing.random.sample(places, 10) + places[-3:]
            with asked(service, log, with_tail=False) as plain:
                assert amounts(events.at(wanted)) == amounts(plain.at(wanted))
                for matched in plain.at(writing.random.sample(places, 2)).values():
                    assert matched.key is not None
                    near = events_near(events, matched.key, ["card"], [matched])
                    there = {each.place for each in events_near(plain, matched.key, ["card"], [matched])}
                    assert {each.place for each in near} <= there
                    assert matched.place in {each.place for each in near}
            wait_for(lambda: held(events) > 0)
            sizes.add(held(events))
        assert max(sizes) < len(writing.places())  # some were let go of
        assert len(sizes) > 1


def test_what_is_in_memory_is_not_read_from_the_log(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(service.settings) as log, asked(service, log, with_tail=True) as events:
        writing = Writing(log)
        writing.more(200)
        places = writing.places()
        assert len(events.at(places[:1])) == 1  # from the log, and from now on the newest are held
        wait_for(lambda: held(events) == len(places))
        monkeypatch.setattr(log, "point_reader", None)
        monkeypatch.setattr(log, "bounds", None)
        found = events.at(places)
        assert len(found) == len(places)
        matched = found[places[50]]
        assert matched.key is not None
        near = events_near(events, matched.key, ["card"], [matched])
        assert {each.place for each in near} == {each.place for each in found.values() if each.key == matched.key}


def test_records_that_come_one_by_one_are_held_together(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece has arrays and owners of its own: of one record each, they would take many times what is counted."""
    monkeypatch.setattr(tailing_reader, "POLL_S", 0.001)
    with opened(service.settings) as log, asked(service, log, with_tail=True) as events:
        writing = Writing(log)
        writing.more(20)
        assert len(events.at(writing.places()[:1])) == 1
        for number in range(21, 60):
            writing.more(1)
            wait_for(lambda number=number: held(events) == number)  # type: ignore[misc]
        assert events.tail is not None
        assert [len(events.tail.kept(TopicPartition(TOPIC, number)).pieces) for number in range(PARTITIONS)] == [1, 1]
        assert len(events.at(writing.places())) == 59


def test_a_stream_that_is_too_quick_is_not_followed_and_nobody_asking_ends_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tailing_reader, "RATE_OVER_S", 0.05)
    monkeypatch.setattr(tailing_reader, "MOST_PER_S", 10)
    monkeypatch.setattr(tailing_reader, "POLL_S", 0.01)
    with opened(service.settings) as log, asked(service, log, with_tail=True) as events:
        tail, writing = events.tail, Writing(log)
        assert tail is not None

        def quick() -> bool:
            writing.more(100)
            return tail._thread is None

        writing.more(10)
        tail.ask()
        wait_for(quick)
        tail.ask()
        assert tail._thread is None  # it rests first
        assert held(events) == 0
        assert len(events.at(writing.places()[-5:])) == 5
    monkeypatch.setattr(tailing_reader, "MOST_PER_S", 1_000_000)
    monkeypatch.setattr(tailing_reader, "IDLE_S", 0.1)
    with opened(service.settings) as log, asked(service, log, with_tail=True) as events:
        assert events.tail is not None
        begun = time.monotonic()
        events.tail.ask()
        wait_for(lambda: events.tail is not None and events.tail._thread is None)
        assert time.monotonic() - begun >= 0.1


def test_what_retention_takes_while_it_is_asked_for_is_left_out(tmp_path: Path, service: Service) -> None:
    """The bounds were asked for a moment ago, and the log has let go of records since."""
    now_ms = [1_000_000]
    with closing(EmbeddedLog(tmp_path / "log", clock=lambda: now_ms[0])) as log:
        log.create([TopicSpec(TOPIC, PARTITIONS, {"retention.ms": "1000"})])
        at = TopicPartition(TOPIC, 0)
        with asked(service, log, with_tail=False) as events:
            for number in range(4):
                now_ms[0] += 600
                event = json.dumps(purchase("c", number, number)).encode()
                log.append([Append(topic=TOPIC, records=[(b"c", event)], partition=0)])
            places = [(TOPIC, 0, offset) for offset in range(4)]
            assert events.bounds(TOPIC, {})[at] == (0, 4)
            log.compact(TOPIC)
            assert log.bounds([at])[at].begin == 2
            assert sorted(events.at(places)) == places[2:]
            read = [int(offset) for records in events.window({at: (0, 4)}) for offset in records.offsets]
            assert read == [2, 3]
            for code in ("offset-gone", "access-denied"):  # refused for another reason, it stays refused
                with pytest.MonkeyPatch.context() as patched:
                    patched.setattr(log, "point_reader", Mock(side_effect=Refused(code, "", "")))
                    with pytest.raises(Refused):
                        events._read_part({at: [2, 3]})
