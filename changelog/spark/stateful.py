"""Groups of a stream with a state each, which Spark keeps in its checkpoint from batch to batch.

A group is called where it has new rows, and where event time has passed the time that it wished to be called at. Its
state is bytes; what it finds are texts.

This is `applyInPandasWithState`: Spark brings the states of many groups at once. `transformWithState` asks for each by
a message of its own, wants the RocksDB state store, and in PySpark 4.0 a protobuf that PySpark does not bring.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GROUP, ROW, FOUND = "_group", "_row", "_found"


class GroupResult(NamedTuple):
    """What came of a call: the state from now on, when to call again without rows, and what was found."""

    state: bytes | None
    call_at_ms: int | None
    found: list[str]


class GroupFunction(Protocol):
    def __call__(self, group: int, state: bytes | None, rows: list[str], watermark_ms: int) -> GroupResult:
        """No later call has rows whose time is before this watermark."""


def map_groups(frame: DataFrame, do: GroupFunction) -> DataFrame:
    """What a function finds in a stream of `_group`, event time and `_row`, as a stream of `_found`.

    A query has one of it at most: Spark refuses more.
    """
    from pyspark import cloudpickle  # noqa: PLC0415 - takes long, and is not always installed

    work = _GroupWork(cloudpickle.dumps(do))  # type: ignore[no-untyped-call] # ships no types

    def call(key: Any, frames: Iterable[Any], state: Any) -> Iterator[Any]:
        return work(int(key[0]), frames, state)

    grouped = frame.groupBy(GROUP)
    return grouped.applyInPandasWithState(call, f"{FOUND} string", "state binary", "append", "EventTimeTimeout")


def has_watermark(frame: DataFrame, time: str) -> bool:
    return "spark.watermarkDelayMs" in frame.schema[time].metadata


@dataclass
class _GroupWork:
    do: bytes

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        _read_whole_numbers()

    def __call__(self, group: int, frames: Iterable[Any], state: Any) -> Iterator[Any]:
        import pandas as pd  # noqa: PLC0415 - on executors only

        rows = [] if state.hasTimedOut else [row for frame in frames for row in frame[ROW].tolist()]
        watermark_ms = state.getCurrentWatermarkMs()
        kept = bytes(state.get[0]) if state.exists else None
        result = self._function(group, kept, rows, watermark_ms)
        if result.found:
            yield pd.DataFrame({FOUND: result.found})
        if result.state is None:
            state.remove()
            return
        state.update((result.state,))
        if result.call_at_ms is not None:
            state.setTimeoutTimestamp(max(result.call_at_ms, watermark_ms, 1))

    @property
    def _function(self) -> GroupFunction:
        import pickle  # noqa: PLC0415 - on executors only

        found: GroupFunction | None = self.__dict__.get("_do")
        if found is None:
            found = self.__dict__["_do"] = pickle.loads(self.do)  # noqa: S301 - the driver wrote it
        return found


def _read_whole_numbers() -> None:
    """PySpark 4.0 reads where a group's rows begin as a float, by which a newer pyarrow does not cut."""
    import pyarrow as pa  # noqa: PLC0415 - on executors only
    from pyspark.sql.pandas.serializers import ApplyInPandasWithStateSerializer as Serializer  # noqa: PLC0415

    plain: Any = Serializer.arrow_to_pandas
    if getattr(plain, "reads_whole_numbers", False):
        return

    def arrow_to_pandas(self: Any, column: Any, *more: Any, **named: Any) -> Any:
        if pa.types.is_struct(column.type):
            return column.to_pandas(integer_object_nulls=True)
        return plain(self, column, *more, **named)

    arrow_to_pandas.reads_whole_numbers = True  # type: ignore[attr-defined]
    Serializer.arrow_to_pandas = arrow_to_pandas  # type: ignore[method-assign, assignment]
