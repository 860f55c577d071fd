"""The user-defined task of simulated services, and what it must have emitted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from samovar import Context, Event

TASK, TOPIC = "counting", "sim-counts"
GAP_MS, WINDOW_MS, RECENT_MS = 4_000, 7_000, 3_000
SETTINGS = {
    "class": f"{__name__}:Counting",
    "emits": {"counts": {"topic": TOPIC}},
    "stores": {"counts": {}, "calls": {}, "recent": {"ttl": f"{RECENT_MS}ms"}},
    "window": f"{WINDOW_MS}ms",
}
ALL = "all"


class Counting:
    """Counts the events of a key until none came for a while, and those of all keys by window; of some it fails, after
    it has written.
    """

    def process(self, event: Event, ctx: Context) -> None:
        counts, recent, calls = ctx.store("counts"), ctx.store("recent"), ctx.store("calls")
        count = counts.get(event.key, 0) + 1
        counts.put(event.key, count)
        calls.put(ALL, calls.get(ALL, 0) + 1)
        is_again = recent.get(event.key) is not None
        recent.put(event.key, event.time)
        ctx.emit("counts", event.key, {"key": event.key, "count": count, "again": is_again, "at": event.time})
        ctx.timer(event.key, event.time + GAP_MS)
        if is_failing(event):
            raise ValueError(event["n"])

    def on_timer(self, name: str, ctx: Context) -> None:
        counts = ctx.store("counts")
        ctx.emit("counts", name, {"key": name, "total": counts.get(name), "at": ctx.now})
        counts.delete(name)

    def window(self, ctx: Context) -> None:
        calls = ctx.store("calls")
        ctx.emit("counts", ALL, {"calls": calls.get(ALL, 0), "at": ctx.now})
        calls.delete(ALL)


def is_failing(event: Any) -> bool:
    """Whether the task's code raises on it."""
    return event.get("n") in (-1, "1", 2.25)


class TakenEvent(NamedTuple):
    """One event of the task's partition, in order."""

    time: int
    key: str
    is_failing: bool


class _Model:
    """What the task does, written again without stores, indexes and commits."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()
        self.counts: dict[str, tuple[int, int]] = {}  # key to count and time of the last event
        self.recent: dict[str, int] = {}
        self.window_end: int | None = None
        self.calls = 0

    def take(self, event: TakenEvent) -> None:
        self.pass_to(event.time)
        if event.is_failing:
            return
        count, is_again = self.counts.get(event.key, (0, 0))[0] + 1, event.time < self.recent.get(event.key, 0)
        self.counts[event.key], self.recent[event.key] = (count, event.time), event.time + RECENT_MS
        self.calls += 1
        self.emit(key=event.key, count=count, again=is_again, at=event.time)
        self.open_window(event.time)

    def pass_to(self, now: int | None) -> None:
        """Timers before it, and windows that end by then, in order of their times."""
        while True:
            end = self.window_end
            is_over = end is not None and (now is None or end <= now)
            until = end if is_over else now
            timers = sorted((last + GAP_MS, key) for key, (_, last) in self.counts.items())
            if timers and (until is None or timers[0][0] < until):
                at, key = timers[0]
                self.emit(key=key, total=self.counts.pop(key)[0], at=at)
                self.open_window(at)
            elif is_over:
                self.emit(calls=self.calls, at=end)
                self.window_end, self.calls = None, 0
            else:
                return

    def open_window(self, now: int) -> None:
        if self.window_end is None:
            self.window_end = now - now % WINDOW_MS + WINDOW_MS

    def emit(self, **value: Any) -> None:
        self.found[text_of(value)] += 1


def expected_counts(events: Iterable[TakenEvent]) -> Counter[str]:
    """What is emitted for the events of one partition in order, once event time has passed all of them."""
    model = _Model()
    for event in events:
        model.take(event)
    model.pass_to(None)
    return model.found


def text_of(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True)
