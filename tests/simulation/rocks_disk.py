"""A disk of the simulator with RocksDB on it, for the few seeds that are to show that the twin in memory is none too
kind. Snapshots are made at once, in the process's own thread.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from samovar.state.rocks import RocksMemory, RocksStore
from samovar.state.task_storage import DiskStorage
from tests.simulation.memory_client import Client


class RocksDisk:
    """One machine's disk, as tests.simulation.memory_storage.Disk is. No power cut: RocksDB would need one too."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._memory = RocksMemory()
        self._open: dict[Path, tuple[RocksStore, Client]] = {}

    def storage_of(self, client: Client) -> Callable[[Path], DiskStorage]:
        return lambda folder: _Storage(self, client, self._root / folder, self._memory)

    def opened(self, folder: Path, store: RocksStore, client: Client) -> None:
        self._open[folder] = store, client

    def free(self, folder: Path) -> None:
        """A process that is dead has no lock any more; what it wrote is in the write-ahead log."""
        if folder in self._open and self._open[folder][1].is_dead:
            self._open.pop(folder)[0].close()

    def lose(self) -> None:
        for folder in list(self._open):
            self.free(folder)
        shutil.rmtree(self._root, ignore_errors=True)

    def keep_snapshots_only(self) -> None:
        for folder in list(self._open):
            self.free(folder)
            shutil.rmtree(folder / "store", ignore_errors=True)


class _Storage(DiskStorage):
    def __init__(self, disk: RocksDisk, client: Client, folder: Path, memory: RocksMemory) -> None:
        super().__init__(folder, memory, in_thread=False)
        self._disk, self._client = disk, client

    def open(self) -> RocksStore:
        self._disk.free(self._folder)
        store = super().open()
        self._disk.opened(self._folder, store, self._client)
        return store
