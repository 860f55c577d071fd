"""State as it was at a moment of event time, folded from the source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from samovar.changelog.formats.journal import JournalEntry, pack_entry
from samovar.changelog.log import Append
from samovar.changelog.partitioner import partition_of
from samovar.state.memory import MemoryStore
from samovar.tasks.replay.point_in_time import rebuild_at
from samovar.tasks.replay.rebuild import RebuildResult, ReplayEnd
from tests.simulation.scenario import START_MS, Publish, Settle
from tests.simulation.test_found import LEFT_AND_RIGHT, SINGLE, record, scenario
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


# ---------------------------------------------------------------- every event is an alert: they are counted

BY_V = SINGLE.replace("by u", "by v").replace("single", "by-v")
TIMES = {"left": (0, 1_500, 1_000, 7_000, 9_000, 8_000), "right": (500, 2_000, 7_000, 9_000, 9_000, 12_000)}


def alerts_at(world: World, stage: int, partition: int, moment_ms: int, **ends: int) -> tuple[int, RebuildResult]:
    plan = world.plans()[stage]
    logs = {spec.stream: world.broker.topic(spec.topic).logs[partition] for spec in plan.inputs}
    until = ReplayEnd({stream: log.end for stream, log in logs.items()} | ends)
    found = rebuild_at(world.client, plan, partition, MemoryStore(), until, START_MS + moment_ms)
    return found.alerts, found


@pytest.fixture(scope="module")
def two_streams(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(scenario(SINGLE), tmp_path_factory.mktemp("two") / "service")
    for pair in zip(*TIMES.values(), strict=True):
        for stream, ms in zip(TIMES, pair, strict=True):
            world.take(record(stream, "c", ms))
        for _ in range(3):
            world.cycle(world.nodes[0])
    world.take(Settle())
    return world


MOMENTS = [-1, 0, 499, 500, 501, 1_000, 1_999, 2_000, 6_999, 7_000, 7_001, 8_000, 8_999, 9_000, 11_999, 12_000, 20_000]


@pytest.mark.parametrize("moment", MOMENTS)
def test_of_two_streams_all_events_up_to_the_moment_and_none_after(two_streams: World, moment: int) -> None:
    """None of them is late: the left stream has 3 s of slack, and the right one's are in order."""
    count, found = alerts_at(two_streams, 0, 0, moment)
    assert count == sum(ms <= moment for times in TIMES.values() for ms in times)
    slack_ms = {"left": 3_000, "right": 400}
    for stream, times in TIMES.items():
        first = next((at for at, ms in enumerate(times) if ms - slack_ms[stream] > moment), len(times))
        assert found.position.inputs[stream].next == first
    assert found.position.watermark == START_MS + moment + 1


def test_a_moment_before_the_end_of_what_was_processed(two_streams: World) -> None:
    count, found = alerts_at(two_streams, 0, 0, 20_000, left=2, right=3)
    assert (count, found.events) == (5, 5)
    assert {stream: each.next for stream, each in found.position.inputs.items()} == {"left": 2, "right": 3}


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A stage that is keyed otherwise, of two partitions, of which each reads two source partitions."""
    streams = {"left": {**LEFT_AND_RIGHT["left"], "slack": "0ms", "partitions": 2}}
    made = replace(scenario(BY_V), partitions=2, streams=streams)
    world = World(made, tmp_path_factory.mktemp("stages") / "service")
    for number in range(12):
        key = f"k{number % 5}"
        partition = partition_of(key.encode(), 2)
        world.take(record("left", "c", 1_000 * number, partition=partition, u=key, v=f"v{number % 3}"))
        for _ in range(2):
            world.cycle(world.nodes[0])
    world.take(Settle())
    return world


@pytest.mark.parametrize("moment", [-1, 0, 1, 999, 1_000, 4_500, 6_000, 10_999, 11_000])
def test_of_a_later_stage_all_events_up_to_the_moment_and_none_after(stages: World, moment: int) -> None:
    assert len(stages.plans()) == 2
    found = [alerts_at(stages, 1, partition, moment) for partition in range(2)]
    assert sum(count for count, _ in found) == sum(1_000 * number <= moment for number in range(12))
    assert {each.position.watermark for _, each in found} == {START_MS + moment + 1}


@pytest.mark.parametrize(("moment", "journal"), [(4_998, 1), (4_999, 2)])
def test_a_stage_that_was_once_set_back_to_a_later_moment(tmp_path: Path, moment: int, journal: int) -> None:
    """What its journal says of that moment counts for later ones only."""
    streams = {"left": {**LEFT_AND_RIGHT["left"], "slack": "0ms", "partitions": 2}}
    world = World(replace(scenario(BY_V), partitions=2, streams=streams), tmp_path / "service")
    world.take(record("left", "c", 0, partition=partition_of(b"u0", 2), v="v0"))
    world.take(Settle())
    plan = world.plans()[1]
    facts = {"max_event_time": START_MS + 5_000}
    entry = JournalEntry(kind="advance", number=2, inputs={"left": 0}, watermark=None, facts=facts)
    world.client.append([Append(topic=plan.topics.journal, records=[(b"0", pack_entry(entry))], partition=0)])
    found = rebuild_at(world.client, plan, 0, MemoryStore(), ReplayEnd({"left": 0}), START_MS + moment)
    assert (found.position.journal, found.position.watermark) == (journal, START_MS + moment + 1)
