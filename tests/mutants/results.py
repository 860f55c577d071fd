"""What became of each mutant, kept in a file, and the table of it."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.mutants.killing import CRASH, SIMULATOR, SURVIVED, TESTS, TIMEOUT, Verdict
from tests.mutants.mutation import ROOT, Mutant

RESULTS = ROOT / "build" / "mutants.json"
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
COLUMNS = (TESTS, SIMULATOR, TIMEOUT, CRASH, SURVIVED)


def name_of(mutant: Mutant) -> str:
    """What stays the same when lines are added above it."""
    twin = f" #{mutant.twin}" if mutant.twin > 1 else ""
    return f"{mutant.module} {mutant.number} {mutant.before} => {mutant.after}{twin}"


def drawn(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """A sample that every mutant has the same chance to be in. A larger one has all of a smaller one."""
    ranked = sorted(mutants, key=lambda each: hashlib.sha256(f"{seed} {name_of(each)}".encode()).digest())
    return ranked[:count] if count else ranked


class Results:
    """The source of truth for what was run, for a number of seeds."""

    def __init__(self, path: Path, seeds: int) -> None:
        self._path = path
        self._seeds = seeds
        self._known: dict[str, dict[str, object]] = {}
        if path.exists():
            self._known = json.loads(path.read_text())

    def verdict(self, mutant: Mutant) -> Verdict | None:
        """None where it was not run yet, or survived fewer seeds than are asked for."""
        known = self._known.get(name_of(mutant))
        if known is None or (known["how"] == SURVIVED and int(str(known["seeds"])) < self._seeds):
            return None
        return Verdict(str(known["how"]), str(known["by"]))

    def put(self, mutant: Mutant, verdict: Verdict) -> None:
        self._known[name_of(mutant)] = {"id": mutant.id, **asdict(verdict), "seeds": self._seeds}
        self._path.parent.mkdir(exist_ok=True)
        whole = self._path.with_suffix(".part")
        whole.write_text(json.dumps(self._known, indent=1))
        whole.replace(self._path)


def equivalents() -> dict[tuple[str, str, str], str]:
    """Module, lines before, lines after: to why nobody can notice."""
    entries = tomllib.loads(EQUIVALENT.read_text())["mutant"]
    return {(each["module"], each["before"].strip(), each["after"].strip()): each["reason"] for each in entries}


def is_equivalent(mutant: Mutant, known: Mapping[tuple[str, str, str], str]) -> bool:
    return (mutant.module, mutant.before, mutant.after) in known


def table(mutants: Iterable[Mutant], results: Results) -> Iterator[str]:
    """By module, and all of them. An equivalent mutant that survived does not count as one that should be killed."""
    known = equivalents()
    rows: dict[str, Counter[str]] = {}
    for mutant in mutants:
        verdict = results.verdict(mutant)
        if verdict is not None:
            excused = verdict.how == SURVIVED and is_equivalent(mutant, known)
            rows.setdefault(mutant.module, Counter())["equivalent" if excused else verdict.how] += 1
    yield f"{'module':24} {'run':>5} " + " ".join(f"{name:>10}" for name in (*COLUMNS, "equivalent", "killed"))
    for module, row in [*sorted(rows.items()), ("all", sum(rows.values(), Counter()))]:
        figures = " ".join(f"{row[name]:>10}" for name in (*COLUMNS, "equivalent"))
        yield f"{module:24} {row.total():>5} {figures} {percent_killed(row):>9.1f}%"


def percent_killed(row: Counter[str]) -> float:
    meant = row.total() - row["equivalent"]
    return 100.0 if not meant else 100.0 * (meant - row[SURVIVED]) / meant


def survivors(mutants: Iterable[Mutant], results: Results) -> list[Mutant]:
    """Those that survived and are not known to be equivalent."""
    known = equivalents()
    survived = [each for each in mutants if (found := results.verdict(each)) and found.how == SURVIVED]
    return [each for each in survived if not is_equivalent(each, known)]
