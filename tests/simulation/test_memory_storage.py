"""The disks of the simulator: what a kill leaves, and what a power cut takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from samovar.state.errors import StoreClosed, StoreLocked
from samovar.state.snapshots import ChangelogPosition, SnapshotManifest
from samovar.state.store import Store
from samovar.tasks.model.clock import SetClock
from tests.contracts.store import StoreContract
from tests.simulation.broker import Broker
from tests.simulation.faults import Killed
from tests.simulation.memory_client import Client
from tests.simulation.memory_storage import Disk, MemoryStorage

FOLDER = Path("0")


def process() -> Client:
    return Client(Broker(SetClock()))


def storage(disk: Disk, client: Client | None = None) -> MemoryStorage:
    return disk.storage_of(client or process())(FOLDER)


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


class TestDiskStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return storage(Disk()).open()


def test_what_was_written_is_there_after_a_kill_and_its_lock_is_free() -> None:
    disk, client = Disk(), process()
    store = storage(disk, client).open()
    store.write([(b"a", b"1"), (b"b", b"1")])
    with pytest.raises(StoreLocked):
        storage(disk).open()
    client.kill()
    again = storage(disk).open()
    assert list(again.range()) == [(b"a", b"1"), (b"b", b"1")]
    with pytest.raises(Killed):
        store.put(b"a", b"zombie")
    store.close()
    with pytest.raises(StoreLocked):  # the dead one's end frees nothing of the living one's
        storage(disk).open()
    again.close()
    with pytest.raises(StoreClosed):
        again.get(b"a")
    assert storage(disk).open().get(b"a") == b"1"


def test_a_power_cut_takes_the_last_batches_back_each_as_a_whole() -> None:
    disk = Disk()
    store = storage(disk).open()
    store.write([(b"a", b"1"), (b"b", b"1"), (b"a", b"2")])
    store.write([(b"a", None), (b"c", b"1")])
    store.write([(b"b", b"2")])
    disk.undo(2)
    assert list(store.range()) == [(b"a", b"2"), (b"b", b"1")]
    disk.undo(9)
    assert list(store.range()) == []


def test_a_disk_may_be_lost() -> None:
    disk = Disk()
    storage(disk).open().put(b"a", b"1")
    disk.lose()
    assert list(storage(disk).open().range()) == []


def test_the_newest_snapshots_stay_as_they_were_taken() -> None:
    disk, client = Disk(), process()
    here = storage(disk, client)
    store = here.open()
    assert here.newest_snapshot().snapshot is None
    for number in range(3):
        store.put(b"a", b"%d" % number)
        here.take_snapshot(manifest(number), keep=2)
    store.put(b"b", b"later")
    client.kill()
    disk.keep_snapshots_only()
    again = storage(disk)
    found = again.newest_snapshot().snapshot
    assert found is not None
    assert (found.number, found.manifest.changelog.offset) == (3, 2)
    assert list(again.open().range()) == []
    again.restore_snapshot(found)
    disk.undo(9)
    assert list(disk.tasks[FOLDER].rows.range()) == [(b"a", b"2")]
    assert list(disk.tasks[FOLDER].snapshots) == [2, 3]
