"""Matches kept for a comparison: numbers in memory, lines of JSON on disk. Some 40 bytes of memory per match."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from samovar.native.kernel import Int64s
from samovar.service.backtest.fold import FoldedMatch

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
COLUMNS = ("partition", "key", "moment", "start", "at", "place", "mark")


class Finds:
    """Matches of any number of rules. Rows keep the order in which they came."""

    def __init__(self) -> None:
        self._lines: IO[bytes] = TemporaryFile(prefix="samovar-backtest-")  # noqa: SIM115 - closed by `close`
        self._columns: dict[str, dict[str, array[int]]] = {}
        self._end = 0

    def add(self, found: FoldedMatch, mark: int = 0) -> None:
        """Keeps a match. `mark` is whatever the caller wants to know of it later."""
        columns = self._columns.get(found.rule)
        if columns is None:
            columns = self._columns[found.rule] = {name: array("q") for name in COLUMNS}
        moment = found.key + found.at.to_bytes(8, "big", signed=True)
        row = (found.partition, hashed(found.key), hashed(moment), found.start, found.at, self._end, mark)
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
        self._lines.write(len(found.line).to_bytes(4, "big") + found.line)
        self._end += 4 + len(found.line)

    def of(self, rule: str) -> MatchColumns:
        columns = self._columns.get(rule, {})
        return MatchColumns({name: np.array(columns.get(name, ()), np.int64) for name in COLUMNS}, self)

    def line(self, place: int) -> dict[str, Any]:
        """A match as it was, by its place."""
        self._lines.seek(place)
        size = int.from_bytes(self._lines.read(4), "big")
        match: dict[str, Any] = json.loads(self._lines.read(size))
        self._lines.seek(0, 2)
        return match

    def close(self) -> None:
        self._lines.close()


class MatchColumns:
    """The matches of one rule as columns: `key` and `moment` (key and time of detection) are hashes."""

    def __init__(self, columns: dict[str, Int64s], finds: Finds) -> None:
        self._columns, self._finds = columns, finds

    def __len__(self) -> int:
        return len(self._columns["at"])

    def __getitem__(self, column: str) -> Int64s:
        return self._columns[column]

    def where(self, rows: NDArray[np.bool_]) -> MatchColumns:
        return MatchColumns({name: column[rows] for name, column in self._columns.items()}, self._finds)

    def between(self, start_ms: int, end_ms: int) -> MatchColumns:
        return self.where((self["at"] >= start_ms) & (self["at"] < end_ms))

    def lines(self, most: int) -> Iterator[dict[str, Any]]:
        """Some of the matches, spread evenly over them."""
        step = max(1, len(self) // most) if most else 1
        for place in self["place"][::step][:most].tolist():
            yield self._finds.line(place)

    def counts(self, every_ms: int) -> dict[int, int]:
        """How many per stretch of time, by its first ms."""
        places, counts = np.unique(self["at"] // every_ms, return_counts=True)
        return {int(place) * every_ms: int(count) for place, count in zip(places, counts, strict=True)}


def hashed(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big", signed=True)
