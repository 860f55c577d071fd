"""The way to restore that Samovar does not take, to be measured: records through Spark's own Kafka connector.

It has the best chances here: no shuffle and no sort (a Spark partition is a topic's partition, in order of offsets),
large fetches instead of the connector's 500 records, Arrow columns that the kernel reads where they lie, and the same
table files. What it does not do, and a restore must: wait for an open transaction, take a digest, write a manifest.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.bed import partitions_of
from samovar.changelog.log import Log
from samovar.changelog.spark import Session

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
    ends = {str(at.partition): bounds.end for at, bounds in log.bounds(partitions_of(topic)).items()}
    reader = session.spark.read.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", topic)
    for name, value in FETCHING.items():
        reader = reader.option(f"kafka.{name}", str(value))
    records = reader.option("endingOffsets", json.dumps({topic: ends})).load()
    made = records.select("partition", "offset", "key", "value").mapInArrow(_Tables(str(folder)), "records long")  # type: ignore[arg-type]
    session.run("connector", made.collect)
    return time.monotonic() - begun


class _Tables:
    """On an executor: table files of the partition that comes by."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 - on executors only

        from samovar.changelog.ahead import PART_BYTES, PART_ROWS  # noqa: PLC0415 - as above
        from samovar.changelog.newest import Newest  # noqa: PLC0415 - as above
        from samovar.state.tables import TableStore  # noqa: PLC0415 - as above

        rows, count, tables = Newest(), 0, None
        for batch in batches:
            if tables is None:
                place = Path(self.folder) / str(batch.column("partition")[0])
                place.mkdir()
                tables = TableStore(place)
            rows.add(_records(batch), batch.num_rows)
            count += batch.num_rows
            if len(rows) >= PART_ROWS or rows.bytes >= PART_BYTES:
                rows = _written(rows, tables)
        if tables is not None:
            _written(rows, tables)
        yield pa.RecordBatch.from_pydict({"records": pa.array([count], pa.int64())})


def _written(rows: Any, tables: Any) -> Any:
    rows.pack()
    changes = rows.changes()
    if tables.files:
        tables.write(changes)
    else:
        tables.ingest((key, value) for key, value in changes if value is not None)
    return type(rows)()


def _records(batch: Any) -> Any:
    """Arrow's columns as a log's records, nothing copied but the bounds."""
    import numpy as np  # noqa: PLC0415 - as above

    from samovar.changelog.packed import Packed  # noqa: PLC0415 - as above

    offsets = batch.column("offset").to_numpy()
    null = batch.column("value").is_null().to_numpy(zero_copy_only=False)
    keys, values = _messages(batch.column("key")), _messages(batch.column("value"))
    no = np.zeros(len(offsets), np.bool_)
    return Packed("", 0, offsets, offsets, int(offsets[-1]) + 1, keys, values, no, null)


def _messages(column: Any) -> Any:
    import numpy as np  # noqa: PLC0415 - as above

    from samovar.patterns.native import Messages  # noqa: PLC0415 - as above

    _, bounds, data = column.buffers()
    places = np.frombuffer(bounds, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    return Messages(np.frombuffer(data or b"", np.uint8), places[:-1], places[1:])
