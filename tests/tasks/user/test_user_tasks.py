"""Tasks of your own: what is called when, what a call that raises leaves behind, and that a crash changes nothing."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest

from samovar import ClosableTask, Context, Event, InitableTask, Task, TimerTask, WindowableTask
from samovar.common.errors import Refused
from samovar.tasks.rules.replay_dedup import skip_rows
from samovar.tasks.user.inspect import rows_of_stores
from samovar.testing import Advance, Crash, Driver, EmittedRecord, same_after_crashes

S = 1_000
USE = {"use": {"key": "card", "slack": "2s", "idle": "5s"}}


def use(at_ms: int, card: str = "c1", **more: Any) -> tuple[str, dict[str, Any]]:
    return "use", {"card": card, "ts": at_ms, **more}


class Told(Task):
    """Emits every call it gets, with its time."""

    def process(self, event: Event, ctx: Context) -> None:
        for name, at in event.get("timers", {}).items():
            ctx.timer(name, at)
        for name in event.get("cancel", ()):
            ctx.cancel(name)
        self.tell(ctx, f"event {event.time}")

    def on_timer(self, name: str, ctx: Context) -> None:
        self.tell(ctx, f"timer {name}")

    def window(self, ctx: Context) -> None:
        self.tell(ctx, "window")

    def tell(self, ctx: Context, what: str) -> None:
        ctx.emit("told", ctx.name, [ctx.now, what])


def told(driver: Driver) -> list[tuple[int, str]]:
    return [tuple(each.value) for each in driver.emitted("told")]


def teller(**more: Any) -> Driver:
    return Driver.of_task(Told, {"use": {"key": "card", "idle": "5s"}}, emits=["told"], **more)


# ---------------------------------------------------------------- events


class Seen(Task):
    def process(self, event: Event, ctx: Context) -> None:
        place = (event.stream, event.type, event.key, event.time, event.topic, event.partition, event.offset)
        ctx.emit("seen", event.key, [*place, dict(event.fields), ctx.now])


def test_an_event_has_its_fields_key_time_and_coordinates() -> None:
    streams = {"use": {"key": "user.id", "type": "kind"}, "pay": {"key": "card", "topic": "payments"}}
    driver = Driver.of_task(Seen, streams, emits=["seen"])
    first = {"user": {"id": 7}, "kind": "login", "ts": 1 * S, "deep": {"list": [1, None, "é"]}}
    driver.run(("use", first), ("pay", {"card": "c1", "ts": "1970-01-01T00:00:02Z"}), use(9 * S))
    driver.run(("use", {"user": {"id": 7}, "kind": "logout", "ts": 3 * S}), ("pay", {"card": "c1", "ts": 3 * S}))
    assert driver.emitted("seen")[0] == EmittedRecord("7", ["use", "login", "7", 1 * S, "use", 0, 0, first, 1 * S])
    assert driver.emitted("seen")[1].value[:7] == ["pay", "pay", "c1", 2 * S, "payments", 0, 0]


def test_p9_events_come_in_order_of_event_time_within_the_slack() -> None:
    driver = Driver.of_task(Told, USE, emits=["told"])
    driver.run(use(5 * S), use(4 * S), use(3 * S), use(10 * S), use(7 * S), Advance(20 * S))
    assert [at for at, _ in told(driver)] == [3 * S, 4 * S, 5 * S, 10 * S]
    assert [(each.reason, each.message) for each in driver.late] == [("late", "late by 1000 ms")]


def test_messages_that_are_no_events_never_reach_a_task() -> None:
    driver = teller()
    driver.run(use(1), ("use", b"{broken"), ("use", None), ("use", {"ts": 3}), use(4))
    assert [at for at, _ in told(driver)] == [1, 4]
    assert [each.reason for each in driver.dead] == ["NOT_JSON", "NULL_VALUE", "MISSING_KEY"]


# ---------------------------------------------------------------- timers


def test_timers_fire_between_events_in_order_of_event_time() -> None:
    driver = teller()
    driver.run(use(1, timers={"late": 30, "b": 20, "a": 20}), use(20), use(21), use(40))
    assert told(driver) == [
        (1, "event 1"),
        (20, "event 20"),  # a timer comes after all events of its time
        (20, "timer a"),
        (20, "timer b"),
        (21, "event 21"),
        (30, "timer late"),
        (40, "event 40"),
    ]
    assert driver.timers == {}


def test_a_timer_set_again_is_another_and_one_unset_is_none() -> None:
    driver = teller()
    driver.run(use(1, timers={"a": 10, "b": 11, "c": 12}), use(2, timers={"a": 30}, cancel=["b", "nobody"]))
    assert driver.timers == {"a": 30, "c": 12}
    driver.run(use(50))
    assert [what for _, what in told(driver)] == ["event 1", "event 2", "timer c", "timer a", "event 50"]


def test_a_timer_in_the_past_fires_after_the_events_of_now() -> None:
    driver = teller()
    driver.run(use(100, timers={"a": 5}), use(100), use(101))
    assert told(driver)[1:3] == [(100, "event 100"), (100, "timer a")]


def test_a_timer_fires_where_no_event_comes() -> None:
    driver = teller()
    driver.run(use(1 * S, timers={"a": 60 * S}))
    driver.pass_time("60s")
    assert told(driver) == [(1 * S, "event 1000")]
    driver.pass_time("10s")
    assert told(driver)[1:] == [(60 * S, "timer a")]
    assert [entry.kind for entry in driver.journal] == ["rules", "advance"]


class Ringing(Task):
    """A timer that sets itself again, for ever."""

    def process(self, event: Event, ctx: Context) -> None:
        ctx.timer("bell", ctx.now)

    def on_timer(self, name: str, ctx: Context) -> None:
        ctx.emit("rung", None, ctx.now)
        ctx.timer(name, ctx.now)


def test_a_timer_that_sets_itself_does_not_stop_time() -> None:
    driver = Driver.of_task(Ringing, USE, emits=["rung"]).run(use(10), use(2 * S + 14))
    assert [each.value for each in driver.emitted("rung")] == [10, 11, 12, 13]


@pytest.mark.parametrize("crash", Crash)
def test_p9_a_timer_fires_once_across_restarts(crash: Crash) -> None:
    driver = teller()
    driver.run(use(1 * S, timers={"a": 60 * S, "b": 90 * S}), crash, Advance(61 * S), crash, crash, Advance(100 * S))
    driver.run(crash, use(200 * S), crash)
    assert [what for _, what in told(driver)] == ["event 1000", "timer a", "timer b", "event 200000"]


# ---------------------------------------------------------------- windows


def test_a_window_ends_with_every_period_in_which_something_happened() -> None:
    driver = teller(window="10ms")
    driver.run(use(1), use(9), use(10), use(35, timers={"t": 58}), use(100))
    assert told(driver) == [
        (1, "event 1"),
        (9, "event 9"),
        (10, "window"),  # before the events of its end, which belong to the next
        (10, "event 10"),
        (20, "window"),
        (35, "event 35"),
        (40, "window"),
        (58, "timer t"),
        (60, "window"),
        (100, "event 100"),
    ]


def test_a_window_ends_where_no_event_comes_and_only_once() -> None:
    driver = teller(window="1m")
    driver.run(use(1 * S), Crash.LOST, Advance(60 * S), Crash.BEHIND)
    driver.pass_time("1h")
    assert told(driver) == [(1 * S, "event 1000"), (60 * S, "window")]


# ---------------------------------------------------------------- stores


class Counting(Task):
    """Counts a key's events; `poison` makes it raise when half is done."""

    def process(self, event: Event, ctx: Context) -> None:
        seen = ctx.store("seen")
        count = seen.get(event.key, {"n": 0})["n"] + 1
        seen.put(event.key, {"n": count, "at": ctx.now})
        ctx.emit("counted", event.key, count)
        if "timer" in event:
            ctx.timer(event["timer"], ctx.now + 10)
        if event.get("poison"):
            raise ValueError(f"poison at {event.time}")
        if event.get("forget"):
            seen.delete(event.key)

    def on_timer(self, name: str, ctx: Context) -> None:
        ctx.store("seen").put(name, "rung")
        ctx.emit("counted", name, "rung")
        if name == "bad":
            raise KeyError(name)


def counter(**more: Any) -> Driver:
    return Driver.of_task(Counting, {"use": {"key": "card", "idle": "5s"}}, emits=["counted"], stores=["seen"], **more)


def test_a_store_holds_values_by_key() -> None:
    driver = counter().run(use(1), use(2), use(3, "c2"), use(4, "c3", forget=True))
    assert driver.store("seen").items() == {"c1": {"n": 2, "at": 2}, "c2": {"n": 1, "at": 3}}
    assert [(each.key, each.value) for each in driver.emitted("counted")] == [
        ("c1", 1),
        ("c1", 2),
        ("c2", 1),
        ("c3", 1),
    ]


class Kinds(Task):
    def process(self, event: Event, ctx: Context) -> None:
        store = ctx.store("all")
        values: dict[str, Any] = {
            "bytes": b"\x00\xff",
            "null": None,
            "text": "é",
            "list": [1, 2.5, True],
            "deep": {"b": {}, "a": ()},
        }
        for key, value in values.items():
            store.put(f"k/{key}", value)
        store.put("j", 1)
        store.put("l", 2)
        ranged = [key for key, _ in store.range("k/list", "l")]
        started = {key: value for key, value in store.starting("k/") if not isinstance(value, bytes)}
        ctx.emit("out", None, [ranged, started, store.get("k/bytes") == b"\x00\xff", store.get("none", "given")])


def test_values_are_what_json_says_or_bytes_and_keys_are_ordered() -> None:
    driver = Driver.of_task(Kinds, USE, emits=["out"], stores=["all"]).run(use(1), use(1), Advance(9 * S))
    started: dict[str, Any] = {"k/null": None, "k/text": "é", "k/list": [1, 2.5, True], "k/deep": {"b": {}, "a": []}}
    assert driver.dead == []
    assert driver.emitted("out")[1].value == [["k/list", "k/null", "k/text"], started, True, "given"]
    assert driver.store("all").get("k/bytes") == b"\x00\xff"


def test_rows_go_after_their_time_to_live_in_event_time() -> None:
    driver = counter_with_ttl()
    driver.run(use(0), use(5 * S, "c2"), use(9 * S), use(14 * S, "c3"))
    assert [each.value for each in driver.emitted("counted")] == [1, 1, 2, 1]
    assert set(driver.store("seen").items()) == {"c1", "c2", "c3"}
    driver.run(use(15 * S, "c4"))
    assert set(driver.store("seen").items()) == {"c1", "c3", "c4"}
    assert {row.key for row in rows_of_stores(driver.rows)} == {"c1", "c3", "c4"}  # not only hidden
    driver.run(Crash.LOST, use(19 * S), Crash.BEHIND, Advance(40 * S))
    assert driver.emitted("counted")[-1].value == 1  # it was gone at the very moment
    assert driver.store("seen").items() != {}


def counter_with_ttl() -> Driver:
    return Driver.of_task(Counting, {"use": {"key": "card"}}, emits=["counted"], stores={"seen": "10s"})


# ---------------------------------------------------------------- what raises


def test_a_call_that_raises_has_done_nothing_and_its_event_is_a_dead_letter() -> None:
    driver = counter().run(use(1), use(2, poison=True, timer="never"), use(3))
    assert driver.store("seen").items() == {"c1": {"n": 2, "at": 3}}
    assert [each.value for each in driver.emitted("counted")] == [1, 2]
    assert driver.timers == {}
    (letter,) = driver.dead
    assert letter.reason == "TASK_FAILED"
    assert letter.message.startswith("ValueError: poison at 2 (test_user_tasks.py:")
    assert letter.message.endswith(" in process)")
    assert json.loads(letter.value or b"") == {"card": "c1", "ts": 2, "poison": True, "timer": "never"}
    assert letter.headers["__streams.errors.offset"] == b"1"
    assert b"raise ValueError" in letter.headers["__streams.errors.stacktrace"]
    assert b"user_calls" not in letter.headers["__streams.errors.stacktrace"]


def test_a_timer_that_raises_has_done_nothing_and_does_not_fire_again() -> None:
    driver = counter().run(use(1, timer="bad"), Advance(20), Crash.KEPT, use(50))
    assert "bad" not in driver.store("seen").items()
    (letter,) = driver.dead
    assert json.loads(letter.value or b"") == {"task": "test", "partition": 0, "timer": "bad", "at": 11}
    assert letter.message.startswith("KeyError: 'bad'")
    assert "__streams.errors.offset" not in letter.headers


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (lambda ctx: ctx.store("profil"), "the task test has no store `profil`: did you mean `profile`?"),
        (lambda ctx: ctx.emit("nowhere", None, 1), "no stream or topic to emit to `nowhere`"),
        (lambda ctx: ctx.store("profile").put(7, 1), "a store's key is text, not int: 7"),
        (lambda ctx: ctx.store("profile").put("k", float("nan")), "nothing that JSON can say"),
        (lambda ctx: ctx.store("profile").put("k", {1}), "nothing that JSON can say"),
        (lambda ctx: ctx.store("profile").put("k", "x" * 1_000_000), "at most 900,000 are stored"),
        (lambda ctx: ctx.emit("out", None, b"x" * 1_000_000), "at most 900,000 are written"),
        (lambda ctx: ctx.timer("t", 1.5), "has a method `on_timer(name, ctx)`"),
        (lambda ctx: ctx.emit("out", object(), 1), "a record's key is text, a number or bytes, not object"),
        (lambda ctx: ctx.timer("t", 5), "has a method `on_timer(name, ctx)`"),
    ],
)
def test_what_a_task_may_not_do_is_said(what: Any, words: str) -> None:
    class Wrong(Task):
        def process(self, event: Event, ctx: Context) -> None:
            what(ctx)

    driver = Driver.of_task(Wrong, {"use": {"key": "card"}}, stores=["profile"], emits=["out"]).run(use(1), use(2))
    assert [words in each.message for each in driver.dead] == [True, True]


# ---------------------------------------------------------------- beginning and end


class Prepared(Task):
    def init(self, ctx: Context) -> None:
        self.found = sorted(dict(ctx.store("seen").range()))
        self.limit = ctx.params["limit"]

    def process(self, event: Event, ctx: Context) -> None:
        ctx.store("seen").put(event.key, 1)
        ctx.emit("out", None, [self.found, self.limit])


def test_init_comes_before_the_first_event_and_again_after_a_restart() -> None:
    driver = Driver.of_task(Prepared, {"use": {"key": "card"}}, stores=["seen"], emits=["out"], params={"limit": 3})
    driver.run(use(1), Crash.LOST, use(2, "c2"), Crash.KEPT, use(3))
    assert [each.value for each in driver.emitted("out")] == [[[], 3], [["c1"], 3], [["c1", "c2"], 3]]


def test_an_init_that_fails_or_writes_is_refused() -> None:
    class Failing(Task):
        def init(self, ctx: Context) -> None:
            ctx.emit("out", None, 1)

        def process(self, event: Event, ctx: Context) -> None: ...

    with pytest.raises(Refused, match=r"task-failed: `init` of the task test .*not in `init`"):
        Driver.of_task(Failing, USE, emits=["out"])
    with pytest.raises(Refused, match="has no method of that name"):
        Driver.of_task(Prepared, USE, stores=["seen"], params={"limit": 1}, window="1h")


def test_a_task_has_only_the_capabilities_that_it_needs() -> None:
    assert isinstance(Told(), TimerTask)
    assert isinstance(Told(), WindowableTask)
    assert not isinstance(Told(), InitableTask)
    assert not isinstance(Told(), ClosableTask)
    assert isinstance(Prepared(), InitableTask)
    assert not isinstance(Prepared(), TimerTask)


# ---------------------------------------------------------------- crashes


def test_p1_p2_a_crash_after_any_event_changes_nothing() -> None:
    inputs = [use(n * S, f"c{n % 3}", poison=n % 7 == 6, forget=n % 5 == 4, timer=f"t{n % 4}") for n in range(30)]
    same_after_crashes(counter, *inputs, Advance(100 * S))
    same_after_crashes(counter_with_ttl, *[use(n * S, f"c{n % 7}", timer=f"t{n}") for n in range(30)])
    ticks = [use(n * 3, timers={f"t{n % 5}": n * 7}) for n in range(30)]
    same_after_crashes(lambda: teller(window="10ms"), *ticks, Advance(1 * S))


def test_state_kept_in_the_object_is_found_out() -> None:
    class Forgetful(Task):
        count = 0

        def process(self, event: Event, ctx: Context) -> None:
            self.count += 1
            ctx.emit("out", None, self.count)

    with pytest.raises(AssertionError, match="emitted differ after crashes with the store kept"):
        same_after_crashes(lambda: Driver.of_task(Forgetful, USE, emits=["out"]), use(1), use(9 * S), use(20 * S))


# ---------------------------------------------------------------- Avro

CARD = {
    "type": "record",
    "name": "Use",
    "fields": [
        {"name": "card", "type": "string"},
        {"name": "ts", "type": "long"},
        {"name": "amount", "type": ["null", "double"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}


def test_an_event_of_avro_is_whole_too(tmp_path: Path) -> None:
    (tmp_path / "use.avsc").write_text(json.dumps(CARD))
    streams = {"use": {"key": "card", "format": "avro", "schema": str(tmp_path / "use.avsc"), "slack": "2s"}}
    event = {"card": "c1", "ts": 1 * S, "amount": 2.5, "tags": ["a", "b"]}
    messages = []
    for at_ms in (1 * S, 9 * S):
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, CARD, {**event, "ts": at_ms})
        messages.append(("use", buffer.getvalue()))
    driver = Driver.of_task(Seen, streams, emits=["seen"]).run(messages[0], Crash.LOST, messages[1])
    assert driver.dead == []
    assert [each.value[7] for each in driver.emitted("seen")] == [event]


# ---------------------------------------------------------------- after a rewind


def test_what_was_emitted_before_a_rewind_is_not_emitted_again() -> None:
    """Up to the event time at which the task had been: events and windows of that very time were called, timers not."""
    driver = teller(window=f"{10 * S}ms")
    driver._harness.store.write(skip_rows((), {"use": 100}, 20 * S, ["told"]))
    driver.crash()
    driver.run(use(5 * S, timers={"before": 19 * S, "at": 20 * S}), use(20 * S), use(20 * S + 1), use(31 * S))
    assert told(driver) == [
        (20 * S, "timer at"), (20 * S + 1, f"event {20 * S + 1}"), (30 * S, "window"), (31 * S, f"event {31 * S}"),
    ]  # fmt: skip
