"""The user-defined task of simulated services, and what it must have emitted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from samovar import Context, Event

TASK, TOPIC = "counting", "sim-counts"
GAP_MS = 4_000
SETTINGS = {"class": f"{__name__}:Counting", "emits": {"counts": {"topic": TOPIC}}, "stores": ["counts"]}


class Counting:
    """Counts the events of a key, until none came for a while."""

    def process(self, event: Event, ctx: Context) -> None:
        counts = ctx.store("counts")
        count = counts.get(event.key, 0) + 1
        counts.put(event.key, count)
        ctx.emit("counts", event.key, {"key": event.key, "count": count, "at": event.time})
        ctx.timer(event.key, event.time + GAP_MS)

    def on_timer(self, name: str, ctx: Context) -> None:
        counts = ctx.store("counts")
        ctx.emit("counts", name, {"key": name, "total": counts.get(name), "at": ctx.now})
        counts.delete(name)


def expected_counts(events: Iterable[tuple[str, int]]) -> Counter[str]:
    """What is emitted for keys and times of events in order, once event time has passed all of them."""
    found: Counter[str] = Counter()
    counts: dict[str, tuple[int, int]] = {}  # key to count and time of the last event

    def end(key: str) -> None:
        count, last = counts.pop(key)
        found[text_of({"key": key, "total": count, "at": last + GAP_MS})] += 1

    for key, time in events:
        if key in counts and counts[key][1] + GAP_MS < time:
            end(key)
        count = counts.get(key, (0, 0))[0] + 1
        counts[key] = count, time
        found[text_of({"key": key, "count": count, "at": time})] += 1
    for key in list(counts):
        end(key)
    return found


def text_of(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True)
