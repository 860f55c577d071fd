"""A service with tasks of the user's, and rules on what one emits: all that such a task can do, in a few lines.

The same class is at work twice: on a stream whose cards are in partitions of their own, and on one whose cards are
anywhere, through a repartition topic.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samovar.changelog.log import Pair
from samovar.changelog.partitioner import partition_of
from samovar.service.topology.plans import plans_of
from samovar.state.memory import MemoryStore
from samovar.state.rocks import RocksStore
from samovar.tasks.model.plan import Plan
from samovar.tasks.replay.rebuild import ReplayEnd, rebuild
from samovar.tasks.runtime.stream_task import task_folder
from samovar.tasks.user.inspect import digest_of_task
from tests.faults.harness import Service, make_service, position_of

START_MS = 1_700_000_000_000
PARTITIONS = 2
TASK = "totals"
SCATTERED = "heaps"  # the task whose events come from any partition
TASKS_STREAMS = {TASK: "use", SCATTERED: "heap"}

CODE = '''
from samovar import Context, Event, Task


class Totals(Task):
    """A sum a card, a timer a card that says it went quiet, a window that tells the largest; some events raise."""

    def process(self, event: Event, ctx: Context) -> None:
        totals = ctx.store("totals")
        total = totals.get(event.key, 0) + event["amount"]
        totals.put(event.key, total)
        ctx.store("lately").put(event.key, {"at": event.time, "offset": event.offset})
        ctx.timer(event.key, event.time + 20_000)
        ctx.emit("told", event.key, {"card": event.key, "ts": event.time, "total": total, "what": "event"})
        if event["amount"] == 13:
            raise ValueError("unlucky")

    def on_timer(self, name: str, ctx: Context) -> None:
        totals = ctx.store("totals")
        ctx.emit("told", name, {"card": name, "ts": ctx.now, "total": totals.get(name), "what": "quiet"})
        totals.delete(name)

    def window(self, ctx: Context) -> None:
        lately = sorted(key for key, _ in ctx.store("lately").range())
        if lately:
            ctx.emit("seen", lately[0], {"cards": lately, "ts": ctx.now})
'''
RULES = {
    "quiet": """
rule: quiet
match: |
  sequence by card with maxspan=1h
    [told where what == "event" and total > 40] as much
    [told where what == "quiet"] as quiet
""",
    "many": """
rule: many
match: |
  aggregate by card over 10s [use where true] having count() >= 4
""",
}
# Never idle: what a run emits must not depend on how long it took.
STREAMS: dict[str, dict[str, Any]] = {
    "use": {"key": "card", "slack": "2s", "idle": "7d", "partitions": PARTITIONS},
    "told": {"key": "card", "idle": "7d"},
}
HEAP = {"heap": {**STREAMS["use"], "repartition": True}}
TASKS = {
    TASK: {
        "class": "totals:Totals",
        "streams": ["use"],
        "emits": ["told", "seen"],
        "stores": {"totals": {}, "lately": {"ttl": "15s"}},
        "window": "10s",
    }
}
HEAPS = {
    SCATTERED: {
        **TASKS[TASK],
        "class": "heaps:Totals",
        "streams": ["heap"],
        "emits": ["heaped", "heap-seen"],
    }
}


def task_service(folder: Path, bootstrap: str | None = None, **more: Any) -> Service:
    streams, tasks = {**STREAMS, **HEAP}, {**TASKS, **HEAPS}
    service = make_service(folder, RULES, streams, bootstrap=bootstrap, tasks=tasks, **more)
    (folder / "totals.py").write_text(CODE)
    own = CODE.replace('emit("told"', 'emit("heaped"').replace('emit("seen"', 'emit("heap-seen"')
    (folder / "heaps.py").write_text(own)
    return service


def events(seed: int) -> Iterator[Pair]:
    """Cards in use, a second apart, and a little out of order."""
    random_ = random.Random(seed)
    at_ms = START_MS
    while True:
        at_ms += random_.choice((0, 200, 1_000, 1_000, 4_000))
        card = f"c{random_.randrange(12)}"
        event = {"card": card, "ts": at_ms - random_.choice((0, 0, 500, 1_900)), "amount": random_.randrange(1, 20)}
        yield card.encode(), json.dumps(event).encode()


def feed(service: Service, source: Iterator[Pair], count: int) -> None:
    """Events of both streams; those of the heap lie where their keys do not say."""
    pairs = [next(source) for _ in range(count)]
    parts = [pairs[number::PARTITIONS] for number in range(PARTITIONS)]
    service.append_all([("use", pairs, None), *(("heap", part, number) for number, part in enumerate(parts))])


def last(service: Service) -> None:
    """Events far ahead in every partition: all timers are called; the first of the two is stored, the other waits."""
    for partition in range(PARTITIONS):
        card = next(name for name in map(str, range(1_000)) if partition_of(name.encode(), PARTITIONS) == partition)
        for at_ms in (0, 5_000):
            event = {"card": card, "ts": START_MS + 86_400_000 + at_ms, "amount": 1}
            pair = (card.encode(), json.dumps(event).encode())
            service.append_all([("use", [pair], None), ("heap", [pair], PARTITIONS - 1 - partition)])


def straight(service: Service, folder: Path) -> Service:
    """The same service and input on an embedded log of its own, run with nothing in the way."""
    name = json.loads(service.config.read_text())["service"]
    twin = task_service(folder, name=name)
    for stream in TASKS_STREAMS.values():
        for partition in range(PARTITIONS):
            rows = [
                row for row in service.read(service.settings.streams[stream].topic) if row.at.partition == partition
            ]
            twin.append_pairs(stream, [(row.key, row.value) for row in rows], partition)
    twin.run_to_end()
    return twin


# ---------------------------------------------------------------- what must be equal


def outcome(service: Service) -> dict[str, Any]:
    """All that came out, in the order of each partition, and the state of all stages."""
    settings = service.settings
    topics = {"told": settings.streams["told"].topic}
    topics |= {each: f"{settings.service}-{each}" for each in ("seen", "heaped", "heap-seen")}
    written: dict[str, Any] = {what: _by_partition(service, topic) for what, topic in topics.items()}
    # Several stages write to these, in no order among them.
    for what, topic in {"dead": settings.dead_letters.topic, "late": settings.late.topic}.items():
        written[what] = {number: sorted(rows) for number, rows in _by_partition(service, topic).items()}
    # Not their ids: these name offsets, and where a task's records lie in Kafka depends on where its commits were.
    alerts = sorted((alert["rule"], alert["key"]["card"], alert["start"], alert["at"]) for alert in service.alerts())
    assert len({alert["id"] for alert in service.alerts()}) == len(alerts)
    states = {"rules": service.digests(), "task": task_digests(service), "heaps": task_digests(service, SCATTERED)}
    return {**written, "alerts": alerts, **states}


def _by_partition(service: Service, topic: str) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for row in service.read(topic):
        found.setdefault(row.at.partition, []).append((row.key, row.value))
    return found


def task_digests(service: Service, task: str = TASK) -> dict[int, str]:
    found = {}
    for partition in range(PARTITIONS):
        store = RocksStore(task_folder(service.settings.state, partition, task) / "store")
        try:
            found[partition] = digest_of_task(store)
        finally:
            store.close()
    return found


def task_plan(service: Service, task: str = TASK) -> Plan:
    return next(plan for plan in plans_of(service.settings, service.partitions) if plan.stage == task)


def rebuilt_digests(service: Service, task: str = TASK) -> dict[int, str]:
    """The task's state made again from input and journal."""
    found = {}
    for partition in range(PARTITIONS):
        folder = task_folder(service.settings.state, partition, task) / "store"
        store = RocksStore(folder)
        position = position_of(store)
        store.close()
        made = MemoryStore()
        until = ReplayEnd({stream: each.next for stream, each in position.inputs.items()}, position.journal)
        again = rebuild(service.log, task_plan(service, task), partition, made, until)
        assert again.position.watermark == position.watermark
        found[partition] = digest_of_task(made)
    return found
