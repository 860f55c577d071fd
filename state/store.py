"""A key-value store: bytes to bytes, in order of keys, changed by atomic batches. RocksDB and an in-memory twin are
held to one contract (tests/contracts/store.py); wrappers with one concern each are stores themselves.

A Store leaves out transactions, iteration backwards and merge operators: nothing here needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeAlias

Change: TypeAlias = tuple[bytes, bytes | None]  # key and value; None deletes


class Readable(Protocol):
    """What can be asked of a store. `range` sees the store as it was when the iteration began."""

    def get(self, key: bytes) -> bytes | None: ...
    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]: ...
    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with start <= key < end, in order of keys."""


class Store(Readable, Protocol):
    """One writer at a time."""

    def put(self, key: bytes, value: bytes) -> None: ...
    def delete(self, key: bytes) -> None: ...
    def write(self, changes: Iterable[Change]) -> None:
        """All changes or none; of two changes of a key the later one counts."""

    def close(self) -> None: ...


class PrefixScanStore(Protocol):
    """A store that looks up many short prefixes at once, much faster than by a `range` each."""

    def prefixes(self, prefixes: Sequence[bytes]) -> list[list[tuple[bytes, bytes]]]:
        """For each prefix all pairs whose key starts with it, in order of keys."""


class SortedTable(Protocol):
    """Many changes in strict order of keys, which can write themselves as a file of RocksDB's."""

    def changes(self) -> Iterable[Change]: ...
    def write(self, file: Path) -> int:
        """How many rows the file has."""


class TaskStore(Store, PrefixScanStore, Protocol):
    """What a task keeps its state in."""

    def ingest(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Take many sorted pairs at once, much faster than by `write`: all of them or none."""

    def ingest_table(self, table: SortedTable) -> None: ...
    def rows_about(self) -> int:
        """Roughly how many there are, at no cost."""


def write_some(store: Store, rows_at_once: int, changes: Iterator[Change]) -> None:
    """Write many changes, so many at a time: for local indexes, which no commit waits for."""
    while part := list(islice(changes, rows_at_once)):
        store.write(part)
