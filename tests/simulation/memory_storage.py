"""Disks of the simulator: what is left of a process when it is killed, in memory.

    disk = Disk()
    upkeep = Upkeep(folder, ..., storage=disk.storage_of(log), has_threads=False)
    log.kill()             the process is gone: every batch that it wrote is there, and its locks are free
    disk.lose()            so is the disk
    disk.undo(2)           the machine lost its power, and with it the last two batches of every store

A store is open in one process at a time. Snapshots are made at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from samovar.common.failpoints import hit
from samovar.state.errors import StoreClosed, StoreLocked
from samovar.state.memory import MemoryStore
from samovar.state.snapshots import Snapshot, SnapshotChoice, SnapshotManifest
from samovar.state.store import Change, SortedTable
from tests.simulation.faults import Killed
from tests.simulation.memory_client import Client

UNSYNCED = 8  # batches that a power cut may take back


class TaskFiles:
    """What a disk holds of one task."""

    def __init__(self) -> None:
        self.rows = MemoryStore()
        self.before: deque[list[Change]] = deque(maxlen=UNSYNCED)  # what undoes each of the last batches
        self.snapshots: dict[int, tuple[SnapshotManifest, list[tuple[bytes, bytes]]]] = {}
        self.owner: DiskStore | None = None

    def write(self, changes: Iterable[Change]) -> None:
        taken = list(changes)
        get = self.rows.get
        self.before.append([(key, get(key)) for key in dict.fromkeys(key for key, _ in taken)])
        self.rows.write(taken)

    def undo(self, batches: int) -> None:
        for _ in range(min(batches, len(self.before))):
            self.rows.write(self.before.pop())

    def wipe(self) -> None:
        self.rows = MemoryStore()
        self.before.clear()


class Disk:
    """One machine's disk: the source of truth for what outlives its processes."""

    def __init__(self) -> None:
        self.tasks: dict[Path, TaskFiles] = {}

    def storage_of(self, client: Client) -> Callable[[Path], MemoryStorage]:
        """The storages of a process's tasks, by their folders."""
        return lambda folder: MemoryStorage(self.tasks.setdefault(folder, TaskFiles()), client, folder)

    def lose(self) -> None:
        self.tasks.clear()

    def undo(self, batches: int) -> None:
        """Take back what was written last. No process may be at work."""
        for files in self.tasks.values():
            files.undo(batches)

    def keep_snapshots_only(self) -> None:
        """All stores are lost, and their snapshots are not."""
        for files in self.tasks.values():
            files.wipe()


class DiskStore:
    """A store as one process has it open, as samovar.state.task_storage.LocalStore says."""

    def __init__(self, files: TaskFiles, client: Client, folder: Path) -> None:
        self._files, self._client, self._folder = files, client, folder
        self._is_closed = False

    @property
    def is_alive(self) -> bool:
        return not (self._is_closed or self._client.is_dead)

    def _open(self) -> TaskFiles:
        if self._client.is_dead:
            raise Killed(str(self._folder))
        if self._is_closed:
            raise StoreClosed("a closed store was used", self._folder, "Open it again.")
        return self._files

    def get(self, key: bytes) -> bytes | None:
        return self._open().rows.get(key)

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._open().rows.multi_get(keys)

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return self._open().rows.range(start, end)

    def prefixes(self, prefixes: Sequence[bytes]) -> list[list[tuple[bytes, bytes]]]:
        return self._open().rows.prefixes(prefixes)

    def rows_about(self) -> int:
        return self._open().rows.rows_about()

    def size_bytes(self) -> int:
        return sum(len(key) + len(value) for key, value in self.range())

    def put(self, key: bytes, value: bytes) -> None:
        self._open().write([(key, value)])

    def delete(self, key: bytes) -> None:
        self._open().write([(key, None)])

    def write(self, changes: Iterable[Change]) -> None:
        self._open().write(changes)

    def ingest(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        files, taken = self._open(), list(pairs)
        MemoryStore().ingest(taken)  # refuses what is not in order
        files.write(taken)

    def ingest_table(self, table: SortedTable) -> None:
        self._open().write(table.changes())

    def close(self) -> None:
        self._is_closed = True


class MemoryStorage:
    """One task's storage, as samovar.state.task_storage.TaskStorage says."""

    def __init__(self, files: TaskFiles, client: Client, folder: Path) -> None:
        self._files, self._client, self._folder = files, client, folder

    def open(self) -> DiskStore:
        owner = self._files.owner
        if owner is not None and owner.is_alive:
            raise StoreLocked("another process has this store open", self._folder, "Stop the container that has it.")
        self._files.owner = DiskStore(self._files, self._client, self._folder)
        return self._files.owner

    def wipe(self) -> None:
        self._files.wipe()

    def newest_snapshot(self) -> SnapshotChoice:
        held = self._files.snapshots
        if not held:
            return SnapshotChoice(None, ())
        number = max(held)
        return SnapshotChoice(Snapshot(self._folder / "snapshots" / str(number), held[number][0], {}), ())

    def restore_snapshot(self, snapshot: Snapshot) -> None:
        self._files.wipe()
        self._files.rows.write(self._files.snapshots[snapshot.number][1])

    def take_snapshot(self, manifest: SnapshotManifest, *, keep: int) -> None:
        held = self._files.snapshots
        rows = list(self._files.rows.range())
        hit("snapshot.before")
        held[max(held, default=0) + 1] = manifest, rows
        hit("snapshot.after")
        for number in sorted(held)[:-keep]:
            del held[number]

    def close(self) -> None:
        """No copy is being made."""
