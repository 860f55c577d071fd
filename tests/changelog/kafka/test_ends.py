"""Looks at the ends of partitions, with a clock that is set and a log that can be away."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
from confluent_kafka import KafkaError, KafkaException

from samovar.changelog.kafka.ends import BREAK_S, FRESH_S, LOOK_S, EndWatch
from samovar.changelog.log import TopicPartition

AT, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


@dataclass
class Away:
    """A log whose clock is set."""

    ends: dict[TopicPartition, int] = field(default_factory=lambda: {AT: 5, OTHER: 7})
    now_s: float = 100.0
    is_away: bool = False
    answers_in_s: float = 0.0

    def ask(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        self.now_s += self.answers_in_s
        if self.is_away:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return {at: self.ends[at] for at in partitions if at in self.ends}

    def watch(self) -> EndWatch:
        made = EndWatch(self.ask, lambda: self.now_s)
        made._wanted = frozenset({AT, OTHER})  # with no thread: the test looks itself
        return made


@pytest.fixture
def log() -> Away:
    return Away()


def looked(log: Away, watch: EndWatch, after_s: float = LOOK_S) -> dict[TopicPartition, int]:
    log.now_s += after_s
    watch.refresh()
    return watch.standing({AT: 5, OTHER: 6})


def test_looks_in_short_succession_are_one_stretch(log: Away) -> None:
    watch = log.watch()
    first = looked(log, watch)
    assert list(first) == [AT], "the other one has a record that was not given out"
    assert watch.standing({AT: 5}) == {}, "nothing is told twice"
    assert [looked(log, watch) for _ in range(20)] == [first] * 20


def test_an_outage_ends_a_stretch(log: Away) -> None:
    watch = log.watch()
    before = looked(log, watch)
    log.is_away = True
    assert [looked(log, watch) for _ in range(int(BREAK_S / LOOK_S) + 1)] == [{}] * (int(BREAK_S / LOOK_S) + 1)
    log.is_away = False
    after = looked(log, watch)
    assert list(after) == [AT]
    assert after != before


def test_a_process_that_stood_still_begins_another_stretch(log: Away) -> None:
    watch = log.watch()
    before = looked(log, watch)
    assert looked(log, watch, 3_600.0) != before


def test_an_answer_says_nothing_of_later_than_it_was_asked_for(log: Away) -> None:
    watch = log.watch()
    before = looked(log, watch)
    log.answers_in_s = 3_600.0  # the process was stopped while it waited
    assert looked(log, watch) == {}
    log.answers_in_s = FRESH_S / 2
    after = looked(log, watch)
    assert list(after) == [AT]
    assert after != before


def test_records_that_came_end_a_stretch(log: Away) -> None:
    """Also where they were taken by the next look."""
    watch = log.watch()
    before = looked(log, watch)
    log.ends[AT] = 6
    assert looked(log, watch) == {}
    log.ends[AT] = 5
    assert looked(log, watch) != before


def test_a_partition_of_which_nothing_is_told_stands_nowhere(log: Away) -> None:
    watch = log.watch()
    looked(log, watch)
    del log.ends[AT]
    assert looked(log, watch) == {}
