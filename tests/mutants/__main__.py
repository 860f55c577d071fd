"""`make mutants`: a sample of all mutants, going on where it was stopped."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.mutants.killing import SURVIVED, Verdict, load, run_mutant
from tests.mutants.mutation import Mutant, mutants_of
from tests.mutants.reach import Reach
from tests.mutants.results import RESULTS, Results, drawn, survivors, table
from tests.mutants.targets import TARGETS, TESTS

GOAL_PERCENT = 95.0
REACH = Reach([target.module for target in TARGETS])  # filled before the workers are forked
SOUND: set[str] = set()  # tests that pass alone, on the real code


def run_one(mutant: Mutant) -> Verdict:
    """A test that fails when it runs alone, on the real code too, has noticed nothing."""
    while steps := REACH.steps(mutant):
        verdict = run_mutant(mutant, steps)
        if verdict.by not in REACH.tests.keys() - SOUND:
            return verdict
        if run_mutant(None, [(verdict.by,)]).how == SURVIVED:
            SOUND.add(verdict.by)
            return verdict
        del REACH.tests[verdict.by]
    return Verdict(SURVIVED, "no test runs the line")


def run_all(mutants: Sequence[Mutant], results: Results, workers: int) -> None:
    """Run those that were not run yet."""
    began_s = time.monotonic()
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork")) as pool:
        asked = {pool.submit(run_one, mutant): mutant for mutant in mutants}
        survived = 0
        for done, future in enumerate(as_completed(asked), 1):
            mutant, verdict = asked[future], future.result()
            results.put(mutant, verdict)
            survived += verdict.how == SURVIVED
            print(f"{mutant.id}: {verdict.how} {verdict.by}", flush=True)
            show_progress(done, len(mutants), survived, time.monotonic() - began_s)


def show_progress(done: int, whole: int, survived: int, seconds: float) -> None:
    rate = done / seconds
    left_s = (whole - done) / rate
    text = f"{done} of {whole} mutants, {survived} survived, {60 * rate:.1f} per minute, {left_s:.0f} s left"
    print(f"\r{text} ", end="", flush=True, file=sys.stderr)


def report(mutants: Sequence[Mutant], results: Results) -> int:
    print()
    lines = list(table(mutants, results))
    print("\n".join(lines))
    left = survivors(mutants, results)
    for mutant in left:
        print(f"\n{mutant.id}\n{mutant.diff()}")
    return 0 if float(lines[-1].split()[-1].rstrip("%")) >= GOAL_PERCENT else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument("--sample", type=int, default=200, help="0 for all")
    parser.add_argument("--draw", type=int, default=1, help="which sample: every number draws another")
    parser.add_argument("--seeds", type=int, default=30, help="of the simulator, for each mutant")
    parser.add_argument("--module", choices=[target.module for target in TARGETS], action="append")
    parser.add_argument("--only", help="the id of one mutant")
    parser.add_argument("--again", action="store_true", help="run the survivors again")
    parser.add_argument("--list", action="store_true", help="the modules, and how many mutants each has")
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    modules = given.module or [target.module for target in TARGETS]
    if given.list:
        for target in TARGETS:
            print(f"{target.module:24} {len(mutants_of(target.module)):>5}  {target.why}")
        return 0
    mutants = drawn([each for module in modules for each in mutants_of(module)], given.sample, given.draw)
    if given.only:
        mutants = [each for each in mutants_of(given.only.partition(":")[0]) if each.id == given.only]
    results = Results(RESULTS, given.seeds)
    left = survivors(mutants, results) if given.again else [each for each in mutants if results.verdict(each) is None]
    if left:
        load(TESTS)
        REACH.look(TESTS, given.seeds)
        run_all(left, results, given.workers)
    return report(mutants, results)


if __name__ == "__main__":
    sys.exit(main())
