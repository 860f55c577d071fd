"""Steps that are abandoned, on both logs and with budgets drawn at random: nothing is lost, nothing comes twice, and a
rule that is taken out is the only one that misses anything (P1, P2).
"""

from __future__ import annotations

import time
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from samovar.service.cli.main import run
from samovar.service.runtime import running
from samovar.tasks.model.clock import SetClock
from samovar.tasks.runtime.container import Container
from samovar.tasks.runtime.stream_task import LIVE_BUDGET
from tests.faults import world
from tests.faults.conftest import Making
from tests.faults.harness import Match, Service

BOOM = """
rule: boom
match: |
  sequence by card with maxspan=2m, overlap=any, skip=none
    [any where true] as x
    [any where true] as y
    [any where true] as z
emit: {a: x.amount}
"""
EVENTS = 240


def caught_up(container: Container, clock: SetClock) -> None:
    for _ in range(4):
        for _ in range(2_000):
            container.cycle()
            if container.caught_up():
                break
        else:
            raise AssertionError("it does not catch up")
        clock.pass_ms(6_000)


def limit(monkeypatch: pytest.MonkeyPatch, **limits: Any) -> None:
    own = running.config_of
    monkeypatch.setattr(
        running, "config_of", lambda settings: replace(own(settings), budget=replace(LIVE_BUDGET, **limits))
    )


def worked(service: Service, seed: int) -> list[Match]:
    """All alerts, after input that came in several parts."""
    source, clock = world.events(seed), SetClock(int(time.time() * 1000))
    with service.container(clock) as container:
        for _ in range(2):
            service.append_pairs(world.STREAM, world.take(source, EVENTS // 2))
            caught_up(container, clock)
    return service.alerts()


def by_rule(found: list[Match], rule: str) -> list[str]:
    return sorted(match["id"] for match in found if match["rule"] == rule)


def quarantined(service: Service) -> set[str]:
    entries = [entry for number in range(service.partitions) for entry in service.journal(number)]
    return {entry.facts["quarantine"]["rule"] for entry in entries if "quarantine" in entry.facts}


def test_pieces_of_any_size_find_what_whole_batches_find(make: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {**world.RULES, "boom": BOOM}
    straight = worked(make(rules, world.STREAMS), 7)
    limit(monkeypatch, step_bytes=Random(7).choice((1, 3_000, 30_000)))
    service = make(rules, world.STREAMS)
    cut = worked(service, 7)
    for rule in rules:
        # Ids have the topic's name in them.
        assert len(by_rule(cut, rule)) == len(set(by_rule(cut, rule))) == len(by_rule(straight, rule)), rule
    assert not quarantined(service)
    assert run(["verify", str(service.config)]) == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_the_budget_the_other_rules_miss_nothing(
    make: Making, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng, rules = Random(seed), {**world.RULES, "boom": BOOM}
    straight = worked(make(rules, world.STREAMS), seed)
    limit(monkeypatch, event_bytes=rng.choice((15_000, 40_000)), step_bytes=rng.choice((20_000, 10**9)))
    service = make(rules, world.STREAMS)
    found = worked(service, seed)
    assert quarantined(service) == {"boom"}
    for rule in world.RULES:
        assert len(by_rule(found, rule)) == len(set(by_rule(found, rule))) == len(by_rule(straight, rule)), rule
    assert run(["verify", str(service.config)]) == 0
