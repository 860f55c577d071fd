"""How quickly the HTTP process answers while the stream runs, and what that costs the stream.

    python -m benchmarks http [--rate N] [--listeners N] [--questions N] [--seconds N] [--rounds N] [--json]

A broker of its own, a service with `--http` next to its container, and purchases at an even rate. In turns, the stream
runs alone, and with listeners on live alerts and questions about keys and alerts. The stream's rate is what its group
committed a second; what it is slowed by is the difference between the two, each over all rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from benchmarks import bed
from benchmarks.bed import Bed, prepared
from benchmarks.http_asking import QUESTIONS, Asked, asking
from benchmarks.processes import FailedError, Watched, busy_s, command_of, cpu_s, descendants
from benchmarks.rows import Aim, Row, as_json, show
from benchmarks.sides import ROOT, SERVICE
from samovar.changelog.broker import node
from samovar.changelog.broker.process import free_port

NAME, TOPIC = "asked", "asked-in"
WARM_S = 10.0
SETTLE_S = 2.0  # after listeners came or went
# Of the generator. With librdkafka's own 5 ms it sends 800 requests per second of 25 events each, and the broker is
# busy with those before all else; who sends 20,000 events/s to four partitions lets them gather.
LINGER_MS = 25
# Rare, so that there are about as many alerts as people can look at: at 20,000 events/s some fifteen a second.
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


@dataclass
class Part:
    """The stream over some time, all rounds together: events that were committed, and who took the processors."""

    seconds: float = 0.0
    events: int = 0
    container_s: float = 0.0
    http_s: float = 0.0
    others_s: float = 0.0  # who is not a part of this

    @property
    def per_s(self) -> float:
        return self.events / self.seconds


@dataclass
class Measured:
    alone: Part = field(default_factory=Part)
    beside: Part = field(default_factory=Part)
    asked: Asked = field(default_factory=Asked)


def main(given: Sequence[str]) -> int:
    arguments = _arguments(given)
    load = os.getloadavg()[0]
    begun = time.monotonic()
    try:
        with prepared(say) as place:
            found = measured(place, arguments)
    except FailedError as error:
        say(f"no figures: {error}")
        return 1
    rows = list(rows_of(found, arguments))
    both = found.alone.seconds + found.beside.seconds
    others = (found.alone.others_s + found.beside.others_s) / both
    options = f"--rate {arguments.rate} --listeners {arguments.listeners} --questions {arguments.questions}"
    footer = [
        f"python -m benchmarks http {options} --seconds {arguments.seconds:g} --rounds {arguments.rounds}",
        f"took {time.monotonic() - begun:.0f} s; load of the machine before: {load:.1f}; of its {os.cpu_count()}"
        f" processors others took {others:.2f}" + (" (busy: do not trust these figures)" if others > 0.2 else ""),
    ]
    if arguments.json:
        print(json.dumps(as_json(rows, footer), indent=1))
    else:
        show(rows, footer, "The HTTP process next to the stream")
    return 0


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks http", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=20_000, help="events per second")
    parser.add_argument("--listeners", type=int, default=200, help="on live alerts")
    parser.add_argument("--questions", type=int, default=20, help="a second, of all kinds together")
    parser.add_argument("--seconds", type=float, default=60.0, help="alone, and as many next to them")
    parser.add_argument("--rounds", type=int, default=4, help="in which these are taken in turns")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(given)


def measured(place: Bed, arguments: argparse.Namespace) -> Measured:
    port = free_port("127.0.0.1")
    bed.make(place.log, TOPIC)
    found = Measured()
    each_s = arguments.seconds / arguments.rounds
    with _service(place, port) as service, _load(place, arguments) as load:
        base = f"http://127.0.0.1:{port}"
        service.until(lambda: _answers(f"{base}/ready"), "it was ready")
        time.sleep(WARM_S)
        stream = Stream(place, service, load)
        for number in range(arguments.rounds):
            say(f"round {number + 1} of {arguments.rounds}")
            stream.watch(found.alone, each_s)
            with _listening(base, arguments.listeners, found.asked, place.folder / "listeners.log") as listeners:
                time.sleep(SETTLE_S)
                with asking(base, arguments.questions, found.asked):
                    stream.watch(found.beside, each_s, listeners)
            time.sleep(SETTLE_S)
        has_ended = load.process.poll() is not None
        service.stop()
    if has_ended or found.asked.faults:
        raise FailedError(f"the load ended early: {has_ended}; faults: {found.asked.faults[:3]}")
    return found


def rows_of(found: Measured, arguments: argparse.Namespace) -> Iterator[Row]:
    alone, beside, asked = found.alone, found.beside, found.asked
    yield Row("stream alone", "events/s", alone.per_s, note=f"asked for {arguments.rate:,}; {_shares(alone)}")
    yield Row("stream next to them", "events/s", beside.per_s, note=_shares(beside))
    slowed = (1 - beside.per_s / alone.per_s) * 100
    note = f"{arguments.listeners} listeners, {arguments.questions} questions/s"
    yield Row("slowed by", "%", slowed, aim=Aim(at_most=5.0), note=note)
    names = {"key": "a key's state", "alerts": "a page of alerts", "alert": "one alert with its events"}
    for kind in QUESTIONS:
        count = f"{len(asked.times[kind]):,} questions, p50 {asked.p(kind, 50):.0f} ms"
        yield Row(f"{names[kind]}, p99", "ms", asked.p(kind, 99), aim=Aim(at_most=150.0), note=count)
    heard = f"{asked.heard:,} in all, by each listener {asked.least:,} to {asked.most:,}"
    yield Row("live alert after its event, p99", "ms", asked.delay_ms, note=heard)


def _shares(part: Part) -> str:
    """Of one processor each."""
    return f"container {part.container_s / part.seconds:.2f}, HTTP {part.http_s / part.seconds:.2f} processors"


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
    command = [
        sys.executable,
        "-m",
        "samovar.service.cli",
        "run",
        str(folder / "service.yml"),
        "--http",
        str(port),
    ]
    with Watched(command, folder / "run.log", {"PYTHONPATH": str(ROOT)}) as service:
        yield service


@contextmanager
def _load(place: Bed, arguments: argparse.Namespace) -> Iterator[Watched]:
    seconds = 10 * WARM_S + 4 * arguments.seconds + 60 * arguments.rounds  # ended when all is measured
    given = (place.address, TOPIC, str(arguments.rate), str(seconds), str(LINGER_MS))
    with Watched(
        [sys.executable, "-m", "benchmarks.load", *given], place.folder / "load.log", {"PYTHONPATH": str(ROOT)}
    ) as load:
        yield load
        load.kill()


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, trust_env=False, timeout=5).status_code == 200
    except httpx2.HTTPError:
        return False


class Stream:
    """The stream as it is seen from outside: what its group committed, and the processor time of all who take part."""

    def __init__(self, place: Bed, service: Watched, load: Watched) -> None:
        self._place, self._service, self._load = place, service, load
        running = node.status(place.folder / "kafka")
        self._broker = 0 if running is None else running.pid

    def watch(self, part: Part, seconds: float, *more: Watched) -> None:
        """Look for so many seconds, and add what was seen."""
        before = self._look(more)
        time.sleep(seconds)
        after = self._look(more)
        took = [late - early for early, late in zip(before, after, strict=True)]
        passed, events, container, http, own, busy = took
        part.seconds += passed
        part.events += round(events)
        part.container_s += container
        part.http_s += http
        part.others_s += max(busy - own, 0)

    def _look(self, more: Sequence[Watched]) -> tuple[float, ...]:
        offsets = self._place.log.committed(NAME, bed.partitions_of(TOPIC))
        now = time.monotonic()
        used = {pid: cpu_s(pid) for pid in descendants(self._service.process.pid)}
        http = sum(seconds for pid, seconds in used.items() if "serve" in command_of(pid))
        rest = (os.getpid(), self._broker, self._load.process.pid, *(each.process.pid for each in more))
        own = sum(used.values()) + sum(map(cpu_s, rest))
        container = sum(used.values()) - http
        return now, sum(each or 0 for each in offsets.values()), container, http, own, busy_s()


@contextmanager
def _listening(base: str, count: int, asked: Asked, log: Path) -> Iterator[Watched]:
    """Listeners, in a process of their own so that they do not hold up anyone who asks."""
    command = [sys.executable, "-m", "benchmarks.http_listeners", f"{base}/api/v1/alerts/live", str(count)]
    with Watched(command, log, {"PYTHONPATH": str(ROOT)}) as listeners:
        listeners.until_said(f"^{count} listen")
        yield listeners
        listeners.stop()
        asked.add_heard(next(listeners.said(r"^heard (.*)"))[1][1])


def say(text: str) -> None:
    print(f"  ... {text}", file=sys.stderr, flush=True)
