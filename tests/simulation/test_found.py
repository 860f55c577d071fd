"""Faults that the simulator found, each as the smallest history that shows it."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest

from samovar.common.errors import LogUnavailable
from samovar.tasks.model.clock import SetClock
from samovar.tasks.runtime.collector import collector_off
from samovar.tasks.runtime.container import CALM_S, TROUBLE_S, Container
from tests.simulation.scenario import (
    START_MS,
    ChangeParam,
    Cycle,
    FailCall,
    Failure,
    Pass,
    Produce,
    Publish,
    Recover,
    Scenario,
    Settle,
    Stop,
)
from tests.simulation.world import World, simulate

LEFT_AND_RIGHT = {
    name: {"key": "u", "type": "type", "slack": f"{slack_ms}ms", "idle": idle, "partitions": 1}
    for name, slack_ms, idle in (("left", 3_000, "5s"), ("right", 400, "2s"))
}
SINGLE = """
rule: single
match: |
  sequence by u with maxspan=5s, overlap=all
    [c where true] as one
"""
WINDOWS = """
rule: windows
match: |
  window by u every 5s, size=5s
    [b where true]
"""
# `having` holds of no events at all, so that the rule stays disarmed once its window is empty.
DISARMED = """
rule: disarmed
match: |
  aggregate by u over 30s
    [b where n == 7] as sevens
    [b where true]
    having count(sevens) * 2 >= count()
suppress: 2s
"""


VISIT = """
rule: visit
match: |
  session by u with gap=1s
    [c where true]
"""
HALF = """
rule: half
match: |
  window by u every 5s, size=5s
    [b where true]
    [a where true] as some
    having count(some) * 2 >= count()
suppress: 5s
"""
BY_V = """
rule: by-v
match: |
  sequence by v with maxspan=12s
    ![any where true] with for=2s
    [a where seen(n, 1m)] as one
    [a where n != one.n] with runs=2 as two
"""


MANY = """
rule: many
match: |
  session by u with gap=1s, max=12s
    [b where n >= $least]
    [c where true] as b1
    [b where n / 2 < 1.5] as b2
emit:
  closing: 'last(n)'
  total: 'sum(n)'
  odd: 'sum(n * 2 + 1)'
  many: 'count()'
  least: 'min(n)'
  kinds: 'distinct(f)'
params: {least: 1}
"""


def record(stream: str, type_: str, ms: int, *, partition: int = 0, **fields: Any) -> Produce:
    event = {"type": type_, "ts": START_MS + ms, "u": "u0", "n": 1, **fields}
    return Produce(stream, partition, ((event["u"].encode(), json.dumps(event).encode()),))


def scenario(rule: str, *steps: Any, user_task: bool = False, **tunables: int) -> Scenario:
    name = rule.split()[1]
    return Scenario(0, 1, 1, LEFT_AND_RIGHT, {name: rule}, {}, steps, user_task=user_task, tunables=tunables)


def test_an_input_that_is_paused_does_not_hold_its_own_windows_back() -> None:
    """It waited for event time, which waited for it to be idle, and what is paused never is."""
    steps = [record("right", "b", ms) for ms in (28_300, 28_300, 27_900, 28_200)]
    simulate(scenario(WINDOWS, *steps, pending_bytes=162))


def test_two_stages_do_not_wait_for_each_others_inputs() -> None:
    """Rules had the left stream paused and the user-defined task the right one, each of which the other waited for."""
    begin = [*[record("right", "b", 500, u="u2")] * 2, record("left", "c", 700, u="u2")]
    more = [("c", 5_600, "u0"), ("c", 5_600, "u1"), ("c", 2_600, "u0"), ("a", 5_300, "u0"), ("c", 5_300, "u0")]
    last = [("c", 10_700, "u0"), ("a", 11_100, "u0"), ("b", 11_200, "u1")]
    ahead = [record("right", "b", ms) for ms in (13_500, 13_600)]
    left = [[record("left", kind, ms, u=key, v="u0", f="q") for kind, ms, key in part] for part in (more, last)]
    steps = [*begin, Cycle(0), Cycle(0), Cycle(0), *left[0], *ahead, *left[1]]
    simulate(scenario(SINGLE, *steps, user_task=True, pending_bytes=530, step_bytes=1_445))


def test_a_stage_that_holds_much_does_not_pause_the_source_that_it_waits_for() -> None:
    """What it had not taken kept all sources paused, and one of them it waited for: what is paused is never idle."""
    first = record("right", "a", 14_300, u="k9", v="k7")
    ahead = [record("left", "a", 15_400, partition=1, u="k0", v="k5"), record("left", "a", 15_800, u="k7", v="k4")]
    steps = [Settle(), first, *ahead, Cycle(0), record("left", "x", 15_900, u="k8")]
    streams = {name: {**each, "slack": "0ms", "partitions": 2} for name, each in LEFT_AND_RIGHT.items()}
    simulate(replace(scenario(BY_V, *steps, pending_bytes=210), partitions=2, streams=streams))


def test_a_restore_from_the_source_takes_no_timer_over_that_is_due() -> None:
    """A window that the changelog had lost the end of was equal to none, since it was over. So it was kept, and raised
    its alert again.
    """
    first = [record("left", "a", 2_000, u="k5"), Cycle(0), Recover("rewind", 1_000, 450507695)]
    second = [record("left", "b", 6_200, u="k8"), *[Cycle(0)] * 4, Pass(1_000), Cycle(0)]
    third = [record("right", "b", -36_500, u="k4"), record("right", "a", 23_100, partition=1, u="k0")]
    fourth = [
        record("left", "b", 23_500, u="k8"),
        Cycle(0),
        Pass(1_000),
        record("right", "a", 62_800, u="k9"),
        Cycle(0),
    ]
    streams = {
        name: {**each, "slack": "3s", "idle": idle, "partitions": 2}
        for (name, each), idle in zip(LEFT_AND_RIGHT.items(), ("5s", "500ms"), strict=True)
    }
    steps = [*first, *second, *third, *fourth, Recover("source", 0, 587649056)]
    made = replace(scenario(HALF, *steps), partitions=2, streams=streams, on_rocksdb=True)
    simulate(replace(made, settings={"cache": "1B", "snapshots": {"every": "1ms"}}))


def test_a_step_is_abandoned_while_the_log_does_not_answer() -> None:
    """The task stood there without a processor, and closing it ended the process."""
    events = [record("left", "c", ms, u=f"u{ms}") for ms in (0, 5_000)]
    fails = FailCall(0, "bounds", 2, Failure.TIMEOUT_BEFORE)
    streams = {"left": {**LEFT_AND_RIGHT["left"], "slack": "0ms"}}
    steps = [*events, Cycle(0), fails, Cycle(0)]
    simulate(replace(scenario(SINGLE, *steps, step_bytes=1), streams=streams))


def test_a_session_drains_for_as_long_as_it_goes_on() -> None:
    """It was given up one gap after the change, though an event had come since then."""
    events = [record("left", "c", ms) for ms in (0, 1_000)]
    later = record("left", "d", 2_400)
    streams = {"left": {**LEFT_AND_RIGHT["left"], "slack": "400ms"}}
    steps = [*events, *[Cycle(0)] * 3, later, Publish("disable", "visit", drain=True)]
    simulate(replace(scenario(VISIT, *steps), streams=streams))


def test_one_that_stood_still_while_it_left_does_not_free_the_slot_of_another() -> None:
    """Another had taken the slot meanwhile, and the next that came took it from that one without a look."""
    streams = {"left": LEFT_AND_RIGHT["left"]}
    steps = [Cycle(0), Cycle(0), Cycle(0), FailCall(0, "leave", 1, Failure.PAUSE), Stop(0, leaves=True), Cycle(0)]
    simulate(replace(scenario(SINGLE, *steps), streams=streams, slots=(0, 0)))


def test_rules_are_published_while_a_restart_with_other_parameters_builds_its_index() -> None:
    """What the restart had to write was not committed yet when the change came in, which ended the process."""
    streams = {"left": {**LEFT_AND_RIGHT["left"], "slack": "400ms", "idle": "2s", "partitions": 2}}
    events = [
        record("left", "c", 2_600, u="u1", n=0),
        record("left", "c", 3_100, n=2.25, v="u1", f="q"),
        record("left", "b", 4_000, n=0, v="u0", f="p"),
    ]
    restart = [Stop(0, leaves=True), Cycle(0), Cycle(0), ChangeParam(3, (0,)), Cycle(0)]
    steps = [Settle(), *events, Cycle(0), *restart, Publish("disable", "many", drain=True)]
    made = scenario(MANY, *steps, user_task=True, whole_states=3, index_rows=1, header_bytes=135)
    simulate(replace(made, streams=streams, partitions=2))


@pytest.mark.parametrize("count", range(1, 6))
def test_a_change_of_rules_is_looked_at_again_where_the_log_did_not_answer(count: int) -> None:
    """It was held to be known before its plans were made, and never came in."""
    streams = {"left": LEFT_AND_RIGHT["left"]}
    fails = FailCall(0, "topics", count, Failure.TIMEOUT_BEFORE)
    steps = [record("left", "c", 0), *[Cycle(0)] * 4, Publish("disable", "single"), fails, Cycle(0), Cycle(0)]
    simulate(replace(scenario(SINGLE, *steps), streams=streams))


def test_a_task_that_was_closed_is_gone_at_once(tmp_path: Path) -> None:
    """A soak found it: with every rebalance a container grew by the states of the tasks that it had given up, because
    its loop runs without the cycle collector.
    """
    streams = {"left": {**LEFT_AND_RIGHT["left"], "partitions": 2}}
    world = World(replace(scenario(SINGLE), partitions=2, containers=2, streams=streams), tmp_path / "service")
    world.take(record("left", "c", 0))
    world.take(record("left", "c", 0, partition=1, u="u1"))
    world.take(Settle())
    gc.collect()
    with collector_off():
        processors = WeakSet[object]()
        for _ in range(4):
            world.take(Stop(1, leaves=True))
            for _ in range(6):
                world.take(Cycle(0))
            world.take(Settle())
            containers = [node.container for node in world.nodes if node.container is not None]
            processors.update(task.processor for each in containers for task in each.tasks.values())
        assert len(processors) == 2


def test_a_disarmed_aggregate_lets_an_idle_service_rest() -> None:
    """Its deadline was always due: a service without input wrote to its journal for ever."""
    simulate(scenario(DISARMED, record("left", "b", 3_200, n=7), record("left", "b", 4_600, n=7)))


def test_a_fenced_container_stops_in_good_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last commit of one that was away for too long ended the process with a traceback."""
    world = World(scenario(SINGLE), tmp_path / "service")
    node = world.nodes[0]
    for _ in range(5):
        world.cycle(node)
    container = node.container
    assert container is not None
    world.take(record("left", "c", 100))
    with monkeypatch.context() as undecided:
        undecided.setattr(Container, "_commit", lambda *_: None)
        container.step()
    assert any(task.dirty for task in container.tasks.values())
    world.clock.pass_ms(world.broker.session_ms + 1)
    world.broker.expire()
    world.stop(node, leaves=False)
    assert node.container is None
    assert world.broker.open_transactions() == 0


def test_a_quiet_container_survives_trouble_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Troubles hours apart are not one long trouble, though nothing was there to be committed in between."""
    world = World(scenario(SINGLE), tmp_path / "service")
    node = world.nodes[0]
    for _ in range(5):
        world.cycle(node)
    container = node.container
    assert container is not None

    def fail(_: Container) -> None:
        raise LogUnavailable("a broker restarts")

    for _ in range(20):
        with monkeypatch.context() as broken:
            broken.setattr(Container, "cycle", fail)
            container.step()
        for _ in range(5):
            container.step()
        assert container.caught_up()
        world.clock.pass_ms(int((TROUBLE_S + CALM_S) * 1_000))
        world.broker.expire()
    assert isinstance(world.clock, SetClock)


def test_a_change_of_rules_is_fenced_while_another_stage_restores() -> None:
    """It had no offsets then, so that nobody asked whether the group still knew who wrote it: two containers made the
    same change of one task, and gave two entries of its journal one number.
    """
    streams = {"left": {**LEFT_AND_RIGHT["left"], "partitions": 2}}
    here, there = Cycle(0), Cycle(1)
    paused = FailCall(1, "produce", 1, Failure.PAUSE)
    steps = [here, here, there, here, paused, Publish("publish", "single", SINGLE), there, there, Settle()]
    two = replace(scenario(VISIT, *steps, user_task=True), partitions=2, containers=2, streams=streams)
    simulate(two)
