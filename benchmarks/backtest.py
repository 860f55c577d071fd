"""How fast a backtest is, and how much memory it takes: ten of the fraud rules over generated events.

    python -m benchmarks backtest [--events N] [--json]

The embedded log, two partitions keyed by user: rules by user run a partition at a time, the others over both as one,
so that the log is read twice. Sequences are tried with `overlap=any` as well, as the command does. The command runs in
a process of its own, whose peak memory is what is told.
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
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.figures import machine
from benchmarks.matcher import Figure, show
from benchmarks.processes import FailedError
from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.log import Append, TopicSpec
from samovar.service.offline.generate import generate_blocks

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


def main(given: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks backtest")
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(given)
    folder = Path(tempfile.mkdtemp(prefix="samovar-bench-"))
    try:
        prepare(folder, arguments.events)
        figures = measured(folder, arguments.events)
    finally:
        shutil.rmtree(folder)
    if arguments.json:
        print(json.dumps({"machine": machine(), "figures": [asdict(figure) for figure in figures]}, indent=1))
    else:
        show(figures, f"backtest of ten rules over {arguments.events:,} events")
    return 0 if all(figure.target is None or figure.value <= figure.target for figure in figures) else 1


def prepare(folder: Path, events: int) -> None:
    """A service that never ran, with a full log."""
    (folder / "rules").mkdir()
    for name in RULES:
        shutil.copy(ROOT / "examples" / "fraud" / "rules" / f"{name}.yml", folder / "rules")
    (folder / "service.yml").write_text(SERVICE)
    log = EmbeddedLog(folder / ".samovar" / "log")
    log.create([TopicSpec("events", 2)])
    for block in generate_blocks("fraud", events, max(100, events // 50), 3):
        pairs = [(str(json.loads(line).get("user", "")).encode(), line.encode()) for line, _ in block]
        for start in range(0, len(pairs), 20_000):
            log.append([Append(topic="events", records=pairs[start : start + 20_000])])
    log.close()


def measured(folder: Path, events: int) -> list[Figure]:
    command = [sys.executable, "-m", "samovar.service.cli", "rules", "backtest", "rules", "service.yml", "--json"]
    begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FailedError(done.stderr)
    spent, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = sum(each["found"] for each in json.loads(done.stdout)["rules"])
    return [
        Figure("events per second", events / spent, "events/s", f"{spent:,.0f} s, {cpu:,.0f} s of them at work"),
        Figure("alerts found", found, "alerts"),
        Figure("peak memory", after.ru_maxrss / 1024**2, "GiB", target=MEMORY_AIM_GB),
    ]
