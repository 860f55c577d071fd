"""The state cache: what is in memory never decides what is found. Evicted states are loaded for events and timers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from samovar.changelog.formats.record import ROW, row_parts
from samovar.common.errors import Refused
from samovar.patterns.engine.matcher import BatchTooLarge, StepBudget
from samovar.service.offline.trial import plan_of_rules
from samovar.state.memory import MemoryStore
from samovar.tasks.replay.harness import TaskTestHarness
from samovar.tasks.rules.processor import RuleProcessor
from samovar.tasks.rules.state_cache import StateCache
from samovar.tasks.rules.timer_index import ROWS_END, Index

SEQUENCE = """
rule: pair
match: |
  sequence by card with maxspan=10m
    [purchase where amount < 2] as small
    [purchase where amount > 100] as big
"""
ABSENT = """
rule: unpaid
match: |
  sequence by card with maxspan=10m
    [purchase where amount < 2] as small
    ![purchase where amount > 100]
"""
START = 1_700_000_000_000
MINUTE = 60_000


def harness(rule: str, whole_states: int = 100_000) -> TaskTestHarness:
    plan = plan_of_rules(rule, {"purchase": {"key": "card", "slack": "0s", "idle": "1s"}}, {}, {})
    return TaskTestHarness(plan=replace(plan, tunables=replace(plan.tunables, whole_states=whole_states)))


def cache_of(bench: TaskTestHarness) -> StateCache:
    assert isinstance(bench.processor, RuleProcessor)
    return bench.processor.state_cache


def buy(bench: TaskTestHarness, card: str, amount: float, minute: int) -> None:
    at = START + minute * MINUTE
    event = {"card": card, "amount": amount, "ts": at}
    bench.add("purchase", card.encode(), json.dumps(event).encode(), at)
    assert bench.take()


def alerts(bench: TaskTestHarness) -> list[str]:
    return [json.loads(each.value or b"")["key"]["card"] for each in bench.topics.get("alerts", [])]


def rows(bench: TaskTestHarness) -> int:
    return len(list(bench.store.range(ROW, ROWS_END)))


@pytest.mark.parametrize("evict", [False, True])
def test_an_event_finds_the_state_of_its_key_wherever_it_is(evict: bool) -> None:
    bench = harness(SEQUENCE)
    buy(bench, "a", 1, 0)
    buy(bench, "b", 1, 0)
    bench.commit()
    if evict:
        cache_of(bench).evict()
        assert cache_of(bench).states.live() == 0
    buy(bench, "a", 900, 1)
    assert cache_of(bench).states.live() == (0 if evict else 1)  # of b, which no event asked for
    bench.commit()
    assert alerts(bench) == ["a"]


@pytest.mark.parametrize("evict", [False, True])
def test_a_timer_fires_for_a_state_that_is_not_in_memory(evict: bool) -> None:
    bench = harness(ABSENT)
    buy(bench, "a", 1, 0)
    bench.commit()
    if evict:
        cache_of(bench).evict()
        bench.commit()
    assert cache_of(bench).next_deadline() == START + 10 * MINUTE
    buy(bench, "other", 50, 11)
    bench.commit()
    assert alerts(bench) == ["a"]


def test_a_large_store_is_not_loaded_whole_and_waits_for_its_timer_index() -> None:
    bench = harness(ABSENT)
    for card in "abcdef":
        buy(bench, card, 1, 0)
    bench.commit()
    bench.plan = replace(bench.plan, tunables=replace(bench.plan.tunables, whole_states=2, index_rows=1))
    cache = StateCache(bench.plan, bench.store, ["purchase"])
    assert (cache.whole, cache.index.status is not Index.READY, cache.states.live()) == (False, True, 0)
    while cache.index.status is Index.BUILDING:
        cache.index_some()
    assert cache.index.status is Index.READY
    assert cache.next_deadline() == START + 10 * MINUTE


def test_forgotten_states_are_gone_with_the_next_commit_and_not_before() -> None:
    bench = harness(SEQUENCE)
    buy(bench, "a", 1, 0)
    buy(bench, "b", 1, 0)
    bench.commit()
    held = rows(bench)
    cache_of(bench).forget()
    assert rows(bench) == held > 0
    buy(bench, "a", 900, 1)
    bench.commit()
    assert (rows(bench), alerts(bench)) == (0, [])


def with_states(count: int, rule: str = ABSENT) -> TaskTestHarness:
    bench = harness(rule)
    for number in range(count):
        buy(bench, f"c{number}", 1, 0)
    bench.commit()
    assert rows(bench) == count
    return bench


def cache_over(bench: TaskTestHarness, **tunables: Any) -> StateCache:
    plan = replace(bench.plan, tunables=replace(bench.plan.tunables, **tunables))
    return StateCache(plan, bench.store, ["purchase"])


@pytest.mark.parametrize(("most", "is_whole"), [(3, True), (2, False), (4, True)])
def test_a_store_is_loaded_whole_up_to_so_many_rows(most: int, is_whole: bool) -> None:
    bench = with_states(3)
    cache = cache_over(bench, whole_states=most)
    assert (cache.whole, cache.states.live()) == (is_whole, 3 if is_whole else 0)
    assert cache.index.status is (Index.NONE if is_whole else Index.BUILDING)


def test_a_store_that_is_much_too_large_is_not_even_looked_at() -> None:
    bench = with_states(5)

    class Large(MemoryStore):
        ranges = 0

        def rows_about(self) -> int:
            return 5

        def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
            self.ranges += start == ROW
            return super().range(start, end)

    for most, looks in ((2, 0), (3, 1)):
        store = Large()
        store.write(bench.store.range(ROW, ROWS_END))
        plan = replace(bench.plan, tunables=replace(bench.plan.tunables, whole_states=most))
        assert not StateCache(plan, store, ["purchase"]).whole
        assert store.ranges == looks


def test_a_state_that_grows_gets_its_index() -> None:
    bench = harness(ABSENT, whole_states=2)
    cache = cache_of(bench)
    for number, status in enumerate((Index.NONE, Index.NONE, Index.BUILDING)):
        buy(bench, f"c{number}", 1, 0)
        bench.commit()
        assert cache.index.status is status
    assert cache.whole, "what is in memory stays there"
    cache.index_some()
    assert cache.index.status is Index.READY


def test_what_is_in_memory_and_what_is_not_have_their_deadlines() -> None:
    bench = with_states(2)
    cache = cache_over(bench, whole_states=1)
    assert cache.next_deadline() == START + 10 * MINUTE
    assert cache.index.status is Index.READY, "it is finished where somebody relies on it"
    cache = cache_over(bench, whole_states=5)
    assert cache.next_deadline() == START + 10 * MINUTE


def test_all_states_in_memory_are_gone_after_an_eviction_and_what_was_dropped_stays_counted() -> None:
    bench = with_states(3)
    cache = cache_of(bench)
    cache.dropped_before = 4
    cache.evict()
    assert (cache.whole, cache.states.live(), cache.index.status, cache.dropped_before) == (False, 0, Index.READY, 4)
    assert cache.committed() == 4


@pytest.mark.parametrize("evict", [False, True])
def test_what_a_step_may_take_holds_after_an_eviction_too(evict: bool) -> None:
    bench = with_states(1, SEQUENCE)
    cache_of(bench).limit(StepBudget(step_bytes=0))
    if evict:
        cache_of(bench).evict()
    with pytest.raises(BatchTooLarge):
        buy(bench, "c0", 900, 1)


def test_forgotten_states_have_tombstones_unless_there_is_a_new_one() -> None:
    bench = with_states(3)
    cache = cache_of(bench)
    cache.dropped_before = 2
    cache.forget()
    assert (cache.whole, cache.is_forgotten, cache.states.live(), cache.dropped_before) == (True, True, 0, 2)
    buy(bench, "c1", 1, 1)
    changes, _ = cache.changes(bench.processor.source.watermark)
    values = {row_parts(row)[0]: value is None for row, value in changes}
    assert sorted(values.values()) == [False, True, True]
    cache.committed()
    assert not cache.is_forgotten


def test_an_empty_store_takes_the_place_of_one_to_which_nothing_was_committed() -> None:
    cache, store = cache_of(harness(ABSENT)), MemoryStore()
    before = cache.index
    cache.spill_to(store)
    assert cache.store is store
    assert cache.index is not before


def test_rows_that_are_damaged_are_refused() -> None:
    bench = with_states(1)
    ((row, value),) = bench.store.range(ROW, ROWS_END)
    for broken, code in ((value[:5], "state-damaged"), (b"\x63" + value[1:], "format-newer")):
        bench.store.put(row, broken)
        with pytest.raises(Refused) as refused:
            cache_over(bench)
        assert refused.value.code == code


def test_entries_of_the_index_come_with_a_commit_once_it_is_begun() -> None:
    bench = with_states(1)
    cache = cache_of(bench)
    assert cache.changes(START)[1] == []
    cache.index.begin()
    buy(bench, "new", 1, 1)
    _, index = cache.changes(START + MINUTE)
    assert [value for _, value in index] == [b""]
