"""The store that a user's task sees: wrappers of one concern each, put together here and nowhere else.

    Expiring     the user's key and value; adds the expiry, hides what is due
       |  \\
    Logged  \\    rows only: what the changelog is told is what is stored, expiry included, so that a restore knows it.
       |    |    Above the overlay, because it has to forget together with it
    Prefixed Prefixed    rows and index of expiries apart; the index is not logged
        \\  /
       Overlay   uncommitted changes of both, so that one batch writes both
          |
       Cached    under the overlay: never holds what is not committed
          |
      Prefixed   the store's name
          |
       base      the task's RocksStore, shared with other stores and with the position row

A key in the base:   "s"   length of the name (1 byte)   name   "r" or "x"   the row's or index row's key

A batch's way: the user's writes gather in the overlay; the commit takes `drain()` to the changelog; after it the task
writes `changes()` of all its stores and the position in one batch to the base, and calls `committed()`. When the commit
fails: `clear()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from samovar.state.cached import Cached
from samovar.state.logged import Logged
from samovar.state.overlay import Overlay
from samovar.state.prefixed import Prefixed
from samovar.state.store import Change, Store
from samovar.state.ttl import Expiring

_ROWS = b"r"
_INDEX = b"x"
NAME_BYTES_MAX = 255


def namespace(name: str) -> bytes:
    """What all keys of a store begin with in the base. No store's begins another one's: the length comes first."""
    encoded = name.encode()
    assert 0 < len(encoded) <= NAME_BYTES_MAX, name
    return b"s" + bytes([len(encoded)]) + encoded


@dataclass(frozen=True)
class Stack:
    """A task's store, and the handles by which the task commits it."""

    name: str
    store: Expiring
    _logged: Logged
    _overlay: Overlay
    _cached: Cached
    _below: Prefixed

    def drain(self) -> list[Change]:
        """What the changelog has to be told: key and stored value, None for a tombstone."""
        return self._logged.drain()

    def changes(self) -> list[Change]:
        """What has to be written to the base, with the base's keys."""
        return self._below.outside(self._overlay.changes())

    def committed(self) -> None:
        """`changes()` are in the base now."""
        self._cached.accept(self._overlay.changes())
        self.clear()

    def clear(self) -> None:
        """Forget what was not committed."""
        self._overlay.clear()
        self._logged.drain()

    def expire(self, watermark: int) -> list[bytes]:
        """Delete what is due at this event time, in the overlay, as a user's delete would."""
        return self.store.expire(watermark)

    def restored(self, changes: Iterable[Change]) -> list[Change]:
        """Changes that `drain` once gave, as changes of the base. `reindex` once all of them are there."""
        return self._below.outside((_ROWS + key, value) for key, value in changes)

    def reindex(self) -> list[Change]:
        """The changes of the base that make the index of expiries fit the rows. Nothing may be uncommitted."""
        assert not self._overlay.changes(), "commit or clear first"
        self._cached.clear()
        self.store.reindex()
        changes = self.changes()
        self.clear()
        return changes


def task_store(base: Store, name: str, *, ttl_ms: int | None, cache_bytes: int, now: Callable[[], int]) -> Stack:
    """A named store of a task, on the task's base. `now` is the task's event time."""
    below = Prefixed(base, namespace(name))
    cached = Cached(below, cache_bytes)
    overlay = Overlay(cached)
    logged = Logged(Prefixed(overlay, _ROWS))
    store = Expiring(logged, Prefixed(overlay, _INDEX), ttl_ms=ttl_ms, now=now)
    return Stack(name, store, logged, overlay, cached, below)
