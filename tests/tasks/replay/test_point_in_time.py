"""State as it was at a moment of event time, folded from the source."""

from __future__ import annotations

from pathlib import Path

from samovar.state.memory import MemoryStore
from samovar.tasks.replay.point_in_time import rebuild_at
from samovar.tasks.replay.rebuild import RebuildResult, ReplayEnd
from tests.simulation.scenario import START_MS, Publish, Settle
from tests.simulation.test_found import SINGLE, record, scenario
from tests.simulation.world import World

OTHER = SINGLE.replace("maxspan=5s", "maxspan=6s")


def state_at(world: World, moment_ms: int) -> RebuildResult:
    """Of the only partition, from all that was processed."""
    plan = world.plans()[0]
    ends = {spec.stream: world.broker.topic(spec.topic).logs[0].end for spec in plan.inputs}
    return rebuild_at(world.client, plan, 0, MemoryStore(), ReplayEnd(ends), START_MS + moment_ms, lambda _: None)


def test_rules_that_came_after_the_moment_are_not_at_work(tmp_path: Path) -> None:
    world = World(scenario(SINGLE), tmp_path / "service")
    before = world.plans()[0].versions
    for step in (record("left", "c", 1_000), record("right", "c", 1_000), Settle()):
        world.take(step)
    for ms in (20_000, 40_000):
        world.take(record("left", "c", ms))
        world.take(record("right", "c", ms))
        world.take(Settle())
    world.take(Publish("publish", "single", OTHER))
    world.take(Settle())
    after = world.plans()[0].versions
    assert before != after
    assert state_at(world, 10_000).position.rules == before
    world.take(record("left", "c", 60_000))
    world.take(record("right", "c", 60_000))
    world.take(Settle())
    assert state_at(world, 50_000).position.rules == after


def test_a_stream_that_was_silent_then_holds_no_moment_back(tmp_path: Path) -> None:
    """Its entry in the journal says nothing of time."""
    world = World(scenario(SINGLE), tmp_path / "service")
    for step in (record("left", "c", 1_000), Settle(), record("left", "c", 30_000), Settle()):
        world.take(step)
    for _ in range(20):
        world.clock.pass_ms(1_000)
        world.take(Settle())
    kinds = [entry.kind for entry in world.observed().journals["", 0]]
    assert "idle" in kinds
    rebuilt = state_at(world, 10_000)
    assert rebuilt.position.inputs["right"].idle
    assert rebuilt.position.inputs["left"].next == 1
