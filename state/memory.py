"""The store in memory: the twin of RocksStore, for tests and for runs that keep nothing."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from samovar.state.errors import out_of_order
from samovar.state.store import Change, SortedTable

_ONE_BY_ONE = 64  # up to so many new or deleted keys are cheaper to place one by one than by sorting all


class MemoryStore:
    """The source of truth for its rows, as long as the process lives. Keys are put in order when a range asks."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._sorted: list[bytes] = []
        self._unplaced: set[bytes] = set()  # keys that came or went since `_sorted` was right

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._rows.get(key) for key in keys]

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        keys = self._keys()
        last = len(keys) if end is None else bisect_left(keys, end)
        return iter([(key, self._rows[key]) for key in keys[bisect_left(keys, start) : last]])

    def prefixes(self, prefixes: Sequence[bytes]) -> list[list[tuple[bytes, bytes]]]:
        """For each prefix all pairs whose key starts with it."""
        return [list(self._starting(prefix)) for prefix in prefixes]

    def rows_about(self) -> int:
        return len(self._rows)

    def put(self, key: bytes, value: bytes) -> None:
        self.write([(key, value)])

    def delete(self, key: bytes) -> None:
        self.write([(key, None)])

    def write(self, changes: Iterable[Change]) -> None:
        for key, value in list(changes):
            if value is None:
                if self._rows.pop(key, None) is not None:
                    self._unplaced.add(key)
            else:
                if key not in self._rows:
                    self._unplaced.add(key)
                self._rows[key] = value

    def ingest(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Take pairs in strict order of keys: all of them or none."""
        taken = list(pairs)
        for place, ((before, _), (key, _)) in enumerate(pairwise(taken), 1):
            if key <= before:
                raise out_of_order(place, Path("memory"))
        self.write(taken)

    def ingest_table(self, table: SortedTable) -> None:
        self.write(table.changes())

    def close(self) -> None:
        """Nothing to free."""

    def _starting(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        keys = self._keys()
        for place in range(bisect_left(keys, prefix), len(keys)):
            if not keys[place].startswith(prefix):
                break
            yield keys[place], self._rows[keys[place]]

    def _keys(self) -> list[bytes]:
        if len(self._unplaced) > _ONE_BY_ONE:
            self._sorted = sorted(self._rows)
        else:
            for key in self._unplaced:  # it came or went, or both
                place = bisect_left(self._sorted, key)
                there = place < len(self._sorted) and self._sorted[place] == key
                if key not in self._rows and there:
                    del self._sorted[place]
                elif key in self._rows and not there:
                    insort(self._sorted, key)
        self._unplaced.clear()
        return self._sorted
