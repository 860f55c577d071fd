"""Reading from RocksDB, for the store that writes and for the one that only reads. Damage is an error, never a gap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, cast
from weakref import WeakSet

from rocksdict import Rdict, RdictIter, ReadOptions

from samovar.state.errors import StoreClosed, damaged, explained

Pair: TypeAlias = tuple[bytes, bytes]

# Sorting makes neighbours share blocks, which pays from about here on.
_SORTED_FROM = 64
_CHUNKS = (16, 128, 1024)  # pairs a step of a range: few for the short ones, many for the long


class StoreCursor:
    """One iteration over a range. The store drops its handles at close: a live one would keep RocksDB's lock.

    `items` is quick, but ends at a damaged block as if it were the end of the range. So a second iterator, made at the
    same moment and thus with the same view, is asked at the end whether there really is nothing more.
    """

    def __init__(self, db: Rdict, where: Path, start: bytes, end: bytes | None) -> None:
        self._where = where
        self._last: bytes | None = None
        self._start = start
        # Kept as long as the iterators are: they point to the end's bytes, which only the options hold on to.
        self._bounds = _bounds(end)
        self._items: Iterator[Any] | None = db.items(from_key=start, read_opt=self._bounds)
        self._probe: RdictIter | None = db.iter(self._bounds)

    def release(self) -> None:
        self._items = self._probe = None

    def pairs(self) -> Iterator[Pair]:
        """All pairs, in chunks: a Python call a pair would cost more than reading it."""
        sizes = iter(_CHUNKS)
        size = next(sizes)
        while chunk := self._chunk(size):
            yield from chunk
            size = next(sizes, size)
        self.release()

    def _chunk(self, size: int) -> list[Pair]:
        if self._items is None or self._probe is None:
            raise StoreClosed("the store was closed while a range was read", self._where, "Open it again.")
        chunk = cast(list[Pair], list(islice(self._items, size)))
        if chunk:
            self._last = chunk[-1][0]
        if len(chunk) < size:
            self._check_end(self._probe)
        return chunk

    def _check_end(self, probe: RdictIter) -> None:
        try:
            probe.seek(self._start if self._last is None else self._last)
            if self._last is not None and probe.valid():
                probe.next()
            probe.status()
        except Exception as error:
            raise explained(error, self._where, "range") from error
        if probe.valid():
            raise damaged(self._where, f"a range ended after {self._last!r}, before {probe.key()!r}")


def _bounds(end: bytes | None) -> ReadOptions:
    made = ReadOptions()
    made.set_verify_checksums(True)
    if end is not None:
        made.set_iterate_upper_bound(end)
    return made


class RocksReader:
    """What a store that writes and one that only reads have in common: a handle, and the ranges read from it."""

    def __init__(self, path: Path, db: Rdict) -> None:
        self.path = path
        self._db: Rdict | None = db
        self._cursors: WeakSet[StoreCursor] = WeakSet()

    def _open(self) -> Rdict:
        if self._db is None:
            raise StoreClosed("a closed store was used", self.path, "Open it again.")
        return self._db

    def get(self, key: bytes) -> bytes | None:
        db = self._open()
        try:
            return cast(bytes | None, db.get(key))
        except Exception as error:
            raise explained(error, self.path, "get") from error

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if len(keys) < _SORTED_FROM:
            return self._multi_get(list(keys))
        order = sorted(range(len(keys)), key=keys.__getitem__)
        values: list[bytes | None] = [None] * len(keys)
        for place, value in zip(order, self._multi_get([keys[place] for place in order]), strict=True):
            values[place] = value
        return values

    def _multi_get(self, keys: list[Any]) -> list[bytes | None]:
        db = self._open()
        try:
            return cast(list[bytes | None], db.get(keys)) if keys else []
        except Exception as error:
            raise explained(error, self.path, "multi_get") from error

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[Pair]:
        if end is not None and start >= end:
            return iter(())
        cursor = StoreCursor(self._open(), self.path, start, end)
        self._cursors.add(cursor)
        return cursor.pairs()

    def prefixes(self, prefixes: Sequence[bytes]) -> list[list[Pair]]:
        """For each prefix all pairs whose key starts with it. One iterator for all, much cheaper than a range each."""
        cursor = self._open().iter(_bounds(None))
        try:
            return _by_prefix(cursor, prefixes)
        except Exception as error:
            raise explained(error, self.path, "prefixes") from error

    def close(self) -> None:
        """Free the lock at once. A range that is still being read ends with StoreClosed."""
        for cursor in list(self._cursors):
            cursor.release()
        db, self._db = self._db, None
        if db is not None:
            # It flushes first, which fails on a full disk: nothing is lost then, the rows are in the write-ahead log.
            with suppress(Exception):
                db.close()


def _by_prefix(cursor: RdictIter, prefixes: Sequence[bytes]) -> list[list[Pair]]:
    found: list[list[Pair]] = [[] for _ in prefixes]
    seek, valid, key, value, step = cursor.seek, cursor.valid, cursor.key, cursor.value, cursor.next
    before, here = b"", b""  # the prefix before this one, and the key that the cursor stands at
    for place in sorted(range(len(prefixes)), key=prefixes.__getitem__):
        prefix = prefixes[place]
        # A prefix within the one before has been passed; one that lies ahead of the cursor needs no seek.
        if here < prefix or prefix.startswith(before):
            seek(prefix)
        pairs = found[place]
        while valid():
            here = cast(bytes, key())
            if not here.startswith(prefix):
                break
            pairs.append((here, cast(bytes, value())))
            step()
        else:
            cursor.status()  # raises where damage, not the end of the store, stopped it
            here = b""
        before = prefix
    return found
