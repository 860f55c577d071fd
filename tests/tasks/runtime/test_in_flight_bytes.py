"""What was forwarded and not taken yet."""

from __future__ import annotations

from samovar.changelog.log import TopicPartition
from samovar.tasks.runtime.backpressure import InFlightBytes

ONE, OTHER = TopicPartition("r", 0), TopicPartition("r", 1)


def test_it_is_taken_once_every_stage_here_stands_behind_the_last_record() -> None:
    flight = InFlightBytes()
    flight.sent(100, {ONE: 4, OTHER: 7})
    flight.sent(50, {ONE: 9})
    assert flight.bytes == 150
    assert not flight.is_taken({ONE: 10, OTHER: 7})
    assert not flight.is_taken({ONE: 9, OTHER: 8})
    assert flight.bytes == 150
    assert flight.is_taken({ONE: 10, OTHER: 8})
    assert flight.bytes == 0


def test_a_stage_that_restores_has_taken_nothing_and_what_nobody_reads_here_does_not_count() -> None:
    flight = InFlightBytes()
    flight.sent(100, {ONE: 0, OTHER: 7})
    assert not flight.is_taken({ONE: None})
    assert flight.is_taken({ONE: 1})


def test_a_commit_that_forwards_nothing_is_not_waited_for() -> None:
    flight = InFlightBytes()
    flight.sent(0, {ONE: 4})
    assert flight.is_taken({ONE: 0})
    flight.sent(1, {ONE: 4})
    flight.clear()
    assert flight.is_taken({ONE: 0})
    flight.sent(1, {OTHER: 1})
    assert flight.is_taken({ONE: 0, OTHER: 2}), "what was cleared is not waited for"
