"""How much a task takes at once, when it takes a snapshot, and how long it waits for its store."""

from __future__ import annotations

from pathlib import Path

import pytest

from samovar.changelog.log import TopicPartition
from samovar.state.errors import StoreLocked
from samovar.tasks.runtime.container import ASK_EVERY, HELD_MS, Container
from samovar.tasks.runtime.stream_task import StreamTask
from tests.simulation.test_found import SINGLE, record, scenario
from tests.simulation.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(scenario(SINGLE), tmp_path / "service")
    for _ in range(5):
        made.cycle(made.nodes[0])
    return made


def container_of(world: World) -> Container:
    container = world.nodes[0].container
    assert container is not None
    return container


def task_of(world: World) -> StreamTask:
    (task,) = container_of(world).tasks.values()
    return task


def sizes_until_whole(task: StreamTask) -> list[int]:
    """How many records it takes at once, commit after commit, until that is as many as there are."""
    found = []
    while task.piece_rows is not None:
        found.append(task.piece_rows)
        task._take_more()
    return found


def test_after_a_step_that_found_too_much_half_as_much_is_taken_and_then_more_again(world: World) -> None:
    task = task_of(world)
    piece_records = task.plan.tunables.piece_records
    for ms in range(10):
        world.take(record("left", "c", ms))
    reader = world.client.reader({TopicPartition("left", 0): 0})
    (records,) = reader.poll(100, 0.0)
    assert [len(piece) for piece in task.pieces(records)] == [10]
    task.abandon(None, 10)
    assert [len(piece) for piece in task.pieces(records)] == [5, 5]
    task.abandon(None, 5)
    assert task.piece_rows == 2
    task.abandon(None, 8)
    found = list(task.pieces(records))
    assert [len(piece) for piece in found] == [4, 4, 2]
    assert [piece.next for piece in found] == [4, 8, 10]
    task.piece_rows = 10
    assert [len(piece) for piece in task.pieces(records)] == [10]
    sizes = sizes_until_whole(task)
    assert sizes[:3] == [10, 20, 40]
    assert sizes[-2] < piece_records <= sizes[-1]


def test_pieces_become_larger_while_records_are_taken(world: World) -> None:
    """A commit in between says that the rest may be taken as a whole."""
    task = task_of(world)
    for ms in range(10):
        world.take(record("left", "c", ms))
    (records,) = world.client.reader({TopicPartition("left", 0): 0}).poll(100, 0.0)
    task.piece_rows = 3
    pieces = task.pieces(records)
    assert len(next(pieces)) == 3
    task.piece_rows = 6
    assert len(next(pieces)) == 6
    task.piece_rows = None
    last = next(pieces)
    assert (len(last), last.next) == (1, 10)
    assert next(pieces, None) is None


def test_a_single_record_that_finds_too_much_is_taken_all_the_same(world: World) -> None:
    task = task_of(world)
    task.abandon(None, 1)
    assert task.piece_rows is None
    assert task._takes_all
    assert task.is_abandoned
    task._take_more()
    assert not task._takes_all


def test_a_snapshot_is_taken_once_its_time_has_come_and_what_there_is_is_committed(world: World) -> None:
    task, every_ms = task_of(world), task_of(world).plan.tunables.snapshot_every_ms

    def snapshots() -> int:
        (files,) = world.nodes[0].disk.tasks.values()
        return len(files.snapshots)

    def cycle() -> None:
        world.broker.expire()
        container_of(world).step()

    world.take(record("left", "c", 100))
    cycle()
    began_ms = task._snapshot_at_ms
    task._snapshot_at_ms = world.clock.steady_ms()
    assert began_ms <= task._snapshot_at_ms
    before = snapshots()
    task._snapshot_at_ms -= every_ms - 1
    task.snapshot_if_due(world.clock.steady_ms())
    assert snapshots() == before
    task._snapshot_at_ms -= 1
    task.snapshot_if_due(world.clock.steady_ms())
    assert snapshots() == before + 1
    task.snapshot_if_due(world.clock.steady_ms())
    assert snapshots() == before + 1, "its time begins again"


def test_a_store_that_another_process_has_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that hangs, or is about to leave. After two minutes that is a failure."""
    container = container_of(world)
    container.close()
    tries = 0

    def held(_: StreamTask) -> None:
        nonlocal tries
        tries += 1
        raise StoreLocked("another process has this store open", Path("store"), "Stop it.")

    with monkeypatch.context() as patch:
        patch.setattr(StreamTask, "open", held)
        while not container.tasks:
            container.cycle()
        container.cycle()
        world.clock.pass_ms(HELD_MS)
        for task in container.tasks.values():
            assert not container._open(task)
            world.clock.pass_ms(1)
            with pytest.raises(StoreLocked):
                container._open(task)
    assert tries > 2
    for task in container.tasks.values():
        container._open(task)
    assert container._held == {}


def test_a_container_that_is_done_asks_now_and_then_whether_the_others_are(world: World) -> None:
    container = container_of(world)
    assert container._all_caught_up()
    world.take(record("left", "c", 100))
    assert not any(container._all_caught_up() for _ in range(ASK_EVERY))
    for _ in range(3):
        container.step()
    assert [container._all_caught_up() for _ in range(ASK_EVERY)] == [False] * (ASK_EVERY - 1) + [True]
