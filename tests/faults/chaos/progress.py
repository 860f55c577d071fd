"""What a run of `make chaos` is made of, and how far it is: rounds, each with a seed of its own, and a file of those
that were finished. A round that was stopped in the middle is run again from its beginning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

FILE = "tests/faults/chaos/rounds.py"
PATIENCE_S = "300"  # batches of one record on a busy machine take their time


@dataclass(frozen=True)
class Bed:
    """Where faults are made, and what pytest is told to make them. `counts` is the variable that takes their number,
    `typical_s` what one takes, until one has been measured.
    """

    what: str
    tests: tuple[str, ...]
    round_size: int
    typical_s: float
    counts: str = "SAMOVAR_KILLS"


BEDS = {
    "embedded": Bed("kills", (f"{FILE}::test_kills[embedded]",), 25, 1.0),
    "kafka": Bed("kills", (f"{FILE}::test_kills[kafka]",), 25, 2.5),
    "three-brokers": Bed("kills", (f"{FILE}::test_kills_on_three_brokers",), 25, 8.0),
    "network": Bed("faults", (f"{FILE}::test_network_faults",), 20, 4.0),
    "rebalances": Bed("seconds", ("tests/faults/test_rebalances.py",), 60, 3.0, "SAMOVAR_REBALANCE_S"),
}


@dataclass(frozen=True)
class Round:
    """So many faults on one bed, from one seed."""

    bed: str
    number: int
    size: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.bed}-{self.number}"

    def environment(self) -> dict[str, str]:
        told = {"SAMOVAR_SEED": str(self.seed), BEDS[self.bed].counts: str(self.size)}
        return told | {"SAMOVAR_PATIENCE_S": PATIENCE_S}

    def command(self) -> str:
        """What repeats it."""
        settings = " ".join(f"{name}={value}" for name, value in self.environment().items())
        tests = " ".join(f"'{test}'" for test in BEDS[self.bed].tests)
        return f"{settings} .venv/bin/python -m pytest -q -s --timeout 0 {tests}"


@dataclass(frozen=True)
class Outcome:
    """How a round ended."""

    seed: int
    size: int
    seconds: float
    passed: bool


@dataclass
class Progress:
    """The source of truth for what is done, and what is left. `wanted` is how many faults each bed is to see."""

    seed: int
    wanted: Mapping[str, int]
    done: dict[str, Outcome] = field(default_factory=dict)

    def rounds(self) -> list[Round]:
        """All of them. Beds take turns, so that after some time each of them has seen about the same share."""
        found = [
            (first / wanted, Round(bed, number, min(BEDS[bed].round_size, wanted - first), self._seed_of(bed, number)))
            for bed, wanted in self.wanted.items()
            for number, first in enumerate(range(0, wanted, BEDS[bed].round_size))
        ]
        return [each for _, each in sorted(found, key=lambda pair: pair[0])]

    def _seed_of(self, bed: str, number: int) -> int:
        return Random(f"{self.seed} {bed} {number}").randrange(1, 1_000_000)

    def left(self) -> Iterator[Round]:
        return (each for each in self.rounds() if each.name not in self.done)

    def is_finished(self) -> bool:
        return next(self.left(), None) is None

    def seconds_per_fault(self, bed: str) -> float:
        """As measured, else as is typical."""
        of_bed = [self.done[each.name] for each in self.rounds() if each.bed == bed and each.name in self.done]
        faults = sum(each.size for each in of_bed)
        return sum(each.seconds for each in of_bed) / faults if faults else BEDS[bed].typical_s

    def seconds_left(self) -> float:
        return sum(each.size * self.seconds_per_fault(each.bed) for each in self.left())

    def count(self, bed: str) -> int:
        """Faults that this bed has seen."""
        return sum(each.size for each in self.rounds() if each.bed == bed and each.name in self.done)

    def failed(self) -> list[Round]:
        return [each for each in self.rounds() if each.name in self.done and not self.done[each.name].passed]


def save(progress: Progress, path: Path) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(asdict(progress), indent=1))
    beside.replace(path)


def load(path: Path) -> Progress | None:
    if not path.exists():
        return None
    data: dict[str, Any] = json.loads(path.read_text())
    done = {name: Outcome(**each) for name, each in data["done"].items()}
    return Progress(data["seed"], data["wanted"], done)


def go_on_or_begin(path: Path, wanted: Mapping[str, int], seed: int | None, fresh_seed: int) -> Progress:
    """The run that was stopped, where the same is asked for; else one from the beginning."""
    wanted = {bed: count for bed, count in wanted.items() if count > 0}
    before = load(path)
    if before is not None and not before.is_finished() and before.wanted == wanted and seed in (None, before.seed):
        return before
    return Progress(fresh_seed if seed is None else seed, wanted)
