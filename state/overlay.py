"""Uncommitted writes on top of a store: read at once, kept apart until the log's commit, thrown away on abort."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from samovar.state.store import Change, Store

_ONE_BY_ONE = 64  # up to so many new keys are cheaper to place one by one than by sorting all


class Overlay:
    """The source of truth for what was written since the last commit. Never writes to the store below."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changes: dict[bytes, bytes | None] = {}
        self._sorted: list[bytes] = []
        self._placed = 0  # so many of the changes, in the order in which they came, are in `_sorted`

    def changes(self) -> list[Change]:
        """What the commit has to write: one change a key, the newest."""
        return list(self._changes.items())

    def clear(self) -> None:
        """Forget the changes: they are in the store below by now, or never will be."""
        self._changes.clear()
        self._sorted.clear()
        self._placed = 0

    def get(self, key: bytes) -> bytes | None:
        return self._changes[key] if key in self._changes else self._store.get(key)

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        changes = self._changes
        below = iter(self._store.multi_get([key for key in keys if key not in changes]))
        return [changes[key] if key in changes else next(below) for key in keys]

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        keys = self._keys()
        last = len(keys) if end is None else bisect_left(keys, end)
        above = [(key, self._changes[key]) for key in keys[bisect_left(keys, start) : last]]
        below = self._store.range(start, end)
        return _merged(below, above) if above else below

    def put(self, key: bytes, value: bytes) -> None:
        self._changes[key] = value

    def delete(self, key: bytes) -> None:
        self._changes[key] = None

    def write(self, changes: Iterable[Change]) -> None:
        self._changes.update(list(changes))

    def close(self) -> None:
        """Close the store below. What was not committed is gone."""
        self.clear()
        self._store.close()

    def _keys(self) -> list[bytes]:
        """All changed keys in order; a key never leaves, so only those that came since are placed."""
        new = len(self._changes) - self._placed
        if new > _ONE_BY_ONE:
            self._sorted = sorted(self._changes)
        elif new:
            for key in islice(reversed(self._changes), new):
                insort(self._sorted, key)
        self._placed = len(self._changes)
        return self._sorted


def _merged(below: Iterator[tuple[bytes, bytes]], above: list[Change]) -> Iterator[tuple[bytes, bytes]]:
    """Both in order of keys; of two pairs with one key the one from above counts."""
    waiting = next(below, None)
    for key, value in above:
        while waiting is not None and waiting[0] < key:
            yield waiting
            waiting = next(below, None)
        if waiting is not None and waiting[0] == key:
            waiting = next(below, None)
        if value is not None:
            yield key, value
    yield from chain(() if waiting is None else (waiting,), below)
