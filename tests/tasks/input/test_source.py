"""A task's inputs by themselves: what is decoded, what waits, where a restart reads on, event time with no event."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from samovar.changelog.batches import RecordBlock
from samovar.changelog.formats.dead_letters import SourceCoordinates
from samovar.changelog.formats.journal import JournalEntry
from samovar.changelog.formats.record import InputPosition, Position, UnknownSchema
from samovar.changelog.log import TopicPartition
from samovar.changelog.partitioner import partition_of
from samovar.common.errors import Refused
from samovar.common.tunables import Tunables
from samovar.native.kernel import joined
from samovar.patterns.engine.order import NO_TIME, OrderedEvents
from samovar.tasks.input.placement import MISPLACED, MOVED
from samovar.tasks.input.source import (
    LOOKED_AT,
    ROW_BYTES,
    ReplayCheckpoint,
    StreamSource,
    cut_at,
    edges_of,
    is_on_at,
    known_time,
    needed,
    needed_turns,
    numbered,
    turned,
    unknown_at,
    unknown_yet,
)
from samovar.tasks.model.plan import InputSpec

T0 = 1_000_000
A = InputSpec(stream="a", topic="ta", key="k", slack_ms=100, idle_ms=5_000)
B = InputSpec(stream="b", topic="tb", key="k", slack_ms=0, idle_ms=2_000)
MARKS = Tunables(mark_records=2)


def source_of(*specs: InputSpec, tunables: Tunables = MARKS, partition: int = 3) -> StreamSource:
    return StreamSource(specs or (A, B), ("k", "n"), partition, tunables)


def value(ms: int, key: str | None = "x", **more: Any) -> bytes:
    return json.dumps({"ts": T0 + ms, **({} if key is None else {"k": key}), **more}).encode()


def block(topic: str, start: int, values: Sequence[bytes | None], *, log_ms: int = 0) -> RecordBlock:
    count = len(values)
    offsets = np.arange(start, start + count, dtype=np.int64)
    times = np.full(count, T0 + log_ms, np.int64) + np.arange(count)
    no = np.zeros(count, bool)
    null = np.array([each is None for each in values], bool)
    packed = joined([each or b"" for each in values])
    return RecordBlock(
        topic=topic,
        partition=3,
        offsets=offsets,
        times=times,
        next=start + count,
        keys=joined([b"x"] * count),
        values=packed,
        keyless=no,
        null=null,
    )


def feed(source: StreamSource, topic: str, *ms: int) -> list[int]:
    """Feed events of these times; those that are released."""
    start = source.by_topic[topic].next
    return shown(source.feed(block(topic, start, [value(each) for each in ms])).ordered)


def shown(ordered: OrderedEvents) -> list[int]:
    return [time - T0 for time in ordered.released.time.tolist()]


def waiting(source: StreamSource) -> list[tuple[int, int]]:
    pending = source.buffer.pending
    return sorted(zip(pending.stream.tolist(), (pending.time - T0).tolist(), strict=True))


def position_of(source: StreamSource) -> Position:
    return Position(
        watermark=known_time(source.watermark),
        inputs=source.inputs(),
        streams=source.streams,
        rules={},
        journal=source.journaled,
    )


# ---------------------------------------------------------------- records


def test_events_of_two_streams_come_out_in_order_once_neither_can_bring_an_earlier_one() -> None:
    source = source_of()
    assert feed(source, "ta", 500, 450) == []
    assert source.watermark == NO_TIME, "the other has said nothing yet"
    assert feed(source, "tb", 400) == []
    assert (source.watermark - T0, waiting(source)) == (400, [(0, 450), (0, 500), (1, 400)])
    assert feed(source, "tb", 700) == []
    assert source.watermark - T0 == 400
    assert feed(source, "ta", 900) == [400, 450, 500]
    assert waiting(source) == [(0, 900), (1, 700)], "another of that very time may still come"
    assert source.nexts() == {"a": 3, "b": 2}
    assert (source.max_event_time("a") - T0, source.max_event_time("b") - T0) == (900, 700)
    assert source.sources["a"].taken_ms == T0


def test_the_log_time_of_the_last_record_is_kept() -> None:
    source = source_of()
    source.feed(block("ta", 0, [value(0), value(1), value(2)], log_ms=50))
    assert source.sources["a"].taken_ms == T0 + 52
    source.feed(block("ta", 3, []))
    assert source.sources["a"].taken_ms == T0 + 52


def test_what_is_no_event_is_told_by_its_row_and_the_rest_is_taken() -> None:
    spec = replace(A, kinds={"n": "long", "k": "string"}, max_future_skew_ms=10_000)
    source = source_of(spec)
    values = [
        value(0, n=1),  # good
        None,
        value(1, n="many"),
        b"{",
        value(2, None),
        value(10_007, n=2),  # log time is T0 + row
        value(10_006, n=2),
        value(3, n=None),  # nothing is of any type
        value(4, n=1.5),
    ]
    fed = source.feed(block("ta", 0, values))
    assert [(each.row, each.kind) for each in fed.dead] == [
        (1, "NULL_VALUE"), (2, "WRONG_TYPE"), (3, "NOT_JSON"), (4, "MISSING_KEY"), (5, "FROM_THE_FUTURE"),
    ]  # fmt: skip
    assert fed.rows.tolist() == [0, 6, 7, 8]
    assert [(each.row, each.late_ms) for each in fed.late] == [(7, 10_006 - 100 - 3), (8, 10_006 - 100 - 4)]
    words = {each.row: each.message for each in fed.dead}
    assert words[2] == "`n` should be long, and is text"
    assert "is 10 s ahead of the log's time, and at most 10 s are allowed" in words[5]
    assert "(column 2)" in words[3] or "column" in words[3]


def test_nothing_to_decode_gives_nothing() -> None:
    source = source_of()
    batch, kept, dead = source.decode(block("ta", 0, []))
    assert (len(batch), len(kept), dead) == (0, 0, [])
    assert source.feed(block("ta", 0, [b"{"])).rows.tolist() == []
    assert source.nexts()["a"] == 1


@pytest.mark.parametrize(
    ("kind", "bad"), [("string", 1), ("double", "x"), ("long", True), ("boolean", 1), ("any", None)]
)
def test_a_value_must_be_of_the_type_that_the_schema_says(kind: str, bad: Any) -> None:
    good = {"string": "x", "double": 1.5, "long": 3, "boolean": True, "any": [1]}[kind]
    source = source_of(replace(A, kinds={"n": kind}))
    fed = source.feed(block("ta", 0, [value(0, n=good), value(1), value(2, n=None), value(3, n=bad)]))
    assert [each.row for each in fed.dead] == ([] if kind == "any" else [3])


def test_a_letter_and_an_event_are_named_by_where_they_stand() -> None:
    source = source_of()
    records = block("ta", 7, [value(0), None])
    where, offset, pair = source.dead_letter(records, 1)
    assert (where, offset, pair) == (SourceCoordinates.of("ta", 3, "a"), 8, (b"x", None))
    assert source.origins(records) == ([3, 3], [7, 8])
    assert source.original(records, 0) == (b"x", value(0))
    assert list(source.pieces(records)) == [(records, False)]


def test_texts_that_are_wanted_come_with_every_event() -> None:
    source = source_of()
    source.texts["a"] = (0,)
    fed = source.feed(block("ta", 0, [value(0, "x"), b"{", value(1, "y")]))
    assert fed.texts == [[b"x", b"y"]]
    assert source.feed(block("tb", 0, [value(0, "x")])).texts == []


# ---------------------------------------------------------------- where a restart reads on


def test_a_restart_reads_again_from_the_last_mark_before_what_waits() -> None:
    source = source_of(A)
    feed(source, "ta", 0)
    assert source.inputs()["a"].replay_from == 0, "the event waits for the slack"
    feed(source, "ta", 10)  # offset 1: no mark yet
    feed(source, "ta", 20)  # offset 2
    assert [mark.offset for mark in source.sources["a"].checkpoints] == [0, 2]
    assert [mark.max_event_time for mark in source.sources["a"].checkpoints] == [NO_TIME, T0 + 10]
    feed(source, "ta", 111)  # releases 0 and 10: what waits is from offset 2 on
    stored = source.inputs()["a"]
    assert (stored.next, stored.replay_from, stored.max_event_time) == (4, 2, T0 + 10)
    feed(source, "ta", 1_000)
    assert (source.inputs()["a"].replay_from, waiting(source)) == (4, [(0, 1_000)])
    source.buffer.max_event_time[0, 3] = T0 + 9_000
    source.advance(0)
    stored = source.inputs()["a"]
    assert (stored.next, stored.replay_from, stored.max_event_time, list(source.sources["a"].checkpoints)) == (
        5,
        5,
        T0 + 9_000,
        [],
    )


def test_marks_are_so_many_records_apart() -> None:
    source = source_of(A)
    for ms in range(7):
        feed(source, "ta", ms)
    assert [mark.offset for mark in source.sources["a"].checkpoints] == [0, 2, 4, 6]


def test_before_any_event_a_restart_reads_from_where_it_stands() -> None:
    source = source_of()
    source.sources["a"].next, source.sources["a"].topic_id = 9, "id"
    stored = source.inputs()["a"]
    assert (stored.topic, stored.topic_id, stored.next, stored.replay_from, stored.max_event_time) == (
        "ta",
        "id",
        9,
        9,
        None,
    )
    assert (stored.advances, stored.idle) == ((), False)


@pytest.mark.parametrize("cut", range(1, 8))
def test_however_it_is_stored_and_loaded_it_goes_on_the_same(cut: int) -> None:
    """Also where event time was advanced without an event, in between what waits."""
    ms = [500, 450, 620, 390, 700, 640, 900, 880]
    whole, first = source_of(), source_of()
    values = [value(each) for each in ms]
    for number, source in ((len(ms), whole), (cut, first)):
        for at in range(number):
            step(source, at, values)
    position = position_of(first)
    again = source_of()
    again.resume(position)
    assert (again.watermark, again.journaled) == (first.watermark, first.journaled)
    for stream, stored in position.inputs.items():
        records = [block("t" + stream, stored.replay_from, values[stored.replay_from : 8] if stream == "a" else [])]
        again.recover(stream, records, stored)
    assert (waiting(again), again.nexts(), again.max_event_time("a")) == (
        waiting(first),
        first.nexts(),
        first.max_event_time("a"),
    )
    assert again.buffer.max_event_time == first.buffer.max_event_time
    for at in range(cut, len(ms)):
        step(again, at, values)
    assert (waiting(again), again.watermark, again.max_event_time("a")) == (
        waiting(whole),
        whole.watermark,
        whole.max_event_time("a"),
    )
    assert again.inputs() == whole.inputs()


def step(source: StreamSource, at: int, values: Sequence[bytes]) -> None:
    """One event; after some of them event time is raised by so much that later ones are late."""
    source.feed(block("ta", at, [values[at]]))
    if at in (2, 4):
        source.apply(JournalEntry(kind="advance", number=at, inputs={}, watermark=None,
                                  facts={"stream": "a", "max_event_time": T0 + 650 + at * 20}))  # fmt: skip


def test_a_raise_after_all_that_is_read_again_counts_too() -> None:
    source = source_of(A)
    feed(source, "ta", 0, 1)
    source.buffer.low_watermark = NO_TIME
    source._advance_to(source.sources["a"], T0 + 60)
    stored = source.inputs()["a"]
    assert (stored.next, stored.replay_from, stored.advances) == (2, 0, ((2, T0 + 60),))
    again = source_of(A)
    again.resume(Position(watermark=None, inputs={"a": stored}, streams=("a",), rules={}, journal=0))
    assert again.sources["a"].next == 0
    again.recover("a", [block("ta", 0, [value(0), value(1), value(50)])], stored)
    assert (again.max_event_time("a") - T0, waiting(again), again.nexts()) == (60, [(0, 0), (0, 1)], {"a": 2})
    assert again.inputs()["a"] == stored


def test_a_position_brings_back_silence_schemas_and_ids() -> None:
    source = source_of()
    unknown = (UnknownSchema(7, 2, None),)
    stored = InputPosition(
        topic="ta", topic_id="id", next=5, replay_from=4, max_event_time=None, advances=(), idle=True, unknown=unknown
    )
    source.sources["a"].checkpoints.append(ReplayCheckpoint(0, 0, False))
    source.resume(
        Position(
            watermark=T0,
            inputs={
                "a": stored,
                "b": InputPosition(topic="tb", topic_id="id2", next=6, replay_from=6, max_event_time=T0 + 3),
            },
            streams=("a", "b"),
            rules={},
            journal=12,
        )
    )
    a, b = source.sources["a"], source.sources["b"]
    assert (a.topic_id, a.next, a.idle, a.unknown, list(a.checkpoints)) == ("id", 4, True, unknown, [])
    assert (b.topic_id, b.next, b.idle) == ("id2", 6, False)
    assert source.buffer.max_event_time == {(1, 3): T0 + 3}
    assert (source.watermark, source.journaled) == (T0, 12)


def test_a_position_of_before_any_event_has_no_time() -> None:
    source = source_of(A)
    source.buffer.low_watermark = T0
    source.resume(
        Position(
            watermark=None,
            inputs={"a": InputPosition(topic="ta", topic_id="id", next=5, replay_from=5)},
            streams=("a",),
            rules={},
            journal=0,
        )
    )
    assert (source.watermark, source.buffer.max_event_time) == (NO_TIME, {(0, 3): NO_TIME})


# ---------------------------------------------------------------- event time with no event


def test_a_stream_that_never_had_an_event_falls_silent_and_joins_where_event_time_is() -> None:
    source = source_of()
    feed(source, "ta", 1_000)
    source.observe_end("b", True, 0)
    source.observe_end("b", True, 1_999)
    assert (source.idle_watermark(1_999), source.advance(1_999).watermark) == (NO_TIME, NO_TIME)
    source.observe_end("b", True, 2_000)
    assert source.idle_watermark(2_000) == T0 + 900
    assert source.advance(2_000).watermark == T0 + 900
    assert [(each.kind, dict(each.facts)) for each in source.entries] == [("idle", {"stream": "b"})]
    assert (source.sources["b"].idle, source.buffer.max_event_time) == (True, {(0, 3): T0 + 1_000})
    source.advance(9_000)
    assert len(source.entries) == 1, "it is told once"
    assert source.idle_watermark(9_000) == T0 + 900
    fed = source.feed(block("tb", 0, [value(899), value(900)]))
    assert [(each.row, each.late_ms) for each in fed.late] == [(0, 1)]
    assert dict(source.entries[-1].facts) == {"stream": "b", "max_event_time": T0 + 900}
    assert (source.entries[-1].kind, source.entries[-1].number, source.sources["b"].idle) == ("active", 2, False)
    assert source.inputs()["b"].idle is False


def test_of_a_silent_stream_nothing_joins_while_what_comes_is_no_event() -> None:
    source = source_of()
    feed(source, "ta", 1_000)
    source.sources["b"].idle = True
    source.buffer.max_event_time.pop((1, 3))
    source.feed(block("tb", 0, [b"{"]))
    assert (source.sources["b"].idle, source.entries) == (True, [])


def test_an_idle_stream_goes_on_as_the_clock_does() -> None:
    source = source_of(A)
    feed(source, "ta", 0)
    source.observe_end("a", True, 10_000)
    for now, wanted in ((14_999, None), (15_000, T0), (15_001, T0 + 1), (16_000, T0 + 1_000)):
        source.observe_end("a", True, now)
        assert source.idle_max_event_time(source.sources["a"], now) == wanted, now
        assert source.idle_watermark(now) == max(source.watermark, (wanted or T0) - 100)
    assert source.idle_max_event_time(source.sources["a"], 99_000) == T0 + 1_000, "only for as long as the log said so"
    source.advance(15_000)
    assert source.entries == [], "it is where it was"
    assert shown(source.advance(16_000)) == [0]
    assert [(each.kind, dict(each.facts)) for each in source.entries] == [
        ("advance", {"stream": "a", "max_event_time": T0 + 1_000})
    ]
    source.feed(block("ta", 1, []))
    assert source.sources["a"].idle_since_ms is None


def test_a_stand_that_is_broken_begins_again() -> None:
    source = source_of(A)
    feed(source, "ta", 0)
    source.observe_end("a", True, 0, 1)
    source.observe_end("a", True, 4_000, 1)
    assert (source.sources["a"].idle_since_ms, source.sources["a"].idle_until_ms) == (0, 4_000)
    source.observe_end("a", True, 5_000, 2)
    assert (source.sources["a"].idle_since_ms, source.sources["a"].stretch) == (5_000, 2)
    source.observe_end("a", True, 6_000, None)
    assert (source.sources["a"].idle_since_ms, source.sources["a"].idle_until_ms) == (5_000, 5_000)
    source.observe_end("a", False, 7_000, 2)
    assert source.sources["a"].idle_since_ms is None
    source.observe_end("a", True, 8_000, 2)
    assert source.sources["a"].idle_base_time == T0


def test_event_time_is_the_least_of_all_streams() -> None:
    source = source_of()
    feed(source, "ta", 1_000)
    feed(source, "tb", 300)
    assert source.idle_watermark(0) == T0 + 300
    source.observe_end("b", True, 0)
    source.observe_end("b", True, 2_600)
    assert source.idle_watermark(2_600) == T0 + 900
    source.observe_end("b", True, 2_500)
    assert source.idle_watermark(2_500) == T0 + 800


def test_a_journal_entry_does_again_what_was_done() -> None:
    source = source_of()
    feed(source, "ta", 1_000)

    def apply(kind: str, number: int, **facts: Any) -> list[int]:
        return shown(source.apply(JournalEntry(kind=kind, number=number, inputs={}, watermark=None, facts=facts)))

    assert apply("idle", 4, stream="b") == []
    assert (source.journaled, source.sources["b"].idle, source.watermark) == (4, True, T0 + 900)
    assert apply("advance", 5, stream="a", max_event_time=T0 + 1_200) == [1_000]
    assert (source.journaled, source.max_event_time("a")) == (5, T0 + 1_200)
    assert apply("advance", 6, stream="a", max_event_time=T0 + 1_100) == []
    assert source.max_event_time("a") == T0 + 1_200, "it never goes back"
    assert apply("active", 7, stream="b", max_event_time=T0 + 1_100) == []
    assert (source.sources["b"].idle, source.max_event_time("b")) == (False, T0 + 1_100)
    apply("schema", 8, stream="a", schema=3, known=False)
    assert source.sources["a"].unknown == (UnknownSchema(3, 1, None),)
    apply("schema", 9, stream="a", schema=3, known=True)
    assert source.sources["a"].unknown == (UnknownSchema(3, 1, 1),)


def test_a_change_of_rules_is_an_entry_with_where_those_after_it_read_on() -> None:
    source = source_of()
    feed(source, "ta", 1_000)
    feed(source, "tb", 950)
    source.note_rules({"rules": []})
    source.note_rules({"rules": [1]}, {"a": 7})
    first, second = source.entries
    assert (first.number, dict(first.inputs), first.watermark) == (1, {"a": 1, "b": 1}, T0 + 900)
    assert (second.number, dict(second.inputs), dict(second.facts)) == (2, {"a": 7}, {"rules": [1]})


# ---------------------------------------------------------------- who is ahead


def test_inputs_ahead_of_event_time_and_those_that_it_waits_for() -> None:
    source = source_of()
    a, b = TopicPartition("ta", 3), TopicPartition("tb", 3)
    feed(source, "ta", 1_000)
    feed(source, "tb", 900)
    assert (source.ahead(0), source.behind(0)) == (set(), {a, b}), "less its slack, the first is at 900 too"
    assert source.blocked_by() == ("a", 3)
    feed(source, "tb", 901)
    assert (source.ahead(0), source.behind(0), source.blocked_by()) == ({b}, {a}, ("a", 3))
    feed(source, "ta", 1_002)
    assert (source.ahead(0), source.behind(0), source.blocked_by()) == ({a}, {b}, ("b", 3))
    source.observe_end("b", True, 0)
    source.observe_end("b", True, 2_001)
    assert source.ahead(2_001) == set(), "measured by where idle inputs would let event time be"


def test_event_time_waits_for_a_stream_that_has_said_nothing_and_not_for_one_that_is_silent() -> None:
    source = source_of()
    feed(source, "ta", 1_000)
    assert source.blocked_by() == ("b", 3)
    source._mark_idle(source.sources["b"])
    assert source.blocked_by() == ("a", 3)
    source._mark_idle(source.sources["a"])
    assert source.blocked_by() is None


def test_what_waits_takes_so_many_bytes() -> None:
    source = source_of(A)
    assert source.waiting_bytes() == 0
    source.feed(block("ta", 0, [value(0, "abc", n=1), value(1, "de", n="text")]))
    assert source.waiting_bytes() == 2 * ROW_BYTES * 3 + len("abc" + "de" + "text")
    many = source_of(A)
    many.feed(block("ta", 0, [value(0, "abc")] * (2 * LOOKED_AT)))
    rows = 2 * LOOKED_AT
    assert many.waiting_bytes() == pytest.approx(rows * ROW_BYTES * 3 + rows * 3, rel=0.01)


# ---------------------------------------------------------------- places


def test_the_check_of_places_is_turned_on_and_off_at_the_position() -> None:
    source = source_of()
    source.check_places({"a"}, None)
    a, b = source.sources["a"], source.sources["b"]
    assert (a.is_checked, a.placing, b.is_checked, b.placing) == (True, (0,), False, ())
    stored = {
        "a": InputPosition(topic="ta", topic_id="", next=9, replay_from=5, placing=(0,)),
        "b": InputPosition(topic="tb", topic_id="", next=8, replay_from=5, placing=(2, 4)),
    }
    position = Position(watermark=None, inputs=stored, streams=("a", "b"), rules={})
    source.check_places({"a", "b"}, position)
    assert (a.placing, b.placing, a.is_checked, b.is_checked) == ((0,), (2, 4, 8), True, True)
    source.check_places((), position)
    assert (a.placing, b.placing, a.is_checked, b.is_checked) == ((0, 9), (2, 4), False, False)


@pytest.mark.parametrize("now", [0, 4, 6])
def test_an_event_in_the_wrong_partition_is_told_and_why(now: int) -> None:
    """The state was made with four partitions. Where the topic has grown to six, that is why most of them are here."""
    source = source_of(replace(A, placed_in=4))
    source.partitions_now = lambda topic: now if topic == "ta" else 99
    source.check_places({"a"}, None)
    keys = [f"k{number}" for number in range(60)]
    dead = source.feed(block("ta", 0, [value(number, key) for number, key in enumerate(keys)])).dead
    places = {
        row: (partition_of(key.encode(), 4), partition_of(key.encode(), now or 4)) for row, key in enumerate(keys)
    }
    wanted = {row: MOVED if now > 4 and grown == 3 else MISPLACED for row, (made, grown) in places.items() if made != 3}
    assert {each.row: each.kind for each in dead} == wanted
    assert len(set(wanted.values())) == (2 if now > 4 else 1)


# ---------------------------------------------------------------- numbers, cuts and stretches


def test_streams_keep_the_numbers_that_a_state_knows() -> None:
    c = InputSpec(stream="c", topic="tc", key="k")
    position = Position(watermark=None, inputs={}, streams=("b", "a"), rules={})
    assert numbered(None, [A, B]) == (A, B)
    assert numbered(position, [A, B, c]) == (B, A, c)
    with pytest.raises(Refused) as refused:
        numbered(position, [A, c])
    assert refused.value.code == "stream-removed"


def test_a_repartition_topic_that_no_rule_needs_is_retired() -> None:
    a = replace(A, source_topic="sa", source_partitions=2)
    specs = numbered(Position(watermark=None, inputs={}, streams=("b", "a"), rules={}), [a])
    assert [(spec.stream, spec.retired) for spec in specs] == [("b", True), ("a", False)]
    with pytest.raises(Refused):
        numbered(
            Position(watermark=None, inputs={}, streams=("b", "a"), rules={}),
            [a, InputSpec(stream="c", topic="tc", key="k")],
        )
    source = StreamSource(specs, ("k",), 0)
    assert (source.streams, list(source.sources), source.sources["a"].number) == (("b", "a"), ["a"], 1)


@pytest.mark.parametrize(
    ("cuts", "parts"),
    [([], [[0, 1, 2, 3]]), ([10], [[0, 1, 2, 3]]), ([12], [[0], [1, 2, 3]]), ([14, 11, 14], [[0], [1], [2, 3]]),
     ([99], [[0, 1, 2, 3]]), ([16], [[0, 1, 2], [3]])],
)  # fmt: skip
def test_rows_are_cut_where_something_changes(cuts: list[int], parts: list[list[int]]) -> None:
    offsets = np.array([10, 12, 14, 16], np.int64)
    assert [rows.tolist() for rows in cut_at(offsets, cuts)] == parts
    assert list(cut_at(offsets[:0], cuts)) == []


def test_a_check_holds_from_one_turn_to_the_next() -> None:
    assert [is_on_at((2, 5, 7), offset) for offset in (1, 2, 4, 5, 6, 7, 99)] == [
        False, True, True, False, False, True, True,
    ]  # fmt: skip
    assert [needed_turns((2, 5, 7), replay_from) for replay_from in (1, 2, 4, 5, 6, 7)] == [
        (2, 5, 7), (0, 5, 7), (0, 5, 7), (7,), (7,), (0,),
    ]  # fmt: skip


def test_a_schema_is_unknown_from_one_offset_to_another() -> None:
    one = turned((), 7, 3, known=False)
    two = turned(one, 8, 4, known=False)
    three = turned(two, 7, 6, known=True)
    assert three == (UnknownSchema(7, 3, 6), UnknownSchema(8, 4, None))
    assert turned(three, 7, 9, known=True) == three, "it was known already"
    assert turned(three, 7, 9, known=False)[-1] == UnknownSchema(7, 9, None)
    assert [unknown_yet(each) for each in (one, two, three)] == [{7}, {7, 8}, {8}]
    assert [unknown_at(three, offset) for offset in (2, 3, 4, 5, 6)] == [set(), {7}, {7, 8}, {7, 8}, {8}]
    assert edges_of(three) == [3, 6, 4]
    assert [needed(three, replay_from) for replay_from in (5, 6)] == [three, three[1:]]


def test_stretches_before_what_is_read_again_are_let_go_of() -> None:
    source = source_of(A)
    a = source.sources["a"]
    a.next, a.unknown, a.placing = 6, (UnknownSchema(7, 3, 6), UnknownSchema(8, 4, None)), (2, 5)
    stored = source.inputs()["a"]
    assert (stored.unknown, stored.placing) == ((UnknownSchema(8, 4, None),), ())
    assert (a.unknown, a.placing) == (stored.unknown, stored.placing)


def test_in_a_replay_the_journal_says_which_schemas_nobody_knew() -> None:
    source = source_of(A)
    assert not source.replays
    source.replay()
    assert source.replays


def test_no_time_is_none() -> None:
    assert [known_time(each) for each in (NO_TIME, 0, T0)] == [None, 0, T0]
