"""The store on disk: RocksDB, raw bytes. Its write-ahead log is on and not synced: a kill -9 loses nothing, and a power
cut at most the newest changes, whose place the position row tells.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from rocksdict import Checkpoint, IngestExternalFileOptions, Rdict, WriteBatch

from samovar.common.folders import link_or_copy, make_private
from samovar.state.errors import damaged, explained
from samovar.state.reading import Pair, RocksMemory, RocksReader, check_manifest, options
from samovar.state.store import Change, SortedTable
from samovar.state.tables import do, write_table

__all__ = ["RocksMemory", "RocksStore"]


class RocksStore(RocksReader):
    """The source of truth for one task's rows on this machine. One process has it open, and one thread uses it."""

    def __init__(self, path: Path, *, memory: RocksMemory | None = None) -> None:
        self._memory = memory or RocksMemory()
        make_private(path)
        # RocksDB would make a new, empty store where CURRENT is missing. It writes CURRENT before the first row.
        rows = [*path.glob("*.sst"), *path.glob("*.log")]
        if (path / "CURRENT").exists():
            check_manifest(path)
        elif rows:
            raise damaged(path, f"CURRENT is missing, and there is {rows[0].name}")
        super().__init__(path, do(lambda: Rdict(str(path), options(self._memory)), path, "open"))

    def put(self, key: bytes, value: bytes) -> None:
        db = self._open()
        try:
            db.put(key, value)
        except Exception as error:
            raise explained(error, self.path, "put") from error

    def delete(self, key: bytes) -> None:
        db = self._open()
        try:
            db.delete(key)
        except Exception as error:
            raise explained(error, self.path, "delete") from error

    def write(self, changes: Iterable[Change]) -> None:
        db, batch = self._open(), WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key, value in changes:
            if value is None:
                delete(key)
            else:
                put(key, value)
        try:
            db.write(batch)
        except Exception as error:
            raise explained(error, self.path, "write") from error

    def ingest(self, pairs: Iterable[Pair]) -> None:
        """Take pairs in strict order of keys, as one file: all of them or none. They win over what was there."""
        db = self._open()
        with tempfile.TemporaryDirectory(prefix="ingest-", dir=self.path) as folder:
            file = Path(folder) / "pairs.sst"
            if write_table(file, pairs, self._memory, self.path):
                self._ingest_file(db, file)

    def ingest_table(self, table: SortedTable) -> None:
        """As `ingest`, of a table that writes its own file."""
        db = self._open()
        with tempfile.TemporaryDirectory(prefix="ingest-", dir=self.path) as folder:
            file = Path(folder) / "pairs.sst"
            do(lambda: table.write(file), self.path)
            self._ingest_file(db, file)

    def ingest_tables(self, files: Iterable[Path]) -> None:
        """Take table files that were written elsewhere, one after the other; what is later wins. The files stay."""
        db = self._open()
        with tempfile.TemporaryDirectory(prefix="ingest-", dir=self.path) as folder:
            for number, file in enumerate(files):
                own = Path(folder) / f"{number}.sst"
                link_or_copy(file, own)
                self._ingest_file(db, own)

    def _ingest_file(self, db: Rdict, file: Path) -> None:
        moved = IngestExternalFileOptions()
        moved.set_move_files(True)
        do(lambda: db.ingest_external_file([str(file)], moved), self.path)

    def snapshot(self, folder: Path) -> None:
        """A copy that can be opened as a store, in a folder that must not exist yet. Table files are hard links."""
        db = self._open()
        do(lambda: Checkpoint(db).create_checkpoint(str(folder)), folder, "snapshot")

    def size_bytes(self) -> int:
        """What it takes: table files on disk, and rows that are still in memory."""
        db = self._open()
        names = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
        return sum(int(db.property_int_value(name) or 0) for name in names)

    def rows_about(self) -> int:
        return int(self._open().property_int_value("rocksdb.estimate-num-keys") or 0)

    def flush(self) -> None:
        """Write what is in memory to table files, so that opening again has no log to replay."""
        do(self._open().flush, self.path, "flush")

    def compact(self) -> None:
        """Merge all table files, which also reads every block of them."""
        db = self._open()
        do(lambda: db.compact_range(None, None), self.path, "compact")
