"""Where a task may begin: what must agree, to the last offset."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from samovar.changelog.formats.record import InputPosition, Position
from samovar.changelog.log import Append, Bounds, Delivery, Topic, TopicPartition, TopicSpec
from samovar.common.errors import Refused
from samovar.tasks.input.startup_checks import (
    check_against_changelog,
    check_against_inputs,
    check_against_journal,
    check_against_offsets,
    read_between,
)
from samovar.tasks.model.clock import SetClock
from samovar.tasks.model.plan import InputSpec
from tests.simulation.broker import Broker
from tests.simulation.memory_log import MemoryLog

AT = TopicPartition("t", 0)
SPEC = InputSpec(stream="use", topic="t", key="card")
POSITION = Position(
    None, {"use": InputPosition("t", "id", 10, 5)}, ("use",), {}, journal=2, changelog="c1", journal_id="j1"
)


def refused_as(code: str | None) -> Any:
    """A context in which that happens; without a code, in which nothing does."""
    return nullcontext() if code is None else pytest.raises(Refused, check=lambda error: error.code == code)


@pytest.mark.parametrize(
    ("position", "offset", "delivery", "code"),
    [
        (POSITION, 10, Delivery.EXACTLY_ONCE, None),
        (POSITION, 11, Delivery.EXACTLY_ONCE, "offsets-differ"),
        (POSITION, 9, Delivery.EXACTLY_ONCE, "offsets-differ"),
        (POSITION, 9, Delivery.AT_LEAST_ONCE, None),
        (POSITION, None, Delivery.EXACTLY_ONCE, None),
        (None, None, Delivery.EXACTLY_ONCE, None),
        (None, 0, Delivery.EXACTLY_ONCE, "state-lost"),
        (None, 3, Delivery.AT_LEAST_ONCE, "state-lost"),
        (replace(POSITION, inputs={}), 3, Delivery.EXACTLY_ONCE, None),  # a stream that came later
    ],
)
def test_state_and_offsets_belong_together(
    position: Position | None, offset: int | None, delivery: Delivery, code: str | None
) -> None:
    with refused_as(code):
        check_against_offsets(position, {TopicPartition("other", 0): None, AT: offset}, 0, delivery)


@pytest.mark.parametrize(
    ("position", "topic_id", "code"),
    [
        (None, "c2", None),
        (POSITION, "c1", None),
        (POSITION, "c2", "changelog-recreated"),
        (replace(POSITION, changelog=""), "c2", None),
        (replace(POSITION, rewinding=True), "c1", "rewind-unfinished"),
    ],
)
def test_a_state_belongs_to_the_changelog_that_it_was_begun_in(
    position: Position | None, topic_id: str, code: str | None
) -> None:
    with refused_as(code):
        check_against_changelog(position, Topic(name="c", partitions=1, settings={}, id=topic_id), 0)


@pytest.mark.parametrize(
    ("numbers", "code"),
    [
        ({1, 2}, None),
        ({1, 2, 3}, None),
        ({1}, "topic-recreated"),
        ({2}, "topic-recreated"),
        ({0, 2}, "topic-recreated"),
    ],
)
def test_a_journal_that_was_put_back_has_every_entry(numbers: set[int], code: str | None) -> None:
    with refused_as(code):
        check_against_journal(POSITION, Topic(name="j", partitions=1, settings={}, id="j2"), numbers, 0)


@pytest.mark.parametrize(
    ("bounds", "code"),
    [
        (Bounds(5, 10), None),
        (Bounds(0, 11), None),
        (Bounds(5, 9), "input-truncated"),
        (Bounds(6, 10), "input-expired"),
    ],
)
def test_the_input_still_has_what_was_taken_and_what_is_read_again(bounds: Bounds, code: str | None) -> None:
    with refused_as(code):
        check_against_inputs(
            POSITION, [SPEC], {"t": Topic(name="t", partitions=1, settings={}, id="id")}, {AT: bounds}, 0
        )


@pytest.mark.parametrize(
    ("spec", "topic_id", "code"),
    [
        (SPEC, "other", "input-replaced"),
        (replace(SPEC, topic="u"), "id", "input-replaced"),
        (replace(SPEC, topic="u", retired=True), "id", None),
        (replace(SPEC, stream="new"), "other", None),
    ],
)
def test_a_stream_is_the_topic_that_it_was(spec: InputSpec, topic_id: str, code: str | None) -> None:
    topics = {name: Topic(name=name, partitions=1, settings={}, id=topic_id) for name in ("t", "u")}
    with refused_as(code):
        check_against_inputs(POSITION, [spec], topics, {TopicPartition(each, 0): Bounds(0, 10) for each in topics}, 0)


@pytest.mark.parametrize(("start", "end"), [(0, 9), (3, 4), (3, 3), (2, 8)])
def test_all_records_of_a_stretch_are_read(start: int, end: int) -> None:
    log = MemoryLog(Broker(SetClock()))
    log.create([TopicSpec("t", 1)])
    log.append([Append(topic="t", records=[(b"k", b"v")] * 9, partition=0)])
    found = [offset for each in read_between(log, AT, start, end, 2) for offset in each.offsets.tolist()]
    assert found[: end - start] == list(range(start, end))
    assert len(found) <= end - start + 1
