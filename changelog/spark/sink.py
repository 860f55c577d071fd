"""Rows of a data frame on their way out: packed in tasks, written by the driver when all tasks have ended.

What tasks packed travels in Spark's commit messages, so that a task that runs twice writes nothing twice. The driver
commits a frame once, and each batch of a stream by its number, again where it cannot know whether it did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage


class RowSink(Protocol):
    """Where rows go. It travels to executors, so it holds no open log."""

    def pack(self, rows: Iterator[Mapping[str, Any]]) -> bytes: ...
    def commit(self, packed: Sequence[bytes], batch: int | None) -> None:
        """Write all of it or nothing; of a batch that was written before, nothing."""


SinkOpening: TypeAlias = Callable[[Mapping[str, str], str, bool], RowSink]  # options, schema, whether of a stream


@dataclass
class PackedRows(WriterCommitMessage):
    data: bytes


def _packed(sink: RowSink, rows: Iterator[Any]) -> PackedRows:
    return PackedRows(sink.pack(row.asDict(recursive=True) for row in rows))


def _data(messages: Sequence[WriterCommitMessage | None]) -> list[bytes]:
    return [message.data for message in messages if isinstance(message, PackedRows)]


@dataclass
class FrameWriter(DataSourceWriter):
    sink: RowSink

    def write(self, iterator: Iterator[Any]) -> PackedRows:
        return _packed(self.sink, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self.sink.commit(_data(messages), None)


@dataclass
class StreamWriter(DataSourceStreamWriter):
    sink: RowSink

    def write(self, iterator: Iterator[Any]) -> PackedRows:
        return _packed(self.sink, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        self.sink.commit(_data(messages), batchId)
