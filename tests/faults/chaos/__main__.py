"""`make chaos`: the rounds that are left, one after the other. Ctrl-C stops it; the next `make chaos` goes on."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.faults.chaos.progress import BEDS, Outcome, Progress, Round, go_on_or_begin, save

STATE = Path("build/chaos.json")
LOGS = Path("build/chaos")
FAULT = re.compile(r"^\d+: ", re.MULTILINE)  # what a round says before each
LOOK_S = 1.0 if sys.stderr.isatty() else 30.0  # between two lines that say how far it is
STOP_S = 120.0
LAST_LINES = 40

Run = Callable[[Round, Progress], Outcome]


def main(arguments: Sequence[str]) -> int:
    asked = _arguments(arguments)
    wanted = {bed: getattr(asked, bed.replace("-", "_")) for bed in BEDS}
    progress = go_on_or_begin(STATE, wanted, asked.seed, time.time_ns() % 1_000_000)
    done = f", goes on after {len(progress.done)} rounds" if progress.done else ""
    print(f"seed {progress.seed}: {len(progress.rounds())} rounds{done}; {STATE} holds what is done")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run_rounds(progress, STATE, run_round)
    except KeyboardInterrupt:
        print("\nstopped; the next `make chaos` goes on")
        return 130
    return summary(progress)


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos", description=__doc__)
    for bed, spec in BEDS.items():
        parser.add_argument(f"--{bed}", type=int, default=0, metavar="N", help=f"so many {spec.what}")
    parser.add_argument("--seed", type=int, help="of the whole run; without it the one that was stopped, or a new one")
    return parser.parse_args(arguments)


def run_rounds(progress: Progress, path: Path, run: Run) -> None:
    """All that are left. One that fails is written down with its seed, and the others are run."""
    save(progress, path)
    for each in progress.left():
        outcome = run(each, progress)
        progress.done[each.name] = outcome
        save(progress, path)
        if not outcome.passed:
            print(f"\n{each.name} failed; repeat: {each.command()}")


def run_round(each: Round, progress: Progress) -> Outcome:
    """In a process of its own, which says what it does in a file under build/chaos."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{each.name}.log"
    command = [sys.executable, "-m", "pytest", "-q", "-s", "--timeout", "0", *BEDS[each.bed].tests]
    began_s = time.monotonic()
    with log.open("w") as said:
        process = subprocess.Popen(
            command,
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**os.environ, **each.environment()},
            start_new_session=True,  # Ctrl-C is passed on once, by `stop`
        )
        try:
            while not _has_ended(process):
                show(progress, each, len(FAULT.findall(log.read_text())), time.monotonic() - began_s)
        except BaseException:
            stop(process)
            raise
    seconds = time.monotonic() - began_s
    if process.returncode != 0:
        print("\n" + "\n".join(log.read_text().splitlines()[-LAST_LINES:]))
    return Outcome(each.seed, each.size, round(seconds, 1), process.returncode == 0)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(LOOK_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def stop(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C does: it ends its containers and brokers first."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()


def show(progress: Progress, now: Round, faults: int, seconds: float) -> None:
    """How much each bed has seen, the rate of this one, and the time that is left."""
    parts = []
    for bed, wanted in progress.wanted.items():
        count = progress.count(bed) + (min(faults, now.size) if bed == now.bed else 0)
        parts.append(f"{bed} {count}/{wanted}")
    rate = 60 / progress.seconds_per_fault(now.bed)
    left_s = max(progress.seconds_left() - seconds, 0)
    failed = f", {len(progress.failed())} failed" if progress.failed() else ""
    text = f"{', '.join(parts)}{failed}; {rate:.0f} {BEDS[now.bed].what} per minute, {left_s / 60:.0f} min left"
    sys.stderr.write(f"\r\x1b[K{text}" if sys.stderr.isatty() else f"{text}\n")
    sys.stderr.flush()


def summary(progress: Progress) -> int:
    failed = progress.failed()
    print(f"\nseed {progress.seed}")
    for bed in progress.wanted:
        rounds = [each for each in progress.rounds() if each.bed == bed]
        took_s = sum(progress.done[each.name].seconds for each in rounds)
        wrong = sum(each.bed == bed for each in failed)
        told = f"{wrong} failed" if wrong else "all right"
        print(f"  {bed}: {progress.count(bed)} {BEDS[bed].what} in {len(rounds)} rounds, {took_s / 60:.1f} min, {told}")
    for each in failed:
        print(f"  {each.name}: {each.command()}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
