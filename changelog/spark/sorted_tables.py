"""Rows of a frame as sorted table files (RocksDB's SST), written by Spark's tasks.

Rows become pairs of bytes where they are, Spark brings them into the order of their keys, and each task writes what it
has to files of its own: a file holds rows of one place only. Names of files are never used twice, so that what a task
wrote that was run again is not taken for the work of the one that counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from samovar.changelog.spark.session import OpenSession
from samovar.common.folders import make_private
from samovar.common.tunables import DEFAULTS
from samovar.state.reading import RocksMemory
from samovar.state.tables import ENDING, write_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

ROWS_A_TASK = 1_000_000
Pairs: TypeAlias = Callable[["pa.RecordBatch"], Iterator[tuple[bytes, bytes]]]


@dataclass(frozen=True)
class TableFile:
    """A file: its name in the folder, the place of its rows (None: null), how many, and its SHA-256."""

    name: str
    place: str | None
    rows: int
    sha256: str


def write_sorted(
    session: OpenSession, job: str, frame: DataFrame, pairs: Pairs, folder: Path, place: str | None, rows: int
) -> list[TableFile]:
    """Write a frame's rows, at most about so many; by the values of the column `place` to files of their own."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as all who write Spark call it; with pyspark only

    make_private(folder)
    column = F.lit("") if place is None else F.col(f"`{place}`").cast("string")
    placed = frame.select(column.alias("_samovar_place"), "*")
    packed = placed.mapInArrow(_Packing(pairs), "place string, key binary, value binary")  # type: ignore[arg-type]
    tasks = -(-rows // ROWS_A_TASK)
    spread = packed.coalesce(1) if tasks <= 1 else packed.repartitionByRange(tasks, "place", "key")
    ordered = spread.sortWithinPartitions("place", "key")
    schema = "name string, place string, rows bigint, sha256 string"
    written = ordered.mapInArrow(_Writing(str(folder)), schema)  # type: ignore[arg-type]
    found = [TableFile(*row) for row in session.run(job, written.collect)]
    names = {each.name for each in found}
    for path in folder.iterdir():
        if path.name not in names:
            path.unlink()
    return sorted(found, key=lambda each: each.name)


@dataclass(frozen=True)
class _Packing:
    """Rows to pairs of bytes. A class, as the one below: it is pickled by its name."""

    pairs: Pairs

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 - takes long to import

        for batch in batches:
            found = list(self.pairs(batch.select(range(1, batch.num_columns))))
            keys = pa.array([key for key, _ in found], pa.binary())
            values = pa.array([value for _, value in found], pa.binary())
            yield pa.RecordBatch.from_arrays([batch.column(0), keys, values], ["place", "key", "value"])


@dataclass(frozen=True)
class _Writing:
    """Sorted pairs to files."""

    folder: str

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 - as above

        columns = (zip(*(column.to_pylist() for column in batch.columns), strict=True) for batch in batches)
        names = ["name", "place", "rows", "sha256"]
        for place, rows in groupby(chain.from_iterable(columns), key=lambda row: row[0]):
            for each in write_files(Path(self.folder), place, ((key, value) for _, key, value in rows)):
                values = (each.name, each.place, each.rows, each.sha256)
                yield pa.RecordBatch.from_pylist([dict(zip(names, values, strict=True))])


def write_files(folder: Path, place: str | None, pairs: Iterator[tuple[bytes, bytes]]) -> Iterator[TableFile]:
    """Pairs in strict order of keys, to files of a bounded size."""
    memory = RocksMemory()
    while (first := next(pairs, None)) is not None:
        path = folder / f"{uuid4().hex}{ENDING}"
        rows = write_table(path, chain([first], islice(pairs, DEFAULTS.file_rows - 1)), memory, folder)
        with path.open("rb") as file:
            yield TableFile(path.name, place, rows, hashlib.file_digest(file, "sha256").hexdigest())
