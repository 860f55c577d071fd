"""Timers of a user's task by themselves: which is first, what an index has, and how it is made again."""

from __future__ import annotations

import pytest

from samovar.patterns.engine.matcher import NEVER
from samovar.state.memory import MemoryStore
from samovar.state.prefixed import PrefixedStore
from samovar.state.stack import INDEX, ROWS, namespace
from samovar.tasks.rules.timer_index import time_bytes
from samovar.tasks.user.timers import OWN, TIMER, Timers, overdue_timers, reindexed_timers, time_of


def stores() -> tuple[MemoryStore, PrefixedStore, PrefixedStore]:
    base = MemoryStore()
    return base, PrefixedStore(base, namespace(ROWS, OWN)), PrefixedStore(base, namespace(INDEX, OWN))


def timers() -> tuple[Timers, MemoryStore]:
    base, rows, index = stores()
    return Timers(rows, index), base


def all_of(found: Timers, until: int = NEVER) -> list[tuple[int, str]]:
    called = []
    while (first := found.first_before(until)) is not None:
        called.append(first)
        found.delete(first[1])
    return called


def test_timers_are_called_in_order_of_their_times_and_names() -> None:
    found, _ = timers()
    for name, at in (("late", 30), ("b", 10), ("a", 10), ("early", -5)):
        found.put(name, at)
    assert found.next_time() == -5
    assert found.first_before(-5) is None
    assert found.first_before(-4) == (-5, "early")
    assert all_of(found, 30) == [(-5, "early"), (10, "a"), (10, "b")]
    assert (found.next_time(), all_of(found), found.next_time()) == (30, [(30, "late")], NEVER)


def test_a_timer_has_one_time() -> None:
    found, base = timers()
    found.put("a", 10)
    found.put("a", 20)
    assert (found.first_before(15), all_of(found)) == (None, [(20, "a")])
    found.put("a", 10)
    found.delete("a")
    found.delete("never set")
    assert list(base.range()) == []


def test_a_timer_that_is_set_where_was_looked_already_is_seen() -> None:
    found, _ = timers()
    found.put("a", 50)
    assert found.first_before(40) is None
    found.put("b", 40)
    assert found.first_before(41) == (40, "b")
    found.put("c", 20)
    assert (found.next_time(), found.first_before(21)) == (20, (20, "c"))
    assert found.first_before(NEVER + 5) == (20, "c")


@pytest.mark.parametrize("end", [0, 7, 1 << 40])
def test_a_window_has_an_end_or_none(end: int) -> None:
    found, base = timers()
    assert found.window_end is None
    found.window_end = end
    assert found.window_end == end
    assert all_of(found) == []
    found.window_end = None
    assert (found.window_end, list(base.range())) == (None, [])


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_an_index_is_made_again_from_the_rows(at_once: int) -> None:
    found, base = timers()
    for name, at in (("a", 30), ("b", 10), ("c", 20)):
        found.put(name, at)
    found.window_end = 99
    whole = list(base.range())
    index = PrefixedStore(base, namespace(INDEX, OWN))
    index.delete(TIMER + time_bytes(10) + b"b")
    index.put(TIMER + time_bytes(5) + b"gone", b"")
    reindexed_timers(base, at_once)
    assert list(base.range()) == whole
    assert all_of(Timers(PrefixedStore(base, namespace(ROWS, OWN)), index)) == [(10, "b"), (20, "c"), (30, "a")]


def test_timers_that_had_to_be_called() -> None:
    found, base = timers()
    for name, at in (("a", 30), ("b", 10)):
        found.put(name, at)
    found.window_end = 3
    assert [list(overdue_timers(base, at)) for at in (10, 11, 31)] == [[], [("b", 10)], [("a", 30), ("b", 10)]]


def test_times_are_read_as_they_were_written() -> None:
    assert [time_of(time_bytes(at) + b"more") for at in (-3, 0, 1 << 50)] == [-3, 0, 1 << 50]
