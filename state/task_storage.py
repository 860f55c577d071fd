"""A task's storage on this machine: its store and the snapshots of it.

    <state>/<stage>/<partition>/store        RocksDB
    <state>/<stage>/<partition>/snapshots    see samovar.state.snapshots

It outlives the process. A simulation has one in memory.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Protocol

from samovar.common.folders import remove
from samovar.state import snapshots
from samovar.state.rocks import RocksMemory, RocksStore
from samovar.state.snapshots import Snapshot, SnapshotChoice, SnapshotManifest
from samovar.state.store import TaskStore


class LocalStore(TaskStore, Protocol):
    """A task's store where it is kept."""

    def size_bytes(self) -> int: ...


class TaskStorage(Protocol):
    """Where one task keeps its store. One store is open at a time."""

    def open(self) -> LocalStore:
        """The store as it was left, or an empty one. StoreLocked where another process has it."""

    def wipe(self) -> None:
        """Remove the store, which is closed."""

    def newest_snapshot(self) -> SnapshotChoice: ...
    def restore_snapshot(self, snapshot: Snapshot) -> None:
        """Put a copy of a snapshot where the store was wiped."""

    def take_snapshot(self, manifest: SnapshotManifest, *, keep: int) -> None:
        """Copy the open store as it is now, unless a copy is still being made. Only the newest `keep` stay."""

    def close(self) -> None:
        """Wait for copies that are being made."""


class DiskStorage:
    """A folder. The slow half of a snapshot has a thread of its own, unless it is told otherwise."""

    def __init__(self, folder: Path, memory: RocksMemory, *, in_thread: bool = True) -> None:
        self._folder, self._memory, self._in_thread = folder, memory, in_thread
        self._store: RocksStore | None = None
        self._finishing: list[threading.Thread] = []

    def open(self) -> RocksStore:
        self._store = RocksStore(self._folder / "store", memory=self._memory)
        return self._store

    def wipe(self) -> None:
        remove(self._folder / "store")

    def newest_snapshot(self) -> SnapshotChoice:
        return snapshots.newest_valid(self._folder / "snapshots")

    def restore_snapshot(self, snapshot: Snapshot) -> None:
        snapshots.open_copy(snapshot, self._folder / "store")

    def take_snapshot(self, manifest: SnapshotManifest, *, keep: int) -> None:
        assert self._store is not None, self._folder
        self._finishing = [thread for thread in self._finishing if thread.is_alive()]
        if self._finishing:
            return
        part = snapshots.begin(self._store, self._folder / "snapshots")
        if not self._in_thread:
            snapshots.finish(part, manifest, keep=keep)
            return
        thread = threading.Thread(target=snapshots.finish, args=(part, manifest), kwargs={"keep": keep}, daemon=True)
        thread.start()
        self._finishing.append(thread)

    def close(self) -> None:
        for thread in self._finishing:
            thread.join()
