"""What a run needs: a folder, a Kafka broker in it, topics with events, and what came out."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.stream import Purchases, card_name, lines
from samovar.changelog.broker import node
from samovar.changelog.broker.jars import Say
from samovar.changelog.broker.process import free_port
from samovar.changelog.kafka.log import KafkaLog
from samovar.changelog.log import Append, Log, Pair, TopicPartition, TopicSpec

PARTITIONS = 4
ROWS_AT_ONCE = 100_000
READ_ROWS = 20_000
KEPT = {"retention.ms": "-1"}  # the events' times are long past
# As Kafka comes: members that start together get their partitions together, and nobody begins with those of another.
BROKER = {"group.initial.rebalance.delay.ms": "3000"}


@dataclass(frozen=True)
class Bed:
    """Where all of a run happens. Nothing of it stays."""

    folder: Path
    address: str
    log: Log

    def place(self, name: str) -> Path:
        path = self.folder / name
        path.mkdir(parents=True, exist_ok=True)
        return path


@contextmanager
def prepared(say: Say, settings: Mapping[str, str] = BROKER) -> Iterator[Bed]:
    """A broker on a free port, in a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="samovar-bench-"))
    try:
        started = node.start(folder / "kafka", free_port(node.HOST), say, settings)
        log = KafkaLog({"bootstrap.servers": started.address})
        yield Bed(folder, started.address, log)
        log.close()
    finally:
        node.stop(folder / "kafka")
        if "SAMOVAR_BENCH_KEEP" not in os.environ:
            shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------- topics


def partitions_of(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for partition in range(PARTITIONS)]


def make(log: Log, topic: str) -> None:
    log.create([TopicSpec(topic, PARTITIONS, KEPT)])


def fill(log: Log, topic: str, stream: Purchases) -> None:
    """Make a topic and write a stream to it, keyed by card."""
    make(log, topic)
    for start in range(0, len(stream), ROWS_AT_ONCE):
        log.append([Append(topic=topic, records=pairs(stream, start, start + ROWS_AT_ONCE))])


def pairs(stream: Purchases, start: int, stop: int) -> list[Pair]:
    cards = stream.card[start:stop].tolist()
    texts = lines(stream, start, stop)
    return [(card_name(card).encode(), text.rstrip().encode()) for card, text in zip(cards, texts, strict=True)]


def ends_of(log: Log, topic: str) -> dict[TopicPartition, int]:
    return {at: bounds.end for at, bounds in log.bounds(partitions_of(topic)).items()}


def caught_up(log: Log, group: str, ends: Mapping[TopicPartition, int]) -> bool:
    """Whether the group has committed all of the input; with exactly once that commits its alerts too."""
    return dict(log.committed(group, list(ends))) == ends


# ---------------------------------------------------------------- what came out


def values_of(log: Log, topic: str) -> Iterator[bytes]:
    """All values that are committed in a topic."""
    ends = ends_of(log, topic)
    reader = log.reader(dict.fromkeys(ends, 0))
    try:
        while any(reader.position(at) < end for at, end in ends.items()):
            for records in reader.poll(READ_ROWS, 0.1):
                yield from (value for _, value in records.pairs() if value is not None)
    finally:
        reader.close()


def records_in(log: Log, topic: str) -> int:
    """How many records a topic holds; offsets would count the markers of transactions too."""
    ends = ends_of(log, topic)
    reader, count = log.reader(dict.fromkeys(ends, 0)), 0
    try:
        while any(reader.position(at) < end for at, end in ends.items()):
            count += sum(map(len, reader.poll(READ_ROWS, 0.1)))
    finally:
        reader.close()
    return count


def alerts_of(log: Log, topic: str) -> list[dict[str, Any]]:
    return [json.loads(value) for value in values_of(log, topic)]
