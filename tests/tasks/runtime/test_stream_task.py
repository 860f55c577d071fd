"""One task by itself, on the log and a disk in memory: what it begins from, what it feeds, commits and lets go of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.formats.record import FORMATS, INDEXED, POSITION, ROW, InputPosition, Position, unpack_position
from samovar.changelog.log import Append, TopicPartition, TopicSpec
from samovar.changelog.restore.restore import checkpoint_of
from samovar.common.errors import Refused
from samovar.tasks.model.plan import MAIN, Plan
from samovar.tasks.model.results import SettledRecords
from samovar.tasks.rules.rate_limiter import limits_in
from samovar.tasks.rules.timer_index import ROWS_END
from samovar.tasks.runtime.stream_task import RulesBehind, StreamTask, TaskState, name_of, task_folder
from tests.simulation.scenario import START_MS, Kill, Loss, Publish
from tests.simulation.test_found import LEFT_AND_RIGHT, SINGLE, VISIT, record, scenario
from tests.simulation.world import World

LEFT, RIGHT = TopicPartition("left", 0), TopicPartition("right", 0)
CHANGELOG = TopicPartition("sim-changelog", 0)
ONE = {"left": {**LEFT_AND_RIGHT["left"], "slack": "0ms"}}


def world_of(folder: Path, rule: str = VISIT, streams: Any = ONE, **tunables: Any) -> World:
    return World(replace(scenario(rule, **tunables), streams=streams), folder / "service")


def task_of(world: World) -> StreamTask:
    container = world.nodes[0].container
    assert container is not None
    return container.tasks[MAIN, 0]


def at_work(world: World, *ms: int, snapshot_after: int | None = None) -> StreamTask:
    """The task of a service that has taken events of these times, one key each and a commit after each."""
    for _ in range(6):
        world.cycle(world.nodes[0])
    for number, each in enumerate(ms):
        world.take(record("left", "c", each, u=f"k{number}"))
        world.cycle(world.nodes[0])
        if number == snapshot_after:
            task_of(world).take_snapshot()
    return task_of(world)


def fresh(world: World, plan: Plan | None = None, *, loss: Loss = Loss.NOTHING) -> StreamTask:
    """Another process's task, after the one before was killed."""
    world.take(Kill(0, "", 0, loss))
    node = world.nodes[0]
    world.start(node)
    assert node.container is not None
    assert node.log is not None
    return StreamTask(plan or node.container.plan, 0, node.log, node.container.config, world.clock)


def run(task: StreamTask) -> int:
    """Restore it to the end; in how many steps."""
    task.open()
    for step in range(1, 100):
        if task.restore_some(0.0):
            return step
    raise AssertionError("no end")


def changelog_end(world: World) -> int:
    """After the last record: the marker of its transaction comes then."""
    return world.client.bounds([CHANGELOG])[CHANGELOG].end - 1


def states(task: StreamTask) -> int:
    return len(list(task.store.range(ROW, ROWS_END)))


def position(task: StreamTask) -> Position:
    data = task.store.get(POSITION)
    assert data is not None
    return unpack_position(data)


# ---------------------------------------------------------------- what it begins from


def test_a_store_that_is_there_is_gone_on_with(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    before = position(at_work(world, 1, 2, 3))
    task = fresh(world)
    assert task.state is TaskState.CREATED
    run(task)
    assert (task.state, task.restore.start, task.restore.records) == (TaskState.RUNNING, changelog_end(world), 0)
    assert (position(task), states(task), task.notes, task.dirty) == (before, 3, [], False)
    assert task.positions() == {LEFT: 3}
    assert task.restore_some(0.0), "it runs already"


def test_a_store_that_is_lost_is_read_from_the_changelog(tmp_path: Path) -> None:
    world = world_of(tmp_path, restore_records=2, restore_rows=1)
    at_work(world, 1, 2, 3)
    task = fresh(world, loss=Loss.DISK)
    assert run(task) > 2
    assert (task.restore.start, task.restore.records) == (0, 7)  # the first commit has no state
    assert (states(task), task.positions()) == (3, {LEFT: 3})
    assert task.notes == ["partition 0: 7 records restored"]


def test_a_snapshot_saves_what_is_before_it(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    at_work(world, 1, 2, 3, snapshot_after=1)
    ((manifest, _),) = next(iter(world.nodes[0].disk.tasks.values())).snapshots.values()
    task = fresh(world, loss=Loss.STORES)
    run(task)
    assert 0 < task.restore.start == manifest.changelog.offset < changelog_end(world)
    assert (states(task), task.positions()) == (3, {LEFT: 3})


def test_a_manifest_says_what_the_snapshot_stands_for(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    task = at_work(world, 1, 2, snapshot_after=1)
    ((manifest, rows),) = next(iter(world.nodes[0].disk.tasks.values())).snapshots.values()
    topic = world.client.topics([CHANGELOG.topic])[CHANGELOG.topic]
    checkpoint = checkpoint_of(task.store)
    assert checkpoint is not None
    at = manifest.changelog
    assert (at.topic, at.topic_id, at.partition, at.partitions) == (CHANGELOG.topic, topic.id, 0, 1)
    assert (at.offset, at.time_ms) == (checkpoint.next, checkpoint.time_ms) == (changelog_end(world), START_MS)
    assert (dict(manifest.inputs), manifest.watermark_ms, manifest.journal) == ({"left/0": 2}, START_MS + 2, 1)
    assert (manifest.formats, manifest.digest, manifest.created_ms) == (FORMATS, None, START_MS)
    assert dict(rows)[POSITION] == task.store.get(POSITION)


def test_before_the_first_commit_there_is_nothing_to_take_a_snapshot_of(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    task = fresh(world)
    run(task)
    task.take_snapshot()
    assert next(iter(world.nodes[0].disk.tasks.values())).snapshots == {}


def test_a_snapshot_of_a_newer_version_is_passed_over(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    at_work(world, 1, 2, snapshot_after=0)
    files = next(iter(world.nodes[0].disk.tasks.values()))
    ((number, (manifest, rows)),) = files.snapshots.items()
    files.snapshots[number] = replace(manifest, formats={"row": 99}), rows
    task = fresh(world, loss=Loss.STORES)
    run(task)
    assert (task.restore.start, states(task)) == (0, 2)
    assert [note for note in task.notes if note.startswith("partition 0: snapshot 1 was passed over")]


@pytest.mark.parametrize("is_old", [True, False])
def test_a_store_and_a_snapshot_that_deletes_may_be_missing_from_are_replaced(tmp_path: Path, is_old: bool) -> None:
    world = world_of(tmp_path)
    task = at_work(world, 1, 2, 3, snapshot_after=0)
    world.nodes[0].disk.undo(1)
    half_ms = task.config.delete_retention_ms // 2
    world.clock.pass_ms(half_ms + is_old)
    task = fresh(world)
    run(task)
    assert (task.restore.start == 0) == is_old
    assert (states(task), task.positions()) == (3, {LEFT: 3})
    said = "partition 0: the store is too old to be tailed, and was replaced whole"
    assert (said in task.notes) == is_old


def test_a_store_of_another_service_is_refused(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    plan = at_work(world, 1).plan
    task = fresh(world, replace(plan, service="other"))
    with pytest.raises(Refused) as refused:
        task.open()
    assert refused.value.code == "changelog-foreign"
    task.close()


def test_offsets_that_do_not_agree_with_the_state_are_refused(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    at_work(world, 1, 2)
    task = fresh(world)
    world.clock.pass_ms(world.broker.session_ms + 1)
    world.broker.expire()
    world.client.set_committed("sim", {LEFT: 1})
    with pytest.raises(Refused) as refused:
        run(task)
    assert refused.value.code == "offsets-differ"


# ---------------------------------------------------------------- the offsets that are its own

TAKEN = Position(
    watermark=None,
    inputs={"left": InputPosition(topic="left", topic_id="", next=5, replay_from=5)},
    streams=("left",),
    rules={},
)


@pytest.mark.parametrize(
    ("stage", "is_shared", "stored", "offset", "is_own"),
    [
        (MAIN, False, TAKEN, 7, True),
        (MAIN, False, None, 7, True),
        (MAIN, True, TAKEN, 6, True),  # the main stage is behind its own offset: something was lost
        (MAIN, True, TAKEN, 5, False),
        (MAIN, True, TAKEN, 4, False),  # that of a stage furthest behind
        (MAIN, True, None, 0, True),
        ("task", True, TAKEN, 6, False),
        ("task", True, replace(TAKEN, inputs={}), 6, True),
    ],
)
def test_which_of_the_groups_offsets_must_agree(
    tmp_path: Path, stage: str, is_shared: bool, stored: Position | None, offset: int, is_own: bool
) -> None:
    task = at_work(world_of(tmp_path), 1)
    task.plan = replace(task.plan, stage=stage)
    task.shared = frozenset({"left"} if is_shared else ())
    task._committed = {LEFT: offset, RIGHT: None}
    assert task._own_offsets(stored) == {LEFT: offset if is_own else None, RIGHT: None}


@pytest.mark.parametrize("has_journal", [True, False])
def test_a_stage_that_never_ran_has_no_offset_of_its_own(tmp_path: Path, has_journal: bool) -> None:
    world = world_of(tmp_path)
    task = fresh(world)
    task.plan, task.shared, task._committed = replace(task.plan, stage="task"), frozenset({"left"}), {LEFT: 3}
    if has_journal:
        world.client.append([Append(topic="sim-journal", records=[(b"0", b"{}")], partition=0)])
    assert task._own_offsets(None) == {LEFT: 3 if has_journal else None}


# ---------------------------------------------------------------- rules that are others now


def test_a_first_start_notes_the_rules(tmp_path: Path) -> None:
    task = fresh(world_of(tmp_path))
    run(task)
    assert ([each.kind for each in task.processor.source.entries], task.dirty) == (["rules"], True)


def test_a_start_with_the_same_rules_changes_nothing(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    at_work(world, 1)
    task = fresh(world)
    run(task)
    assert (task.processor.source.entries, task.dirty, task.outcome().changes[0][0]) == ([], False, POSITION)


def test_states_of_rules_that_are_gone_are_dropped_by_the_next_commit(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    at_work(world, 1, 2)
    other = world_of(tmp_path / "other", SINGLE).plans()[0]
    task = fresh(world, other)
    run(task)
    assert [each.kind for each in task.processor.source.entries] == ["rules"]
    (note,) = task.notes
    assert note.startswith("partition 0: rules changed; 2 rows are dropped, of visit")
    assert (task.dirty, states(task)) == (True, 2)
    outcome = task.outcome()
    assert [value for key, value in outcome.changes if key[:1] == ROW] == [None, None]
    assert task._dropped == []
    task.committed(outcome, 99, START_MS + 7)
    assert (states(task), dict(position(task).rules)) == (0, other.versions)
    checkpoint = checkpoint_of(task.store)
    assert checkpoint is not None
    assert (checkpoint.next, checkpoint.time_ms, checkpoint.topic) == (100, START_MS + 7, CHANGELOG.topic)


def test_other_limits_of_alerts_are_noted_too(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    plan = at_work(world, 1).plan
    limited = replace(plan, storm={"visit": (3, 1_000)})
    task = fresh(world, limited)
    run(task)
    assert ([each.kind for each in task.processor.source.entries], task.dirty, task.notes) == (["rules"], True, [])
    task.store.write(task.outcome().changes)
    assert dict(limits_in(task.store)) == {"visit": (3, 1_000)}


def test_a_state_of_published_rules_waits_until_they_are_known(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    task = at_work(world, 1)
    task.store.write([(b"w", b'{"v":1,"change":4,"rules":[]}')])
    again = fresh(world)
    again.open()
    with pytest.raises(RulesBehind) as behind:
        again.restore_some(0.0)
    assert behind.value.change == 4


# ---------------------------------------------------------------- a batch


def test_of_a_shared_input_what_was_taken_before_is_not_taken_again(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    task = at_work(world, 1, 2)
    world.take(record("left", "c", 3))
    world.take(record("left", "c", 4))
    (records,) = world.client.reader({LEFT: 0}).poll(100, 0.0)
    task.shared = frozenset({"left"})
    events = task.processor._since.events
    task.feed(records)
    assert (task.positions(), task.processor._since.events - events) == ({LEFT: 4}, 2)
    task.processor.dirty = False
    assert task.feed(records) == frozenset()
    assert (task.processor.dirty, task.positions()) == (False, {LEFT: 4}), "all of it was taken"


def test_what_another_stage_settled_is_put_aside_and_gets_no_letter(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    task = at_work(world)
    world.client.append([Append(topic="left", records=[(b"k", b"{"), (b"k", b"[")], partition=0)])
    (records,) = world.client.reader({LEFT: 0}).poll(100, 0.0)
    assert task.feed(records, SettledRecords(0, frozenset({1}))) == {0, 1}
    topic = task.plan.topics.dead_letters
    (letters,) = [each for each in task.outcome().appends if each.topic == topic]
    assert [value for _, value in letters.records] == [b"{"]


def test_where_a_stream_is_read_that_comes_with_other_rules(tmp_path: Path) -> None:
    world = world_of(tmp_path, streams=LEFT_AND_RIGHT)
    task = at_work(world, 1)
    left, right = task.plan.inputs
    world.take(record("right", "c", 1))
    world.broker.topic("right").logs[0].begin = 1
    del task.processor.source.sources["right"]
    assert task._nexts_after(task.plan) == {"left": 1, "right": 1}
    assert task._nexts_after(replace(task.plan, inputs=(left,))) == {"left": 1}
    assert right.stream == "right"


def test_a_task_is_dirty_while_it_runs_and_has_something_to_commit(tmp_path: Path) -> None:
    task = at_work(world_of(tmp_path), 1)
    found = []
    for task.processor.dirty in (False, True):
        found.append(task.dirty)
    assert found == [False, True]
    task.snapshot_if_due(START_MS + 10**12)
    assert task._snapshot_at_ms < START_MS + 10**12, "between two batches only"
    task.state = TaskState.RESTORING
    assert (task.dirty, task.migration_due) == (False, False)


def test_how_many_partitions_a_topic_has_now(tmp_path: Path) -> None:
    task = at_work(world_of(tmp_path))
    assert [task.processor.source.partitions_now(topic) for topic in ("left", "nowhere")] == [1, 0]


def test_a_task_has_the_ids_of_its_topics(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    task = at_work(world, 1)
    topics = world.client.topics(["left", "sim-changelog", "sim-journal"])
    stored = position(task)
    assert (stored.changelog, stored.journal_id) == (topics["sim-changelog"].id, topics["sim-journal"].id)
    assert stored.inputs["left"].topic_id == topics["left"].id


def test_a_task_that_is_new_begins_where_its_inputs_do(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.take(record("left", "c", 1))
    world.take(record("left", "c", 2))
    world.broker.topic("left").logs[0].begin = 1
    task = fresh(world)
    run(task)
    assert task.positions() == {LEFT: 1}


# ---------------------------------------------------------------- the end


def test_a_closed_task_has_let_go_of_everything(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    task = at_work(world, 1)
    store = task.store
    counts = task.counts
    task.close()
    assert (task.state, store.is_alive) == (TaskState.CLOSED, False)  # type: ignore[attr-defined]
    assert not any(hasattr(task, name) for name in ("restore", "store", "processor"))
    task.close()
    assert counts.events == 1
    assert task.counts.events == 0


def test_a_task_that_was_never_opened_can_be_closed(tmp_path: Path) -> None:
    task = fresh(world_of(tmp_path))
    task.close()
    assert task.state is TaskState.CLOSED


def test_a_task_that_restores_can_be_closed(tmp_path: Path) -> None:
    world = world_of(tmp_path, restore_records=1, restore_rows=1)
    at_work(world, 1, 2)
    task = fresh(world, loss=Loss.DISK)
    task.open()
    restore = task.restore
    assert not task.restore_some(0.0)
    assert not restore.done
    task.close()
    assert restore.done, "nothing reads the changelog any more"


def test_names_and_folders() -> None:
    assert [name_of(MAIN, 3), name_of("by-user", 3)] == ["partition 3", "partition 3 of by-user"]
    assert [task_folder(Path("s"), 3), task_folder(Path("s"), 3, "by-user")] == [Path("s/3"), Path("s/by-user/3")]


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_journal_that_was_made_again_must_have_all_entries(tmp_path: Path, is_whole: bool) -> None:
    world = world_of(tmp_path)
    at_work(world, 1)
    (entry,) = world.broker.committed_records("sim-journal")
    topic = world.broker.topic("sim-journal").topic
    task = fresh(world)
    world.broker.delete("sim-journal")
    world.broker.create(TopicSpec("sim-journal", topic.partitions, topic.settings, topic.replication))
    if is_whole:
        world.client.append([Append(topic="sim-journal", records=[(entry.key, entry.value)], partition=0)])
        run(task)
        return
    with pytest.raises(Refused) as refused:
        run(task)
    assert refused.value.code == "topic-recreated"


def test_a_container_that_does_not_know_the_rules_of_a_state_says_so(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    at_work(world, 1).store.write([(b"w", b'{"v":1,"change":4,"rules":[]}')])
    world.take(Kill(0, "", 0))
    with pytest.raises(Refused) as refused:
        at_work(world)
    assert refused.value.code == "rules-topic-lost"


def test_published_rules_are_due_in_a_task_that_runs_and_what_is_dropped_is_told(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    task = at_work(world, 1)
    container = world.nodes[0].container
    assert container is not None
    told: list[str] = []
    container.tell = told.append
    world.take(Publish("publish", "visit", VISIT.replace("gap=1s", "gap=3s")))
    world.take(Publish("publish", "single", SINGLE))
    container.rule_source.refresh()
    container._renew()
    due = {}
    for task.state in (TaskState.RESTORING, TaskState.RUNNING):
        due[task.state] = task.migration_due
    assert due == {TaskState.RESTORING: False, TaskState.RUNNING: True}
    ruleset_change, task.plan = task.plan, replace(task.plan, ruleset_change=None)
    assert not task.migration_due
    task.plan = ruleset_change
    world.cycle(world.nodes[0])
    assert not task.migration_due
    (said,) = [each for each in told if each.startswith("partition 0: rules of change")]
    assert "states of visit" in said
    assert "single" not in said


def test_a_task_begins_once_however_long_its_index_takes(tmp_path: Path) -> None:
    world = world_of(tmp_path, whole_states=1, index_rows=1)
    at_work(world, 1, 2, 3).store.write([(INDEXED, None)])
    task = fresh(world)
    task.open()
    assert not task.restore_some(0.0)
    processor, steps = task.processor, 1
    while not task.restore_some(0.0):
        steps += 1
    assert (task.processor is processor, steps, states(task)) == (True, 4, 3)
