"""A service under load for a long time: whether anything grows that should not.

    python -m benchmarks soak [--minutes N] [--rate N] [--json FILE] [--plot FILE]

A broker of its own, two containers, each with a store and an HTTP process of its own, purchases of a bounded number of
cards at half of what all of this takes on this machine, and all along rules that are published and disabled, a
container that leaves and comes back, and questions over HTTP. Memory, descriptors and threads are those of the first
container and its HTTP process, which are there from the beginning to the end. Of each measure a line is fitted after a
warm-up. Ends with 1 where something grows in ten minutes or more, or where an alert came twice, an event was late or
dead, or something ended by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx2
from rich.console import Console
from rich.table import Table

from benchmarks.bed import PARTITIONS, Bed, prepared
from benchmarks.figures import machine, number
from benchmarks.http import RULES, say
from benchmarks.http_asking import Asked, asking
from benchmarks.processes import FailedError, Watched
from benchmarks.sides import ROOT
from benchmarks.soak_plot import MOVED, plot
from benchmarks.soak_samples import (
    MEASURES,
    Alerts,
    Samples,
    container_of,
    http_of,
    lag_of,
    reading,
    records_ever,
    sample_process,
    size_mb,
)
from benchmarks.soak_trend import Trend, fit
from samovar.changelog.broker.process import free_port
from samovar.changelog.log import TopicSpec
from samovar.service.runtime.processes import LEAVE

NAME, TOPIC, RULE = "soak", "soak-in", "tried"
SLOTS = (0, 1)
TOO_MUCH = 300_000  # events/s that are asked for to see how many are taken
CAPACITY_WARM_S, CAPACITY_S = 10.0, 15.0
LINGER_MS = 25
QUESTIONS_S = 5
WARM_SHARE = 0.2  # of the time, which does not count
LEAST_S = 600.0  # below which everything still warms up, and growth is not a fault
SETTLE_S = 120.0
LOOK_S = 0.1
# So that what is kept is bounded soon: topics are compacted and cut by segment.
BROKER = {
    "group.initial.rebalance.delay.ms": "3000",
    "log.segment.bytes": str(16 << 20),
    "log.roll.ms": "60000",
}
INPUT = {"retention.ms": "120000", "segment.bytes": str(16 << 20), "segment.ms": "10000"}
SERVICE = """service: {name}
log: {{kafka: {{bootstrap: "{address}"}}}}
streams:
  purchase:
    topic: {topic}
    key: card
    time: ts
    schema: {{card: string, amount: double, merchant: string, country: string}}
    slack: 0s
    partitions: {partitions}
rules: rules/
alerts: {{topic: {name}-alerts, retention: 2m}}
changelog: {{topic: {name}-changelog, min_compaction_lag: 10s, delete_retention: 4m}}
snapshots: {{every: 1m, keep: 2}}
http: {{requests_per_s: 100000}}
"""
# Published with another limit each time; no card ever buys so often.
CHANGED = """rule: changed
title: Very many large ones
match: |
  aggregate by card over 10s [purchase where amount > {limit}] having count() >= 100000
"""


@dataclass(frozen=True)
class Schedule:
    """How often something is done, in seconds: in a short run too, each of it some times."""

    seconds: float

    @property
    def sample_s(self) -> float:
        return max(self.seconds / 180, 1.0)

    @property
    def change_s(self) -> float:
        return max(self.seconds / 60, 10.0)

    @property
    def move_s(self) -> float:
        return max(self.seconds / 15, 30.0)

    @property
    def away_s(self) -> float:
        return self.move_s / 4

    @property
    def warm_s(self) -> float:
        return self.seconds * WARM_SHARE


@dataclass
class Done:
    """What was done to the service meanwhile, and what went wrong."""

    changes: int = 0
    moves: int = 0
    faults: list[str] = field(default_factory=list)


def main(given: Sequence[str]) -> int:
    arguments = _arguments(given)
    begun_load = os.getloadavg()[0]
    try:
        with prepared(say, BROKER) as place:
            found = soak(place, arguments.minutes * 60, arguments.rate)
    except FailedError as error:
        say(f"no figures: {error}")
        return 1
    found.show(begun_load)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(found.to_json(), indent=1))
    if arguments.plot is not None:
        title = f"{arguments.minutes:g} minutes at {found.rate:,} events/s"
        arguments.plot.parent.mkdir(parents=True, exist_ok=True)
        arguments.plot.write_text(plot(found.samples, found.trends, found.warm_s, title), "utf-8")
        say(f"drawn: {arguments.plot}")
    return 0 if found.is_right else 1


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=int, help="events per second; without it half of what is measured first")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all samples and lines")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a picture of them, as SVG")
    return parser.parse_args(given)


# ---------------------------------------------------------------- the service


class Containers:
    """The source of truth for which containers run. Each has a folder for its stores and an address for questions."""

    def __init__(self, place: Bed) -> None:
        self.place = place
        self.folder = place.place(NAME)
        self.ports = {slot: free_port("127.0.0.1") for slot in SLOTS}
        self.running: dict[int, Watched] = {}
        self._write_files()

    def _write_files(self) -> None:
        (self.folder / "rules").mkdir(exist_ok=True)
        for name, text in {**RULES, "changed": CHANGED.format(limit=100)}.items():
            (self.folder / "rules" / f"{name}.yml").write_text(text)
        settings = {"name": NAME, "address": self.place.address, "topic": TOPIC, "partitions": PARTITIONS}
        self.config.write_text(SERVICE.format(**settings))

    @property
    def config(self) -> Path:
        return self.folder / "service.yml"

    @property
    def base(self) -> str:
        """Where questions are asked; one about a key of the other container is passed on."""
        return f"http://127.0.0.1:{self.ports[0]}"

    def state_of(self, slot: int) -> Path:
        return self.folder / f"state-{slot}"

    def start(self, slot: int) -> None:
        command = [sys.executable, "-m", "samovar.service.cli", "run", str(self.config), "--slot", str(slot)]
        command += ["--http", str(self.ports[slot])]
        own = {"PYTHONPATH": str(ROOT), "SAMOVAR_STATE": str(self.state_of(slot))}
        self.running[slot] = Watched(command, self.folder / f"run-{slot}.log", own)

    def until_ready(self) -> None:
        for slot, each in self.running.items():
            each.until_said(r"running partitions \d")
            url = f"http://127.0.0.1:{self.ports[slot]}/ready"
            each.until(lambda url=url: _answers(url), "it was ready")  # type: ignore[misc]

    def leave(self, slot: int) -> None:
        """For good, as far as the others know: they take over at once."""
        leaving = self.running.pop(slot)
        leaving.process.send_signal(LEAVE)
        leaving.until_ended()
        if leaving.process.returncode != 0:
            raise FailedError(leaving.story(f"ended with {leaving.process.returncode}"))

    def check(self) -> None:
        for slot, each in self.running.items():
            if each.process.poll() is not None:
                raise FailedError(each.story(f"container {slot} ended by itself"))

    def stop(self) -> None:
        for each in self.running.values():
            each.stop()
            if each.process.returncode != 0:
                raise FailedError(each.story(f"ended with {each.process.returncode}"))

    def close(self) -> None:
        for each in self.running.values():
            if each.process.poll() is None:
                each.kill()


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, trust_env=False, timeout=5).status_code == 200
    except httpx2.HTTPError:
        return False


@contextmanager
def loaded(place: Bed, rate: int, seconds: float) -> Iterator[Watched]:
    given = (place.address, TOPIC, str(rate), str(seconds), str(LINGER_MS))
    command = [sys.executable, "-m", "benchmarks.load", *given]
    with Watched(command, place.folder / "load.log", {"PYTHONPATH": str(ROOT)}) as load:
        yield load


def capacity_of(place: Bed, containers: Containers) -> int:
    """Events per second that are committed where more are sent than can be: service, broker and generator together."""
    say(f"measuring what is taken of {TOO_MUCH:,} events/s")
    with loaded(place, TOO_MUCH, 10 * (CAPACITY_WARM_S + CAPACITY_S)):
        time.sleep(CAPACITY_WARM_S)
        before, begun = committed(place), time.monotonic()
        time.sleep(CAPACITY_S)
        rate = (committed(place) - before) / (time.monotonic() - begun)
    until_caught_up(place, containers)
    return int(rate)


def committed(place: Bed) -> int:
    return records_ever(place, TOPIC) - lag_of(place, NAME, TOPIC)


def until_caught_up(place: Bed, containers: Containers) -> None:
    deadline = time.monotonic() + SETTLE_S
    while lag_of(place, NAME, TOPIC) > 0:
        containers.check()
        if time.monotonic() > deadline:
            raise FailedError(f"not all events were taken {SETTLE_S:.0f} s after the last one")
        time.sleep(LOOK_S)


# ---------------------------------------------------------------- the run


@dataclass(frozen=True)
class Found:
    """What a soak gave."""

    capacity: int | None
    rate: int
    seconds: float
    warm_s: float
    samples: Samples
    trends: dict[str, Trend]
    asked: Asked
    alerts: int
    wrong: dict[str, int]  # what must be nothing
    done: Done

    @property
    def is_right(self) -> bool:
        grows = any(each.verdict == "grows" for each in self.trends.values())
        return not any(self.wrong.values()) and not (grows and self.seconds >= LEAST_S)

    def to_json(self) -> dict[str, object]:
        lines = {
            name: {**asdict(trend), "verdict": trend.verdict, "tolerance": trend.tolerance}
            for name, trend in self.trends.items()
        }
        return {
            "machine": machine(),
            "capacity": self.capacity,
            "rate": self.rate,
            "seconds": self.seconds,
            "warm_s": self.warm_s,
            "trends": lines,
            "alerts": self.alerts,
            "questions": sum(map(len, self.asked.times.values())),
            "unanswered": self.asked.faults,
            "wrong": self.wrong,
            "done": asdict(self.done),
            "samples": self.samples.to_json(),
        }

    def show(self, load: float) -> None:
        table = Table(title=f"Soak ({machine()})", title_justify="left")
        for heading in ("what", "median", "", "per hour", "95 % bounds", "tolerated", "", ""):
            table.add_column(heading, justify="left" if heading in ("what", "") else "right")
        for each in self.trends.values():
            share = "" if each.share_per_hour is None else f"{each.share_per_hour:+.1%}"
            bounds = f"{each.low:+,.1f} to {each.high:+,.1f}"
            row = (each.measure.name, number(each.median), each.measure.unit, f"{each.slope:+,.1f}", bounds)
            table.add_row(*row, f"{each.tolerance:,.1f}", share, each.verdict)
        Console(width=140).print(table)
        half = "" if self.capacity is None else f", of {self.capacity:,} that were taken"
        questions = sum(map(len, self.asked.times.values()))
        minutes = f"{self.seconds / 60:g} minutes, of which the first {self.warm_s:.0f} s do not count"
        print(f"{self.rate:,} events/s{half}, for {minutes}")
        print(f"{self.done.changes} rule changes, {self.done.moves} times a container left and came back,")
        print(f"{questions:,} questions, {len(self.asked.faults)} not answered; {self.alerts:,} alerts")
        if self.seconds < LEAST_S:
            print(
                f"in less than {LEAST_S / 60:.0f} minutes caches fill and topics are not cut yet: growth says nothing"
            )
        print(f"must be nothing: {', '.join(f'{count} {what}' for what, count in self.wrong.items())}")
        print(f"load of the machine before: {load:.1f}" + (" (busy: do not trust these figures)" if load > 1 else ""))
        for fault in [*self.done.faults, *self.asked.faults][:5]:
            print(f"  {fault}")


def soak(place: Bed, seconds: float, rate: int | None) -> Found:
    place.log.create([TopicSpec(TOPIC, PARTITIONS, INPUT)])
    containers = Containers(place)
    with ExitStack() as stack:
        stack.callback(containers.close)
        for slot in SLOTS:
            containers.start(slot)
        containers.until_ready()
        capacity = None if rate is not None else capacity_of(place, containers)
        rate = rate if rate is not None else (capacity or 0) // 2
        say(f"{rate:,} events/s for {seconds / 60:g} minutes")
        return _under_load(place, containers, Schedule(seconds), rate, capacity)


def _under_load(place: Bed, containers: Containers, schedule: Schedule, rate: int, capacity: int | None) -> Found:
    alerts, asked, samples, done = Alerts(RULE), Asked(), Samples(), Done()
    with reading(place, f"{NAME}-alerts", alerts), loaded(place, rate, schedule.seconds + SETTLE_S) as load:
        with asking(containers.base, QUESTIONS_S, asked):
            Run(place, containers, schedule, alerts, samples, done).run()
        if load.process.poll() is not None:
            raise FailedError(load.story("the load ended early"))
        load.kill()
        until_caught_up(place, containers)
    containers.stop()
    wrong = {
        "alerts twice": alerts.twice,
        "late events": records_ever(place, f"{NAME}-late"),
        "dead letters": records_ever(place, f"{NAME}-dead-letters"),
        "changes that failed": len(done.faults),
    }
    times_s, columns = samples.since(schedule.warm_s)
    fitted = {each.name: fit(each, times_s, columns[each.name]) for each in MEASURES}
    trends = {name: trend for name, trend in fitted.items() if trend is not None}
    seconds = schedule.seconds
    return Found(capacity, rate, seconds, schedule.warm_s, samples, trends, asked, alerts.count, wrong, done)


@dataclass
class Run:
    """One who looks at the service and disturbs it, each thing when it is due."""

    place: Bed
    containers: Containers
    schedule: Schedule
    alerts: Alerts
    samples: Samples
    done: Done
    returns_s: float | None = None  # when the container that left comes back

    def run(self) -> None:
        begun = time.monotonic()
        every: list[tuple[float, Callable[[float], None]]] = [
            (self.schedule.sample_s, self.sample),
            (self.schedule.change_s, self.change),
            (self.schedule.move_s, self.move),
        ]
        due = [each_s for each_s, _ in every]
        while (at_s := time.monotonic() - begun) < self.schedule.seconds:
            self.containers.check()
            for place, (each_s, act) in enumerate(every):
                if at_s >= due[place]:
                    due[place] += each_s
                    act(time.monotonic() - begun)
            if self.returns_s is not None and at_s >= self.returns_s:
                self.come_back(at_s)
            time.sleep(LOOK_S)
        if self.returns_s is not None:
            self.come_back(self.schedule.seconds)
        self.containers.until_ready()

    def sample(self, at_s: float) -> None:
        service = self.containers.running[0]
        container, http = sample_process(container_of(service)), sample_process(http_of(service))
        p50, p99 = self.alerts.percentiles()
        stores = [path for slot in SLOTS for path in self.containers.state_of(slot).rglob("store")]
        self.samples.add(
            at_s,
            {
                "container memory": container.memory_mb,
                "container descriptors": container.descriptors,
                "container threads": container.threads,
                "HTTP memory": http.memory_mb,
                "HTTP descriptors": http.descriptors,
                "HTTP threads": http.threads,
                "stores on disk": size_mb(stores),
                "log on disk": size_mb([self.place.folder / "kafka" / "data"]),
                "latency, p50": p50,
                "latency, p99": p99,
                "lag": lag_of(self.place, NAME, TOPIC),
            },
        )

    def change(self, at_s: float) -> None:
        """Publish another version, or disable the one that runs, in turns."""
        if self.done.changes % 2:
            self._post(at_s, "rules/changed/disable", {})
        else:
            self._post(at_s, "rules/publish", {"text": CHANGED.format(limit=101 + self.done.changes)})
        self.done.changes += 1

    def _post(self, at_s: float, path: str, body: dict[str, str]) -> None:
        try:
            answer = httpx2.post(f"{self.containers.base}/api/v1/{path}", json=body, trust_env=False, timeout=30)
        except httpx2.HTTPError as error:
            self.done.faults.append(f"{at_s:.0f} s, {path}: {type(error).__name__}")
            return
        if answer.status_code != 200:
            self.done.faults.append(f"{at_s:.0f} s, {path}: {answer.status_code} {answer.text[:200]}")

    def move(self, at_s: float) -> None:
        """The second container leaves; its partitions go to the first one, which reads their state from the log."""
        self.samples.marks.append((at_s, MOVED))
        self.containers.leave(SLOTS[1])
        self.done.moves += 1
        self.returns_s = at_s + self.schedule.away_s

    def come_back(self, at_s: float) -> None:
        self.samples.marks.append((at_s, "container came back"))
        self.containers.start(SLOTS[1])
        self.returns_s = None
