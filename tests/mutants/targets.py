"""Which modules are mutated, why, and which tests may notice."""

from __future__ import annotations

from dataclasses import dataclass

# Whatever runs in the test's own process and takes no server. Of these a mutant meets the ones that run its line.
TESTS = (
    "tests/changelog/formats",
    "tests/changelog/restore",
    "tests/changelog/test_cursors.py",
    "tests/patterns/engine/test_order.py",
    "tests/service/recovery/test_restore_past.py",
    "tests/service/recovery/test_restore_source.py",
    "tests/service/recovery/test_rewind.py",
    "tests/simulation/test_container.py",
    "tests/simulation/test_found.py",
    "tests/state/test_contract.py",
    "tests/state/test_snapshots.py",
    "tests/state/test_task_storage.py",
    "tests/state/test_wrappers.py",
    "tests/system/test_order_property.py",
    "tests/system/test_testing.py",
    "tests/tasks",
)


@dataclass(frozen=True)
class Target:
    """One module under mutation."""

    module: str
    why: str


TARGETS = (
    # commit
    Target("tasks/runtime/container", "one transaction per commit; what is forgotten after a fence"),
    Target("tasks/runtime/stream_task", "the store follows its commit; what a task begins from"),
    Target("tasks/input/processor", "what one commit writes"),
    Target("tasks/rules/processor", "the same for rules"),
    Target("tasks/user/processor", "the same for user-defined tasks"),
    Target("tasks/user/calls", "what a failed call takes back"),
    # order
    Target("patterns/engine/order", "event-time order, and who is late"),
    Target("tasks/input/source", "event time, idleness, where a restart reads on"),
    Target("tasks/input/user_source", "the same for user-defined tasks"),
    Target("tasks/input/repartition_source", "event time of forwarded events"),
    Target("tasks/input/repartition_sink", "events and watermarks to later stages"),
    Target("tasks/runtime/backpressure", "inputs ahead of the watermark wait"),
    # timers
    Target("tasks/rules/state_cache", "timers of states that are not in memory"),
    Target("tasks/rules/timer_index", "the timer index"),
    Target("tasks/user/timers", "timers of user-defined tasks"),
    # restore
    Target("tasks/input/startup_checks", "what must agree before a store is used"),
    Target("tasks/replay/rebuild", "state from its source"),
    Target("tasks/replay/point_in_time", "state of a point in time"),
    Target("tasks/replay/repair", "a changelog that agrees with its store"),
    Target("tasks/replay/rewind", "a task set back as one"),
    Target("tasks/rules/replay_dedup", "what a rewind must not write twice"),
    Target("changelog/restore/restore", "where a store goes on"),
    Target("changelog/restore/latest_by_key", "the newest value of each key"),
    Target("changelog/restore/point_in_time", "a changelog at a point in time"),
    Target("changelog/cursors", "reading up to an exact offset"),
    Target("changelog/formats/journal", "which entries count after a rewind"),
    Target("changelog/formats/record", "rows, positions and deadlines as bytes"),
    # the stores' write path
    Target("state/task_storage", "a store and its snapshots"),
    Target("state/snapshots", "a snapshot is whole or not there"),
    Target("state/stack", "all stores of a task change as one, and what is not committed"),
    Target("state/ttl", "rows that expire by event time"),
    Target("state/prefixed", "stores within a store"),
)
