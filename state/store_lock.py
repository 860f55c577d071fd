"""Keeping others away from a store's folder while it is replaced, whether or not it can be opened."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from samovar.common.folders import make_private
from samovar.state.errors import STOP_OR_READ, StoreError, StoreLocked
from samovar.state.rocks import RocksStore

_LOCK = "LOCK"  # RocksDB's own file: anyone who has a record lock on it has the store


@contextmanager
def holding(path: Path) -> Iterator[None]:
    """Hold a store as a container does, without opening it. The folder may be renamed and replaced meanwhile.

    StoreLocked where another has it. The lock is the process's, so that a handle of this one has to be asked for first:
    RocksDB knows its own.
    """
    if (path / "CURRENT").exists():
        try:
            RocksStore(path).close()
        except StoreLocked:
            raise
        except StoreError:
            pass  # it is replaced, so that damage is no hindrance
    make_private(path)
    handle = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreLocked("another process has this store open", path, STOP_OR_READ, str(error)) from error
        yield
    finally:
        os.close(handle)


def is_open(path: Path) -> bool:
    """Whether another process has the store open. Not for one that has it open itself: that would lose its lock."""
    try:
        handle = os.open(path / _LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
