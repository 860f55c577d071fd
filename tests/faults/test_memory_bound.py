"""A stage that gets events of many partitions holds those of the ones ahead, until the others have caught up. What it
holds has a bound in bytes, for rules and for tasks, on both logs: it is counted, not measured.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from samovar.tasks.input.source import StreamSource
from samovar.tasks.input.user_source import UserStreamSource
from samovar.tasks.model.clock import SetClock
from samovar.tasks.runtime.container import Container
from tests.faults.conftest import Making
from tests.faults.harness import Service, wait_until

T0 = 1_700_000_000_000
LARGE = 40_000  # characters of an event
COUNT = 100
BOUND = 500_000
A_CYCLE = 250_000  # about what a cycle takes in
SLOWLY = {"queued.max.messages.kbytes": "100", "fetch.message.max.bytes": "50000"}  # Kafka's client reads ahead
RULE = """
rule: pair
match: |
  sequence by user with maxspan=1h
    [a where n == 1] as one
    [a where text == one.text and n == 2] as two
"""
CODE = """
from samovar import Context, Event, Task


class Count(Task):
    def process(self, event: Event, ctx: Context) -> None:
        ctx.store("seen").put("all", ctx.store("seen").get("all", 0) + 1)
"""
TASKS = {"count": {"class": "count:Count", "streams": ["a"], "stores": ["seen"]}}
TUNABLES = {"pending_bytes": f"{BOUND}B", "commit_polls": 1, "fetch_bytes": f"{A_CYCLE // 2}B"}
STREAMS = {"a": {"key": "card", "idle": "1h", "partitions": 2, "repartition": True}}


def event(at_ms: int, user: int, n: int) -> bytes:
    """Two of a user have one text, which no log can make much smaller."""
    text = random.Random(user).randbytes(LARGE // 2).hex()
    return json.dumps({"card": "c", "user": str(user), "n": n, "ts": T0 + at_ms, "text": text}).encode()


@pytest.fixture(params=["rules", "task"])
def at_work(make: Making, request: pytest.FixtureRequest) -> Iterator[tuple[Service, Container]]:
    is_task = request.param == "task"  # then rules hold little: they read no text
    rule = RULE.replace("text == one.text and ", "") if is_task else RULE
    service = make({"pair": rule}, STREAMS, tasks=TASKS if is_task else {}, client=SLOWLY, tunables=TUNABLES)
    (service.folder / "count.py").write_text(CODE)
    with service.container(SetClock()) as container:
        yield service, container


def held(stream_source: StreamSource) -> int:
    """Bytes of texts and records that wait, counted one by one."""
    pending = stream_source.buffer.pending
    values: list[Any] = [value for column in range(pending.columns) for value in pending.values(column)]
    texts = sum(len(value.encode()) for value in values if isinstance(value, str))
    whole = stream_source.kept.values() if isinstance(stream_source, UserStreamSource) else ()
    return texts + sum(len(key or b"") + len(value or b"") for (key, value), _ in whole)


def test_what_waits_for_a_partition_that_is_behind_has_a_bound(at_work: tuple[Service, Container]) -> None:
    service, container = at_work
    service.append("a", [event(0, 0, 3)], 1)
    ahead = [event(1_000 + 10 * number, number // 2, 1 + number % 2) for number in range(COUNT)]
    for start in range(0, COUNT, 10):
        service.append("a", ahead[start : start + 10], 0)
    most = dict.fromkeys(("", "by-user", "count"), 0)

    def cycle() -> None:
        container.cycle()
        for (stage, _), task in container.tasks.items():
            if task.state.value == "running":
                most[stage] = max(most[stage], held(task.processor.source))

    wait_until(lambda: max(most.values()) > BOUND, "a stage holds what it may, and more", cycle)
    for _ in range(20):
        cycle()
    assert service.committed() < COUNT / 2, "the source waits"
    service.append("a", [event(3_600_000, 1, 3)], 1)
    service.append("a", [event(3_600_000, 1, 3)], 0)
    wait_until(lambda: len(service.alerts()) == COUNT // 2, "all goes on when the other partition has come", cycle)
    # What it may hold, what may be on its way to it, and what a cycle takes in.
    assert max(most.values()) <= 2 * BOUND + A_CYCLE, most
    assert 3 * max(most.values()) < COUNT * LARGE
