"""Reading a store that a container has open: a RocksDB secondary instance, which takes no lock and changes no file of
RocksDB's. The folder must be writable all the same: rocksdict writes its own small settings file at every opening.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TypeAlias

from rocksdict import AccessType, Rdict

from samovar.state.errors import StoreError, StoreMissing, explained
from samovar.state.reading import MB, RocksMemory, RocksReader, check_manifest, options

_TRIES = 100
_Shape: TypeAlias = tuple[bytes, int, int]  # what CURRENT says; which file that manifest is, and its length


class SecondaryStore(RocksReader):
    """A store as it was when this was opened, or last caught up. Read only; also of use where no container runs."""

    def __init__(self, path: Path, *, memory: RocksMemory | None = None) -> None:
        self._memory = memory or RocksMemory(cache_bytes=32 * MB, write_buffer_bytes=16 * MB)
        self._own = Path(tempfile.mkdtemp(prefix="samovar-read-"))
        self._opens = 0
        self._shape: _Shape | None = None
        try:
            super().__init__(path, self._opened(path))
        except StoreError:
            shutil.rmtree(self._own, ignore_errors=True)
            raise

    def catch_up(self) -> None:
        """See what has been written since. Ranges that are being read keep what they began with."""
        if not self.follow():
            before, self._db = self._open(), self._opened(self.path)
            before.close()

    def follow(self) -> bool:
        """The same without opening again, which takes as long as there is log to read; False where it cannot be done.

        That is after a flush: RocksDB's own catching up keeps old values of rows that came to a table in the meantime.
        Others may read while it goes on.
        """
        if _shape(self.path) != self._shape:
            return False
        try:
            self._open().try_catch_up_with_primary()
        except Exception as error:
            if _shape(self.path) != self._shape:
                return False
            raise explained(error, self.path, "catch up") from error
        return _shape(self.path) == self._shape

    def close(self) -> None:
        super().close()
        shutil.rmtree(self._own, ignore_errors=True)

    def _opened(self, path: Path) -> Rdict:
        """Open while the manifest stands still. A flush between reading it and reading the logs would hide rows."""
        for _ in range(_TRIES):
            before = _shape(path)
            self._opens += 1
            own = str(self._own / str(self._opens))
            try:
                check_manifest(path)
                # Said of the column family, too: without it a secondary has RocksDB's own options, and its own cache.
                made = options(self._memory)
                access = AccessType.secondary(own)
                db = Rdict(str(path), made, column_families={"default": made}, access_type=access)
            except Exception as error:
                if _shape(path) != before:
                    continue
                if isinstance(error, StoreError):
                    raise
                raise explained(error, path, "open to read") from error
            if _shape(path) == before:
                self._shape = before
                return db
            db.close()
        hint = "Ask again when the container has less to do, or read a snapshot."
        raise StoreError("the store changes faster than it can be opened", path, hint)


def _shape(path: Path) -> _Shape:
    try:
        current = (path / "CURRENT").read_bytes()
        manifest = (path / current.decode("utf-8", "replace").strip()).stat()
        return current, manifest.st_ino, manifest.st_size
    except FileNotFoundError as error:
        if any(path.glob("*.sst")) or any(path.glob("MANIFEST-*")):
            raise explained(error, path, "open to read") from error
        hint = "Name the folder of one partition's store; `samovar run` makes it, `samovar restore` brings it back."
        raise StoreMissing("there is no store here", path, hint) from error
