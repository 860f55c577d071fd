"""Which modules are mutated, why, and which tests belong to each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.mutants.killing import Step

FIRST_SEEDS = 20  # they notice most of it, and take less time than tests of whole services

# Whole containers in the test's own process, with a clock that the test sets. Nothing that takes many seconds: each
# mutant runs all of it before the last seeds.
CONTAINERS = (
    "tests/tasks/runtime/test_steps.py", "tests/simulation/test_found.py", "tests/tasks/input/test_shared_inputs.py",
    "tests/simulation/test_container.py", "tests/tasks/rules/test_timers.py",
)  # fmt: skip
STAGES = ("tests/tasks/input/test_repartition_source.py", "tests/tasks/input/test_schema_history.py")
TIMES = ("tests/tasks/input/test_placement.py", "tests/tasks/input/test_event_time.py")
RESTORES = ("tests/service/recovery/test_restore_past.py",)
REWINDS = tuple(
    f"tests/service/recovery/test_rewind.py::test_{name}"
    for name in (
        "a_journal_as_if_what_was_set_back_had_never_been", "which_snapshots_a_rewind_took_back",
        "a_version_that_does_not_know_rewinds_refuses_them", "an_earlier_rewind_counts_for_how_far_it_had_been",
        "ids_go_one_by_one_and_then_all", "a_rewind_of_a_rewind",
        "half_a_changelog_is_refused_until_it_was_run_again",
    )
)  # fmt: skip
STORES = ("tests/state/test_wrappers.py", "tests/state/test_contract.py")


@dataclass(frozen=True)
class Target:
    """One module under mutation: `tests` are its own, `more` those of whole services around it."""

    module: str
    why: str
    tests: tuple[str, ...] = ()
    more: tuple[str, ...] = ()

    def steps(self, seeds: int) -> list[Step]:
        """What is tried, the quickest first."""
        first = min(FIRST_SEEDS, seeds)
        steps: tuple[Step, ...] = (self.tests, range(1, first + 1), self.more, range(first + 1, seeds + 1))
        return [step for step in steps if len(step)]


def tests_in(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names)


TARGETS = (
    # commit
    Target("tasks/runtime/container", "one transaction per commit; what is forgotten after a fence", more=CONTAINERS),
    Target(
        "tasks/runtime/stream_task",
        "the store follows its commit; what a task begins from",
        more=(*CONTAINERS, *RESTORES),
    ),
    Target("tasks/input/processor", "what one commit writes", more=(*TIMES, *CONTAINERS)),
    Target("tasks/rules/processor", "the same for rules", more=(*TIMES, *CONTAINERS)),
    Target("tasks/user/processor", "the same for user-defined tasks", tests_in("tasks/user", "user_tasks")),
    Target("tasks/user/calls", "what a failed call takes back", tests_in("tasks/user", "user_tasks")),
    # order
    Target(
        "patterns/engine/order", "event-time order, and who is late", ("tests/system/test_order_property.py",), TIMES
    ),
    Target("tasks/input/source", "event time, idleness, where a restart reads on", more=(*TIMES, *CONTAINERS, *STAGES)),
    Target("tasks/input/user_source", "the same for user-defined tasks", tests_in("tasks/user", "user_tasks")),
    Target(
        "tasks/input/repartition_source",
        "event time of forwarded events",
        tests_in("tasks/input", "repartition_source"),
        (*STAGES, *TIMES),
    ),
    Target(
        "tasks/input/repartition_sink",
        "events and watermarks to later stages",
        tests_in("tasks/input", "repartition_sink"),
        STAGES,
    ),
    Target(
        "tasks/runtime/backpressure",
        "inputs ahead of the watermark wait",
        tests_in("tasks/runtime", "backpressure", "in_flight_bytes"),
        CONTAINERS,
    ),
    # timers
    Target(
        "tasks/rules/state_cache",
        "timers of states that are not in memory",
        tests_in("tasks/rules", "state_cache"),
        (*CONTAINERS, *TIMES),
    ),
    Target("tasks/rules/timer_index", "the timer index", tests_in("tasks/rules", "timer_index"), (*CONTAINERS, *TIMES)),
    Target("tasks/user/timers", "timers of user-defined tasks", tests_in("tasks/user", "user_tasks")),
    # restore
    Target(
        "tasks/input/startup_checks",
        "what must agree before a store is used",
        tests_in("tasks/input", "startup_checks"),
        CONTAINERS,
    ),
    Target("tasks/replay/rebuild", "state from its source", more=(*RESTORES, *REWINDS)),
    Target(
        "tasks/replay/point_in_time",
        "state of a point in time",
        tests_in("tasks/replay", "point_in_time", "watermark_crossing"),
        (*tests_in("service/recovery", "restore_past"), *REWINDS),
    ),
    Target(
        "tasks/replay/repair", "a changelog that agrees with its store", tests_in("tasks/replay", "repair"), RESTORES
    ),
    Target("tasks/replay/rewind", "a task set back as one", tests_in("tasks/replay", "repair"), REWINDS),
    Target(
        "tasks/rules/replay_dedup",
        "what a rewind must not write twice",
        tests_in("tasks/rules", "replay_dedup"),
        REWINDS,
    ),
    Target(
        "changelog/restore/restore",
        "where a store goes on",
        tests_in("changelog/restore", "restore"),
        (*CONTAINERS, *RESTORES),
    ),
    Target(
        "changelog/restore/latest_by_key",
        "the newest value of each key",
        tests_in("changelog/restore", "latest_by_key"),
        RESTORES,
    ),
    Target(
        "changelog/restore/point_in_time",
        "a changelog at a point in time",
        tests_in("changelog/restore", "point_in_time"),
        RESTORES,
    ),
    Target("changelog/cursors", "reading up to an exact offset", tests_in("changelog", "cursors"), RESTORES),
    Target("changelog/formats/journal", "which entries count after a rewind", more=REWINDS),
    Target(
        "changelog/formats/record",
        "rows, positions and deadlines as bytes",
        tests_in("changelog/formats", "record"),
        CONTAINERS,
    ),
    # the stores' write path
    Target("state/task_storage", "a store and its snapshots", tests_in("state", "task_storage"), CONTAINERS),
    Target("state/snapshots", "a snapshot is whole or not there", tests_in("state", "snapshots"), CONTAINERS),
    Target(
        "state/stack",
        "all stores of a task change as one, and what is not committed",
        STORES,
    ),
    Target("state/ttl", "rows that expire by event time", STORES),
    Target("state/prefixed", "stores within a store", STORES),
)


def target_of(module: str) -> Target:
    return next(target for target in TARGETS if target.module == module)


def all_tests() -> Iterator[str]:
    """Each file once."""
    yield from dict.fromkeys(test for target in TARGETS for test in (*target.tests, *target.more))
