"""A rule that goes over its budget is taken out of a task, at the position before the batch; all in one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from samovar.changelog.formats.record import POSITION, unpack_position
from samovar.changelog.log import TopicPartition
from samovar.patterns.engine.matcher import NEVER, BatchTooLarge, RuleFailure
from samovar.service.runtime.running import container_of
from samovar.tasks.model.plan import MAIN
from samovar.tasks.rules.migration import RuleMigration
from samovar.tasks.runtime.container import Container, RuleSource
from samovar.tasks.runtime.stream_task import StreamTask
from tests.simulation.scenario import Publish
from tests.simulation.test_found import LEFT_AND_RIGHT, SINGLE, VISIT, record, scenario
from tests.simulation.world import World

LEFT = TopicPartition("left", 0)


class Told(RuleSource):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.failures: list[RuleFailure] = []

    def quarantine(self, failure: RuleFailure) -> None:
        self.failures.append(failure)


def service(folder: Path) -> tuple[World, Container, StreamTask]:
    """Two rules, with a state of one of them."""
    streams = {"left": {**LEFT_AND_RIGHT["left"], "slack": "0ms"}}
    made = replace(scenario(VISIT), streams=streams, rules={"visit": VISIT, "single": SINGLE})
    world = World(made, folder / "service")
    for _ in range(6):
        world.cycle(world.nodes[0])
    world.take(record("left", "c", 1))
    world.cycle(world.nodes[0])
    container = world.nodes[0].container
    assert container is not None
    container.rule_source = Told()
    return world, container, container.tasks[MAIN, 0]


def failure_of(task: StreamTask, rule: str = "visit") -> RuleFailure:
    return RuleFailure(rule, task.plan.versions.get(rule, "?"), ("u0",), "too much work")


def raising(error: Exception) -> None:
    raise error


def test_a_step_that_fails_leaves_the_task_where_it_last_committed(tmp_path: Path) -> None:
    world, container, task = service(tmp_path)
    world.take(record("left", "c", 2))
    (records,) = world.client.reader({LEFT: 1}).poll(100, 0.0)
    task.feed(records)
    assert task.positions() == {LEFT: 2}
    failure = failure_of(task)
    assert not container._attempt(task, lambda: raising(failure), 1)
    assert (task.positions(), task.failure, task.is_abandoned, task.dirty) == ({LEFT: 1}, failure, True, False)
    assert task.piece_rows is None
    assert task.counts.events == 1


def test_a_step_that_finds_too_much_is_cut(tmp_path: Path) -> None:
    _, container, task = service(tmp_path)
    assert container._attempt(task, lambda: None, 8)
    assert not container._attempt(task, lambda: raising(BatchTooLarge()), 8)
    assert (task.failure, task.piece_rows, task.is_abandoned) == (None, 4, True)


def test_the_rule_is_taken_out_in_a_transaction_of_its_own_and_all_are_told(tmp_path: Path) -> None:
    world, container, task = service(tmp_path)
    told = container.rule_source
    assert isinstance(told, Told)
    failure = failure_of(task)
    container._attempt(task, lambda: raising(failure), 1)
    before = world.nodes[0].called["transact"]
    world.active = world.nodes[0]
    container._recover(container._join_group())
    world.active = None
    assert world.nodes[0].called["transact"] == before + 1
    assert (told.failures, task.is_abandoned, task.failure) == ([failure], False, None)
    position = unpack_position(task.store.get(POSITION) or b"")
    assert (set(position.rules), position.inputs["left"].next, task.dirty) == ({"single"}, 1, False)
    assert [rule.id for rule in task.processor.plan.rules if rule.quarantined] == ["visit"]
    world.take(record("left", "c", 3))
    world.cycle(world.nodes[0])
    assert task.positions() == {LEFT: 2}


def test_a_rule_that_is_not_at_work_is_remembered_for_when_it_comes_in(tmp_path: Path) -> None:
    _, container, task = service(tmp_path)
    failure = failure_of(task, "other")
    task.failure = failure
    assert task.begin_quarantine() is None
    assert task.__dict__["failure"] is None
    assert task._ended_by is failure
    container._quarantine(container._join_group(), task)
    assert task._ended_by is failure, "without a failure there is nothing to do"


def test_a_task_that_takes_all_has_no_bound_until_its_next_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, task = service(tmp_path)
    bounds: list[int] = []
    monkeypatch.setattr(
        "samovar.tasks.rules.state_cache.StateCache.limit", lambda _self, budget: bounds.append(budget.step_bytes)
    )
    usual = task.config.budget.step_bytes
    task.abandon(None, 1)
    task._limit()
    task._take_more()
    task._take_more()
    assert bounds == [NEVER, NEVER, usual]


# ---------------------------------------------------------------- a rule that comes in, and whose history is too much


def test_a_rule_whose_history_cannot_be_folded_comes_in_quarantined(tmp_path: Path) -> None:
    _, _, task = service(tmp_path)
    change = RuleMigration(plan=task.plan, moves={}, warm=("visit", "single"))
    failure = failure_of(task)
    found = task._without(change, failure)
    assert (found.warm, task.backfill_failures) == (("single",), [failure])
    assert [rule.id for rule in found.plan.rules if rule.quarantined] == ["visit"]
    assert found.quarantine is not None
    assert found.quarantine["rule"] == "visit"
    assert task._without(replace(change, warm=("single",)), failure) == replace(change, warm=("single",))
    assert task._without(change, failure_of(task, "other")) is change
    assert task.backfill_failures == [failure]
    assert [note for note in task.notes if "rule visit is in quarantine: too much work" in note]


def test_what_came_in_quarantined_is_told_to_all_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, container, task = service(tmp_path)
    told = Told()
    source = container.rule_source = container_source(world)
    monkeypatch.setattr(source, "quarantine", told.quarantine)
    world.take(Publish("publish", "single", SINGLE.replace("maxspan=5s", "maxspan=6s")))
    failures = [failure_of(task), failure_of(task, "single")]
    task.backfill_failures = list(failures)
    for _ in range(4):
        world.cycle(world.nodes[0])
    assert (told.failures, task.backfill_failures) == (failures, [])
    assert task.processor.plan.ruleset_change is not None


def container_source(world: World) -> RuleSource:
    """What a container of the service follows the rules by."""
    node = world.nodes[0]
    assert node.log is not None
    return container_of(world.settings, node.log, 1, lambda _: None, world.clock).rule_source
