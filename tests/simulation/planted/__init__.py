"""Faults that the simulator must find: each is a small patch of the real code, in place while `planted(name)` lasts.

`SEEDS` says within how many seeds each is found; tests/simulation/test_planted.py holds it to that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

from tests.simulation.planted import commit, restore, rules, time

Patch: TypeAlias = Callable[[], AbstractContextManager[object]]

# Within how many seeds each fault is found: the first that finds it, as measured.
SEEDS: dict[str, int] = {}

PLANTED: dict[str, Patch] = {
    patch.__name__.replace("_", "-"): patch for module in (commit, restore, rules, time) for patch in module.FAULTS
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Have a fault for a while; without a name there is none."""
    if name is None:
        yield
        return
    with PLANTED[name]():
        yield
