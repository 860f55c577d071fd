"""Which of a user's methods is called when, to the millisecond, and what becomes of a call that raises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from samovar.common.errors import LogUnavailable, Refused
from samovar.patterns.engine.order import NO_TIME
from samovar.state.errors import StoreError
from samovar.state.memory import MemoryStore
from samovar.tasks.input.user_source import UserEvent
from samovar.tasks.model.plan import Emit, StoreSpec, TaskSpec
from samovar.tasks.model.user_task import Context, Event, Task
from samovar.tasks.user.calls import MOST_CHARACTERS, Calls, fault_of
from samovar.tasks.user.context import Phase


class Noting(Task):
    """Notes its calls, and does what an event says."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def init(self, ctx: Context) -> None:
        self.calls.append(("init", ctx.now))

    def close(self, ctx: Context) -> None:
        self.calls.append(("close", ctx.now))

    def process(self, event: Event, ctx: Context) -> None:
        self.calls.append((event.key, ctx.now))
        for name, at in event.get("timers", {}).items():
            ctx.timer(name, at)
        ctx.store("seen").put(event.key, event.time)
        ctx.emit("out", event.key, event.time)
        if event.get("fails"):
            raise event["fails"]

    def on_timer(self, name: str, ctx: Context) -> None:
        self.calls.append((name, ctx.now))
        ctx.emit("out", name, ctx.now)
        if name == "bad":
            ctx.store("seen").put("bad", 1)
            raise KeyError(name)

    def window(self, ctx: Context) -> None:
        self.calls.append(("window", ctx.now))
        ctx.emit("out", "window", ctx.now)
        if ctx.params.get("fails"):
            raise KeyError("window")


class Plain(Task):
    def process(self, event: Event, ctx: Context) -> None:
        ctx.emit("out", event.key, 1)


def calls_of(task: type[Task] = Noting, window_ms: int | None = None, **more: Any) -> Calls:
    spec = TaskSpec(
        name="test", make=task, source="m:C", version="1", emits={"out": Emit(topic="t")},
        stores={"seen": StoreSpec()}, window_ms=window_ms, **more,
    )  # fmt: skip
    return Calls(spec, 3, MemoryStore(), 10_000)


def event(key: str, time: int, **fields: Any) -> UserEvent:
    given = Event("use", "use", key, time, fields, "use", 3, 0)
    return UserEvent(given, (key.encode(), b"value"), (("h", b"1"),))


def noted(calls: Calls) -> list[tuple[str, int]]:
    task = calls._object
    assert isinstance(task, Noting)
    return task.calls


def emitted(calls: Calls) -> list[bytes | None]:
    return [key for key, _ in calls.done.emitted.get("t", [])]


def test_a_timer_is_called_after_all_events_of_its_time_and_before_those_after_it() -> None:
    calls = calls_of()
    calls.run([event("a", 0, timers={"t": 10}), event("b", 10), event("c", 11)], 11)
    assert noted(calls) == [("a", 0), ("b", 10), ("t", 10), ("c", 11)]
    assert emitted(calls) == [b"a", b"b", b"t", b"c"]


@pytest.mark.parametrize(("watermark", "is_called"), [(NO_TIME, False), (10, False), (11, True)])
def test_event_time_calls_timers_before_it(watermark: int, is_called: bool) -> None:
    calls = calls_of()
    calls.run([event("a", 0, timers={"t": 10})], 0)
    assert calls.is_due(watermark) == is_called
    calls.run([], watermark)
    assert (("t", 10) in noted(calls)) == is_called
    assert not calls.is_due(watermark)


def test_a_window_ends_before_events_of_its_end_and_after_timers_before_it() -> None:
    calls = calls_of(window_ms=100)
    calls.run([event("a", 30, timers={"early": 99, "at": 100})], 30)
    assert (calls.timers.window_end, calls.is_due(99), calls.is_due(100)) == (100, False, True)
    calls.run([event("b", 100)], 100)
    assert noted(calls)[1:] == [("early", 99), ("window", 100), ("b", 100)]
    assert calls.timers.window_end == 200
    calls.run([], 101)
    assert noted(calls)[-1] == ("at", 100)
    calls.run([], 500)
    assert noted(calls)[-1] == ("window", 200)
    assert not calls.is_due(10**9), "nothing happened since"


@pytest.mark.parametrize(("time", "end"), [(0, 100), (99, 100), (100, 200), (101, 200), (-1, 0), (-100, 0)])
def test_a_window_is_the_period_in_which_something_happens(time: int, end: int) -> None:
    calls = calls_of(window_ms=100)
    calls.run([event("a", time)], NO_TIME)
    assert calls.timers.window_end == end


def test_a_task_that_has_no_window_any_more_is_not_called_for_one() -> None:
    calls = calls_of()
    calls.timers.window_end = 100
    assert not calls.is_due(1_000)
    calls.run([event("a", 500)], 1_000)
    assert noted(calls) == [("a", 500)]


def test_a_task_without_timers_or_windows_waits_for_nothing() -> None:
    calls = calls_of(Plain)
    calls.timers.put("left over", 10)
    assert not calls.is_due(1_000)
    calls.run([event("a", 500)], 1_000)
    assert emitted(calls) == [b"a"]
    with pytest.raises(Refused) as refused:
        calls_of(Plain, window_ms=100)
    assert refused.value.code == "task-class"


def test_a_call_that_raises_has_done_nothing() -> None:
    calls = calls_of()
    calls.run([event("a", 0), event("b", 1, fails=ValueError("no"), timers={"t": 5}), event("c", 2)], 100)
    assert noted(calls) == [("a", 0), ("b", 1), ("c", 2)]
    assert emitted(calls) == [b"a", b"c"]
    (failed,) = calls.done.failures
    assert (failed.event and failed.event.key, failed.record, failed.headers) == ("b", (b"b", b"value"), (("h", b"1"),))
    rows, _ = calls.stack.changes()
    assert len(rows) == 2


def test_a_timer_or_window_that_raises_is_not_called_again_and_says_which_it_was() -> None:
    calls = calls_of(window_ms=100, params={"fails": True})
    calls.run([event("a", 0, timers={"bad": 5})], 200)
    assert noted(calls) == [("a", 0), ("bad", 5), ("window", 100)]
    timer, window = calls.done.failures
    assert timer.record == (b"test", b'{"task":"test","partition":3,"timer":"bad","at":5}')
    assert window.record == (b"test", b'{"task":"test","partition":3,"window":100}')
    assert (timer.event, emitted(calls)) == (None, [b"a"])
    assert not calls.is_due(10**9)


@pytest.mark.parametrize(
    "error", [StoreError("broken", Path("s"), "Look."), Refused("c", "what", "hint"), LogUnavailable("no answer")]
)
def test_what_is_not_a_fault_of_the_users_code_ends_the_step(error: Exception) -> None:
    calls = calls_of()
    with pytest.raises(type(error)):
        calls.run([event("a", 0, fails=error)], 0)
    assert calls.done.failures == []


def test_what_was_emitted_before_a_rewind_is_counted_and_not_emitted() -> None:
    calls = calls_of()
    asked: list[tuple[Phase, int]] = []

    def has_emitted(phase: Phase, now: int) -> bool:
        asked.append((phase, now))
        return now < 5

    calls.has_emitted = has_emitted
    calls.run([event("a", 0, timers={"t": 4}), event("b", 9)], 9)
    assert (emitted(calls), calls.done.skipped) == ([b"b"], 2)
    assert asked == [(Phase.PROCESS, 0), (Phase.TIMER, 4), (Phase.PROCESS, 9)]


def test_it_begins_and_ends_with_the_time_that_there_is() -> None:
    calls = calls_of()
    calls.begin(NO_TIME)
    calls.close(77)
    assert noted(calls) == [("init", 0), ("close", 77)]
    plain = calls_of(Plain)
    plain.begin(5)
    plain.close(5)


def test_a_class_that_cannot_be_made_is_refused() -> None:
    class Broken(Task):
        def __init__(self) -> None:
            raise ValueError("no connection")

        def process(self, event: Event, ctx: Context) -> None: ...

    class Ending(Task):
        def process(self, event: Event, ctx: Context) -> None: ...
        def close(self, ctx: Context) -> None:
            raise ValueError("cannot end")

    for act, words in ((lambda: calls_of(Broken), "`__init__`"), (lambda: calls_of(Ending).close(1), "`close`")):
        with pytest.raises(Refused) as refused:
            act()
        assert refused.value.code == "task-failed"
        assert words in refused.value.what


def test_a_fault_is_told_from_where_the_users_code_begins() -> None:
    try:
        raise ValueError("x" * 2 * MOST_CHARACTERS)
    except ValueError as error:
        fault = fault_of(error)
    assert fault.message.endswith(" in test_a_fault_is_told_from_where_the_users_code_begins)")
    assert fault.message.startswith("ValueError: xxx")
    assert len(fault.trace) == MOST_CHARACTERS
    assert len(fault.message) - MOST_CHARACTERS < 200
    bare = fault_of(ValueError("never raised"))
    assert (bare.message, bare.trace) == ("ValueError: never raised", "ValueError: never raised")
