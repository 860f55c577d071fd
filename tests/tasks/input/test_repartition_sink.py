"""What a stream that is idle tells later stages: how often, up to when, and that it is idle then."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from samovar.changelog.batches import RecordBlock
from samovar.changelog.formats.forwarded import heads_of, marks_of
from samovar.changelog.formats.record import EmittedWatermark
from samovar.native.kernel import joined
from samovar.patterns.engine.order import NO_TIME
from samovar.tasks.input.repartition_sink import (
    MARK_INTERVAL_MS,
    MARK_INTERVAL_PART,
    ONE_KEY,
    RepartitionOutput,
    RepartitionSink,
    State,
)
from samovar.tasks.input.source import StreamSource
from samovar.tasks.model.plan import Forward, InputSpec

T0 = 1_000_000
IDLE, SLACK, LASTING = 5_000, 400, 9_000
FORWARD = Forward(stage="by-u", stream="use", field="u", topic="s-use-by-u", partitions=3, lasting_ms=LASTING)
END = SLACK + LASTING + 1  # after the last event: nobody waits for it any more


def sink(forward: Forward = FORWARD, max_event_time: int = T0, told: EmittedWatermark | None = None) -> RepartitionSink:
    """Of a stream whose last event was at T0, and which stands at its end since the clock was 0."""
    stream_source = StreamSource([InputSpec(stream="use", topic="t", key="u", slack_ms=SLACK, idle_ms=IDLE)], ("u",), 0)
    stream_source.buffer.max_event_time[0, 0] = max_event_time
    found = RepartitionSink([forward], stream_source, 0, {} if told is None else {forward.topic: told}, lambda *_: 0)
    stream_source.observe_end("use", True, 0)
    return found


def due_watermarks(found: RepartitionSink, now_ms: int) -> State | None:
    """What is told at this time of the clock; None where there is nothing."""
    found.source.observe_end("use", True, now_ms)
    if not found.due_watermarks(now_ms):
        assert found.appends() == []
        return None
    appends = found.appends()
    assert [(each.topic, each.partition, len(each.records)) for each in appends] == [
        ("s-use-by-u", at, 1) for at in range(3)
    ]
    return found.outputs[0].emitted


def test_it_tells_its_time_once_a_second_until_nobody_waits_for_it() -> None:
    found = sink()
    assert due_watermarks(found, 0) == State(T0, False)
    assert due_watermarks(found, IDLE + MARK_INTERVAL_MS - 1) is None
    assert due_watermarks(found, IDLE + MARK_INTERVAL_MS) == State(T0 + MARK_INTERVAL_MS, False)
    assert due_watermarks(found, IDLE + 2 * MARK_INTERVAL_MS - 1) is None
    assert due_watermarks(found, IDLE + END - 1) == State(T0 + END - 1, False)
    assert due_watermarks(found, IDLE + END) == State(T0 + END, True)
    assert due_watermarks(found, IDLE + 2 * END) is None


def test_a_silent_one_that_a_custom_task_reads_tells_its_time_the_more_rarely_the_longer_it_is_idle() -> None:
    found = sink(replace(FORWARD, endless=True))
    assert due_watermarks(found, 0) == State(T0, False)
    assert due_watermarks(found, IDLE + END) == State(T0 + END, True)
    told, ms, steps = T0 + END, END, list[int]()
    while len(steps) < 20:
        ms += 100
        state = due_watermarks(found, IDLE + ms)
        if state is not None:
            assert state == State(T0 + ms, True)
            steps.append(state.max_event_time - told)
            told = state.max_event_time
    assert steps[:10] == [MARK_INTERVAL_MS] * 10
    ms = 6_000_000
    assert due_watermarks(found, IDLE + ms) == State(T0 + ms, True)
    assert due_watermarks(found, IDLE + ms + ms // MARK_INTERVAL_PART - 100) is None
    assert due_watermarks(found, IDLE + ms + ms // MARK_INTERVAL_PART * 102 // 100) is not None


def test_a_stream_that_never_had_an_event_is_silent_once_it_is_idle() -> None:
    found = sink(max_event_time=NO_TIME)
    assert due_watermarks(found, IDLE - 1) is None
    assert due_watermarks(found, IDLE) == State(NO_TIME, True)
    assert due_watermarks(found, 2 * IDLE) is None


@pytest.mark.parametrize("before", [0, 2_500])
def test_what_was_told_before_a_restart_counts(before: int) -> None:
    """Event time of later stages does not stand still until this process has been idle for as long again."""
    found = sink(told=EmittedWatermark(0, T0 + before, False))
    assert due_watermarks(found, 0) is None
    assert due_watermarks(found, IDLE + MARK_INTERVAL_MS - 1) is None
    assert due_watermarks(found, IDLE + MARK_INTERVAL_MS) == State(T0 + before + MARK_INTERVAL_MS, False)
    assert found.emitted() == {"s-use-by-u": EmittedWatermark(0, T0 + before + MARK_INTERVAL_MS, False)}


# ---------------------------------------------------------------- events


def records(*events: tuple[int, str | None]) -> RecordBlock:
    """Of times and users, one per card."""
    values = [
        json.dumps({"card": "c", "ts": T0 + ms, **({} if user is None else {"u": user})}).encode()
        for ms, user in events
    ]
    offsets, no = np.arange(len(values), dtype=np.int64), np.zeros(len(values), bool)
    return RecordBlock(
        topic="t",
        partition=0,
        offsets=offsets,
        times=offsets,
        next=len(values),
        keys=joined([b"c"] * len(values)),
        values=joined(values),
        keyless=no,
        null=no,
    )


def forwarded(forward: Forward, given: RecordBlock, before: int = 0) -> tuple[list[tuple[bytes | None, int]], int]:
    """Keys and offsets of what goes out; and how many events have no key there."""
    stream_source = StreamSource([InputSpec(stream="use", topic="t", key="card", slack_ms=SLACK)], ("card", "u"), 0)
    told = {forward.topic: EmittedWatermark(0, None, False)}
    found = RepartitionSink([forward], stream_source, 0, told, lambda *_: before)
    unkeyed = found.forward("use", given, stream_source.feed(given))
    pairs = [pair for each in found.appends() if each.partition is None for pair in each.records]
    return [(key, int(heads_of(joined([value or b""]))["offset"][0])) for key, value in pairs], unkeyed


GIVEN = records((0, "x"), (10, None), (2_000, "y"), (100, "late"), (2_001, "x"))


def test_events_go_out_in_order_under_the_field_of_the_stage() -> None:
    """None that came too late, and none without a key."""
    assert forwarded(FORWARD, GIVEN) == ([(b"x", 0), (b"y", 2), (b"x", 4)], 1)
    everything = [(ONE_KEY, 0), (ONE_KEY, 1), (ONE_KEY, 2), (ONE_KEY, 4)]
    assert forwarded(replace(FORWARD, field=None), GIVEN) == (everything, 0)


@pytest.mark.parametrize(("before", "offsets"), [(0, [0, 2, 4]), (1, [2, 4]), (3, [4]), (4, [4]), (5, [])])
def test_what_was_forwarded_before_a_rewind_is_not_forwarded_again(before: int, offsets: list[int]) -> None:
    assert [offset for _, offset in forwarded(FORWARD, GIVEN, before)[0]] == offsets


# ---------------------------------------------------------------- what is told, step by step


def outlet_of(found: RepartitionSink) -> RepartitionOutput:
    (outlet,) = found.outputs
    return outlet


def test_all_is_forwarded_from_where_the_stream_was_when_it_began() -> None:
    found = sink()
    found.source.sources["use"].next = 7
    assert (outlet_of(found).since, found.emitted()) == (None, {})
    found.begin()
    found.source.sources["use"].next = 9
    found.begin()
    assert outlet_of(found).since == 7
    assert found.emitted() == {"s-use-by-u": EmittedWatermark(7, None, False)}


def test_a_mark_says_how_far_the_source_is() -> None:
    found = sink()
    found.source.sources["use"].next = 7
    found.due_watermarks(0)
    ((_, value),) = found.appends()[0].records
    values = joined([value or b""])
    (mark,) = marks_of(heads_of(values), values)
    assert (mark.partition, mark.next, mark.max_event_time, mark.idle, mark.since) == (0, 7, T0, False, 7)


def test_events_take_the_place_of_what_the_clock_would_tell() -> None:
    """After them a mark tells how far the stream is; it goes to every partition, and once."""
    stream_source = StreamSource([InputSpec(stream="use", topic="t", key="card", slack_ms=SLACK)], ("card", "u"), 0)
    found = RepartitionSink([FORWARD], stream_source, 0, {}, lambda *_: 0)
    found.begin()
    given = records((0, "x"), (50, "y"))
    assert found.forward("use", given, stream_source.feed(given)) == 0
    assert found.bytes == len(given.values.data)
    assert outlet_of(found).is_active
    appends = found.appends()
    assert [(each.partition, each.among, len(each.records)) for each in appends] == [
        (None, 3, 2), (0, None, 1), (1, None, 1), (2, None, 1),
    ]  # fmt: skip
    assert (found.bytes, outlet_of(found).pairs, outlet_of(found).emitted) == (0, [], State(T0 + 50, False))
    assert found.appends() == []
    assert found.forward("other", given, stream_source.feed(records())) == 0
    assert found.forward("use", records(), stream_source.feed(records())) == 0
    assert found.appends() == []


def test_of_late_events_nothing_goes_out() -> None:
    stream_source = StreamSource([InputSpec(stream="use", topic="t", key="card", slack_ms=SLACK)], ("card", "u"), 0)
    found = RepartitionSink([FORWARD], stream_source, 0, {}, lambda *_: 0)
    found.begin()
    stream_source.buffer.max_event_time[0, 0] = T0 + 9_000
    given = records((0, "x"), (10, "y"))
    fed = stream_source.feed(given)
    assert (len(fed.late), found.forward("use", given, fed), found.bytes, outlet_of(found).pairs) == (2, 0, 0, [])


def test_a_silent_stream_speaks_again_with_its_next_event() -> None:
    found = sink(told=EmittedWatermark(0, T0, True))
    assert due_watermarks(found, IDLE + END) is None
    outlet_of(found).is_active, outlet_of(found).pending = True, State(T0 + 60, False)
    assert len(found.appends()) == 3
    assert (outlet_of(found).emitted, outlet_of(found).is_active) == (State(T0 + 60, False), True)


def test_what_was_told_never_goes_back() -> None:
    found = sink(told=EmittedWatermark(0, T0 + 9_000, False))
    outlet_of(found).pending = State(T0, False)
    assert found.appends() == []
    outlet_of(found).pending = State(T0, True)
    assert len(found.appends()) == 3
    assert (outlet_of(found).emitted, outlet_of(found).is_active) == (State(T0 + 9_000, True), False)


def test_two_stages_may_be_keyed_by_one_field() -> None:
    other = replace(FORWARD, stage="other", topic="s-use-other", partitions=1)
    by_card = replace(FORWARD, stage="by-card", topic="s-use-by-card", field="card", partitions=1)
    stream_source = StreamSource([InputSpec(stream="use", topic="t", key="card", slack_ms=SLACK)], ("card", "u"), 0)
    told = {each.topic: EmittedWatermark(0, None, False) for each in (FORWARD, other, by_card)}
    found = RepartitionSink([FORWARD, other, by_card], stream_source, 0, told, lambda *_: 0)
    assert stream_source.texts == {"use": (1, 0)}
    given = records((0, "x"), (10, None))
    assert found.forward("use", given, stream_source.feed(given)) == 2
    keys = [[key for key, _ in each.records] for each in found.appends() if each.partition is None]
    assert keys == [[b"x"], [b"x"], [b"c", b"c"]]


def test_what_was_told_all_of_before_a_rewind_is_not_told_again() -> None:
    assert forwarded(FORWARD, GIVEN, before=5) == ([], 0)
    keys, unkeyed = forwarded(FORWARD, GIVEN, before=4)
    assert (keys, unkeyed) == ([(b"x", 4)], 0)
    assert forwarded(FORWARD, GIVEN, before=1)[1] == 1
