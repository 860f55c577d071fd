"""One container by itself, on the log in memory: its loop, its commits, and what it does when the log fails it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.formats import heartbeat
from samovar.changelog.formats.heartbeat import MemberMetadata, read_heartbeats
from samovar.changelog.formats.record import POSITION
from samovar.changelog.log import Append, TopicPartition, TopicSpec
from samovar.changelog.partitioner import partition_of
from samovar.common.errors import Fenced, LogUnavailable, Refused
from samovar.tasks.model.plan import MAIN, Plan, RulesetChange
from samovar.tasks.model.results import Counts, Outcome
from samovar.tasks.rules.processor import RuleProcessor
from samovar.tasks.runtime.container import (
    CALM_S,
    LONGEST_WAIT_S,
    TROUBLE_S,
    TROUBLES,
    Container,
    RuleSource,
    RunStatus,
    topics_read,
)
from samovar.tasks.runtime.slot_claim import SlotClaim
from samovar.tasks.runtime.stream_task import RulesBehind, StreamTask, TaskState
from tests.simulation.counting import TASK
from tests.simulation.scenario import START_MS, Kill, Loss
from tests.simulation.test_found import LEFT_AND_RIGHT, VISIT, record, scenario
from tests.simulation.world import Node, World

LEFT, RIGHT = TopicPartition("left", 0), TopicPartition("right", 0)
GROUP = "sim"


def world_of(folder: Path, rule: str = VISIT, *, partitions: int = 1, **more: Any) -> World:
    """A service of one stream, whose sessions have states for as long as no event comes."""
    fields = ("containers", "settings", "user_task", "streams")
    tunables = {name: value for name, value in more.items() if name not in fields}
    one = {"left": {**LEFT_AND_RIGHT["left"], "slack": "0ms", "partitions": partitions}}
    given = {"streams": one, **{name: value for name, value in more.items() if name in fields}}
    return World(replace(scenario(rule, **tunables), partitions=partitions, **given), folder / "service")


def started(world: World) -> Container:
    """The first container, with all of its tasks at work."""
    for _ in range(8):
        for node in world.nodes:
            world.cycle(node)
    return running(world.nodes[0])


def running(node: Node) -> Container:
    assert node.container is not None
    return node.container


def steps(container: Container, count: int) -> None:
    for _ in range(count):
        container.step()


def send(world: World, *ms: int, key: str = "u0", stream: str = "left", type_: str = "c") -> None:
    partition = partition_of(key.encode(), world.scenario.partitions)
    for each in ms:
        world.take(record(stream, type_, each, partition=partition, u=key))


def committed(world: World, at: TopicPartition = LEFT) -> int | None:
    return world.client.committed(GROUP, [at])[at]


def members(world: World) -> Sequence[str]:
    return world.client.members(GROUP)


def journal_kinds(world: World) -> list[str]:
    topic = running(world.nodes[0]).plan.topics.journal if world.nodes[0].container else "sim-journal"
    return [json.loads(each.value or b"")["kind"] for each in world.broker.committed_records(topic)]


# ---------------------------------------------------------------- one cycle


@pytest.mark.parametrize(
    ("count", "polls", "taken"), [(0, 1, 0), (1, 1, 1), (2, 2, 2), (4, 2, 4), (5, 2, 5), (6, 3, 6), (13, 3, 12)]
)
def test_a_cycle_polls_again_while_much_comes(tmp_path: Path, count: int, polls: int, taken: int) -> None:
    world = world_of(tmp_path, poll_records=4, commit_polls=3)
    started(world)
    send(world, *range(count))
    node = world.nodes[0]
    before = dict(node.called)
    world.cycle(node)
    assert node.called["poll"] - before["poll"] == polls
    assert node.called["transact"] - before["transact"] == (count > 0)
    assert committed(world) == taken


def test_one_record_at_a_time_is_polled_for_while_there_is_one(tmp_path: Path) -> None:
    world = world_of(tmp_path, poll_records=1, commit_polls=3)
    started(world)
    node = world.nodes[0]
    for count, polls in ((0, 1), (1, 2), (9, 3)):
        running(node)._polls = 3
        send(world, *range(count))
        before = node.called["poll"]
        world.cycle(node)
        assert node.called["poll"] - before == polls


@pytest.mark.parametrize(("keys", "polls"), [(1, 3), (2, 3), (3, 1), (8, 1)])
def test_fewer_polls_make_a_commit_where_most_events_change_rows_of_their_own(
    tmp_path: Path, keys: int, polls: int
) -> None:
    """Of eight records: more than half as many rows, the position among them, or not."""
    world = world_of(tmp_path, poll_records=8, commit_polls=3)
    container = started(world)
    assert container._polls == 3
    before = container.status().counts.rows
    for number in range(8):
        send(world, number, key=f"u{number % keys}")
    world.cycle(world.nodes[0])
    assert container._polls == polls, container.status().counts.rows - before
    send(world, 100)
    world.cycle(world.nodes[0])
    assert container._polls == polls, "of a few records nothing is learnt"


def test_what_all_polls_of_a_commit_gave_is_what_its_rows_are_held_against(tmp_path: Path) -> None:
    """Six rows are many for one poll of eight records, and few for three."""
    world = world_of(tmp_path, poll_records=8, commit_polls=3)
    container = started(world)
    for number in range(24):
        send(world, number, key=f"u{number % 5}")
    world.cycle(world.nodes[0])
    assert (committed(world), container._polls) == (24, 3)


def test_half_as_many_rows_as_records_are_not_few(tmp_path: Path) -> None:
    container = started(world_of(tmp_path, poll_records=4, commit_polls=3))
    member, task = container._join_group(), container.tasks[MAIN, 0]
    rows = 1
    for taken, polls in ((2 * rows, 1), (2 * rows + 1, 3)):
        container.tunables = replace(container.tunables, poll_records=taken)
        task.processor.dirty = True
        container._commit(member, taken)
        assert container._polls == polls
        container._polls = 3
    container.tunables = replace(container.tunables, poll_records=3)
    task.processor.dirty = True
    container._commit(member, 2)
    assert container._polls == 3, "fewer than one poll gives"


def test_a_container_that_restores_does_not_wait_in_its_polls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(tmp_path, restore_records=1, restore_rows=1)
    container = started(world)
    waits: list[float] = []
    take = Container._take

    def noting(self: Container, member: Any, timeout_s: float) -> int:
        waits.append(timeout_s)
        return take(self, member, timeout_s)

    monkeypatch.setattr(Container, "_take", noting)
    world.cycle(world.nodes[0])
    assert waits == [0.1]
    waits.clear()
    task = container.tasks[MAIN, 0]
    task.state = TaskState.RESTORING
    world.cycle(world.nodes[0])
    assert waits == [0.0]


def test_an_input_that_is_paused_or_has_more_is_not_idle(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    container = started(world)
    source = container.tasks[MAIN, 0].processor.source.sources["left"]
    idle = []
    for container._backpressure.paused in (set(), {LEFT}):
        world.cycle(world.nodes[0])
        idle.append(source.idle_since_ms is not None)
    assert idle == [True, False]
    assert container._backpressure.paused == set()


# ---------------------------------------------------------------- trouble


def test_it_waits_longer_with_every_trouble_and_gives_up_in_the_end(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    container = started(world)
    waits = [container._rejoin(LogUnavailable("no answer")) for _ in range(9)]
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, LONGEST_WAIT_S, LONGEST_WAIT_S]
    assert (container._member, container.tasks) == (None, {})
    world.clock.pass_ms(int(TROUBLE_S * 1_000))
    container._rejoin(LogUnavailable("no answer"))
    world.clock.pass_ms(1)
    with pytest.raises(Refused) as refused:
        container._rejoin(LogUnavailable("no answer"))
    assert refused.value.code == "log-unusable"


def test_a_few_troubles_are_no_reason_to_give_up_however_long_they_take(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    container = started(world)
    container._was_done = False
    for _ in range(TROUBLES - 1):
        container._rejoin(LogUnavailable("no answer"))
        world.clock.pass_ms(int(TROUBLE_S * 1_000))
    with pytest.raises(Refused):
        container._rejoin(LogUnavailable("no answer"))


@pytest.mark.parametrize(("calm_ms", "was_done", "is_new"), [(0, True, False), (1, True, True), (1, False, False)])
def test_trouble_after_a_calm_is_new_trouble(tmp_path: Path, calm_ms: int, was_done: bool, is_new: bool) -> None:
    world = world_of(tmp_path)
    container = started(world)
    for _ in range(3):
        container._rejoin(LogUnavailable("no answer"))
    assert not container._was_done
    container._was_done = was_done
    world.clock.pass_ms(int(CALM_S * 1_000) + calm_ms)
    assert container._rejoin(LogUnavailable("no answer")) == (0.05 if is_new else 0.4)
    assert container._trouble_since_ms == (world.clock.now_ms if is_new else START_MS)


def test_a_commit_ends_all_trouble(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    container = started(world)
    for _ in range(3):
        container._rejoin(LogUnavailable("no answer"))
    send(world, 1)
    for _ in range(6):
        assert container.step() == 0.0
    assert (committed(world), container._rejoins) == (1, 0)
    assert container._was_done


def test_a_step_that_the_log_fails_says_how_long_to_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    container = started(world_of(tmp_path))
    for error in (Fenced("another"), LogUnavailable("no answer")):
        with monkeypatch.context() as broken:

            def fail(_: Container, error: Exception = error) -> None:
                raise error

            broken.setattr(Container, "cycle", fail)
            assert container.step() > 0.0
            assert not container._was_done


def made_again(world: World, name: str) -> None:
    topic = world.broker.topic(name).topic
    world.broker.delete(name)
    world.broker.create(TopicSpec(name, topic.partitions, topic.settings, topic.replication))


@pytest.mark.parametrize("name", ["left", "sim-changelog", "sim-journal"])
def test_a_container_ends_when_a_topic_under_it_is_made_again(tmp_path: Path, name: str) -> None:
    world = world_of(tmp_path)
    container = started(world)
    container.watch.check_now()
    container.watch.check()
    made_again(world, name)
    container.watch.check_now()
    with pytest.raises(Refused):
        container.watch.check()


def test_topics_of_stages_that_came_later_are_watched_too(tmp_path: Path) -> None:
    world = world_of(tmp_path, user_task=True)
    container = started(world)
    whole = list(container.plans.values())
    container._plan(whole[:1])
    container.watch.check_now()
    container._plan(whole)
    container.watch.check_now()
    made_again(world, container.plans[TASK].topics.changelog)
    container.watch.check_now()
    with pytest.raises(Refused):
        container.watch.check()


# ---------------------------------------------------------------- the whole run


def test_a_run_until_caught_up_takes_all_and_leaves_the_group_if_it_is_alone(tmp_path: Path) -> None:
    world = world_of(tmp_path, poll_records=2, commit_polls=1)
    send(world, *range(7))
    node = world.nodes[0]
    world.start(node)
    seen: list[RunStatus] = []
    counts = running(node).run(until_caught_up=True, on_cycle=seen.append)
    assert not running(node)._goes_on
    assert (counts.events, committed(world), members(world)) == (7, 7, [])
    assert [each.caught_up for each in seen].count(True) >= 1
    assert (seen[-1].counts.events, seen[-1].running, seen[-1].slot) == (7, (0,), 0)
    assert world.broker.open_transactions() == 0


def test_a_run_that_is_not_alone_stays_in_the_group_for_a_while(tmp_path: Path) -> None:
    """Another one would have to take over what it may come back to."""
    world = world_of(tmp_path, partitions=2, containers=2)
    started(world)
    assert len(members(world)) == 2
    running(world.nodes[0]).run(until_caught_up=True)
    assert len(members(world)) == 2


@pytest.mark.parametrize("leaves", [False, True])
def test_a_run_ends_when_it_is_told_to(tmp_path: Path, leaves: bool) -> None:
    world = world_of(tmp_path)
    world.start(world.nodes[0])
    container = running(world.nodes[0])
    cycles = 0

    def on_cycle(status: RunStatus) -> None:
        nonlocal cycles
        cycles += 1
        assert container._goes_on
        if status.running:
            (container.leave if leaves else container.stop)()

    container.run(on_cycle=on_cycle)
    assert 0 < cycles < 10
    assert members(world) == ([] if leaves else ["sim-0"])
    assert journal_kinds(world) == ["rules"], "what there was to commit is committed before the end"


def test_a_run_waits_for_as_long_as_the_log_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(tmp_path)
    world.start(world.nodes[0])
    container = running(world.nodes[0])
    began_ms = world.clock.now_ms
    steps = iter([LogUnavailable("no answer"), LogUnavailable("no answer")])
    cycle = Container.cycle

    def failing(self: Container) -> None:
        error = next(steps, None)
        if error is not None:
            raise error
        cycle(self)

    monkeypatch.setattr(Container, "cycle", failing)
    container.run(until_caught_up=True)
    assert world.clock.now_ms - began_ms >= 150


def test_a_container_for_which_no_partition_is_left_has_nothing_to_wait_for(tmp_path: Path) -> None:
    world = world_of(tmp_path, containers=2)
    started(world)
    idle, busy = sorted((running(node) for node in world.nodes), key=lambda each: len(each.tasks))
    assert (len(idle.tasks), len(busy.tasks)) == (0, 1)
    assert (idle._has_no_task(), busy._has_no_task()) == (True, False)
    assert (idle.caught_up(), busy.caught_up()) == (False, True)
    busy.close()
    assert not busy._has_no_task(), "it is no member"
    busy._join_group()
    assert not busy._has_no_task(), "it was given nothing yet"
    idle.run(until_caught_up=True)
    assert not idle._has_no_task(), "it is no member any more"


def test_a_run_that_was_stopped_before_claims_no_slot(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.start(world.nodes[0])
    container = running(world.nodes[0])
    world.client.create([heartbeat.spec_of(GROUP)])
    container._claim = SlotClaim(world.client, GROUP, 0, clock=world.clock)
    container.stop()
    container.run()
    assert read_heartbeats(world.client, GROUP) == {}


def claimed(world: World) -> Container:
    if not world.client.topics([heartbeat.spec_of(GROUP).name]):
        world.client.create([heartbeat.spec_of(GROUP)])
    container = started(world)
    container._claim = SlotClaim(world.client, GROUP, 0, clock=world.clock)
    return container


def test_a_run_claims_its_slot_and_releases_it(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    container = claimed(world)
    told: list[int] = []
    container.run(until_caught_up=True, on_cycle=lambda _: told.append(len(read_heartbeats(world.client, GROUP))))
    assert set(told) == {1}
    assert read_heartbeats(world.client, GROUP) == {}


def test_a_claim_that_the_log_does_not_answer_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(tmp_path)
    container = claimed(world)
    acquire, fails = SlotClaim.acquire, [LogUnavailable("no answer")] * 2

    def failing(self: SlotClaim) -> None:
        if fails:
            raise fails.pop()
        acquire(self)

    monkeypatch.setattr(SlotClaim, "acquire", failing)
    began_ms = world.clock.now_ms
    container._claim_slot()
    assert (fails, world.clock.now_ms - began_ms) == ([], 150)
    assert list(read_heartbeats(world.client, GROUP)) == [0]


def test_a_claim_waits_until_it_is_told_to_stop(tmp_path: Path) -> None:
    container = claimed(world_of(tmp_path))
    assert container._claim is not None
    container._claim_slot()
    assert not container._claim.wait(0.001)
    container.stop()
    assert container._claim.wait(0.001)


@pytest.mark.parametrize("is_fenced", [True, False])
def test_a_fenced_container_gives_way_to_an_older_one(tmp_path: Path, is_fenced: bool) -> None:
    world = world_of(tmp_path)
    container = claimed(world)
    older = MemberMetadata(slot=0, host="elsewhere", pid=1, since_ms=0, version="0", time_ms=0)
    heartbeat.send_heartbeat(world.client, GROUP, older)
    if not is_fenced:
        container._rejoin(LogUnavailable("no answer"))
        return
    with pytest.raises(Refused) as refused:
        container._rejoin(Fenced("another"))
    assert refused.value.code == "slot-taken"


# ---------------------------------------------------------------- memory


def live(container: Container) -> dict[int, int]:
    found = {}
    for (_, partition), task in container.tasks.items():
        assert isinstance(task.processor, RuleProcessor)
        found[partition] = task.processor.state_cache.states.live()
    return found


def sizes(container: Container) -> dict[int, int]:
    return {partition: task.processor.memory_bytes() for (_, partition), task in container.tasks.items()}


def two_partitions(folder: Path) -> tuple[World, Container]:
    """The states of one are more than those of the other."""
    world = world_of(folder, partitions=2)
    container = started(world)
    for number in range(40):
        key = f"u{number}"
        if partition_of(key.encode(), 2) == 0 or number < 10:
            send(world, 1, key=key)
    world.cycle(world.nodes[0])
    held = sizes(container)
    assert held[0] > held[1] > 0
    assert all(live(container).values())
    return world, container


@pytest.mark.parametrize(("over", "evicted"), [(0, []), (1, [0]), (None, [0, 1])])
def test_states_go_from_memory_the_largest_task_first(tmp_path: Path, over: int | None, evicted: list[int]) -> None:
    world, container = two_partitions(tmp_path)
    task = container.tasks[MAIN, 0]
    task.processor.dirty = True
    held = sum(sizes(container).values())
    container.tunables = replace(container.tunables, memory_commits=1, cache_bytes=0 if over is None else held - over)
    container._commit(container._join_group())
    assert [partition for partition, count in sorted(live(container).items()) if not count] == evicted
    assert world.broker.open_transactions() == 0


@pytest.mark.parametrize(
    ("commits", "rows", "is_looked_at"), [(1_000, 1, False), (1_000, 0, True), (2, 9, True), (3, 9, False)]
)
def test_memory_is_looked_at_now_and_then_and_after_large_commits(
    tmp_path: Path, commits: int, rows: int, is_looked_at: bool
) -> None:
    _, container = two_partitions(tmp_path)
    container.tasks[MAIN, 0].processor.dirty = True
    container._commits = 1
    container.tunables = replace(container.tunables, memory_commits=commits, memory_rows=rows, cache_bytes=0)
    container._commit(container._join_group())  # of one row: the position
    assert container._commits == 2
    assert (sum(live(container).values()) == 0) == is_looked_at


def test_a_container_with_nothing_to_commit_still_takes_snapshots(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    container = started(world)
    task = container.tasks[MAIN, 0]
    (files,) = world.nodes[0].disk.tasks.values()
    send(world, 1)
    world.cycle(world.nodes[0])
    before, transactions = len(files.snapshots), world.nodes[0].called["transact"]
    world.clock.pass_ms(task.plan.tunables.snapshot_every_ms)
    container._commit(container._join_group())
    assert (len(files.snapshots), world.nodes[0].called["transact"]) == (before + 1, transactions)


@pytest.mark.parametrize(
    ("found", "piece_rows", "commits"),
    [(0, None, 0), (100, None, 0), (101, None, 1), (0, 2, 0), (1, 2, 2), (101, 2, 2)],
)
def test_what_was_found_is_committed_before_it_takes_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: int, piece_rows: int | None, commits: int
) -> None:
    """And with every piece that found something, where a whole batch finds too much."""
    world = world_of(tmp_path)
    container = started(world)
    task = container.tasks[MAIN, 0]
    task.config = replace(task.config, budget=replace(task.config.budget, step_bytes=100))
    task.piece_rows = piece_rows
    send(world, *range(4))
    member, pieces, told = container._join_group(), 0, 0

    def feed(*_: object) -> frozenset[int]:
        nonlocal pieces
        pieces, task.processor.found_bytes = pieces + 1, found
        return frozenset()

    def commit(*_: object) -> None:
        nonlocal told
        told += 1

    monkeypatch.setattr(StreamTask, "feed", feed)
    monkeypatch.setattr(Container, "_commit", commit)
    assert container._take(member, 0.0) == 4
    assert (pieces, told) == (1 if piece_rows is None else 2, commits)


# ---------------------------------------------------------------- two stages


def stages(folder: Path) -> tuple[World, Container, StreamTask, StreamTask]:
    world = world_of(folder, streams=LEFT_AND_RIGHT, user_task=True)
    container = started(world)
    return world, container, container.tasks[MAIN, 0], container.tasks[TASK, 0]


def test_nothing_is_committed_without_offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is they that are refused where the group went on without this container (P6)."""
    _, container, main, other = stages(tmp_path)
    member = container._join_group()
    sent: list[list[str]] = []
    transact = type(member).transact

    def noting(self: Any, appends: Any, offsets: Any) -> Any:
        sent.append(sorted(at.topic for at in offsets))
        return transact(self, appends, offsets)

    monkeypatch.setattr(type(member), "transact", noting)

    def commit() -> bool:
        main.processor.note_rules()
        container._commit(member)
        return not main.dirty

    other.state = TaskState.RESTORING
    assert (commit(), sent) == (False, [])
    container._readers["left"].remove(TASK)
    assert (commit(), sent) == (True, [["left"]])
    container._readers["left"].append(TASK)
    other.state = TaskState.RUNNING
    assert (commit(), sent) == (True, [["left"], ["left", "right"]])


def test_the_offset_of_a_shared_input_is_that_of_the_stage_furthest_behind(tmp_path: Path) -> None:
    _, container, main, other = stages(tmp_path)
    main.processor.source.sources["left"].next, other.processor.source.sources["left"].next = 5, 3
    outcome = Outcome(appends=[], offsets={LEFT: 5}, changes=[], counts=Counts())
    assert container._offsets([outcome]) == {LEFT: 3}
    main.processor.source.sources["left"].next = 2
    assert container._offsets([outcome]) == {LEFT: 2}
    other.state = TaskState.RESTORING
    assert container._offsets([outcome]) == {}
    container._readers["left"].remove(TASK)
    assert container._offsets([outcome]) == {LEFT: 5}


def test_a_shared_input_is_read_on_from_where_the_one_furthest_behind_is(tmp_path: Path) -> None:
    _, container, main, other = stages(tmp_path)
    member = container._join_group()
    main.processor.source.sources["left"].next, other.processor.source.sources["left"].next = 0, 0
    member.pause([LEFT, RIGHT])
    other.state = TaskState.RESTORING
    member.seek(LEFT, 0)
    other.processor.source.sources["left"].next = 0
    container._seek(member, main, resume=True)
    assert member._places.paused == {LEFT, RIGHT}, "one of those that take it still restores"  # type: ignore[attr-defined]
    other.state = TaskState.RUNNING
    container._seek(member, main, resume=False)
    assert member._places.paused == {LEFT, RIGHT}  # type: ignore[attr-defined]
    container._seek(member, main, resume=True)
    assert member._places.paused == set()  # type: ignore[attr-defined]
    assert container._reading(LEFT) == [main, other]
    assert container._reading(TopicPartition("left", 1)) == []


def test_a_task_whose_step_was_abandoned_reads_again_from_its_position(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    container = started(world)
    send(world, 1, 2)
    world.cycle(world.nodes[0])
    member, task = container._join_group(), container.tasks[MAIN, 0]
    member.seek(LEFT, 0)
    task.is_abandoned = True
    container._recover(member)
    assert (member.position(LEFT), task.is_abandoned) == (2, False)
    member.seek(LEFT, 0)
    container._recover(member)
    assert member.position(LEFT) == 0, "once"


# ---------------------------------------------------------------- rules change


class Given(RuleSource):
    """Gives these plans once."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.plans: Sequence[Plan] | None = plans
        self.refreshed = 0

    def poll_update(self) -> Sequence[Plan] | None:
        plans, self.plans = self.plans, None
        return plans

    def refresh(self) -> None:
        self.refreshed += 1


def test_tasks_go_on_with_other_plans_of_the_same_topics(tmp_path: Path) -> None:
    container = started(world_of(tmp_path, streams=LEFT_AND_RIGHT))
    task, member = container.tasks[MAIN, 0], container._join_group()
    plan = replace(container.plan, max_events=7)
    container.rule_source = Given([plan])
    container._renew()
    assert (container.tasks, container._member) == ({(MAIN, 0): task}, member)
    assert task.plan is container.plan is plan
    assert dict(container._readers) == {"left": [MAIN], "right": [MAIN]}
    container._renew()
    assert container.plan is plan


def test_where_other_topics_are_read_all_is_committed_and_begins_again(tmp_path: Path) -> None:
    world = world_of(tmp_path, streams=LEFT_AND_RIGHT)
    container = started(world)
    send(world, 5)
    container._take(container._join_group(), 0.0)
    assert container.tasks[MAIN, 0].dirty
    container.rule_source = Given([replace(container.plan, inputs=container.plan.inputs[:1])])
    container._renew()
    assert (container.tasks, container._member, committed(world)) == ({}, None, 1)
    assert {topic: stages for topic, stages in container._readers.items() if stages} == {"left": [MAIN]}
    container.rule_source = Given([replace(container.plan, tunables=replace(container.tunables, poll_records=9))])
    container._renew()
    assert container.tunables.poll_records == 9


def test_what_is_read_is_stages_with_streams_topics_and_keys(tmp_path: Path) -> None:
    plan = started(world_of(tmp_path, streams=LEFT_AND_RIGHT)).plan
    left, right = plan.inputs
    assert topics_read([plan]) == topics_read([replace(plan, max_events=3)])
    for inputs in ([left], [right, left], [replace(left, topic="x"), right], [replace(left, key="v"), right]):
        assert topics_read([replace(plan, inputs=tuple(inputs))]) != topics_read([plan])
    assert topics_read([replace(plan, stage="by-v")]) != topics_read([plan])


@pytest.mark.parametrize(("known", "is_enough"), [(3, True), (2, False), (None, False)])
def test_a_state_of_later_rules_is_waited_for_by_reading_them(
    tmp_path: Path, known: int | None, is_enough: bool
) -> None:
    container = started(world_of(tmp_path))
    plan = replace(container.plan, ruleset_change=None if known is None else RulesetChange(known))
    source = container.rule_source = Given([plan])
    if is_enough:
        container._catch_up_with(RulesBehind(3, "partition 0"))
    else:
        with pytest.raises(Refused) as refused:
            container._catch_up_with(RulesBehind(3, "partition 0"))
        assert refused.value.code == "rules-topic-lost"
    assert (source.refreshed, container.plan) == (1, plan)


# ---------------------------------------------------------------- partitions come and go


def test_a_partition_that_goes_is_closed_and_its_counts_stay(tmp_path: Path) -> None:
    world = world_of(tmp_path, partitions=2)
    container = started(world)
    key = next(f"u{number}" for number in range(9) if partition_of(f"u{number}".encode(), 2) == 1)
    send(world, 1, 2, key=key)
    for _ in range(2):
        world.cycle(world.nodes[0])
    assert container.status().counts.events == 2
    tasks = dict(container.tasks)
    ones = {TopicPartition("left", 1)}
    container._backpressure.paused = {LEFT, *ones}
    container._drop(ones)
    assert (set(container.tasks), container._owned, container._backpressure.paused) == ({(MAIN, 0)}, {LEFT}, {LEFT})
    assert tasks[MAIN, 1].state is TaskState.CLOSED
    assert container.status().counts.events == 2
    container._on_assigned(ones)
    assert container.tasks[MAIN, 0] is tasks[MAIN, 0]
    assert container.tasks[MAIN, 1].state is TaskState.CREATED
    assert container._owned == {LEFT, *ones}
    container._drop(ones)
    assert container._gone.events == 2, "one that never ran did nothing"
    container._drop({LEFT})
    assert container.status().counts.events == 2


def test_a_task_is_made_once_all_of_its_inputs_are_there(tmp_path: Path) -> None:
    container = started(world_of(tmp_path, streams=LEFT_AND_RIGHT))
    container._drop({LEFT, RIGHT})
    assert (container.tasks, container._owned) == ({}, set())
    container._on_assigned({LEFT})
    assert container.tasks == {}
    container._on_assigned({RIGHT})
    assert set(container.tasks) == {(MAIN, 0)}


def test_inputs_that_two_stages_read_are_known_to_their_tasks(tmp_path: Path) -> None:
    _, container, main, other = stages(tmp_path)
    assert main.shared == other.shared == frozenset({"left", "right"})
    assert started(world_of(tmp_path / "one", streams=LEFT_AND_RIGHT)).tasks[MAIN, 0].shared == frozenset()
    assert container.status().watermarks.keys() == {0}


def test_a_close_lets_go_of_everything(tmp_path: Path) -> None:
    container = started(world_of(tmp_path))
    task = container.tasks[MAIN, 0]
    container._backpressure.paused = {LEFT}
    container._backpressure.in_flight.sent(5, {LEFT: 1})
    container.close()
    assert (container.tasks, container._owned, container._member) == ({}, set(), None)
    assert (container._backpressure.paused, container._backpressure.in_flight.bytes) == (set(), 0)
    assert task.state is TaskState.CLOSED
    assert not container.caught_up()


# ---------------------------------------------------------------- how it is doing


def test_it_is_caught_up_once_all_is_read_and_committed(tmp_path: Path) -> None:
    world = world_of(tmp_path, partitions=2)
    container = started(world)
    assert container.caught_up()
    task = container.tasks[MAIN, 0]
    task.processor.dirty = True
    assert not container.caught_up()
    task.processor.dirty = False
    task.state = TaskState.RESTORING
    assert not container.caught_up()
    task.state = TaskState.RUNNING
    assert container.caught_up()
    container._join_group().seek(LEFT, 0)
    assert not container.caught_up(), "it is not known whether there is more"


def test_how_far_a_restore_is(tmp_path: Path) -> None:
    world = world_of(tmp_path, partitions=2, restore_records=2, restore_rows=2)
    started(world)
    for number in range(10):
        send(world, 1, key=f"u{number}")
    for _ in range(2):
        world.cycle(world.nodes[0])
    logs = world.broker.topic("sim-changelog").logs
    world.take(Kill(0, "", 0, Loss.DISK))
    node = world.nodes[0]
    seen: list[RunStatus] = []
    for _ in range(40):
        world.cycle(node)
        seen.append(running(node).status())
    begun = next(each for each in seen if each.restoring)
    assert begun.restoring.keys() == {0, 1}
    assert {number: todo for number, (_, todo) in begun.restoring.items()} == {0: logs[0].end, 1: logs[1].end}
    assert begun.running == ()
    steps = [each.restoring[0][0] for each in seen if 0 in each.restoring]
    assert steps == sorted(steps)
    assert len(set(steps)) > 2
    assert seen[-1].restoring == {}
    assert (seen[-1].running, seen[-1].watermarks) == ((0, 1), {0: START_MS + 1, 1: START_MS + 1})


def test_a_partition_runs_when_its_tasks_of_all_stages_do(tmp_path: Path) -> None:
    _, container, main, other = stages(tmp_path)
    assert container.status().running == (0,)
    other.state = TaskState.RESTORING
    status = container.status()
    assert (status.running, status.restoring) == ((), {0: (0, 0)})
    assert main.state is TaskState.RUNNING


# ---------------------------------------------------------------- a state that a newer version wrote


@pytest.mark.parametrize(("goes_on", "partitions", "is_left"), [(True, 2, True), (False, 2, False), (True, 1, False)])
def test_a_partition_that_a_newer_container_wrote_is_left_alone(
    tmp_path: Path, goes_on: bool, partitions: int, is_left: bool
) -> None:
    """Unless it ends when all is done, or has no other: then it is of no use."""
    world = world_of(tmp_path, partitions=partitions)
    world.client.append([Append(topic="sim-changelog", records=[(POSITION, b'{"v":99}')], partition=partitions - 1)])
    world.start(world.nodes[0])
    container = running(world.nodes[0])
    container._goes_on = goes_on
    told: list[str] = []
    container.tell = told.append
    if not is_left:
        with pytest.raises(Refused) as refused:
            steps(container, 8)
        assert refused.value.code == "format-newer"
        return
    steps(container, 8)
    assert (set(container.tasks), container.status().running) == ({(MAIN, 0)}, (0,))
    assert [each for each in told if each.startswith("partition 1 is left for a newer container")]
    assert members(world) == ["sim-0"]


def test_another_refusal_ends_the_container(tmp_path: Path) -> None:
    world = world_of(tmp_path, partitions=2)
    world.client.append([Append(topic="sim-changelog", records=[(POSITION, b"no JSON")], partition=1)])
    world.start(world.nodes[0])
    container = running(world.nodes[0])
    container._goes_on = True
    with pytest.raises(Refused) as refused:
        steps(container, 8)
    assert refused.value.code == "state-damaged"
