"""A namespace: several stores in one, each under its own prefix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from samovar.state.store import Change, Store


def after(prefix: bytes) -> bytes | None:
    """The least key behind all that start with this prefix; None where there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


class PrefixedStore:
    """The rows of a shared store whose keys start with a prefix, without it. No prefix may begin another one's."""

    def __init__(self, store: Store, prefix: bytes) -> None:
        self._store = store
        self.prefix = prefix
        self._end = after(prefix)

    def get(self, key: bytes) -> bytes | None:
        return self._store.get(self.prefix + key)

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._store.multi_get([self.prefix + key for key in keys])

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        below = self._store.range(self.prefix + start, self._end if end is None else self.prefix + end)
        size = len(self.prefix)
        return ((key[size:], value) for key, value in below)

    def put(self, key: bytes, value: bytes) -> None:
        self._store.put(self.prefix + key, value)

    def delete(self, key: bytes) -> None:
        self._store.delete(self.prefix + key)

    def write(self, changes: Iterable[Change]) -> None:
        self._store.write(self.outside(changes))

    def outside(self, changes: Iterable[Change]) -> list[Change]:
        """Changes as the store below sees them."""
        return [(self.prefix + key, value) for key, value in changes]

    def close(self) -> None:
        """Nothing to free."""
