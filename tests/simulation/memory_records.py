"""Records of the log in memory: rows as they stand in the log, and columns of them for those who ask."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np

from samovar.changelog.log import Bools, Headers, Int64s, Pair
from samovar.native.kernel import Messages, data_of
from tests.simulation.broker import StoredRecord


class MemoryRecords:
    """Records of one partition, as samovar.changelog.log.Records says. A column is made when it is first asked for."""

    def __init__(self, topic: str, partition: int, rows: Sequence[StoredRecord], next_offset: int) -> None:
        self.topic = topic
        self.partition = partition
        self.next = next_offset
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @cached_property
    def offsets(self) -> Int64s:
        return np.array([row.offset for row in self._rows], np.int64)

    @cached_property
    def times(self) -> Int64s:
        return np.array([row.time_ms for row in self._rows], np.int64)

    @cached_property
    def keys(self) -> Messages:
        return _messages([row.key or b"" for row in self._rows])

    @cached_property
    def values(self) -> Messages:
        return _messages([row.value or b"" for row in self._rows])

    @cached_property
    def null(self) -> Bools:
        return np.array([row.value is None for row in self._rows], np.bool_)

    def key(self, row: int) -> bytes | None:
        return self._rows[row].key

    def value(self, row: int) -> bytes | None:
        return self._rows[row].value

    def headers(self, row: int) -> Headers:
        return self._rows[row].headers

    def pairs(self) -> list[Pair]:
        return [(row.key, row.value) for row in self._rows]


def _messages(parts: Sequence[bytes]) -> Messages:
    """For a few of them this takes a third of what `samovar.native.kernel.joined` does."""
    bounds = np.array([0, *accumulate(map(len, parts))], np.int64)
    return Messages(data_of(b"".join(parts)), bounds[:-1], bounds[1:])
