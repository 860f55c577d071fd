"""Makes a failing history smaller: fewer steps, containers and rules, as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.simulation.scenario import Cycle, FailCall, Kill, Scenario, Step, Stop

Fails = Callable[[Scenario], bool]


def shrink(scenario: Scenario, fails: Fails, tries: int = 400) -> Scenario:
    """The smallest history that was found within so many tries."""
    left = tries
    is_smaller = True
    while is_smaller and left > 0:
        is_smaller = False
        for candidate in candidates(scenario):
            left -= 1
            if fails(candidate):
                scenario, is_smaller = candidate, True
                break
            if left <= 0:
                break
    return scenario


def candidates(scenario: Scenario) -> Iterator[Scenario]:
    """Smaller histories, the boldest first."""
    if scenario.containers > 1:
        yield with_one_container(scenario)
    for name in scenario.rules:
        if len(scenario.rules) > 1:
            yield replace(scenario, rules={each: text for each, text in scenario.rules.items() if each != name})
    if scenario.tunables:
        yield replace(scenario, tunables={})
    count = len(scenario.steps)
    size = count // 2
    while size:
        for start in range(0, count, size):
            yield scenario.without(set(range(start, min(count, start + size))))
        size //= 2
    for name in scenario.tunables:
        yield replace(scenario, tunables={each: value for each, value in scenario.tunables.items() if each != name})


def with_one_container(scenario: Scenario) -> Scenario:
    steps: tuple[Step, ...] = tuple(
        replace(step, container=0) if isinstance(step, Cycle | FailCall | Kill | Stop) else step
        for step in scenario.steps
    )
    return replace(scenario, containers=1, steps=steps, slots=())
