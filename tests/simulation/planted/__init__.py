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
    "a-switch-keeps-the-processor": 8,
    "a-version-drains-too-briefly": 116,
    "advances-are-forgotten-by-a-restart": 77,
    "alerts-of-a-storm-are-not-counted-on": 86,
    "alerts-outside-the-transaction": 11,
    "backfills-begin-one-record-late": 236,
    "changed-parameters-wait-for-a-publish": 142,
    "crashes-are-not-counted": 88,
    "evicted-states-lose-their-timers": 3,
    "fenced-containers-never-give-way": 55,
    "following-ahead-of-the-rows": 33,
    "idle-advances-are-not-journaled": 2,
    "idle-partitions-hold-other-stages-back": 5,
    "largest-time-is-forgotten-by-a-restart": 9,
    "late-events-are-not-written": 2,
    "misplaced-records-are-taken": 5,
    "missing-offset-read-as-0": 11,
    "offsets-of-one-task-only": 5,
    "offsets-outside-the-transaction": 14,
    "one-crash-is-enough": 88,
    "outages-count-as-idleness": 12,
    "restore-ends-at-the-stable-offset": 1375,
    "restore-forgets-deletes": 3,
    "restore-stops-one-record-early": 3,
    "restored-rows-have-no-timers": 11,
    "rewinds-void-too-little": 49,
    "rewinds-void-too-much": 131,
    "rule-changes-are-not-journaled": 2,
    "rules-in-shadow-alert": 13,
    "silent-streams-are-forgotten-by-a-restart": 151,
    "slots-are-taken-unseen": 23,
    "store-before-commit": 1,
    "stores-are-never-too-old": 221,
    "tasks-survive-a-rejoin": 2,
    "timer-index-is-called-ready-early": 22,
    "timer-index-starts-too-late": 3,
    "tombstones-are-not-logged": 2,
    "topics-made-again-go-unnoticed": 97,
    "unknown-outcome-taken-for-success": 58,
    "unknown-schemas-are-not-journaled": 5,
    "waiting-events-are-lost": 2,
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
