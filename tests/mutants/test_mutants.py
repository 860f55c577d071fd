"""Mutation testing itself: which mutants there are, that faults are noticed, and that what is not a fault is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.mutants.mutation import Mutant, mutants_in, mutants_of
from tests.mutants.results import drawn, equivalents, name_of
from tests.mutants.targets import TARGETS, TESTS

SOURCE = b'''
LIMIT = 3  # a setting

def first(items: list[int], most: int = 7) -> int | None:
    """Docstring."""
    if not items and most >= 2:
        raise ValueError(f"{most + 1} is much")
    self.tell(1)
    self.seen = max(items)
    return sorted(items)[0]
'''
EXPECTED = {
    ":6:always": "if True:",
    ":6:never": "if False:",
    ":6:logic": "if (not items or most >= 2):",
    ":6:not": "if (items) and most >= 2:",
    ":6:boundary": "if not items and (most > 2):",
    ":6:plus": "if not items and most >= 3:",
    ":6:minus": "if not items and most >= 1:",
    ":9:remove": "pass",
    ":9:other": "self.seen = min(items)",
    ":10:return": "return None",
    ":10:unsorted": "return list(items)[0]",
    ":10:plus": "return sorted(items)[1]",
    ":10:minus": "return sorted(items)[(-1)]",
}


def test_a_mutant_is_one_small_fault_of_code_that_decides() -> None:
    """No message, no log event, no annotation, no default and no setting."""
    assert {mutant.id: mutant.after for mutant in mutants_in("m", SOURCE)} == {
        f"m{name}": after for name, after in EXPECTED.items()
    }


def test_a_sample_is_part_of_every_larger_one_and_stays_when_lines_move() -> None:
    mutants = mutants_in("m", SOURCE)
    moved = mutants_in("m", b"\n\n" + SOURCE)
    assert set(drawn(mutants, 3, 1)) < set(drawn(mutants, 8, 1)) < set(drawn(mutants, 0, 1)) == set(mutants)
    assert [name_of(each) for each in drawn(mutants, 5, 1)] == [name_of(each) for each in drawn(moved, 5, 1)]
    assert drawn(mutants, 5, 1) != drawn(mutants, 5, 2)


def test_every_target_has_mutants_and_every_test_is_there(root: Path) -> None:
    assert [target.module for target in TARGETS if not mutants_of(target.module)] == []
    assert [test for test in TESTS if not (root / test).exists()] == []


def test_an_excuse_is_one_of_a_mutant_that_exists() -> None:
    """A line that has changed needs another look."""
    known = {(each.module, each.before, each.after) for target in TARGETS for each in mutants_of(target.module)}
    assert [key for key in equivalents() if key not in known] == []


# ---------------------------------------------------------------- killed or not

RUN = """
import json, sys
from tests.mutants import killing
from tests.mutants.mutation import mutants_of
killing.STALLED_S = 20
for module, id_, test, seeds in json.loads(sys.argv[1]):
    (mutant,) = [each for each in mutants_of(module) if each.id == id_]
    print(killing.run_mutant(mutant, [(test,) if test else range(1, seeds + 1)]).how)
"""
WRAPPERS = "tests/state/test_wrappers.py"


def the_one(module: str, before: str, after: str) -> Mutant:
    (found,) = [each for each in mutants_of(module) if (each.before, each.after) == (before, after)]
    return found


def run(root: Path, *wanted: tuple[Mutant, str, int]) -> list[str]:
    """In a process that has not loaded what is to be mutated, as pytest's own has."""
    asked = json.dumps([(mutant.module, mutant.id, test, seeds) for mutant, test, seeds in wanted])
    done = subprocess.run([sys.executable, "-c", RUN, asked], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_fault_is_noticed_by_a_test_or_by_a_seed_and_what_is_none_survives(root: Path) -> None:
    same = the_one("state/stack", "if new > _ONE_BY_ONE:", "if (new >= _ONE_BY_ONE):")  # two ways to one order
    fault = the_one("state/stack", "self._placed = len(self._changes)", "pass")
    lost = the_one("tasks/rules/state_cache", "self.index.committed()", "pass")
    assert run(root, (same, WRAPPERS, 0), (fault, WRAPPERS, 0), (lost, "", 5)) == ["survived", "tests", "simulator"]
