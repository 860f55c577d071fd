"""Sorted table files (RocksDB's SST), written anywhere and taken into a store later: so state comes from elsewhere.

`TableStore` looks like an empty store that is only written: a restore fills it as it would fill a real one, and every
batch becomes a file. Files are taken in order of their numbers; of a key in several, the last counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from rocksdict import SstFileWriter

from samovar.common.tunables import DEFAULTS
from samovar.state.errors import explained, out_of_order
from samovar.state.reading import RocksMemory, options
from samovar.state.store import Change, SortedTable

ENDING = ".sst"
Done = TypeVar("Done")


class TableStore:
    """Files in a folder, one per batch. Nothing can be read of it: it is empty to anyone who asks."""

    def __init__(self, folder: Path, file_rows: int = DEFAULTS.file_rows) -> None:
        self.folder = folder
        self._file_rows = file_rows
        self.rows = 0
        self.files: list[Path] = []
        self._memory = RocksMemory()

    def get(self, key: bytes) -> bytes | None:  # noqa: ARG002 - as a store has it
        return None

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [None] * len(keys)

    def range(
        self,
        start: bytes = b"",  # noqa: ARG002 - as above
        end: bytes | None = None,  # noqa: ARG002 - as above
    ) -> Iterator[tuple[bytes, bytes]]:
        return iter(())

    def prefixes(self, prefixes: Sequence[bytes]) -> list[list[tuple[bytes, bytes]]]:
        return [[] for _ in prefixes]

    def rows_about(self) -> int:
        return self.rows

    def put(self, key: bytes, value: bytes) -> None:
        self.write([(key, value)])

    def delete(self, key: bytes) -> None:
        self.write([(key, None)])

    def write(self, changes: Iterable[Change]) -> None:
        self.ingest(sorted(dict(changes).items()))

    def ingest(self, pairs: Iterable[Change]) -> None:
        """Pairs in strict order of keys."""
        self._write_table(lambda file: write_table(file, pairs, self._memory, self.folder))

    def copy(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """As `ingest`, of any number of rows: in files of a bounded size."""
        rest = iter(pairs)
        while (first := next(rest, None)) is not None:
            self.ingest(chain([first], islice(rest, self._file_rows - 1)))

    def ingest_table(self, table: SortedTable) -> None:
        """As `ingest`, of a table that writes its own file."""
        self._write_table(lambda file: do(lambda: table.write(file), self.folder))

    def _write_table(self, write: Callable[[Path], int]) -> None:
        file = self.folder / f"{len(self.files) + 1:06}{ENDING}"
        rows = write(file)
        if rows:
            self.files.append(file)
            self.rows += rows

    def close(self) -> None:
        """There is nothing open."""


def write_table(file: Path, changes: Iterable[Change], memory: RocksMemory, where: Path) -> int:
    """Write a table file; how many rows it holds. Keys come in strict order. RocksDB cannot make an empty one."""
    writer = SstFileWriter(options(memory))
    count, before = 0, b""
    do(lambda: writer.open(str(file)), where)
    for key, value in changes:
        try:
            if value is None:
                del writer[key]
            else:
                writer[key] = value  # refuses a key that is not after the one before
        except Exception as error:
            told = out_of_order(count, where) if count and key <= before else explained(error, where, "ingest")
            raise told from error
        count, before = count + 1, key
    if count:
        do(writer.finish, where)
    return count


def do(part: Callable[[], Done], where: Path, doing: str = "ingest") -> Done:
    """One step of RocksDB's, its error explained."""
    try:
        return part()
    except Exception as error:
        raise explained(error, where, doing) from error
