"""Which modules are mutated, why, and which tests belong to each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# Whole containers in the test's own process, with a clock that the test sets.
CONTAINERS = (
    "tests/simulation/test_container.py", "tests/simulation/test_found.py", "tests/tasks/test_timers.py",
    "tests/tasks/test_steps.py", "tests/tasks/test_shared_inputs.py", "tests/service/test_status.py",
)  # fmt: skip
STAGES = ("tests/tasks/test_receiving.py", "tests/tasks/test_repartition.py", "tests/tasks/test_unknown_schemas.py")
TIMES = ("tests/tasks/test_event_time.py", "tests/tasks/test_placing.py", "tests/tasks/test_schedules.py")
USER_TASKS = (
    "tests/tasks/test_user_tasks.py", "tests/tasks/test_user_schedules.py", "tests/tasks/test_scattered_tasks.py",
    "tests/tasks/test_user_service.py",
)  # fmt: skip
RESTORES = ("tests/service/test_restore.py", "tests/service/test_restore_past.py", "tests/service/test_restore_source.py")
REWINDS = ("tests/service/test_rewind.py",)
STORES = ("tests/state/test_wrappers.py", "tests/state/test_contract.py")


@dataclass(frozen=True)
class Target:
    """One module under mutation. Its tests run in this order, the ones most likely to notice first."""

    module: str
    why: str
    tests: tuple[str, ...]


TARGETS = (
    # commit
    Target("tasks/container", "one transaction per commit; what is forgotten after a fence", CONTAINERS),
    Target("tasks/task", "the store follows its commit; what a task begins from", (*CONTAINERS, *RESTORES)),
    Target("tasks/core", "what one commit writes", (*CONTAINERS, *TIMES, "tests/test_batches.py")),
    Target("tasks/heart", "what a stage leaves to the main one", STAGES),
    Target("tasks/user_heart", "what one commit of a user-defined task writes", USER_TASKS),
    Target("tasks/user_calls", "calls, and what a failed one takes back", USER_TASKS),
    Target("tasks/in_flight", "what later stages have not taken yet", ("tests/tasks/test_in_flight.py", *CONTAINERS)),
    # order
    Target("patterns/order", "events in event-time order, and who is late", (*TIMES, "tests/test_order_property.py")),
    Target("tasks/intake", "event time, idleness, where a restart reads on", (*TIMES, *CONTAINERS, *STAGES)),
    Target("tasks/user_intake", "the same for user-defined tasks", USER_TASKS),
    Target("tasks/received", "which forwarded records are new", STAGES),
    Target("tasks/receiving", "event time of forwarded events", (*STAGES, *TIMES)),
    Target("tasks/forwarding", "events and watermarks to other stages", ("tests/tasks/test_forwarding.py", *STAGES)),
    Target("tasks/pausing", "inputs ahead of the watermark wait", ("tests/tasks/test_pausing.py", *CONTAINERS)),
    # timers
    Target("tasks/residence", "timers of states that are not in memory", (*CONTAINERS, *TIMES)),
    Target("tasks/deadline_index", "the timer index", ("tests/tasks/test_deadline_index.py", *CONTAINERS, *TIMES)),
    Target("tasks/user_timers", "timers of user-defined tasks", USER_TASKS),
    # restore
    Target("tasks/opening", "what a store must agree with before it is used", ("tests/tasks/test_opening.py", *CONTAINERS)),
    Target("tasks/rebuild", "state from its source", (*RESTORES, *REWINDS)),
    Target("tasks/crossing", "which advances a point in time lies behind", ("tests/tasks/test_crossing.py", *REWINDS)),
    Target("tasks/moment", "state of a point in time", ("tests/service/test_restore_past.py", *REWINDS)),
    Target("tasks/restoring", "a changelog that agrees with a rebuilt store", ("tests/tasks/test_restoring.py", *RESTORES)),
    Target("tasks/rewinding", "a task set back as one", REWINDS),
    Target("tasks/skipping", "what a rewind must not write twice", REWINDS),
    Target("changelog/restore", "where a store goes on in its changelog", ("tests/changelog/test_restore.py", *RESTORES)),
    Target("changelog/ahead", "a changelog read part by part", ("tests/changelog/test_restore.py", *RESTORES)),
    Target("changelog/newest", "the newest value of each key", ("tests/changelog/test_newest.py", *RESTORES)),
    Target("changelog/asof", "a changelog at a point in time", ("tests/changelog/test_asof.py", *RESTORES)),
    Target("changelog/cursors", "reading up to an exact offset", ("tests/changelog/test_cursors.py", *RESTORES)),
    Target("changelog/journal", "which entries count after a rewind", REWINDS),
    Target("changelog/record", "rows, positions and deadlines as bytes", (*CONTAINERS, *USER_TASKS)),
    # the stores' write path
    Target("state/task_storage", "store, snapshots and their folder", ("tests/state/test_task_storage.py", *CONTAINERS)),
    Target("state/snapshots", "a snapshot is whole or not there", ("tests/state/test_snapshots.py",)),
    Target("state/stack", "all stores of a user-defined task change as one", (*STORES, *USER_TASKS)),
    Target("state/overlay", "changes that are not committed", (*STORES, *USER_TASKS)),
    Target("state/cached", "what is read through memory", (*STORES, *USER_TASKS)),
    Target("state/ttl", "rows that expire by event time", (*STORES, *USER_TASKS)),
    Target("state/prefixed", "stores within a store", (*STORES, *USER_TASKS)),
)  # fmt: skip


def target_of(module: str) -> Target:
    return next(target for target in TARGETS if target.module == module)


def all_tests() -> Iterator[str]:
    """Each file once."""
    yield from dict.fromkeys(test for target in TARGETS for test in target.tests)
