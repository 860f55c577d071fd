"""Matches kept for a comparison: numbers in memory, lines of JSON on disk. Some 56 bytes of memory per match."""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from hashlib import blake2b
from tempfile import TemporaryFile
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from samovar.service.backtest.fold import FoldedMatch

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
# `key` and `moment` (key and time of detection) are hashes.
COLUMNS = np.dtype([(name, np.int64) for name in ("partition", "key", "moment", "start", "at", "place", "mark")])
MatchRows: TypeAlias = NDArray[np.void]  # of one rule, with these columns


class Finds:
    """Matches of any number of rules."""

    def __init__(self) -> None:
        self._lines: IO[bytes] = TemporaryFile(prefix="samovar-backtest-")  # noqa: SIM115 - closed by `close`
        self._rows: defaultdict[str, array[int]] = defaultdict(lambda: array("q"))
        self._end = 0

    def add(self, found: FoldedMatch, mark: int = 0) -> None:
        """Keeps a match. `mark` is whatever the caller wants to know of it later."""
        key, moment = hashed(found.key), hashed(found.key + found.at.to_bytes(8, "big", signed=True))
        self._rows[found.rule].extend((found.partition, key, moment, found.start, found.at, self._end, mark))
        self._lines.write(len(found.line).to_bytes(4, "big") + found.line)
        self._end += 4 + len(found.line)

    def rows(self, rule: str, start_ms: int, end_ms: int) -> MatchRows:
        """The matches of a rule that were detected in a stretch of time, in its order, whatever order they came in."""
        rows = np.array(self._rows[rule], np.int64).view(COLUMNS)
        rows = rows[(rows["at"] >= start_ms) & (rows["at"] < end_ms)]
        return rows[np.lexsort((rows["start"], rows["key"], rows["at"]))]

    def some(self, rows: MatchRows, most: int) -> list[dict[str, Any]]:
        """Some of these matches as they were, spread evenly over them."""
        found = []
        step = max(1, len(rows) // most) if most else 1
        for place in rows["place"][::step][:most].tolist():
            self._lines.seek(place)
            size = int.from_bytes(self._lines.read(4), "big")
            found.append(json.loads(self._lines.read(size)))
        self._lines.seek(self._end)
        return found

    def close(self) -> None:
        self._lines.close()


def hashed(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big", signed=True)
