"""Work in parts, one Spark task each: a task partition's state is made where one process can read its log in order.

`spread` hands every part to a function on an executor and brings back what it returned. The function runs in
mapInArrow; parts and results travel as bytes, what is large stays in files.
"""

from __future__ import annotations

import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from samovar.changelog.spark.progress import OnProgress, Ticker
from samovar.changelog.spark.session import OpenSession
from samovar.common.errors import Refused
from samovar.state.errors import StoreError

P = TypeVar("P")
R = TypeVar("R")

SCHEMA = "part long, made binary"


def spread(
    session: OpenSession,
    job: str,
    parts: Sequence[P],
    do: Callable[[P, Ticker], R],
    on_progress: OnProgress = lambda _: None,
    total: int | None = None,
) -> list[R]:
    """What `do` made of each part, in order. The first refusal of a part is raised when all have ended.

    `do` must be a function of a module that executors can import. It is called again where an executor was lost.
    """
    if not parts:
        return []
    from pyspark import cloudpickle  # noqa: PLC0415 - takes long, and is not always installed

    ticks = Path(tempfile.mkdtemp(prefix="samovar-ticks-"))
    packed = [cloudpickle.dumps((part, do)) for part in parts]  # type: ignore[no-untyped-call] # ships no types
    work = _Work(packed, str(ticks) if session.is_local else None)
    try:
        frame = session.spark.range(0, len(parts), 1, len(parts)).mapInArrow(work, SCHEMA)  # type: ignore[arg-type]
        rows = session.run(job, frame.collect, on_progress, total=total, ticks=ticks if session.is_local else None)
    finally:
        shutil.rmtree(ticks, ignore_errors=True)
    return results({row.part: loaded(row) for row in rows}, len(parts))


def loaded(row: Any) -> Any:
    """What an executor made, or how it was refused."""
    return pickle.loads(bytes(row.made))  # noqa: S301 - our own executors wrote it


def results(made: Mapping[int, Any], count: int) -> list[Any]:
    """In order; the first refusal is raised."""
    for number in range(count):
        if isinstance(made[number], (Refused, StoreError)):
            raise made[number]
    return [made[number] for number in range(count)]


class _Work:
    """What an executor runs. A class, and not a closure, so that it is pickled by its name."""

    def __init__(self, parts: Sequence[bytes], ticks: str | None) -> None:
        self.parts, self.ticks = parts, ticks

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 - on executors only

        for batch in batches:
            for number in batch.column(0).to_pylist():
                made = pickle.dumps(self._done(number))
                columns = [pa.array([number], pa.int64()), pa.array([made], pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, ["part", "made"])

    def _done(self, number: int) -> Any:
        part, do = pickle.loads(self.parts[number])  # noqa: S301 - the driver wrote it
        return done(partial(do, part, Ticker(self.ticks, str(number))))


def done(do: Callable[[], Any]) -> Any:
    """What came of it: a refusal travels as a result, with its code and hint."""
    try:
        return do()
    except (Refused, StoreError) as refused:
        return refused
