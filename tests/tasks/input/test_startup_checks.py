"""Where a task may begin: what must agree, to the last offset."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from samovar.changelog.formats.record import InputPosition, Position, store_prefix
from samovar.changelog.log import Append, Bounds, Delivery, Records, Topic, TopicPartition, TopicSpec
from samovar.common.errors import Refused
from samovar.service.offline.trial import plan_of_rules
from samovar.state.memory import MemoryStore
from samovar.tasks.input.source import StreamSource
from samovar.tasks.input.startup_checks import (
    check_against_changelog,
    check_against_inputs,
    check_against_journal,
    check_against_offsets,
    read_between,
    recover_waiting,
    rows_of_gone_rules,
)
from samovar.tasks.model.clock import SetClock
from samovar.tasks.model.plan import InputSpec
from tests.simulation.broker import Broker
from tests.simulation.memory_log import MemoryLog

RULE = """
rule: twice
match: |
  sequence by card with maxspan=10s
    [use where true] as one
    [use where true] as two
"""
AT = TopicPartition("t", 0)
SPEC = InputSpec(stream="use", topic="t", key="card")
POSITION = Position(
    watermark=None,
    inputs={"use": InputPosition(topic="t", topic_id="id", next=10, replay_from=5)},
    streams=("use",),
    rules={},
    journal=2,
    changelog="c1",
    journal_id="j1",
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


class Recovering(StreamSource):
    """Notes what it is asked to bring back."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.came: dict[str, list[int]] = {}

    def recover(self, stream: str, records: Sequence[Records], stored: InputPosition) -> None:
        offsets = [offset for each in records for offset in each.offsets.tolist()]
        self.came[stream] = [offset for offset in offsets if offset < stored.next]
        super().recover(stream, records, stored)


@pytest.mark.parametrize(("replay_from", "came"), [(1, [1, 2]), (3, None)])
def test_what_waited_is_read_again_and_the_rest_only_stands(replay_from: int, came: list[int] | None) -> None:
    log = MemoryLog(Broker(SetClock()))
    log.create([TopicSpec("t", 1)])
    values = [b'{"card": "c", "ts": %d}' % number for number in range(4)]
    log.append([Append(topic="t", records=[(b"c", value) for value in values], partition=0)])
    source = Recovering([SPEC], ("card",), 0)
    inputs = {
        "gone": InputPosition(topic="t", topic_id="id", next=3, replay_from=1),
        "use": InputPosition(topic="t", topic_id="id", next=3, replay_from=replay_from),
    }
    recover_waiting(log, source, Position(watermark=None, inputs=inputs, streams=("use", "gone"), rules={}), 0)
    assert source.sources["use"].next == 3
    assert source.came == ({} if came is None else {"use": came})


def test_states_of_rules_that_are_no_more_get_tombstones() -> None:
    plan = plan_of_rules(RULE, {"use": {"key": "card"}}, {}, {})
    (name,) = plan.program.stores
    store = MemoryStore()
    kept, gone = store_prefix(b"a", name) + b"\0", store_prefix(b"a", "other") + b"\0"
    store.write([(kept, b"1"), (gone, b"1"), (b"q", b"1"), (b"s", b"1")])
    assert rows_of_gone_rules(store, plan) == [(gone, None)]
