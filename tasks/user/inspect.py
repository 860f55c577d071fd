"""A user's stores and timers to look at, in any store that holds a task's rows: live, restored, or of a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from samovar.changelog.formats.record import USER
from samovar.state.digest import digest
from samovar.state.prefixed import PrefixedStore, after
from samovar.state.stack import INDEX, ROWS, namespace
from samovar.state.store import Readable, Store
from samovar.state.ttl import TtlStore, unwrapped
from samovar.tasks.user.context import NotAllowedError
from samovar.tasks.user.stores import Values, unpack
from samovar.tasks.user.timers import OWN, TIMER, time_of

assert ROWS == USER, "a row of the stack is a record of the changelog"


@dataclass(frozen=True, slots=True, kw_only=True)
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


def user_row(row: bytes, packed: bytes) -> UserRow:
    """A row of the base, readably."""
    size = row[1]
    expires, value = unwrapped(packed)
    return UserRow(
        store=row[2 : 2 + size].decode(),
        key=row[2 + size :].decode(),
        value=unpack(value),
        expires=expires,
        size=len(row) + len(packed),
    )


def timers_of(store: Readable) -> dict[str, int]:
    """Timers that are set, and when they are due."""
    prefix = namespace(ROWS, OWN) + TIMER
    return {row[len(prefix) :].decode(): time_of(time) for row, time in store.range(prefix, after(prefix))}


def digest_of_task(store: Readable) -> str:
    """The digest of a task's stores and timers. What is due is deleted by every commit, so the rows are the state."""
    return digest(store.range(ROWS, after(ROWS)))


class StoreView(Values):
    """A named store at an event time, to read: as a task would see it."""

    def __init__(self, store: Readable, name: str, now: int) -> None:
        base = cast(Store, store)  # nothing is written: `Values` refuses it
        rows, index = PrefixedStore(base, namespace(ROWS, name)), PrefixedStore(base, namespace(INDEX, name))
        super().__init__(TtlStore(rows, index, ttl_ms=None, now=lambda: now), self._refuse_writes)

    @staticmethod
    def _refuse_writes() -> None:
        raise NotAllowedError("a test reads a task's store, and writes nothing to it")

    def items(self) -> dict[str, Any]:
        return dict(self.range())
