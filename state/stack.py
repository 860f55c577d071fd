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

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

from samovar.state.prefixed import PrefixedStore
from samovar.state.store import Change, Readable, Store
from samovar.state.ttl import TtlStore

ROWS = b"u"
INDEX = b"x"
NAME_BYTES_MAX = 255
_ENTRY_BYTES = 160  # what Python needs for a cached entry next to its bytes: two objects, a link, a slot of the table
_ONE_BY_ONE = 64  # up to so many new keys are cheaper to place one by one than by sorting all


def namespace(kind: bytes, name: str) -> bytes:
    """What all keys of a store begin with in the base. No store's begins another one's: the length comes first."""
    encoded = name.encode()
    assert len(encoded) <= NAME_BYTES_MAX, name
    return kind + bytes([len(encoded)]) + encoded


def reindexed(base: Store, name: str, rows_at_once: int) -> None:
    """Make the index of a named store fit its rows. At once, in the base: an index is local, and no commit waits."""
    rows, index = PrefixedStore(base, namespace(ROWS, name)), PrefixedStore(base, namespace(INDEX, name))
    TtlStore(rows, index, ttl_ms=None, now=lambda: 0).reindex(rows_at_once)


class CachedStore:
    """A read cache of bounded size: rows read or written lately, also the knowledge that a key has none. The least
    recently used go first. It only ever holds what is in the store below, so it belongs under the overlays.
    """

    def __init__(self, store: Readable, cache_bytes: int) -> None:
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

    def accept(self, changes: Iterable[Change]) -> None:
        """Take over what was written to the store below: the task's one batch."""
        for key, value in changes:
            self._keep(key, value)

    def clear(self) -> None:
        self._rows.clear()
        self.bytes_used = 0

    def _keep(self, key: bytes, value: bytes | None) -> None:
        if key in self._rows:
            self.bytes_used -= _cost(key, self._rows.pop(key))
        self._rows[key] = value
        self.bytes_used += _cost(key, value)
        while self.bytes_used > self._limit:
            oldest, gone = self._rows.popitem(last=False)
            self.bytes_used -= _cost(oldest, gone)


def _cost(key: bytes, value: bytes | None) -> int:
    return _ENTRY_BYTES + len(key) + len(value or b"")


class Overlay:
    """Uncommitted writes on top of a store that it never writes to: the source of truth for what was written since the
    last commit. Read at once, kept apart until the log's commit, thrown away on abort.
    """

    def __init__(self, store: Readable) -> None:
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
        return _merge_changes(below, above) if above else below

    def put(self, key: bytes, value: bytes) -> None:
        self._changes[key] = value

    def delete(self, key: bytes) -> None:
        self._changes[key] = None

    def write(self, changes: Iterable[Change]) -> None:
        self._changes.update(list(changes))

    def close(self) -> None:
        """What was not committed is gone."""
        self.clear()

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


def _merge_changes(below: Iterator[tuple[bytes, bytes]], above: list[Change]) -> Iterator[tuple[bytes, bytes]]:
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


class Stack:
    """All stores of one task over its base, and the handles by which the task keeps, undoes and commits them."""

    def __init__(self, base: Store, cache_bytes: int) -> None:
        self.cached = CachedStore(base, cache_bytes)
        self._commit = Overlay(self.cached)
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

    def evict(self) -> None:
        """Hold nothing in memory that the base has."""
        self.cached.clear()

    def committed(self) -> None:
        """`changes()` are in the base now."""
        self.cached.accept(self._commit.changes())
        self._commit.clear()
