"""A user's stores and timers to look at, in any store that holds a task's rows: live, restored, or of a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from samovar.changelog.formats.record import USER
from samovar.state.digest import digest
from samovar.state.prefixed import after
from samovar.state.stack import ROWS, namespace
from samovar.state.store import Readable
from samovar.state.ttl import unwrapped
from samovar.tasks.user.stores import key_bytes, unpack
from samovar.tasks.user.timers import OWN, TIMER, time_of

assert ROWS == USER, "a row of the stack is a record of the changelog"


@dataclass(frozen=True, slots=True)
class UserRow:
    """A row of a named store. `expires` is the event time from which on it is gone, None: never."""

    store: str
    key: str
    value: Any
    expires: int | None
    size: int  # bytes of the row, key and all

    def data(self) -> dict[str, Any]:
        value = self.value.hex() if isinstance(self.value, bytes) else self.value
        return {"store": self.store, "key": self.key, "value": value, "expires": self.expires}


def rows_of_stores(store: Readable) -> Iterator[UserRow]:
    """All rows of all named stores, in the order of names (short ones first) and keys; those that are due too."""
    for row, packed in store.range(ROWS + b"\x01", after(ROWS)):
        yield user_row(row, packed)


def rows_of_store(store: Readable, name: str, start: str = "") -> Iterator[UserRow]:
    prefix = namespace(ROWS, name)
    for row, packed in store.range(prefix + key_bytes(start), after(prefix)):
        yield user_row(row, packed)


def user_row(row: bytes, packed: bytes) -> UserRow:
    """A row of the base, readably."""
    size = row[1]
    expires, value = unwrapped(packed)
    return UserRow(row[2 : 2 + size].decode(), row[2 + size :].decode(), unpack(value), expires, len(row) + len(packed))


def timers_of(store: Readable) -> dict[str, int]:
    """Timers that are set, and when they are due."""
    prefix = namespace(ROWS, OWN) + TIMER
    return {row[len(prefix) :].decode(): time_of(time) for row, time in store.range(prefix, after(prefix))}


def digest_of_task(store: Readable) -> str:
    """The digest of a task's stores and timers. What is due is deleted by every commit, so the rows are the state."""
    return digest(store.range(ROWS, after(ROWS)))


class StoreView:
    """A named store at an event time, to read: as a task would see it."""

    def __init__(self, store: Readable, name: str, now: int) -> None:
        self._store, self._name, self._now = store, name, now

    def get(self, key: str, default: Any = None) -> Any:
        row = namespace(ROWS, self._name) + key_bytes(key)
        packed = self._store.get(row)
        found = None if packed is None else user_row(row, packed)
        return found.value if found is not None and self._is_alive(found) else default

    def range(self, start: str = "", end: str | None = None) -> Iterator[tuple[str, Any]]:
        rows = rows_of_store(self._store, self._name, start)
        last = None if end is None else key_bytes(end)
        return (
            (row.key, row.value) for row in rows if (last is None or row.key.encode() < last) and self._is_alive(row)
        )

    def starting(self, prefix: str) -> Iterator[tuple[str, Any]]:
        return ((key, value) for key, value in self.range(prefix) if key.startswith(prefix))

    def items(self) -> dict[str, Any]:
        return dict(self.range())

    def _is_alive(self, row: UserRow) -> bool:
        return row.expires is None or row.expires > self._now
