"""Histories from seeds: the short form of `make simulate`. A failure says how to repeat it."""

from __future__ import annotations

import pytest

from tests.simulation.histories import failure_of
from tests.simulation.scenario import draw
from tests.simulation.world import World, simulate

SEEDS, CHUNK = 300, 25


@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
def test_a_history_keeps_every_promise(first: int) -> None:
    failed = {seed: failure for seed in range(first, first + CHUNK) if (failure := failure_of(draw(seed))) is not None}
    seed, failure = next(iter(failed.items()), (0, None))
    assert failure is None, f"seed {seed}: {failure}\nrepeat: make simulate SEED={seed} TRACE=1 SHRINK=1"


def test_one_seed_is_one_history() -> None:
    def history(seed: int) -> list[str]:
        said: list[str] = []
        simulate(draw(seed), said.append)
        return said

    for seed in (3, 7, 11):
        assert history(seed) == history(seed)


@pytest.mark.parametrize(
    ("seed", "what"),
    [
        (23, "gives way: slot"),
        (88, "is in quarantine: the process ended 3 times"),
        (236, "the history of w0 is folded"),
        (142, "ChangeParam("),
        (5, "Register(schema=2)"),
    ],
)
def test_what_some_histories_have_does_happen(seed: int, what: str) -> None:
    said: list[str] = []
    simulate(draw(seed), said.append)
    assert any(what in text for text in said)


def test_histories_are_eventful(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to be withstood does happen: otherwise all would pass, and nothing be shown."""
    said: list[str] = []
    monkeypatch.setattr(World, "say", lambda _, text: said.append(text))
    alerts = 0

    def count(self: World, *, is_end: bool) -> None:
        nonlocal alerts
        check(self, is_end=is_end)
        alerts += is_end and len(self.observed().alerts)

    check = World.check
    monkeypatch.setattr(World, "check", count)
    for seed in range(1, 41):
        simulate(draw(seed))
    told = "\n".join(said)
    for what in ("is killed at commit", "is killed at write", "pause", "late-markers", "timeout-after", "nothing"):
        assert what in told, what
    assert alerts > 100
