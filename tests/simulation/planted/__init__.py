"""Faults that the simulator must find: each is a small patch of the real code, in place while `planted(name)` lasts.

`SEEDS` says within how many seeds each is found; tests/simulation/test_planted.py holds it to that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

from tests.simulation.planted import commit, restore, rules, time

Patch: TypeAlias = Callable[[], AbstractContextManager[object]]

# Within how many seeds each fault is found: the first that finds it, as measured.
SEEDS: dict[str, int] = {
    "a-switch-keeps-the-processor": 6,
    "advances-are-forgotten-by-a-restart": 77,
    "alerts-outside-the-transaction": 1,
    "evicted-states-lose-their-timers": 3,
    "following-ahead-of-the-rows": 33,
    "idle-advances-are-not-journaled": 1,
    "idle-partitions-hold-other-stages-back": 5,
    "largest-time-is-forgotten-by-a-restart": 9,
    "late-events-are-not-written": 2,
    "misplaced-records-are-taken": 5,
    "missing-offset-read-as-0": 1,
    "offsets-outside-the-transaction": 1,
    "outages-count-as-idleness": 6,
    "restore-ends-at-the-stable-offset": 778,
    "restore-forgets-deletes": 3,
    "restore-stops-one-record-early": 3,
    "restored-rows-have-no-timers": 11,
    "rule-changes-are-not-journaled": 1,
    "store-before-commit": 1,
    "stores-are-never-too-old": 221,
    "tasks-survive-a-rejoin": 1,
    "timer-index-is-called-ready-early": 22,
    "timer-index-starts-too-late": 21,
    "tombstones-are-not-logged": 1,
    "unknown-outcome-taken-for-success": 58,
    "waiting-events-are-lost": 1,
    "zombies-are-not-fenced": 14,
}

PLANTED: dict[str, Patch] = {
    patch.__name__.replace("_", "-"): patch for module in (commit, restore, rules, time) for patch in module.FAULTS
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Have a fault for a while; without a name there is none."""
    if name is None:
        yield
        return
    with PLANTED[name]():
        yield
