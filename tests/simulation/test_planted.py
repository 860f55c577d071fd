"""The simulator finds faults: each of these is found within the stated number of seeds."""

from __future__ import annotations

import pytest

from tests.simulation.histories import failure_of
from tests.simulation.planted import PLANTED, SEEDS, planted
from tests.simulation.scenario import draw


def test_every_fault_says_within_how_many_seeds_it_is_found() -> None:
    assert SEEDS.keys() == PLANTED.keys()


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    """The search goes backwards: the last of the seeds is the one that is known to find it."""
    with planted(name):
        found = any(failure_of(draw(seed)) is not None for seed in range(SEEDS[name], 0, -1))
    assert found, f"{name} was not found by {SEEDS[name]} seeds"
