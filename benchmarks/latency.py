"""How long after an event was made its alert can be read, at a rate that leaves both sides time.

The event's time is the moment it was made; its alert carries that time, and is read with read_committed. The first part
of a run, in which a Java warms up and a group settles, does not count, on either side. Both run twice, in the order
A B B A, since other work comes and goes, after a run that does not count and warms the broker up. A figure is the mean
of its two.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks import bed, expected
from benchmarks.bed import Bed, partitions_of
from benchmarks.processes import FailedError, Watched
from benchmarks.rows import Aim, Row
from benchmarks.sides import ROOT, Samovar, Side, Streams, on_kafka, streams_on
from benchmarks.stream import Purchases
from benchmarks.throughput import Given, check
from samovar.changelog.log import Reader, TopicPartition

RATE = 10_000
WARM_S, MEASURED_S = 10, 20
SETTLE_S = 120.0  # after the last event, until its alert must have come
COMMIT_MS = 100
SOON_S = 60.0


@dataclass(frozen=True)
class Latency:
    alerts: int
    p50_ms: float
    p99_ms: float
    cpu_s: float


def latency(given: Given) -> Iterable[Row]:
    runs: dict[type[Side], list[Latency]] = {}
    for number, (side, ready) in enumerate(sides_of(given)):
        given.say(f"latency at {RATE:,} events/s, {type(side).__name__ if number else 'which warms the broker up'}")
        found = measured(given.bed, side, ready)
        if number:
            runs.setdefault(type(side), []).append(found)
    ours, theirs = mean(runs[Samovar]), mean(runs[Streams]) if given.peer else None
    note = f"at {RATE:,} events/s; {ours.alerts:,} alerts" + (f" and {theirs.alerts:,}" if theirs else "")
    aim = Aim(at_most=0.6, ratio=True)
    yield Row("latency, p50", "ms", ours.p50_ms, theirs.p50_ms if theirs else None, aim, note)
    yield Row("latency, p99", "ms", ours.p99_ms, theirs.p99_ms if theirs else None, aim, f"commit every {COMMIT_MS} ms")
    seconds = f"in {WARM_S + MEASURED_S} s, 1 container, and start-up"
    yield Row("processor time at that rate", "s", ours.cpu_s, theirs.cpu_s if theirs else None, None, seconds)


def sides_of(given: Given) -> Iterable[tuple[Side, str]]:
    """Who runs, one after the other, and what it says when it is ready."""
    for number, is_ours in enumerate([True, True, False, False, True] if given.peer else [True, True, True]):
        if is_ours:
            name = f"fast-{number}"
            yield on_kafka(given.bed, name, "w1", f"{name}-in", containers=1), r"running part.* \d"
        else:
            name = f"fast-streams-{number}"
            yield streams_on(given.bed, name, "w1", f"{name}-in", commit_ms=COMMIT_MS), "state RUNNING"


def mean(runs: Sequence[Latency]) -> Latency:
    count = len(runs)
    p50, p99 = sum(each.p50_ms for each in runs) / count, sum(each.p99_ms for each in runs) / count
    return Latency(sum(each.alerts for each in runs), p50, p99, sum(each.cpu_s for each in runs) / count)


def measured(at: Bed, side: Side, ready: str) -> Latency:
    topic = f"{side.name}-in"
    bed.make(at.log, topic)
    if isinstance(side, Streams):
        bed.make(at.log, side.alerts)
    with side.start() as process:
        process.until_said(ready)
        process.until(lambda: side.alerts in at.log.topics([side.alerts]), "its topics were there")
        moments = under_load(at, side, topic)
        used = process.usage()
        process.stop()
    came = side.card_testing(bed.alerts_of(at.log, side.alerts))
    check(side, came, set(expected.card_testing(stream_in(at, topic))), set())
    late = np.array([seen - alert for alert, seen in moments])
    return Latency(len(late), float(np.percentile(late, 50)), float(np.percentile(late, 99)), used.cpu_s)


def under_load(at: Bed, side: Side, topic: str) -> Sequence[tuple[int, float]]:
    """The time of each alert's event, and when the alert was read, once warm."""
    seconds = WARM_S + MEASURED_S
    command = [sys.executable, "-m", "benchmarks.load", at.address, topic, str(RATE), str(seconds)]
    reader = at.log.reader(dict.fromkeys(partitions_of(side.alerts), 0))
    moments: list[tuple[int, float]] = []
    begun_ms = time.time() * 1000
    with Watched(command, at.folder / "load.log", {"PYTHONPATH": str(ROOT)}) as load:
        while load.process.poll() is None:
            moments += alerts_now(reader)
        load.until_said("^sent", seconds=SOON_S)
        behind = int(next(load.said(r"behind (\d+)"))[1][1])
    # A side that is behind must not be spared the alerts that come last.
    ends, deadline = bed.ends_of(at.log, topic), time.monotonic() + SETTLE_S
    while not all_read(at, side, reader, ends):
        if time.monotonic() > deadline:
            raise FailedError(f"{side.name} had not taken all events {SETTLE_S:.0f} s after the last one")
        moments += alerts_now(reader)
    reader.close()
    if behind > 1_000:
        raise FailedError(f"the load was {behind} ms behind its rate: the machine is too busy for this")
    return [(event_ms, seen_ms) for event_ms, seen_ms in moments if event_ms >= begun_ms + WARM_S * 1000]


def alerts_now(reader: Reader) -> list[tuple[int, float]]:
    found: list[tuple[int, float]] = []
    for records in reader.poll(10_000, 0.05):
        now_ms = time.time() * 1000
        found += ((json.loads(value)["at"], now_ms) for _, value in records.pairs() if value is not None)
    return found


def all_read(at: Bed, side: Side, reader: Reader, ends: Mapping[TopicPartition, int]) -> bool:
    if not bed.caught_up(at.log, side.name, ends):
        return False
    return all(reader.position(place) >= end for place, end in bed.ends_of(at.log, side.alerts).items())


def stream_in(at: Bed, topic: str) -> Purchases:
    """What was sent, in the order of each partition: that of a card's events is the same in all of the topic."""
    events = bed.alerts_of(at.log, topic)
    card = np.array([int(event["card"].removeprefix("card-")) for event in events], np.int64)
    amount = np.array([event["amount"] for event in events], np.float64)
    return Purchases(card, amount, np.zeros(len(card), np.int64), np.array([event["ts"] for event in events], np.int64))
