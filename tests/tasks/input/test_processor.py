"""What one commit of a processor writes, and what of it is counted: to the last record."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from samovar.changelog.formats.record import POSITION, unpack_position
from samovar.changelog.log import TopicPartition
from samovar.patterns.engine.order import NO_TIME
from samovar.service.offline.trial import plan_of_rules
from samovar.state.memory import MemoryStore
from samovar.tasks.input.processor import Processor
from samovar.tasks.model.plan import Forward, Plan, RulesetChange
from samovar.tasks.model.results import Outcome, SettledRecords
from samovar.tasks.processors import make_processor
from samovar.tasks.rules.processor import RuleProcessor
from tests.tasks.input.test_source import T0, block, value

RULE = """
rule: twice
match: |
  sequence by k with maxspan=10s
    [use where n == 1] as one
    [use where n == 2] as two
"""
ABSENT = """
rule: alone
match: |
  sequence by k with maxspan=10s
    [use where n == 1] as one
    ![use where n == 2]
"""
AT = TopicPartition("use", 3)
FORWARD = Forward(stage="by-n", stream="use", field="n", topic="s-use-by-n", partitions=2, lasting_ms=10_000)


def plan_of(rule: str = RULE, **more: Any) -> Plan:
    plan = plan_of_rules(rule, {"use": {"key": "k", "slack": "1s", "idle": "5s"}}, {}, {})
    return replace(plan, **more)


def made(plan: Plan | None = None, store: MemoryStore | None = None) -> Processor:
    plan, store = plan or plan_of(), store or MemoryStore()
    data = store.get(POSITION)
    position = None if data is None else unpack_position(data)
    return make_processor(plan, 3, store, plan.inputs, position)


def appended(outcome: Outcome, topic: str) -> list[Any]:
    return [each for append in outcome.appends if append.topic == topic for each in append.records]


def test_a_commit_has_rows_the_position_last_results_and_offsets() -> None:
    processor = made()
    topics = processor.plan.topics
    processor.changelog_id, processor.journal_id = "c", "j"
    processor.note_rules()
    values = [value(0, n=1), b"{", value(10, n=2), value(5_000, n=1), value(100, n=1)]
    assert not processor.feed(block("use", 0, values)) - {1, 4}
    outcome = processor.outcome([(b"extra", None)])
    first, *rest = outcome.appends
    assert (first.topic, first.partition, first.records[0]) == (topics.changelog, 3, (b"extra", None))
    assert first.records[-1][0] == POSITION
    position = unpack_position(first.records[-1][1] or b"")
    assert (position.watermark, position.journal, position.changelog, position.journal_id) == (T0 + 4_000, 1, "c", "j")
    assert (position.inputs["use"].next, dict(position.rules), position.service) == (
        5, processor.plan.versions, processor.plan.service,
    )  # fmt: skip
    assert outcome.offsets == {AT: 5}
    assert [each.topic for each in rest] == [topics.alerts, topics.journal, topics.dead_letters, topics.late]
    assert [each.partition for each in rest] == [None, 3, None, None]
    assert [json.loads(each)["kind"] for _, each in appended(outcome, topics.journal)] == ["rules"]
    assert [key for key, _ in appended(outcome, topics.journal)] == [b"3"]
    assert [each for _, each in appended(outcome, topics.dead_letters)] == [b"{"]
    assert [each for _, each in appended(outcome, topics.late)] == [values[4]]
    counts = outcome.counts
    assert (counts.events, counts.dead, counts.late, counts.matches, counts.commits) == (5, 1, 1, 1, 1)
    assert (counts.rows, counts.misplaced, counts.forwarded) == (len(first.records), 0, 0)
    assert outcome.changes[: len(first.records)] == list(first.records)


def test_the_next_commit_has_nothing_of_the_one_before() -> None:
    processor = made()
    processor.note_rules()
    processor.feed(block("use", 0, [value(0, n=1), b"{", value(10, n=2), value(5_000, n=3), value(100, n=1)]))
    assert (processor.dirty, processor.found_bytes > 0, len(processor.alerts)) == (True, True, 1)
    outcome = processor.outcome()
    assert (processor.dirty, processor.found_bytes, processor.alerts, processor.source.entries) == (False, 0, [], [])
    processor.store.write(outcome.changes)
    processor.committed(outcome)
    assert (processor.counts.events, processor.counts.commits) == (5, 1)
    again = processor.outcome()
    assert [each.topic for each in again.appends] == [processor.plan.topics.changelog]
    assert (again.counts.events, again.counts.dead, again.counts.late, again.counts.matches) == (0, 0, 0, 0)
    processor.committed(again)
    assert (processor.counts.events, processor.counts.commits, processor.counts.rows) == (
        5, 2, outcome.counts.rows + again.counts.rows,
    )  # fmt: skip


def test_a_letter_says_where_it_comes_from_and_of_which_stage() -> None:
    for stage, has_stage in (("", False), ("by-n", True)):
        processor = made(plan_of(stage=stage))
        processor.feed(block("use", 0, [b"{", value(9_000), value(0)]))
        outcome = processor.outcome()
        for topic in (processor.plan.topics.dead_letters, processor.plan.topics.late):
            (append,) = [each for each in outcome.appends if each.topic == topic]
            (headers,) = append.headers or []
            found = dict(headers)
            assert ("samovar.stage" in found) == has_stage
            assert found.get("samovar.stage", b"") == stage.encode()
            assert found.get("samovar.late.ms", b"8000") == b"8000"
        assert outcome.counts.events == (0 if has_stage else 3)


def test_what_was_settled_before_gets_no_letter_and_is_not_counted() -> None:
    processor = made()
    records = block("use", 0, [b"{", b"[", value(9_000), value(0), value(1)])
    assert processor.feed(records, SettledRecords(1, frozenset({3}))) == {0, 1, 3, 4}
    outcome = processor.outcome()
    assert [each for _, each in appended(outcome, processor.plan.topics.dead_letters)] == [b"["]
    assert [each for _, each in appended(outcome, processor.plan.topics.late)] == [value(1)]
    assert (outcome.counts.dead, outcome.counts.late) == (1, 1)


def test_events_go_on_to_later_stages_with_the_commit() -> None:
    processor = made(plan_of(forwards=(FORWARD,)))
    assert processor.feed(block("use", 0, [value(0, n="a"), value(1), b"{", value(2, n="b")])) == {2}
    outcome = processor.outcome()
    assert [key for key, _ in appended(outcome, FORWARD.topic)] == [b"a", b"b", None, None]
    counts = outcome.counts
    assert (counts.forwarded, counts.unkeyed, outcome.forwarded_bytes > 0) == (2, 1, True)
    assert set(processor.position().forwards) == {FORWARD.topic}
    assert processor.outcome().forwarded_bytes == 0
    assert dict(made().position().forwards) == {}


def test_a_restart_goes_on_from_the_position() -> None:
    store = MemoryStore()
    processor = made(store=store)
    processor.feed(block("use", 0, [value(0, n=1), value(5_000, n=3)]))
    outcome = processor.outcome()
    store.write(outcome.changes)
    again = made(store=store)
    assert (again.source.watermark, again.source.sources["use"].next) == (T0 + 4_000, 0)
    assert not again.dirty


def test_what_a_stage_missed_is_counted_once() -> None:
    processor = made()
    processor.source.missed = 3
    counts = []
    for start in range(2):
        processor.feed(block("use", start, [value(0)]))
        counts.append(processor.outcome().counts.missed)
    assert counts == [3, 0]


def test_a_fold_ends_where_another_task_stands() -> None:
    processor = made()
    assert isinstance(processor, RuleProcessor)
    processor.feed(block("use", 0, [value(0, n=1), value(500, n=2), value(900, n=3)]))
    processor.release_to(T0 + 500)
    assert (processor.source.watermark, len(processor.alerts), len(processor.source.buffer.pending)) == (T0 + 500, 1, 1)
    processor.release_to(T0 + 400)
    assert processor.source.watermark == T0 + 500


# ---------------------------------------------------------------- the clock


def ticked(processor: Processor, now_ms: int, *, is_ended: bool = True) -> bool:
    return processor.tick(now_ms, {AT: 0} if is_ended else {})


def test_the_clock_moves_event_time_only_where_something_waits_for_it() -> None:
    processor = made()
    processor.feed(block("use", 0, [value(0, n=3)]))  # waits for the slack of 1 s
    processor.dirty = False
    assert not ticked(processor, 0)
    assert not ticked(processor, 6_000), "event time would be the event's own, which is not past yet"
    assert not processor.dirty
    assert ticked(processor, 6_001)
    assert (processor.dirty, processor.source.watermark) == (True, T0 + 1)
    processor.dirty = False
    assert not ticked(processor, 99_000), "nothing waits any more"
    assert not processor.dirty


def test_an_input_that_goes_on_is_not_idle() -> None:
    processor = made()
    processor.feed(block("use", 0, [value(0, n=3)]))
    assert not ticked(processor, 0)
    assert not ticked(processor, 5_000, is_ended=False)
    assert not ticked(processor, 9_000)
    assert not ticked(processor, 14_999)
    assert ticked(processor, 16_000)


def test_the_clock_brings_what_a_rule_waits_for() -> None:
    processor = made(plan_of(ABSENT))
    processor.feed(block("use", 0, [value(0, n=1), value(2_000, n=3)]))
    processor.outcome()
    ticked(processor, 0)
    assert not processor.is_due(T0 + 10_000)
    assert processor.is_due(T0 + 10_001)
    assert ticked(processor, 5_000 + 1_001), "the second event waits"
    assert not ticked(processor, 5_000 + 9_000)
    assert ticked(processor, 5_000 + 9_001)
    assert len(processor.alerts) == 1


def test_the_clock_tells_later_stages() -> None:
    processor = made(plan_of(forwards=(FORWARD,)))
    processor.feed(block("use", 0, [value(0, n="a")]))
    processor.outcome()
    assert not ticked(processor, 0)
    ticked(processor, 6_001)
    processor.outcome()
    assert ticked(processor, 8_001), "how late it is"
    assert processor.dirty


def test_before_any_event_there_is_no_time() -> None:
    processor = made()
    assert (processor.position().watermark, processor.source.watermark, processor.dirty) == (None, NO_TIME, False)
    assert processor.memory_bytes() >= 0


@pytest.mark.parametrize("is_published", [True, False])
def test_a_position_names_the_change_of_published_rules(is_published: bool) -> None:
    plan = plan_of(ruleset_change=RulesetChange(4) if is_published else None)
    assert made(plan).position().ruleset_change == (4 if is_published else 0)
