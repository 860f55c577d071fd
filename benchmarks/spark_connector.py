"""The way to restore that Samovar does not take, to be measured: records through Spark's Kafka connector."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from samovar.changelog.spark import Session


def by_connector(session: Session, address: str, topic: str, folder: Path) -> float:
    """Table files of all partitions: newest value of a key by offset, sorted by key. Returns the seconds it took."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begun = time.monotonic()
    records = (
        session.spark.read.format("kafka")
        .option("kafka.bootstrap.servers", address)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .select("partition", "offset", "key", "value")
    )
    records.createOrReplaceTempView("records")
    rows = session.spark.sql(
        "select partition, key, max_by(value, offset) as value from records group by partition, key"
    )
    kept = rows.where("value is not null").repartition("partition").sortWithinPartitions("partition", "key")
    session.run("connector", kept.mapInArrow(_Tables(str(folder)), "rows long").collect)
    return time.monotonic() - begun


class _Tables:
    """On an executor: a table file for each partition that comes by."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 - on executors only

        from samovar.state.rocks_options import Memory  # noqa: PLC0415 - as above
        from samovar.state.tables import write_table  # noqa: PLC0415 - as above

        rows = self._rows(batches)
        count, first = 0, next(rows, None)
        while first is not None:
            partition, rest = first[0], _Until(first, rows)
            file = Path(self.folder) / f"{partition}.sst"
            count += write_table(file, rest, Memory(), file.parent)
            first = rest.next
        yield pa.RecordBatch.from_pydict({"rows": [count]})

    def _rows(self, batches: Iterable[Any]) -> Iterator[tuple[int, bytes, bytes]]:
        for batch in batches:
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class _Until:
    """Rows of one partition, up to the first of the next."""

    def __init__(self, first: tuple[int, bytes, bytes], rows: Iterator[tuple[int, bytes, bytes]]) -> None:
        self.next: tuple[int, bytes, bytes] | None = first
        self._rows, self._partition = rows, first[0]

    def __iter__(self) -> Iterator[tuple[bytes, bytes | None]]:
        while self.next is not None and self.next[0] == self._partition:
            yield self.next[1], self.next[2]
            self.next = next(self._rows, None)
