"""The stores that a user's task sees: wrappers of one concern each, put together here and nowhere else.

    Expiring          one for each named store: the user's key and value; adds the expiry, hides what is due
     |      \\
    Prefixed Prefixed rows and index of expiries of that store
        \\   |
        event         an overlay: what the event at hand wrote; kept when it is done, undone when it fails
          |
        commit        an overlay: what was written since the last commit
          |
        Cached        under the overlays: never holds what is not committed
          |
        base          the task's store, shared with the position row

A key in the base:   "u"   length of the name (1 byte)   name   the row's key
    of the index:    "x"   length of the name (1 byte)   name   the index row's key

Rows are logged with these very keys, so that a restore copies bytes; the index is local, and made again from the rows
after a restore (`reindexed`). No name of length 0 is a user's: its keys are the task's own, as its timers.

A batch's way: `keep()` after each event; the commit takes `changes()`, rows to the changelog, and after it rows and
index together with the position in one batch to the base; then `committed()`.
"""

from __future__ import annotations

from collections.abc import Callable

from samovar.state.cached import CachedStore
from samovar.state.overlay import Overlay
from samovar.state.prefixed import PrefixedStore
from samovar.state.store import Change, Store
from samovar.state.ttl import TtlStore

ROWS = b"u"
INDEX = b"x"
NAME_BYTES_MAX = 255


def namespace(kind: bytes, name: str) -> bytes:
    """What all keys of a store begin with in the base. No store's begins another one's: the length comes first."""
    encoded = name.encode()
    assert len(encoded) <= NAME_BYTES_MAX, name
    return kind + bytes([len(encoded)]) + encoded


def reindexed(base: Store, name: str, rows_at_once: int) -> None:
    """Make the index of a named store fit its rows. At once, in the base: an index is local, and no commit waits."""
    rows, index = PrefixedStore(base, namespace(ROWS, name)), PrefixedStore(base, namespace(INDEX, name))
    TtlStore(rows, index, ttl_ms=None, now=lambda: 0).reindex(rows_at_once)


class Stack:
    """All stores of one task over its base, and the handles by which the task keeps, undoes and commits them."""

    def __init__(self, base: Store, cache_bytes: int) -> None:
        self._cached = CachedStore(base, cache_bytes)
        self._commit = Overlay(self._cached)
        self._event = Overlay(self._commit)
        self._stores: list[TtlStore] = []

    def store(self, name: str, *, ttl_ms: int | None, now: Callable[[], int]) -> TtlStore:
        """A named store. `now` is the task's event time."""
        store = TtlStore(self.rows(name), self.index(name), ttl_ms=ttl_ms, now=now)
        self._stores.append(store)
        return store

    def rows(self, name: str) -> PrefixedStore:
        """Rows under a name, with nothing added to them; they are logged."""
        return PrefixedStore(self._event, namespace(ROWS, name))

    def index(self, name: str) -> PrefixedStore:
        """Rows under a name that are local, and not logged."""
        return PrefixedStore(self._event, namespace(INDEX, name))

    def keep(self) -> None:
        """What the event at hand wrote is to be committed."""
        changes = self._event.changes()
        if changes:
            self._commit.write(changes)
            self._event.clear()

    def undo(self) -> None:
        """Forget what the event at hand wrote."""
        self._event.clear()

    def expire(self, watermark: int) -> None:
        """Delete what is due at this event time, as a user's delete would."""
        for store in self._stores:
            store.expire(watermark)
        self.keep()

    def changes(self) -> tuple[list[Change], list[Change]]:
        """All since the last commit, with the base's keys: rows, which are logged, and index, which is not."""
        assert not self._event.changes(), "keep or undo first"
        changes = self._commit.changes()
        return [each for each in changes if each[0][:1] == ROWS], [each for each in changes if each[0][:1] == INDEX]

    @property
    def cached_bytes(self) -> int:
        return self._cached.bytes_used

    def evict(self) -> None:
        """Hold nothing in memory that the base has."""
        self._cached.clear()

    def committed(self) -> None:
        """`changes()` are in the base now."""
        self._cached.accept(self._commit.changes())
        self._commit.clear()
