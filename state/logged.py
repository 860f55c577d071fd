"""Remembers what was changed, for the changelog."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from samovar.state.store import Change, Store


class Logged:
    """The source of truth for what the changelog has yet to be told: one change a key, the newest."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changes: dict[bytes, bytes | None] = {}

    def drain(self) -> list[Change]:
        """The changes since the last drain, in the order in which their keys were first changed."""
        changes, self._changes = self._changes, {}
        return list(changes.items())

    def get(self, key: bytes) -> bytes | None:
        return self._store.get(key)

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._store.multi_get(keys)

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return self._store.range(start, end)

    def put(self, key: bytes, value: bytes) -> None:
        self._store.put(key, value)
        self._changes[key] = value

    def delete(self, key: bytes) -> None:
        self._store.delete(key)
        self._changes[key] = None

    def write(self, changes: Iterable[Change]) -> None:
        taken = list(changes)
        self._store.write(taken)
        self._changes.update(taken)

    def close(self) -> None:
        self._store.close()
