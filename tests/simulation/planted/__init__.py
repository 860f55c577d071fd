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
    "abandoned-steps-are-kept": 23,
    "advances-are-forgotten-by-a-restart": 77,
    "alerts-of-a-storm-are-not-counted-on": 86,
    "alerts-outside-the-transaction": 11,
    "backfills-begin-one-record-late": 236,
    "changed-parameters-wait-for-a-publish": 142,
    "commits-without-offsets": 293,
    "crashes-are-not-counted": 88,
    "cursors-forget-what-they-cut-off": 4,
    "drained-versions-take-new-events": 6,
    "evicted-before-the-commit": 2,
    "evicted-states-lose-their-timers": 3,
    "expired-rows-stay": 3,
    "failed-calls-keep-their-writes": 5,
    "fenced-containers-never-give-way": 55,
    "following-ahead-of-the-rows": 33,
    "forwards-begin-anew-with-a-restart": 263,
    "generations-are-not-asked-for": 34,
    "idle-advances-are-not-journaled": 2,
    "idle-inputs-run-ahead": 3,
    "idle-partitions-hold-other-stages-back": 5,
    "journal-numbers-begin-again": 2,
    "journal-outside-the-transaction": 6,
    "largest-time-is-forgotten-by-a-restart": 9,
    "late-events-are-not-written": 2,
    "late-events-come-back-with-a-restart": 3,
    "letters-are-lost-with-an-abandoned-step": 26,
    "letters-outside-the-transaction": 26,
    "list-changes-drop-states": 68,
    "marks-before-events": 5,
    "misplaced-records-are-taken": 5,
    "missing-offset-read-as-0": 11,
    "offsets-of-one-task-only": 5,
    "offsets-of-the-stage-that-is-ahead": 26,
    "offsets-outside-the-transaction": 14,
    "one-crash-is-enough": 88,
    "outages-count-as-idleness": 12,
    "replay-begins-at-the-time-of-now": 3,
    "replay-begins-one-event-late": 3,
    "restore-ends-at-the-stable-offset": 1375,
    "restore-forgets-deletes": 3,
    "restore-stops-one-record-early": 3,
    "restored-rows-have-no-timers": 11,
    "restores-index-the-first-part-only": 11,
    "restores-say-that-they-are-done-early": 11,
    "rewinds-forget-an-alert": 49,
    "rewinds-void-too-little": 49,
    "rewinds-void-too-much": 131,
    "rows-of-gone-rules-stay": 17,
    "rule-changes-are-journaled-one-record-late": 8,
    "rule-changes-are-not-journaled": 2,
    "rules-in-shadow-alert": 13,
    "silent-streams-are-forgotten-by-a-restart": 151,
    "slots-are-taken-unseen": 23,
    "snapshots-have-a-newer-position": 53,
    "store-before-commit": 1,
    "stores-are-never-too-old": 221,
    "tasks-survive-a-rejoin": 2,
    "the-watermark-is-the-greatest": 3,
    "timer-index-is-called-ready-early": 22,
    "timer-index-starts-too-late": 3,
    "tombstones-are-not-logged": 2,
    "topics-made-again-go-unnoticed": 97,
    "unknown-outcome-taken-for-success": 58,
    "unknown-schemas-are-not-journaled": 5,
    "user-timers-come-back": 3,
    "user-windows-are-forgotten-by-a-restart": 5,
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
