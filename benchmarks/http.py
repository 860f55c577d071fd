"""How quickly the HTTP process answers while the stream runs, and what that costs the stream.

    python -m benchmarks http [--rate N] [--listeners N] [--questions N] [--seconds N] [--json]

A broker of its own, a service with `--http` beside its container, and purchases at an even rate. First the stream runs
alone, then with listeners on live alerts and questions about keys and alerts; each part as long as the other. The
stream's rate is what its group committed a second; what it is slowed by is the difference between the two parts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx2
import numpy as np

from benchmarks import bed
from benchmarks.bed import Bed, prepared
from benchmarks.load import CARDS
from benchmarks.processes import FailedError, Watched
from benchmarks.rows import Aim, Row, as_json, show
from benchmarks.sides import ROOT, SERVICE
from samovar.changelog.broker_process import free_port

NAME, TOPIC = "asked", "asked-in"
WARM_S = 10.0
# Rare, so that there are about as many alerts as people can look at: at 20,000 events/s some ten a second.
RULE = """rule: tried
title: Nothing at all, then a large one
match: |
  sequence by card with maxspan=1m
    [purchase where amount < 0.01] as probe
    [purchase where amount > 200] as big
"""
# Holds events of nearly every card, as rules do: what is held of a key has something to show.
WATCHED = """rule: watched
title: Small ones, and never the large one
match: |
  sequence by card with maxspan=10s
    [purchase where amount < 2] as probe with runs=3..
    [purchase where amount > 5000] as big
"""
RULES = {"tried": RULE, "watched": WATCHED}
QUESTIONS = ("key", "alerts", "alert")


@dataclass
class Asked:
    """What was measured, in seconds, by kind of question."""

    times: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in QUESTIONS})
    faults: list[str] = field(default_factory=list)
    heard: int = 0

    def p(self, name: str, share: float) -> float:
        return float(np.percentile(self.times[name], share)) * 1000 if self.times[name] else float("nan")


def main(given: Sequence[str]) -> int:
    arguments = _arguments(given)
    load = os.getloadavg()[0]
    try:
        with prepared(say) as place:
            rows = list(measured(place, arguments))
    except FailedError as error:
        say(f"no figures: {error}")
        return 1
    command = f"python -m benchmarks http --rate {arguments.rate} --listeners {arguments.listeners}"
    footer = [
        f"{command} --questions {arguments.questions} --seconds {arguments.seconds}",
        f"load of the machine before: {load:.1f}" + (" (busy: do not trust these figures)" if load > 1 else ""),
    ]
    if arguments.json:
        print(json.dumps(as_json(rows, footer), indent=1))
    else:
        show(rows, footer, "The HTTP process beside the stream")
    return 0


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks http", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=20_000, help="events a second")
    parser.add_argument("--listeners", type=int, default=200, help="on live alerts")
    parser.add_argument("--questions", type=int, default=20, help="a second, of all kinds together")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each part")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(given)


def measured(place: Bed, arguments: argparse.Namespace) -> Iterator[Row]:
    port = free_port("127.0.0.1")
    bed.make(place.log, TOPIC)
    with _service(place, port) as service, _load(place, arguments) as load:
        base = f"http://127.0.0.1:{port}"
        service.until(lambda: _answers(f"{base}/ready"), "it was ready")
        time.sleep(WARM_S)
        alone = _committed_per_s(place, arguments.seconds)
        asked = Asked()
        with (
            _listening(base, arguments.listeners, asked, place.folder / "listeners.log"),
            _asking(base, arguments.questions, asked),
        ):
            time.sleep(WARM_S / 2)
            beside = _committed_per_s(place, arguments.seconds)
        behind = load.process.poll() is not None
        service.stop()
    if behind or asked.faults:
        raise FailedError(f"the load ended early: {behind}; faults: {asked.faults[:3]}")
    yield Row("stream alone", "events/s", alone, note=f"asked for {arguments.rate:,}")
    note = f"{arguments.listeners} listeners heard {asked.heard:,} alerts; {arguments.questions} questions/s"
    yield Row("stream beside them", "events/s", beside, note=note)
    yield Row("slowed by", "%", max(1 - beside / alone, 0) * 100, aim=Aim(at_most=5.0))
    names = {"key": "a key's state", "alerts": "a page of alerts", "alert": "one alert with its events"}
    for name in QUESTIONS:
        count = f"{len(asked.times[name]):,} questions, p50 {asked.p(name, 50):.0f} ms"
        aim = Aim(at_most=150.0)
        yield Row(f"{names[name]}, p99", "ms", asked.p(name, 99), aim=aim, note=count)


@contextmanager
def _service(place: Bed, port: int) -> Iterator[Watched]:
    folder = place.place(NAME)
    (folder / "rules").mkdir(exist_ok=True)
    for name, text in RULES.items():
        (folder / "rules" / f"{name}.yml").write_text(text)
    log = f'{{kafka: {{bootstrap: "{place.address}"}}}}'
    limits = "http: {requests_per_s: 100000}\n"
    text = SERVICE.format(name=NAME, log=log, topic=TOPIC, delivery="exactly_once") + limits
    (folder / "service.yml").write_text(text)
    command = [sys.executable, "-m", "samovar.service.cli", "run", str(folder / "service.yml"), "--http", str(port)]
    with Watched(command, folder / "run.log", {"PYTHONPATH": str(ROOT)}) as service:
        yield service


@contextmanager
def _load(place: Bed, arguments: argparse.Namespace) -> Iterator[Watched]:
    seconds = 10 * WARM_S + 4 * arguments.seconds  # ended when all is measured
    command = [sys.executable, "-m", "benchmarks.load", place.address, TOPIC, str(arguments.rate), str(seconds)]
    with Watched(command, place.folder / "load.log", {"PYTHONPATH": str(ROOT)}) as load:
        yield load
        load.kill()


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, trust_env=False, timeout=5).status_code == 200
    except httpx2.HTTPError:
        return False


def _committed_per_s(place: Bed, seconds: float) -> float:
    """What the service commits of its input, a second."""

    def committed() -> tuple[float, int]:
        found = place.log.committed(NAME, bed.partitions_of(TOPIC))
        return time.monotonic(), sum(offset or 0 for offset in found.values())

    begun, before = committed()
    time.sleep(seconds)
    ended, after = committed()
    return (after - before) / (ended - begun)


# ---------------------------------------------------------------- who asks


@contextmanager
def _asking(base: str, per_s: int, asked: Asked) -> Iterator[None]:
    """Questions at an even rate, from a few threads, each counted from the moment when it was due."""
    ending = threading.Event()
    threads = [threading.Thread(target=_ask, args=(base, per_s / 4, asked, ending, seed)) for seed in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ending.set()
        for thread in threads:
            thread.join()


def _ask(base: str, per_s: float, asked: Asked, ending: threading.Event, seed: int) -> None:
    random, ids = Random(seed), [""]
    due = time.monotonic()
    with httpx2.Client(base_url=f"{base}/api/v1", trust_env=False, timeout=30) as client:
        while not ending.wait(max(due - time.monotonic(), 0)):
            kind = random.choice(QUESTIONS)
            path = {
                "key": f"/keys/card-{random.randrange(CARDS):06d}",
                "alerts": "/alerts?rule=tried&limit=50",
                "alert": f"/alerts/{random.choice(ids)}",
            }[kind]
            if kind == "alert" and not ids[0]:
                kind, path = "alerts", "/alerts"
            try:
                answer = client.get(path)
                asked.times[kind].append(time.monotonic() - due)
                if answer.status_code != 200:
                    asked.faults.append(f"{path}: {answer.status_code}")
                elif kind == "alerts":
                    ids = [each["id"] for each in answer.json()["alerts"]] or ids
            except httpx2.HTTPError as error:
                asked.faults.append(f"{path}: {type(error).__name__}")
            due += 1 / per_s


@contextmanager
def _listening(base: str, count: int, asked: Asked, log: Path) -> Iterator[None]:
    """Listeners, in a process of their own so that they do not hold up whoever asks."""
    command = [sys.executable, "-m", "benchmarks.http_listeners", f"{base}/api/v1/alerts/live", str(count)]
    with Watched(command, log, {"PYTHONPATH": str(ROOT)}) as listeners:
        listeners.until_said(f"^{count} listen")
        yield
        listeners.stop()
        asked.heard = int(next(listeners.said(r"heard (\d+)"))[1][1])


def say(text: str) -> None:
    print(f"  ... {text}", file=sys.stderr, flush=True)
