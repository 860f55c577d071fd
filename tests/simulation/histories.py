"""Histories run to their ends, and what went wrong in them."""

from __future__ import annotations

import traceback

from tests.simulation.planted import planted
from tests.simulation.scenario import Scenario, draw
from tests.simulation.world import simulate


def failure_of(scenario: Scenario) -> str | None:
    """What went wrong, in words; None where nothing did."""
    try:
        simulate(scenario)
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {at.name}: {error}"
    return None


def run_seed(seed: int, fault: str | None = None) -> tuple[int, str | None]:
    """With a fault that was planted, where one is named."""
    with planted(fault):
        return seed, failure_of(draw(seed))


def kind_of(failure: str | None) -> str | None:
    """The first line: what two failures must have in common to be the same."""
    return None if failure is None else failure.splitlines()[0][:80]
