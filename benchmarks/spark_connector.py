"""The way to restore that Samovar does not take, to be measured: records through Spark's own Kafka connector.

It has the best chances here: no shuffle and no sort (a Spark partition is a topic's partition, in order of offsets),
large fetches instead of the connector's 500 records, Arrow columns that the kernel reads where they lie, and the same
`Restore` to table files. What it does not do, and a restore must: wait for an open transaction, take a digest.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bed import partitions_of
from samovar.changelog.log import Log, Records, TopicPartition
from samovar.changelog.packed import Packed, nothing_up_to
from samovar.changelog.restore import Changelog, Restore
from samovar.changelog.spark import Session
from samovar.patterns.native import Messages
from samovar.state.tables import TableStore

MIB = 1 << 20
FETCHING = {
    "max.poll.records": 50_000,
    "max.partition.fetch.bytes": 16 * MIB,
    "fetch.max.bytes": 64 * MIB,
    "receive.buffer.bytes": MIB,
    "isolation.level": "read_committed",
}


def by_connector(session: Session, log: Log, address: str, topic: str, folder: Path) -> float:
    """Table files of all partitions: the newest value of a key, sorted by key. Returns the seconds it took."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begun = time.monotonic()
    changelogs = {at.partition: Changelog.look(log, at, 0) for at in partitions_of(topic)}
    ends = {str(partition): changelog.bounds.end for partition, changelog in changelogs.items()}
    reader = session.spark.read.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", topic)
    for name, value in FETCHING.items():
        reader = reader.option(f"kafka.{name}", str(value))
    records = reader.option("endingOffsets", json.dumps({topic: ends})).load()
    made = records.select("partition", "offset", "timestamp", "key", "value").mapInArrow(
        _Tables(str(folder), changelogs),
        "records long",
    )
    session.run("connector", made.collect)
    return time.monotonic() - begun


@dataclass(frozen=True)
class _Tables:
    """On an executor: table files of the partition that comes by."""

    folder: str
    changelogs: dict[int, Changelog]

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 - on executors only

        count = 0
        for first in batches:
            changelog = self.changelogs[first.column("partition")[0].as_py()]
            place = Path(self.folder) / str(changelog.at.partition)
            place.mkdir()
            log: Any = _Fed(first, iter(batches), changelog)
            restore = Restore(TableStore(place), log, changelog, changelog.bounds.begin)
            while not restore.advance():
                pass
            count += restore.records
        yield pa.RecordBatch.from_pydict({"records": pa.array([count], pa.int64())})


class _Fed:
    """A log of one partition and its reader: what Spark hands over, batch by batch."""

    def __init__(self, first: Any, rest: Iterator[Any], changelog: Changelog) -> None:
        self._batches, self._at, self._end = rest, changelog.at, changelog.bounds.end
        self._first, self._next = first, changelog.bounds.begin

    def reader(self, _positions: object) -> _Fed:
        return self

    def poll(self, _most: int, _timeout_s: float) -> list[Records]:
        batch = self._first if self._first is not None else next(self._batches, None)
        self._first = None
        if batch is None:
            self._next = self._end  # what is left are gaps
            return [nothing_up_to(*self._at, self._end)]
        records = _records(batch, self._at)
        self._next = records.next
        return [records]

    def position(self, _at: TopicPartition) -> int:
        return self._next

    def close(self) -> None:
        """Spark closes it."""


def _records(batch: Any, at: TopicPartition) -> Packed:
    """Arrow's columns as a log's records; nothing is copied but bounds."""
    import pyarrow as pa  # noqa: PLC0415 - on executors only

    offsets = batch.column("offset").to_numpy()
    times = batch.column("timestamp").cast(pa.int64()).to_numpy() // 1000
    null = batch.column("value").is_null().to_numpy(zero_copy_only=False)
    keys, values = _messages(batch.column("key")), _messages(batch.column("value"))
    return Packed(*at, offsets, times, int(offsets[-1]) + 1, keys, values, np.zeros(len(offsets), np.bool_), null)


def _messages(column: Any) -> Messages:
    _, bounds, data = column.buffers()
    places = np.frombuffer(bounds, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    return Messages(np.frombuffer(data or b"", np.uint8), places[:-1], places[1:])
