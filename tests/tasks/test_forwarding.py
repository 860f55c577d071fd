"""What a stream that is idle tells later stages: how often, up to when, and that it is silent then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from samovar.changelog.record import Told
from samovar.patterns.order import NO_TIME
from samovar.tasks.forwarding import TELL_EVERY_MS, TELL_PART, Forwarding, State
from samovar.tasks.intake import Intake
from samovar.tasks.plan import Forward, InputSpec

T0 = 1_000_000
IDLE, SLACK, LASTING = 5_000, 400, 9_000
FORWARD = Forward("by-u", "use", "u", "s-use-by-u", 3, lasting_ms=LASTING)
END = SLACK + LASTING + 1  # after the last event: nobody waits for it any more


def forwarding(forward: Forward = FORWARD, largest: int = T0, told: Told | None = None) -> Forwarding:
    """Of a stream whose last event was at T0, and which stands at its end since the clock was 0."""
    intake = Intake([InputSpec("use", "t", "u", slack_ms=SLACK, idle_ms=IDLE)], ("u",), 0)
    intake.buffer.largest[0, 0] = largest
    found = Forwarding([forward], intake, 0, {} if told is None else {forward.topic: told}, lambda *_: 0)
    intake.stand("use", True, 0)
    return found


def look(found: Forwarding, now_ms: int) -> State | None:
    """What is told at this time of the clock; None where there is nothing."""
    found.intake.stand("use", True, now_ms)
    if not found.look(now_ms):
        assert found.appends() == []
        return None
    appends = found.appends()
    assert [(each.topic, each.partition, len(each.records)) for each in appends] == [
        ("s-use-by-u", at, 1) for at in range(3)
    ]
    return found.outlets[0].told


def test_it_tells_its_time_once_a_second_until_nobody_waits_for_it() -> None:
    found = forwarding()
    assert look(found, 0) == State(T0, False)
    assert look(found, IDLE + TELL_EVERY_MS - 1) is None
    assert look(found, IDLE + TELL_EVERY_MS) == State(T0 + TELL_EVERY_MS, False)
    assert look(found, IDLE + 2 * TELL_EVERY_MS - 1) is None
    assert look(found, IDLE + END - 1) == State(T0 + END - 1, False)
    assert look(found, IDLE + END) == State(T0 + END, True)
    assert look(found, IDLE + 2 * END) is None


def test_a_silent_one_that_a_custom_task_reads_tells_its_time_the_more_rarely_the_longer_it_is_idle() -> None:
    found = forwarding(replace(FORWARD, endless=True))
    assert look(found, 0) == State(T0, False)
    assert look(found, IDLE + END) == State(T0 + END, True)
    told, ms, steps = T0 + END, END, []
    while len(steps) < 20:
        ms += 100
        state = look(found, IDLE + ms)
        if state is not None:
            assert state == State(T0 + ms, True)
            steps.append(state.largest - told)
            told = state.largest
    assert steps[:10] == [TELL_EVERY_MS] * 10
    ms = 6_000_000
    assert look(found, IDLE + ms) == State(T0 + ms, True)
    assert look(found, IDLE + ms + ms // TELL_PART - 100) is None
    assert look(found, IDLE + ms + ms // TELL_PART * 102 // 100) is not None


def test_a_stream_that_never_had_an_event_is_silent_once_it_is_idle() -> None:
    found = forwarding(largest=NO_TIME)
    assert look(found, IDLE - 1) is None
    assert look(found, IDLE) == State(NO_TIME, True)
    assert look(found, 2 * IDLE) is None


@pytest.mark.parametrize("before", [0, 2_500])
def test_what_was_told_before_a_restart_counts(before: int) -> None:
    """Event time of later stages does not stand still until this process has been idle for as long again."""
    found = forwarding(told=Told(0, T0 + before, False))
    assert look(found, 0) is None
    assert look(found, IDLE + TELL_EVERY_MS - 1) is None
    assert look(found, IDLE + TELL_EVERY_MS) == State(T0 + before + TELL_EVERY_MS, False)
    assert found.told() == {"s-use-by-u": Told(0, T0 + before + TELL_EVERY_MS, False)}
