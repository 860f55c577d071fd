"""How cost grows with containers, keys and rules, where the time goes, and how soon a killed container is back.

    python -m benchmarks scaling [--events N] [--only PART,...] [--full] [--json]

The figures of docs/scaling.md. A broker of its own next to it, exactly once. `--full` adds ten million keys.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import bed
from benchmarks.bed import Bed, caught_up, ends_of, prepared
from benchmarks.figures import machine
from benchmarks.matcher import Figure, show
from benchmarks.restoring import add_some
from benchmarks.service import say
from benchmarks.sides import ROOT, RULES, on_kafka
from benchmarks.stream import W1, distinct, many_rules, purchases
from benchmarks.throughput import run_through

TX = "tx"
CONTAINERS = (1, 2, 4)
RULE_COUNTS = (1, 10, 100)
KEYS, MANY_KEYS = (10_000, 1_000_000), 10_000_000


@dataclass(frozen=True)
class Given:
    bed: Bed
    events: int
    full: bool


def containers(given: Given) -> Iterable[Figure]:
    for count in CONTAINERS:
        say(f"{count} containers")
        side = on_kafka(given.bed, f"containers-{count}", "w1", TX, containers=count)
        run = run_through(given.bed.log, side, TX, given.events)
        note = f"{run.cpu_s / given.events * 1e6:.2f} us of processor time an event, {run.peak_mb:,.0f} MB per process"
        yield Figure(f"W1, {count} container{'s' * (count > 1)}", run.events_s, "events/s", note)


def rules(given: Given) -> Iterable[Figure]:
    keyed = [text for text in many_rules(150) if "by card" in text]
    for count in RULE_COUNTS:
        say(f"{count} rules")
        name = f"rules-{count}"
        RULES[name] = W1
        side = on_kafka(given.bed, name, name, TX)
        folder = side.folder / "rules"
        folder.mkdir(parents=True, exist_ok=True)
        for number, text in enumerate(keyed[: count - 1]):
            (folder / f"r{number:03d}.yml").write_text(text)
        run = run_through(given.bed.log, side, TX, given.events)
        yield Figure(
            f"{count} rule{'s' * (count > 1)}", run.cpu_s / given.events * 1e6, "us per event", rate(run.events_s)
        )


def keys(given: Given) -> Iterable[Figure]:
    for count in (*KEYS, *([MANY_KEYS] if given.full else [])):
        say(f"{count:,} keys")
        topic = f"keys-{count}"
        stream = purchases(given.events, count) if count < given.events else distinct(count)
        bed.fill(given.bed.log, topic, stream)
        run = run_through(given.bed.log, on_kafka(given.bed, f"of-{topic}", "w1", topic), topic, len(stream))
        note = f"{rate(run.events_s)}; {run.peak_mb:,.0f} MB at most"
        yield Figure(f"{count:,} keys", run.cpu_s / len(stream) * 1e6, "us per event", note)


def shares(given: Given) -> Iterable[Figure]:
    for workload in ("w1", "w2"):
        say(f"shares of {workload}")
        side = on_kafka(given.bed, f"shares-{workload}", workload, TX)
        with side.start() as process:  # writes the service file
            process.stop()
        command = [sys.executable, "-m", "benchmarks.shares", str(side.config)]
        told = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout)
        whole = sum(told["seconds"].values())
        for part, seconds in sorted(told["seconds"].items(), key=lambda each: -each[1]):
            note = f"{seconds / told['events'] * 1e6:.2f} us per event"
            yield Figure(f"{workload.upper()}, {part}", 100 * seconds / whole, "%", note)


def takeover(given: Given) -> Iterable[Figure]:
    """One of two containers is killed; from then until what it had yet to do is done."""
    stream = purchases(given.events)
    for lost in (False, True):
        say(f"takeover, store {'lost' if lost else 'kept'}")
        name = f"takeover-{'lost' if lost else 'kept'}"
        side = on_kafka(given.bed, name, "w1", TX, containers=2)
        with side.start() as process:
            process.until(partial(caught_up, given.bed.log, name, ends_of(given.bed.log, TX)), "all was committed")
            victim = children_of(process.process.pid)[0]
            if lost:
                os.kill(victim, signal.SIGSTOP)  # so that it cannot write while its stores go
                for partition in (0, 1):
                    shutil.rmtree(side.folder / ".samovar" / "state" / str(partition))
            os.kill(victim, signal.SIGKILL)
            begun = time.monotonic()
            add_some(given.bed, TX, stream, 1 + lost)
            done = partial(caught_up, given.bed.log, name, ends_of(given.bed.log, TX))
            end = process.until(done, "the rest was committed", every_s=0.01)
            process.stop()
        aim = None if lost else 3.0
        note = "kill -9, started again in its slot" + ("" if aim is None else f"; aim {aim:.0f} s")
        yield Figure(f"takeover, store {'lost' if lost else 'kept'}", end - begun, "s", note)


def children_of(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def rate(events_s: float) -> str:
    return f"{events_s:,.0f} events/s"


PARTS = {"containers": containers, "keys": keys, "rules": rules, "shares": shares, "takeover": takeover}


def main(given: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS), metavar="PART,...")
    parser.add_argument("--full", action="store_true", help="also ten million keys")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(given)
    logging.getLogger("samovar.kafka").setLevel(logging.CRITICAL)
    figures: list[Figure] = []
    with prepared(say) as place:
        bed.fill(place.log, TX, purchases(arguments.events))
        for name in arguments.only:
            figures += PARTS[name](Given(place, arguments.events, arguments.full))
    if arguments.json:
        print(json.dumps({"machine": machine(), "figures": [vars(each) for each in figures]}, indent=1))
    else:
        show(figures, "samovar, as it grows")
    return 0
