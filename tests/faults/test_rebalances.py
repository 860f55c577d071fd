"""Containers that come and go without rest, and die while partitions change hands. P1, P2, P5 and P6 on both logs.

SAMOVAR_REBALANCE_S=60 is the long form (`make chaos`); SAMOVAR_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from samovar.common.failpoints import MOVES
from tests.faults import child, world
from tests.faults.conftest import Making
from tests.faults.ending import ends_right, processed
from tests.faults.harness import Service, wait_until

SECONDS = float(os.environ.get("SAMOVAR_REBALANCE_S", "10"))
SEED = int(os.environ.get("SAMOVAR_SEED", "0")) or time.time_ns() % 1_000_000
EVERY_S = 2.0
BATCH = 12
SLOTS = 3
PARTITIONS = 4
STREAMS = {world.STREAM: {**world.STREAMS[world.STREAM], "partitions": PARTITIONS}}
# The broker misses a member after this time, so that one that left is stood in for before it comes back.
SOON = {"session.timeout.ms": "1500", "heartbeat.interval.ms": "200"}


@dataclass
class Group:
    """Containers of one service by slot, and input that never stops."""

    service: Service
    seed: int
    running: dict[int, child.Running] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.source = world.events(self.seed)

    def produce(self, count: int) -> None:
        self.service.append_pairs(world.STREAM, world.take(self.source, count))

    def join(self, slot: int, kill: str = "") -> child.Running:
        self.running[slot] = self.service.start("--slot", str(slot), poll=BATCH, kill=kill)
        return self.running[slot]

    def leave(self, slot: int) -> None:
        """As asked to: it must end well, whatever the group was doing."""
        running = self.running.pop(slot)
        running.process.terminate()
        code = running.ended()
        assert code == 0, f"slot {slot} ended with {code}: {running.text}"

    def is_processed(self) -> bool:
        for slot, running in self.running.items():
            assert running.process.exitcode is None, f"slot {slot} ended by itself: {running.text}"
        return processed(self.service)

    def stop(self) -> None:
        for slot in list(self.running):
            self.leave(slot)
        self.service.nobody_there()


def test_three_containers_join_and_leave_without_rest(make: Making, make_twin: Callable[[Service], Service]) -> None:
    """P1, P6: every two seconds one of them comes or goes, while input comes in; now and then all are gone."""
    print(f"SAMOVAR_SEED={SEED}")  # noqa: T201 - the line that repeats a failure
    random_ = random.Random(SEED)
    group = Group(make(world.RULES, STREAMS, client=SOON), SEED)
    until = time.monotonic() + SECONDS
    moves = 0
    while time.monotonic() < until:
        slot = random_.randrange(SLOTS)
        if slot in group.running:
            group.leave(slot)
        else:
            group.join(slot)
        moves += 1
        pause = time.monotonic() + EVERY_S
        wait_until(lambda pause=pause: time.monotonic() > pause, "input comes in", lambda: group.produce(3))  # type: ignore[misc]
    assert moves >= SECONDS / EVERY_S / 2
    for slot in set(range(SLOTS)) - group.running.keys():
        group.join(slot)
    wait_until(group.is_processed, "all three have processed everything")
    group.stop()
    ends_right(group.service, make_twin)


def test_a_container_killed_during_a_rebalance(make: Making, make_twin: Callable[[Service], Service]) -> None:
    """P1, P6: one that is at work, or one that comes, dies while partitions change hands; the other goes on."""
    group = Group(make(world.RULES, STREAMS, client=SOON), 31)
    for point in MOVES:
        group.produce(100)
        dies = 1 if point == "assign.after" else 0
        first = group.join(0, kill=f"{point}:1" if dies == 0 else "")
        wait_until(lambda first=first: "running partitions 0, 1, 2, 3" in first.text, "the first is at work")  # type: ignore[misc]
        group.join(1, kill=f"{point}:1" if dies == 1 else "")
        dead = group.running.pop(dies)
        assert dead.ended() == -signal.SIGKILL, dead.text
        group.produce(100)
        wait_until(group.is_processed, "the other one has all partitions")
        group.stop()
    ends_right(group.service, make_twin)
