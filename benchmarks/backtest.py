"""How fast a backtest is, and how much memory it takes: ten of the fraud rules over generated events.

    python -m benchmarks backtest [--events N] [--rules N] [--folder DIR] [--keep] [--json]

The embedded log, two partitions keyed by user: rules by user run a partition at a time, the others over both as one.
Sequences are tried with `overlap=any` as well, as the command does. The backtest runs in a process of its own, whose
peak memory is what is told; how far it is goes to standard error.

A million events are generated; of more, each is written so many times over, with the same time and other users, cards,
accounts and orders, so that keys and alerts grow with the events. 100 million take some 20 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from benchmarks.figures import machine
from benchmarks.matcher import Figure, show
from benchmarks.processes import FailedError
from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.log import Append, Pair, TopicSpec
from samovar.service.backtest.run import BacktestOptions, backtest, state_bytes
from samovar.service.config.loading import load_service
from samovar.service.offline.generate import generate_blocks
from samovar.service.topology.logs import opened

ROOT = Path(__file__).resolve().parent.parent
RULES = (
    "account-takeover card-testing country-hopping impossible-travel mule-account order-unpaid payment-without-login"
    " refund-abuse velocity-count velocity-sum"
).split()
SERVICE = """service: backtest
streams:
  events: {key: user, type: type, partitions: 2, max_future_skew: 3650d}
rules: rules
"""
MEMORY_AIM_GB = 4.0
FEW = 10_000_000  # up to so many events that is the aim; states of more may take what is free
WRITTEN_OUT = 1_000_000  # events; beyond it they are written with other keys
AT_ONCE = 100_000  # records of one append
TELL_S = 10.0
SEED = 3
IDS = [f'"{field}":"{head}' for field, head in (("user", "u"), ("card", "c"), ("to", "a"), ("order_id", "o"))]


def main(given: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks backtest")
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--rules", type=int, default=len(RULES), choices=range(1, len(RULES) + 1), metavar="N")
    parser.add_argument(
        "--folder", type=Path, help="where the log is made; one that holds as many events is used again"
    )
    parser.add_argument("--keep", action="store_true", help="leave the log there")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)  # what the measured process does
    arguments = parser.parse_args(given)
    if arguments.run:
        return run(arguments.folder)
    if arguments.folder is not None:
        arguments.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="samovar-bench-")) if arguments.folder is None else arguments.folder
    try:
        prepare(folder, arguments.events, arguments.rules)
        figures = measured(folder, arguments.events)
    finally:
        if not arguments.keep:
            shutil.rmtree(folder)
    if arguments.json:
        print(json.dumps({"machine": machine(), "figures": [asdict(figure) for figure in figures]}, indent=1))
    else:
        show(figures, f"backtest of {arguments.rules} rules over {arguments.events:,} events")
    return 0 if all(figure.target is None or figure.value <= figure.target for figure in figures) else 1


def prepare(folder: Path, events: int, rules: int) -> None:
    """A service that never ran, with a full log."""
    shutil.rmtree(folder / "rules", ignore_errors=True)
    (folder / "rules").mkdir()
    for name in RULES[:rules]:
        shutil.copy(ROOT / "examples" / "fraud" / "rules" / f"{name}.yml", folder / "rules")
    (folder / "service.yml").write_text(SERVICE)
    made = folder / "events"
    if made.exists() and made.read_text() == str(events):
        return
    shutil.rmtree(folder / ".samovar", ignore_errors=True)
    log = EmbeddedLog(folder / ".samovar" / "log")
    log.create([TopicSpec("events", 2)])
    progress, written, waiting = Lines("writing"), 0, list[Pair]()
    for pairs in chain(generated(events), [None]):
        waiting += pairs or ()
        if len(waiting) >= AT_ONCE or pairs is None:
            log.append([Append(topic="events", records=waiting[: events - written])])
            written, waiting = min(events, written + len(waiting)), []
            progress.tell(written, events)
    log.close()
    made.write_text(str(events))


def generated(events: int) -> Iterator[list[Pair]]:
    """Keys and events in order of event time, at least so many."""
    copies = -(-events // WRITTEN_OUT)
    own = -(-events // copies)
    for block in generate_blocks("fraud", own, max(100, own // 50), SEED):
        text = "\n".join(line for line, _ in block)
        users = [str(json.loads(line).get("user", "")) for line, _ in block]
        written = []
        for copy in range(copies):
            mark, other = str(copy or ""), text
            for head in IDS if copy else ():
                other = other.replace(head, head + mark + "x")
            keys = (f"u{mark}x{user[1:]}" if copy and user[:1] == "u" else user for user in users)
            written.append(zip([key.encode() for key in keys], other.encode().split(b"\n"), strict=True))
        yield list(chain.from_iterable(zip(*written, strict=True)))


class Lines:
    """How far it is, as lines on standard error, where nobody may be watching."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._begun = self._told = time.monotonic()

    def tell(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done and now - self._told >= TELL_S:
            self._told, rate = now, done / (now - self._begun)
            left_s = (total - done) / rate
            share = done / total
            print(f"{self._what}: {share:.0%}, {rate:,.0f} events/s, {left_s:.0f} s left", file=sys.stderr, flush=True)


def run(folder: Path) -> int:
    settings = load_service(folder / "service.yml")
    with opened(settings) as log:
        progress = Lines("backtest")
        options = BacktestOptions(state_bytes=state_bytes())
        found = backtest(settings, log, [folder / "rules"], None, None, progress.tell, options)
    print(json.dumps(found.to_json()))
    return 0


def measured(folder: Path, events: int) -> list[Figure]:
    command = [sys.executable, "-m", "benchmarks", "backtest", "--run", "--folder", str(folder)]
    begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise FailedError(f"it ended with {done.returncode}")
    spent, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = json.loads(done.stdout)
    alerts = sum(each["found"] for each in found["rules"])
    return [
        Figure("events per second", events / spent, "events/s", f"{spent:,.0f} s in all"),
        Figure("core seconds", cpu, "s", f"{cpu / events * 1e6:.2f} us per event"),
        Figure("alerts found", alerts, "alerts"),
        Figure("peak memory", after.ru_maxrss / 1024**2, "GiB", target=MEMORY_AIM_GB if events <= FEW else None),
    ]
