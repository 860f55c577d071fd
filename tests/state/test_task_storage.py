"""A task's storage on disk: the store comes back as it was left, and as it was when a snapshot was taken."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from samovar.state import snapshots
from samovar.state.errors import StoreLocked
from samovar.state.rocks import RocksMemory
from samovar.state.snapshots import ChangelogPosition, SnapshotManifest
from samovar.state.task_storage import DiskStorage, TaskStorage


def manifest(offset: int) -> SnapshotManifest:
    return SnapshotManifest(
        changelog=ChangelogPosition(topic="c", topic_id="id", partition=0, partitions=1, offset=offset, time_ms=0),
        inputs={},
        watermark_ms=None,
        journal=None,
        formats={},
        digest=None,
        created_ms=0,
    )


@pytest.mark.parametrize("in_thread", [True, False])
def test_a_store_is_replaced_by_its_newest_snapshot(tmp_path: Path, in_thread: bool) -> None:
    storage: TaskStorage = DiskStorage(tmp_path / "0", RocksMemory(), in_thread=in_thread)
    store = storage.open()
    assert storage.newest_snapshot().snapshot is None
    for number in range(3):
        store.put(b"a", b"%d" % number)
        storage.take_snapshot(manifest(number), keep=2)
        storage.close()  # waits for it
    store.put(b"a", b"later")
    store.close()
    storage.wipe()
    found = storage.newest_snapshot().snapshot
    assert found is not None
    assert (found.number, found.manifest.changelog.offset) == (3, 2)
    storage.restore_snapshot(found)
    store = storage.open()
    assert list(store.range()) == [(b"a", b"2")]
    store.close()
    assert sorted(path.name for path in (tmp_path / "0" / "snapshots").iterdir()) == ["2", "3"]


def test_a_store_comes_back_as_it_was_left_and_is_open_once(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path / "0", RocksMemory())
    store = storage.open()
    store.put(b"a", b"1")
    with pytest.raises(StoreLocked):
        DiskStorage(tmp_path / "0", RocksMemory()).open()
    store.close()
    store = storage.open()
    assert store.get(b"a") == b"1"
    store.close()


@pytest.mark.parametrize("in_thread", [True, False])
def test_the_slow_half_of_a_snapshot_is_done_next_to_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_thread: bool
) -> None:
    threads: list[int] = []
    finish = snapshots.finish

    def noting(*given: object, **more: int) -> object:
        threads.append(threading.get_ident())
        return finish(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshots, "finish", noting)
    storage = DiskStorage(tmp_path / "0", RocksMemory(), in_thread=in_thread)
    store = storage.open()
    store.put(b"a", b"1")
    storage.take_snapshot(manifest(1), keep=1)
    storage.close()
    store.close()
    assert [each == threading.get_ident() for each in threads] == [not in_thread]
