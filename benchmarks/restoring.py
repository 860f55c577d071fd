"""How long a side that was killed takes until it processes again: with its store lost, and with its store kept.

The process is killed as soon as it has taken all of its input, its store is lost or not, a few events are added, and
the clock runs from the start of the new process until these are committed. Records per second are of the restore alone:
Kafka Streams says when it begins and ends; of ours, `python -m benchmarks.restoring CONFIG` restores all partitions
with the tasks of the service, and with no group around them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks import bed
from benchmarks.bed import Bed, caught_up, ends_of, fill, partitions_of
from benchmarks.processes import Watched
from benchmarks.rows import Aim, Row
from benchmarks.sides import ROOT, Side, Streams, on_kafka, streams_on
from benchmarks.stream import Purchases, distinct, purchases
from benchmarks.throughput import Given, measured
from samovar.changelog.log import Append
from samovar.service.config.loading import load_service
from samovar.service.runtime.running import config_of
from samovar.service.topology.logs import opened
from samovar.service.topology.plans import plan_of
from samovar.tasks.model.clock import SystemClock
from samovar.tasks.runtime.stream_task import StreamTask

ADDED = 400  # events, so that every partition gets some
LATER_MS = 60_000  # event time has passed since: an idle input lets it
STATIC = {"main.consumer.group.instance.id": "peer"}


@dataclass(frozen=True)
class Again:
    """A side that was started again."""

    seconds: float  # until it processed what was new
    records: int  # restored
    restore_s: float
    peak_mb: float

    @property
    def records_s(self) -> float:
        return self.records / self.restore_s if self.restore_s else 0.0


def restore(given: Given) -> Iterable[Row]:
    yield from rows_of(given, "W1", purchases(given.events))


def restore_keys(given: Given) -> Iterable[Row]:
    count = given.events // 2
    yield from rows_of(given, f"{count:,} keys", distinct(count))


def rows_of(given: Given, what: str, stream: Purchases) -> Iterable[Row]:
    name = "keys" if what.endswith("keys") else "w1"
    topic = f"restore-{name}"
    fill(given.bed.log, topic, stream)
    given.say(f"restore of {what}, Samovar")
    lost, kept = ours(given.bed, f"restore-{name}-samovar", topic, stream)
    peer = fixed = warm = None
    if given.peer:
        given.say(f"restore of {what}, Kafka Streams")
        fixed, _ = theirs(given.bed, f"restore-{name}-static", topic, stream, STATIC)
        peer, warm = theirs(given.bed, f"restore-{name}-streams", topic, stream, {})
    told = f"{lost.records:,} records" + (f" and {peer.records:,}" if peer else "") + ", 1 container"
    aim = Aim(at_least=2, ratio=True)
    yield Row(f"{what}, restore", "records/s", lost.records_s, peer.records_s if peer else None, aim, told)
    if peer and fixed and warm:
        again = f"store lost, kill -9; Kafka Streams with a fixed group.instance.id: {fixed.seconds:.1f} s"
        yield Row(f"{what}, start to processing again", "s", lost.seconds, peer.seconds, Aim(at_most=5), again)
        yield Row(f"{what}, the same with its store", "s", kept.seconds, warm.seconds, Aim(at_most=2), "kill -9")
    else:
        yield Row(f"{what}, start to processing again", "s", lost.seconds, None, Aim(at_most=5), "store lost, kill -9")
        yield Row(f"{what}, the same with its store", "s", kept.seconds, None, Aim(at_most=2), "kill -9")
    yield Row(f"{what}, peak memory after a restart", "MB", kept.peak_mb, None, None, "with its store")


# ---------------------------------------------------------------- our side


def ours(at: Bed, name: str, topic: str, stream: Purchases) -> tuple[Again, Again]:
    """With the store lost, and with it kept."""
    side = on_kafka(at, name, "w1", topic)
    process = side.start()
    with process:
        measured(at.log, side, topic, len(stream), process)
        process.kill()
    side.wipe()
    process, lost = started_again(at, side, topic, stream, 1)
    process.kill()
    process, kept = started_again(at, side, topic, stream, 2)
    process.stop()
    records = bed.records_in(at.log, side.changelog)
    side.wipe()
    command = [sys.executable, "-m", "benchmarks.restoring", str(side.config)]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout)
    return replace(lost, records=records, restore_s=told["seconds"]), kept


def restore_all(config: Path) -> float:
    """Restore every partition of a service in turns, as a container does; returns the seconds that took."""
    settings = load_service(config)
    with opened(settings) as log:
        count = log.topics([settings.changelog.topic])[settings.changelog.topic].partitions
        plan, upkeep = plan_of(settings, count), config_of(settings)
        tasks = [StreamTask(plan, number, log, upkeep, SystemClock()) for number in range(count)]
        begun = time.monotonic()
        for task in tasks:
            task.open()
        left = list(tasks)
        while left:
            left = [task for task in left if not task.restore_some(0.05)]
        seconds = time.monotonic() - begun
        for task in tasks:
            task.close()
    return seconds


# ---------------------------------------------------------------- Kafka Streams


def theirs(at: Bed, name: str, topic: str, stream: Purchases, more: dict[str, str]) -> tuple[Again, Again]:
    side = streams_on(at, name, "w1", topic, more=more)
    bed.make(at.log, side.alerts)
    with side.start() as process:
        measured(at.log, side, topic, len(stream), process)
        process.kill()
    side.wipe()
    process, lost = started_again(at, side, topic, stream, 3)
    process.kill()
    process, kept = started_again(at, side, topic, stream, 4)
    process.stop()
    return lost, kept


# ---------------------------------------------------------------- both


def started_again(at: Bed, side: Side, topic: str, stream: Purchases, time: int) -> tuple[Watched, Again]:
    """Start it, with something new to do; it goes on running."""
    add_some(at, topic, stream, time)
    ends = ends_of(at.log, topic)
    process = side.start()
    end = process.until(lambda: caught_up(at.log, side.name, ends), "what is new was committed", every_s=0.01)
    begins = [moment for moment, _ in process.said("^restoring ")]
    done = [(moment, int(found[1])) for moment, found in process.said(r"^restored (\d+)")]
    span = max(moment for moment, _ in done) - min(begins) if done and isinstance(side, Streams) else 0.0
    return process, Again(end - process.begun, sum(count for _, count in done), span, process.usage().peak_mb)


def add_some(at: Bed, topic: str, stream: Purchases, time: int) -> None:
    times = np.full(ADDED, int(stream.time[-1]) + LATER_MS * time, np.int64)
    some = Purchases(stream.card[:ADDED], np.full(ADDED, 50.0), stream.country[:ADDED], times)
    at.log.append([Append(topic=topic, records=bed.pairs(some, 0, ADDED))])
    assert len({each.partition for each in partitions_of(topic)}) == len(ends_of(at.log, topic))


def main() -> None:
    print(json.dumps({"seconds": restore_all(Path(sys.argv[1]))}))


if __name__ == "__main__":
    main()
