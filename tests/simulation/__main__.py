"""`make simulate`: many histories, or one step by step."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.simulation.histories import failure_of, kind_of, run_seed
from tests.simulation.planted import PLANTED, planted
from tests.simulation.scenario import draw
from tests.simulation.shrink import shrink
from tests.simulation.world import simulate

STATE = Path("build/simulation.json")


def report(seed: int, failure: str, *, shrinks: bool) -> None:
    print(f"\nseed {seed}: {failure}")
    if shrinks:
        small = shrink(draw(seed), lambda each: kind_of(failure_of(each)) == kind_of(failure))
        print(f"shrunk to {len(small.steps)} steps, {small.containers} containers, rules {', '.join(small.rules)}:")
        for text in small.rules.values():
            print("  " + "\n  ".join(text.splitlines()))
        print(f"  settings {json.dumps(dict(small.settings))} tunables {json.dumps(dict(small.tunables))}")
        for step in small.steps:
            print(f"  {step}")
    print(f"repeat: make simulate SEED={seed} TRACE=1")


def run_many(first: int, last: int, *, workers: int, resume: bool, shrinks: bool, fault: str | None) -> int:
    """Seeds from first to last, going on where an earlier run of the same range was stopped."""
    state = json.loads(STATE.read_text()) if resume and STATE.exists() else {}
    if state.get("range") != [first, last]:
        state = {"range": [first, last], "done": 0, "failed": {}}
    begin, began_s = first + state["done"], time.monotonic()
    with get_context("spawn").Pool(workers, maxtasksperchild=400) as pool:
        for seed, failure in pool.imap(partial(run_seed, fault=fault), range(begin, last + 1), chunksize=4):
            state["done"] += 1
            if failure is not None:
                state["failed"][str(seed)] = kind_of(failure)
                report(seed, failure, shrinks=shrinks)
            if state["done"] % 50 == 0 or seed == last:
                show_progress(state, seed - begin + 1, last - seed, time.monotonic() - began_s)
                if resume:
                    STATE.parent.mkdir(exist_ok=True)
                    STATE.write_text(json.dumps(state))
    total = last - first + 1
    print(f"\n{total} histories, {len(state['failed'])} failed")
    return 1 if state["failed"] else 0


def show_progress(state: dict[str, object], done: int, left: int, seconds: float) -> None:
    rate = done / seconds
    failed = state["failed"]
    assert isinstance(failed, dict)
    text = f"\r{state['done']} histories, {len(failed)} failed, {rate:.1f} per second, {left / rate:.0f} s left "
    print(text, end="", flush=True, file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make simulate")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--planted", choices=sorted(PLANTED))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    if given.seed is None:
        last = given.first + given.seeds - 1
        with planted(given.planted):  # here too: a failure is shrunk in this process
            return run_many(
                given.first,
                last,
                workers=given.workers,
                resume=given.resume and given.planted is None,
                shrinks=given.shrink,
                fault=given.planted,
            )
    with planted(given.planted):
        scenario = draw(given.seed)
        if given.trace:
            simulate(scenario, print)
        failure = failure_of(scenario)
    if failure is None:
        print(f"seed {given.seed}: all checks passed, {len(scenario.steps)} steps")
        return 0
    report(given.seed, failure, shrinks=given.shrink)
    return 1


if __name__ == "__main__":
    gc.freeze()
    sys.exit(main())
