"""The timer index: which keys are due, what is known of it without looking, and how it is built in steps."""

from __future__ import annotations

from collections.abc import Sequence

from samovar.changelog.formats.record import DEADLINE, INDEXED, ROW
from samovar.patterns.engine.matcher import NEVER
from samovar.state.memory import MemoryStore
from samovar.tasks.rules.timer_index import Deadlines, Index, TimerIndex, time_bytes


def deadlines(**times: int) -> Deadlines:
    return [(time_bytes(at), key.encode()) for key, at in times.items()]


def deadlines_of(rows: Sequence[tuple[bytes, bytes]]) -> Deadlines:
    """A row's value is its time."""
    return [(time_bytes(int(value)), key) for key, value in rows]


def commit(store: MemoryStore, index: TimerIndex, watermark: int, **times: int) -> None:
    store.write(index.changes(deadlines(**times), watermark))
    index.committed()


def stored(store: MemoryStore) -> list[bytes]:
    return [row[9:] for row, _ in store.range(DEADLINE, bytes([DEADLINE[0] + 1]))]


def ready_index(store: MemoryStore) -> TimerIndex:
    index = TimerIndex(store)
    index.build(10, deadlines_of)
    assert index.status is Index.READY
    return index


def test_a_key_is_due_once_event_time_is_past_its_time() -> None:
    store = MemoryStore()
    index = ready_index(store)
    assert (index.first_deadline, index.due(NEVER)) == (NEVER, [])
    commit(store, index, 5, b=20, a=10, c=20)
    assert index.first_deadline == 10
    assert [index.due(at) for at in (10, 11, 20, 21)] == [[], [b"a"], [b"a"], [b"a", b"b", b"c"]]


def test_a_commit_takes_out_what_event_time_passed_and_no_more() -> None:
    store = MemoryStore()
    index = ready_index(store)
    commit(store, index, 5, a=10, b=20, c=30)
    commit(store, index, 10)
    assert stored(store) == [b"a", b"b", b"c"]
    commit(store, index, 21, d=25)
    assert (stored(store), index.first_deadline) == ([b"d", b"c"], 25)
    assert index.due(26) == [b"d"]
    commit(store, index, NEVER)
    assert (stored(store), index.first_deadline) == ([], NEVER)


def test_a_deadline_before_those_that_went_is_seen() -> None:
    store = MemoryStore()
    index = ready_index(store)
    commit(store, index, 5, a=10, b=40)
    commit(store, index, 30)
    commit(store, index, 30, late=12)
    assert (index.first_deadline, index.due(13)) == (12, [b"late"])
    commit(store, index, 30, later=35)
    assert (index.first_deadline, stored(store)) == (35, [b"later", b"b"])


def test_nothing_is_known_of_a_commit_before_it_stands() -> None:
    store = MemoryStore()
    index = ready_index(store)
    commit(store, index, 5, a=10)
    changes = index.changes(deadlines(b=7), 11)
    assert (index.first_deadline, index.due(11)) == (10, [b"a"])
    store.write(changes)
    index.committed()
    assert (index.first_deadline, index.due(11)) == (7, [b"b"])


def test_it_is_built_in_steps_that_a_restart_goes_on_with() -> None:
    store = MemoryStore()
    store.write([(ROW + b"%d" % number, b"%d" % (100 - number)) for number in range(7)])
    index = TimerIndex(store)
    assert index.status is Index.NONE
    index.begin()
    index.begin()
    assert (index.status, store.get(INDEXED)) == (Index.BUILDING, ROW)
    for done in (3, 6):
        index.build_some(3, deadlines_of)
        assert (index.status, index.first_deadline, len(stored(store))) == (Index.BUILDING, 101 - done, done)
        index = TimerIndex(store)
        assert (index.status, index.first_deadline) == (Index.BUILDING, 101 - done)
    index.build_some(3, deadlines_of)
    assert (index.status, index.first_deadline) == (Index.READY, 94)
    assert store.get(INDEXED) == b""
    assert TimerIndex(store).status is Index.READY
    assert stored(store) == [b"%d" % number for number in (6, 5, 4, 3, 2, 1, 0)]


def test_a_last_step_that_is_full_is_not_taken_for_the_end() -> None:
    store = MemoryStore()
    store.write([(ROW + b"%d" % number, b"%d" % number) for number in range(6)])
    index = TimerIndex(store)
    index.begin()
    statuses = []
    for _ in range(3):
        index.build_some(3, deadlines_of)
        statuses.append(index.status)
    assert statuses == [Index.BUILDING, Index.BUILDING, Index.READY]
    assert len(stored(store)) == 6


def test_times_sort_as_numbers_do() -> None:
    times = [-(1 << 62), -1, 0, 1, 1 << 62]
    assert sorted(map(time_bytes, times)) == [time_bytes(time) for time in times]
