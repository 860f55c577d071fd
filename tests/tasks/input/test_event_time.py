"""Event time: idle inputs, lateness, slack, silence, and what all of it leaves in the journal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from samovar.tasks.input.source import StreamSource
from samovar.tasks.model.plan import InputSpec
from samovar.testing import Crash, Driver, same_after_crashes
from tests.faults.comparing import header, shown
from tests.faults.stage import Stage, Staging, ids, told_without_late
from tests.support.tunables import USUAL

T0 = 1_700_000_000_000
S = 1_000
FORGOTTEN = """
rule: forgotten
match: |
  sequence by card with maxspan=60s
    [login where true] as came
    ![logout where true]
"""
PAIR = """
rule: pair
match: |
  sequence by card with maxspan=1m
    [a where true] as one
    [b where true] as two
"""
FIRST = """
rule: first
match: |
  sequence by card with maxspan=30s
    [login where n == 1] as one
    [login where n == 2] as two
    [login where n == 3] as three
"""


def one_stream(**more: Any) -> dict[str, dict[str, Any]]:
    return {"use": {"key": "card", "type": "kind", "slack": "2s", "idle": "5s", "partitions": 1, **more}}


def login(at_ms: int, card: str = "c", **more: Any) -> dict[str, Any]:
    return {"card": card, "kind": "login", "ts": T0 + at_ms, **more}


def driven(rule: str, **more: Any) -> Driver:
    return Driver.of_rules(rule, {"use": {"key": "card", "type": "kind", "slack": "2s", "idle": "5s", **more}})


def at_times(run: Stage | Driver) -> list[int]:
    return [alert["at"] - T0 for alert in (run.alerts if isinstance(run, Driver) else run.service.alerts())]


def kinds(run: Stage | Driver) -> list[str]:
    return [entry.kind for entry in (run.journal if isinstance(run, Driver) else run.service.journal())]


# ---------------------------------------------------------------- idle


def raised_to(stream_source: StreamSource, now_ms: int) -> int:
    return stream_source.idle_watermark(now_ms) - T0


def test_an_input_is_idle_only_while_the_log_says_that_its_end_is_the_end() -> None:
    """An outage is not idleness: nobody could write either. It counts again from the first look that succeeds."""
    stream_source = StreamSource([InputSpec(stream="use", topic="use", key="card", idle_ms=5 * S)], ("card",), 0)
    stream_source.buffer.max_event_time[0, 0] = T0
    stream_source.observe_end("use", True, 0, None)
    assert raised_to(stream_source, 100 * S) == 0, "read to its end, and no look at the log yet"
    for second in range(100, 111):
        stream_source.observe_end("use", True, second * S, 1)
    assert raised_to(stream_source, 110 * S) == 5 * S
    for second in range(111, 700):
        stream_source.observe_end("use", True, second * S, None)
        assert raised_to(stream_source, second * S) == 5 * S, "the log does not answer"
    stream_source.advance(700 * S)
    for second in range(700, 705):
        stream_source.observe_end("use", True, second * S, 2)
        assert raised_to(stream_source, second * S) == 5 * S
    for second in range(705, 711):
        stream_source.observe_end("use", True, second * S, 2)
    assert raised_to(stream_source, 710 * S) == 5 * S + 5 * S
    stream_source.observe_end("use", False, 711 * S)
    assert raised_to(stream_source, 720 * S) == 5 * S


def test_before_the_first_event_no_time_is_stored() -> None:
    stream_source = StreamSource([InputSpec(stream="use", topic="use", key="card")], ("card",), 0)
    stream_source.note_rules({})
    assert (stream_source.inputs()["use"].max_event_time, stream_source.entries[-1].watermark) == (None, None)


def test_an_idle_input_lets_event_time_pass_as_the_clock_does() -> None:
    driver = driven(FORGOTTEN)
    driver.send("use", login(0))
    # The event waits for the slack of 2 s, and then its deadline is at 60 s; the input counts as idle after 5 s.
    driver.pass_time("7s")
    assert kinds(driver) == ["rules"]
    driver.pass_time("60s")
    assert (at_times(driver), kinds(driver)) == ([], ["rules", "advance"])
    driver.pass_time("1ms")
    assert at_times(driver) == [60 * S]
    entry = driver.journal[-1]
    assert (entry.kind, dict(entry.facts)) == ("advance", {"stream": "use", "max_event_time": T0 + 62 * S + 1})
    assert (entry.number, dict(entry.inputs), entry.watermark) == (3, {"use": 1}, T0 + 60 * S)


def test_event_time_never_jumps_to_now() -> None:
    """Events are years old: an idle input still advances by what passed since it stood at its end."""
    driver = driven(FORGOTTEN)
    driver.send("use", login(0))
    driver.pass_time("30s")  # now at 25 s
    driver.send("use", login(26 * S, "d"))
    driver.pass_time("41s")
    assert at_times(driver) == []
    driver.pass_time("1ms")
    assert at_times(driver) == [60 * S]
    driver.pass_time("26s")
    assert at_times(driver) == [60 * S, 86 * S]


def test_nothing_is_journaled_while_nothing_waits(stage: Staging) -> None:
    here = stage({"r": FORGOTTEN}, one_stream(slack="0s"), **USUAL)  # a state between the two events would wait
    here.feed("use", login(0), {**login(0), "kind": "logout", "ts": T0 + S})
    for _ in range(5):
        here.pass_ms(600 * S)
    assert kinds(here) == ["rules"]


def test_an_event_behind_an_advance_is_late(stage: Staging) -> None:
    """P8: it is in the late topic with its bytes and its place, and it is counted."""
    here = stage({"r": FORGOTTEN}, one_stream())
    here.feed("use", login(0))
    here.pass_ms(100 * S)  # event time is T0 + 95 s - 2 s
    logout = {**login(50 * S), "kind": "logout"}
    here.feed("use", logout)
    assert at_times(here) == [60 * S]
    (row,) = here.service.late()
    assert row.value == json.dumps(logout).encode()
    assert [header(row, name) for name in ("topic", "partition", "offset")] == [row.at.topic[:-5] + "-use", "0", "1"]
    assert dict(row.headers)["samovar.late.ms"] == str(43 * S).encode()
    assert here.container.status().counts.late == 1


@pytest.mark.parametrize("wipe", [False, True], ids=["kept", "lost"])
def test_a_timer_fires_once_across_restarts(stage: Staging, wipe: bool) -> None:
    """P9."""
    here = stage({"r": FORGOTTEN}, one_stream())
    here.feed("use", login(0))
    here.crash(wipe=wipe)
    here.pass_ms(80 * S)
    assert at_times(here) == [60 * S]
    here.crash(wipe=wipe)
    here.pass_ms(80 * S)
    here.feed("use", login(500 * S, "d"))
    here.crash(wipe=wipe)
    here.settle()
    assert at_times(here) == [60 * S]


# ---------------------------------------------------------------- slack


def test_events_that_wait_survive_a_crash() -> None:
    """P9: disorder within the slack and a crash while events wait give the ids of a run with neither."""
    events = [login(n * S, n=n) for n in (2, 1, 3)] + [{**login(1000 * S), "kind": "end"}]
    assert at_times(driven(FIRST).run(*(("use", event) for event in events))) == [3 * S]
    same_after_crashes(lambda: driven(FIRST), *(("use", event) for event in events))


def digests(stage: Stage) -> dict[int, str]:
    stage.close()
    return stage.service.digests()


@pytest.mark.parametrize("wipe", [False, True], ids=["kept", "lost"])
def test_an_advance_while_events_wait_survives_a_crash(stage: Staging, wipe: bool) -> None:
    """An event waits behind the slack, event time is raised with no event, a crash, and only then is it released."""
    here = stage({"r": FIRST, "f": FORGOTTEN}, one_stream(slack="20s"))
    here.feed("use", login(0, n=1), login(75 * S, n=2))
    here.pass_ms(6 * S + 5 * S)  # raised to 81 s: the first card's deadline of 60 s passed
    assert at_times(here) == [60 * S]
    here.crash(wipe=wipe)
    here.feed("use", login(60 * S, n=3))  # behind 81 - 20 = 61 s
    assert here.container.status().counts.late == 1
    here.crash(wipe=wipe)
    here.feed("use", login(80 * S, n=3), {**login(1000 * S), "kind": "end"})
    assert shown(here.service.alerts()) == shown(told_without_late(here.service))
    rebuilt_ids, rebuilt_digests = rebuilt(here)
    assert rebuilt_ids == ids(here.service.alerts())
    assert rebuilt_digests == here.service.digests()


def rebuilt(stage: Stage) -> tuple[list[str], dict[int, str]]:
    stage.close()
    found, digests_ = stage.rebuilt()
    return sorted(found), digests_


# ---------------------------------------------------------------- from the future


def test_an_event_of_the_year_2099_moves_nothing() -> None:
    """It is a dead letter, measured against the log's own time; what comes after it is in time (P8)."""
    driver = driven(FIRST)
    far = login(0, n=1) | {"ts": 4_070_908_800_000}
    sent = login(0, n=1), far, login(S, n=2), login(2 * S, n=3), {**login(9 * S), "kind": "end"}
    driver.send("use", *sent, log_time=T0)
    assert at_times(driver) == [2 * S]
    assert [(letter.value, letter.reason) for letter in driver.dead] == [(json.dumps(far).encode(), "FROM_THE_FUTURE")]
    assert driver.late == []
    driver.crash(Crash.LOST)
    driver.send("use", login(10 * S, n=1))
    assert len(driver.dead) == 1


# ---------------------------------------------------------------- several streams


def two_streams(slack_a: str = "0s", slack_b: str = "10s") -> dict[str, dict[str, Any]]:
    common = {"key": "card", "idle": "5s", "partitions": 1}
    return {"a": {**common, "slack": slack_a}, "b": {**common, "slack": slack_b}}


def event(at_ms: int) -> dict[str, Any]:
    return {"card": "c", "ts": T0 + at_ms}


def test_event_time_is_that_of_the_stream_behind(stage: Staging) -> None:
    here = stage({"r": PAIR}, two_streams())
    here.feed("a", event(0), event(20 * S))
    here.feed("b", event(15 * S))
    assert at_times(here) == []  # b may still bring events from 5 s on
    here.feed("b", event(8 * S))
    here.feed("b", event(90 * S))
    here.feed("a", event(91 * S))
    assert at_times(here) == [8 * S]
    here.feed("a", event(500 * S))
    here.feed("b", event(600 * S))
    assert here.service.late() == []
    assert shown(here.service.alerts()) == shown(told_without_late(here.service)[:1])


@pytest.mark.parametrize("wipe", [None, False, True], ids=["straight", "kept", "lost"])
def test_a_stream_that_never_spoke_holds_nothing_back_and_may_join(stage: Staging, wipe: bool | None) -> None:
    here = stage({"r": PAIR, "f": FORGOTTEN.replace("login", "a").replace("logout", "b")}, two_streams())

    def crash() -> None:
        if wipe is not None:
            here.crash(wipe=wipe)

    here.feed("a", event(0))
    crash()
    here.feed("a", event(70 * S))
    assert at_times(here) == []  # nobody knows about b yet
    here.pass_ms(5 * S)
    assert at_times(here) == [60 * S]
    assert kinds(here) == ["rules", "idle"]
    crash()
    here.feed("b", event(65 * S), event(75 * S))  # the first is behind event time, which is at 70 s
    assert kinds(here)[2:] == ["active"]
    assert [header(row, "offset") for row in here.service.late()] == ["0"]
    crash()
    here.feed("a", event(400 * S))
    here.feed("b", event(420 * S))
    assert shown(here.service.alerts()) == shown(told_without_late(here.service)[:2])
    rebuilt_ids, rebuilt_digests = rebuilt(here)
    assert rebuilt_ids == ids(here.service.alerts())
    assert rebuilt_digests == here.service.digests()


# ---------------------------------------------------------------- away


def test_an_hour_away_gives_what_never_away_gives(stage: Staging) -> None:
    """Catching up takes each event at its own time: the clock of the machine has no part in it."""
    events = [login(n * 7 * S, f"c{n % 5}", n=1 + n % 3) for n in range(520)]
    there = stage({"r": FIRST, "f": FORGOTTEN}, one_stream(), name="s")
    away = stage({"r": FIRST, "f": FORGOTTEN}, one_stream(), name="s")
    for start in range(0, 520, 40):
        there.clock.pass_ms(280 * S)
        there.feed("use", *events[start : start + 40])
        if start == 0:
            away.clock.pass_ms(280 * S)
            away.feed("use", *events[:40])
            away.crash()
    away.clock.pass_ms(3_600 * S)
    away.feed("use", *events[40:])
    assert len(there.service.alerts()) > 50
    assert ids(away.service.alerts()) == ids(there.service.alerts())
    assert digests(away) == digests(there)
