"""Whether a store is one that a container would open: a copy of it is opened as a container does.

A secondary instance, which readers use, is more lenient: it looks at a table only when it reads from it, and takes a
damaged place in a log for the end of what was written. Table files never change, so that they are linked; all others
are small and are copied. Nothing of the store itself is touched.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from samovar.common.folders import link_or_copy
from samovar.state.errors import StoreError
from samovar.state.reading import MB, RocksMemory
from samovar.state.rocks import RocksStore

TABLES = (".sst",)
LOCK = "LOCK"
TRIES = 5
KEPT = ("*.sst", "*.log", "MANIFEST-*", "CURRENT")
Listing: TypeAlias = list[tuple[str, int, int]]


def holds_rows(folder: Path) -> bool:
    """Whether there is something of a store in a folder, be it damaged."""
    return any(True for pattern in KEPT for _ in folder.glob(pattern))


def check_sound(path: Path, *, rows: bool = False, most_bytes: int | None = None) -> bool:
    """Refuse a store that a container would refuse to open; with `rows`, also one with a row that cannot be read.

    Returns whether all of that was looked at: not the rows of a store of more than `most_bytes`, and not one that is
    being written so busily that no copy can be had, which a container has opened then.
    """
    for _ in range(TRIES):
        before = _listing(path)
        with tempfile.TemporaryDirectory(prefix="check-", dir=path.parent) as folder:
            copy = Path(folder) / "store"
            copied = copy_store(path, copy)
            if not copied or _listing(path) != before:
                continue
            size = sum(each for name, each, _ in before if name.endswith(TABLES))
            is_small = most_bytes is None or size <= most_bytes
            try:
                store = RocksStore(copy, memory=RocksMemory(cache_bytes=32 * MB, write_buffer_bytes=16 * MB))
                with closing(store):
                    for _ in store.range() if rows and is_small else ():
                        pass
            except StoreError as error:
                if _listing(path) != before:
                    continue
                raise replace(error, where=path, detail=error.detail.replace(str(copy), str(path))) from error
            return is_small or not rows
    return False


def _listing(path: Path) -> Listing:
    found: Listing = []
    for file in sorted(path.iterdir()):
        try:
            stat = file.stat()
        except FileNotFoundError:
            continue
        if file.is_file() and file.name != LOCK and not file.name.startswith(("LOG", "OPTIONS", "rocksdict")):
            found.append((file.name, stat.st_size, stat.st_mtime_ns))
    return found


def copy_store(path: Path, copy: Path) -> bool:
    """Copies a store's files, tables as links. False where one went away meanwhile."""
    copy.mkdir()
    try:
        for file in path.iterdir():
            if not file.is_file() or file.name == LOCK:
                continue
            (link_or_copy if file.suffix in TABLES else shutil.copyfile)(file, copy / file.name)
    except FileNotFoundError:
        return False
    return True
