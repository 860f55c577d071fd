"""Killed at any moment, started again: nothing lost, nothing twice, and the state of a run that was never disturbed.

P1 outputs equal the oracle's over the same input; P2 store == a straight run's, by digest; P3 and P4 a store that was
kept goes on from where it is. `make chaos` is the long form; SAMOVAR_SEED repeats a run.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from samovar.common.failpoints import POINTS
from tests.faults import world
from tests.faults.conftest import Making
from tests.faults.harness import Service
from tests.faults.killing import LOST, SNAPSHOTS, Kill, KillLoop, strike_all
from tests.support.tunables import random_of_test

MOMENTS = 20


def kills(random_: random.Random) -> list[Kill]:
    """Every named point with the store kept and with it lost, and moments of no name, in any order."""
    found = [Kill(point, before) for point in POINTS for before in ("kept", random_.choice(LOST))]
    found += [Kill(None, random_.choice(("kept", *LOST))) for _ in range(MOMENTS)]
    random_.shuffle(found)
    return found


def test_killed_at_every_point_and_any_moment(make: Making, make_twin: Callable[[Service], Service]) -> None:
    """P1, P2, P3, P4."""
    random_ = random_of_test()
    service = make(world.RULES, world.STREAMS, snapshots=SNAPSHOTS)
    strike_all(KillLoop(service, random_), kills(random_), make_twin)
