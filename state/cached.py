"""A read cache of bounded size. It only ever holds what is in the store below, so it belongs under the overlay."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from samovar.state.store import Change, Store

_ENTRY_BYTES = 160  # what Python needs for an entry next to its bytes: two objects, a link, a slot of the table


class CachedStore:
    """Rows read or written lately, also the knowledge that a key has none. The least recently used go first."""

    def __init__(self, store: Store, cache_bytes: int) -> None:
        self._store = store
        self._limit = cache_bytes
        self._rows: OrderedDict[bytes, bytes | None] = OrderedDict()
        self.bytes_used = 0

    def get(self, key: bytes) -> bytes | None:
        if key in self._rows:
            self._rows.move_to_end(key)
            return self._rows[key]
        value = self._store.get(key)
        self._keep(key, value)
        return value

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        known = {key: self._rows[key] for key in keys if key in self._rows}
        missing = list({key: None for key in keys if key not in known})
        found = dict(zip(missing, self._store.multi_get(missing), strict=True)) if missing else {}
        for key in known:
            self._rows.move_to_end(key)
        for key, value in found.items():
            self._keep(key, value)
        return [known[key] if key in known else found[key] for key in keys]

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return self._store.range(start, end)

    def put(self, key: bytes, value: bytes) -> None:
        self.write([(key, value)])

    def delete(self, key: bytes) -> None:
        self.write([(key, None)])

    def write(self, changes: Iterable[Change]) -> None:
        """Write through. Where that fails nobody knows what the store holds, so these keys are read again."""
        taken = list(changes)
        try:
            self._store.write(taken)
        except Exception:
            for key, _ in taken:
                self._drop(key)
            raise
        self.accept(taken)

    def accept(self, changes: Iterable[Change]) -> None:
        """Take over what was written to the store below by another way: the task's one batch."""
        for key, value in changes:
            self._keep(key, value)

    def clear(self) -> None:
        self._rows.clear()
        self.bytes_used = 0

    def close(self) -> None:
        self.clear()
        self._store.close()

    def _keep(self, key: bytes, value: bytes | None) -> None:
        self._drop(key)
        self._rows[key] = value
        self.bytes_used += _cost(key, value)
        while self.bytes_used > self._limit:
            oldest, gone = self._rows.popitem(last=False)
            self.bytes_used -= _cost(oldest, gone)

    def _drop(self, key: bytes) -> None:
        if key in self._rows:
            self.bytes_used -= _cost(key, self._rows.pop(key))


def _cost(key: bytes, value: bytes | None) -> int:
    return _ENTRY_BYTES + len(key) + len(value or b"")
