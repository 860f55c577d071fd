"""Time to live, in event time: a row is gone once the task's event time reaches its expiry.

A row's value:    version (1 byte, 1)   expiry (8 bytes)   the user's value
An index row:     key: expiry (8 bytes), the row's key     value: empty

An expiry is in ms since 1970, as a big-endian number with 2^63 added, so that bytes sort as times do; all bits set
means never. Every row says its own expiry, so that the time to live may be changed, set and unset later on. The index
is local: it does not reach the changelog, and `reindex` makes it from the rows after a restore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from samovar.state.store import Change, Store, write_some

VERSION = b"\x01"
_NEVER = b"\xff" * 8
_ZERO = 1 << 63
_LAST = (1 << 64) - 2
_HEADER = 9  # version and expiry


class UnknownRowVersionError(ValueError):
    """A row was written by a newer Samovar."""


def _pack_time(time_ms: int) -> bytes:
    """A time that is out of bounds is the first or the last one, never `never`."""
    return min(max(time_ms + _ZERO, 0), _LAST).to_bytes(8, "big")


def _expiry(row: bytes) -> bytes:
    if row[:1] != VERSION or len(row) < _HEADER:
        raise UnknownRowVersionError(f"row format {row[:1].hex()}, known is 01\n  Run the Samovar that wrote it.")
    return row[1:_HEADER]


def unwrapped(row: bytes) -> tuple[int | None, bytes]:
    """When a row is gone, None for never; and the user's value."""
    expiry = _expiry(row)
    return None if expiry == _NEVER else int.from_bytes(expiry, "big") - _ZERO, row[_HEADER:]


class TtlStore:
    """Rows with an expiry; `rows` and `index` are namespaces of one store. Without a `ttl_ms` new rows stay."""

    def __init__(self, rows: Store, index: Store, *, ttl_ms: int | None, now: Callable[[], int]) -> None:
        assert ttl_ms is None or ttl_ms > 0, ttl_ms
        self._rows = rows
        self._index = index
        self._ttl_ms = ttl_ms
        self._now = now

    def get(self, key: bytes) -> bytes | None:
        row = self._rows.get(key)
        return row[_HEADER:] if row is not None and _expiry(row) > _pack_time(self._now()) else None

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        now = _pack_time(self._now())
        below = self._rows.range(start, end)
        return ((key, row[_HEADER:]) for key, row in below if _expiry(row) > now)

    def put(self, key: bytes, value: bytes) -> None:
        """One index row per row: the one of the expiry before goes, whatever that was."""
        self._unindex(key)
        if self._ttl_ms is None:
            self._rows.put(key, VERSION + _NEVER + value)
            return
        expiry = _pack_time(self._now() + self._ttl_ms)
        self._rows.put(key, VERSION + expiry + value)
        self._index.put(expiry + key, b"")

    def delete(self, key: bytes) -> None:
        self._unindex(key)
        self._rows.delete(key)

    def _unindex(self, key: bytes) -> None:
        row = self._rows.get(key)
        if row is not None and (expiry := _expiry(row)) != _NEVER:
            self._index.delete(expiry + key)

    def write(self, changes: Iterable[Change]) -> None:
        for key, value in dict(changes).items():
            if value is None:
                self.delete(key)
            else:
                self.put(key, value)

    def expire(self, watermark: int) -> list[bytes]:
        """Delete what is due, as an ordinary write: it reaches the changelog as tombstones. The keys deleted."""
        due = [key for key, _ in self._index.range(b"", _pack_time(watermark + 1))]
        keys = [key[8:] for key in due]
        # The row decides, not the index: one that does not fit its rows must not delete a living one.
        rows = zip(due, keys, self._rows.multi_get(keys), strict=True)
        gone = [key for indexed, key, row in rows if row is not None and _expiry(row) == indexed[:8]]
        if due:
            self._rows.write([(key, None) for key in gone])
            self._index.write([(key, None) for key in due])
        return gone

    def reindex(self, rows_at_once: int) -> None:
        """Make the index again from the rows: after a restore, which brings back rows only."""
        write_some(self._index, rows_at_once, ((key, None) for key, _ in self._index.range()))
        expiries = ((_expiry(row), key) for key, row in self._rows.range())
        write_some(self._index, rows_at_once, ((expiry + key, b"") for expiry, key in expiries if expiry != _NEVER))

    def close(self) -> None:
        self._rows.close()
        self._index.close()
