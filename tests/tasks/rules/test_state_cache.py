"""The state cache: what is in memory never decides what is found. Evicted states are loaded for events and timers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from samovar.changelog.formats.record import ROW
from samovar.service.offline.trial import plan_of_rules
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
