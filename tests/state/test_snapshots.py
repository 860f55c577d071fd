"""Snapshots: whole or not there, verified before use, kept a few deep."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from samovar.state.digest import digest
from samovar.state.errors import StoreError, StoreFull
from samovar.state.rocks import RocksStore
from samovar.state.snapshots import (
    BadSnapshot,
    ChangelogPosition,
    Snapshot,
    SnapshotManifest,
    begin,
    finish,
    listed,
    newest_valid,
    open_copy,
    take,
    verify,
)

MANIFEST = SnapshotManifest(
    changelog=ChangelogPosition(
        topic="fraud-changelog", topic_id="id-1", partition=3, partitions=8, offset=1234, time_ms=1_700_000_000_000
    ),
    inputs={"payments/3": 99, "logins/3": 12},
    watermark_ms=1_700_000_000_123,
    journal=None,
    formats={"row": 1, "state": 2},
    digest=None,
    created_ms=1_700_000_001_000,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    store = RocksStore(tmp_path / "store")
    store.write([(b"%05d" % place, b"value %d" % place) for place in range(3000)])
    yield store
    store.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "snapshots"


def taken(store: RocksStore, folder: Path, offset: int, keep: int = 3) -> Snapshot:
    """Change a row and take a snapshot that says so."""
    store.put(b"offset", b"%d" % offset)
    changelog = replace(MANIFEST.changelog, offset=offset)
    return take(store, folder, replace(MANIFEST, changelog=changelog, digest=digest(store.range())), keep=keep)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def flip(file: Path, at: int) -> None:
    """Flip a bit in place of a file with a name of its own: a table file is the store's too."""
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.unlink()
    file.write_bytes(content)


def test_a_copy_of_a_snapshot_is_the_store_as_it_was(store: RocksStore, folder: Path, tmp_path: Path) -> None:
    snapshot = taken(store, folder, 7)
    wanted = list(store.range())
    store.write([(key, None) for key, _ in wanted[::2]])
    store.compact()
    found = newest_valid(folder)
    assert found.snapshot == snapshot
    assert found.skipped == ()
    assert snapshot.manifest.changelog.offset == 7
    assert snapshot.manifest.inputs == MANIFEST.inputs
    open_copy(snapshot, tmp_path / "copy")
    assert all(
        (tmp_path / "copy" / name).samefile(snapshot.folder / name) == name.endswith(".sst") for name in snapshot.files
    )
    copy = RocksStore(tmp_path / "copy")
    assert list(copy.range()) == wanted
    assert digest(copy.range()) == snapshot.manifest.digest
    copy.write([(key, b"changed") for key, _ in wanted])
    copy.compact()
    copy.close()
    verify(snapshot)  # what happens to the copy does not reach it


def test_the_newest_few_are_kept(store: RocksStore, folder: Path) -> None:
    for offset in range(5):
        taken(store, folder, offset, keep=2)
    assert names(folder) == ["4", "5"]
    assert [snapshot.manifest.changelog.offset for snapshot in listed(folder)] == [3, 4]


def test_files_that_two_snapshots_share_have_one_checksum(store: RocksStore, folder: Path) -> None:
    first = taken(store, folder, 1)
    second = taken(store, folder, 2)
    shared = {name for name in first.files.keys() & second.files.keys() if name.endswith(".sst")}
    assert shared
    assert all(first.files[name] == second.files[name] for name in shared)
    verify(second)


def test_a_flipped_bit_in_any_file_passes_a_snapshot_over(store: RocksStore, folder: Path) -> None:
    older = taken(store, folder, 1)
    newer = taken(store, folder, 2)
    for name, file in newer.files.items():
        for at in {0, file.bytes // 2, file.bytes - 1} if file.bytes else set():
            flip(newer.folder / name, at)
            found = newest_valid(folder)
            assert found.snapshot == older
            assert found.skipped == (f"snapshot 2: {name} is damaged: its checksum is another one",)
            flip(newer.folder / name, at)
    assert newest_valid(folder).snapshot == newer


def test_a_flipped_bit_anywhere_in_the_manifest_passes_a_snapshot_over(store: RocksStore, folder: Path) -> None:
    older = taken(store, folder, 1)
    newer = taken(store, folder, 2)
    file = newer.folder / "manifest.json"
    whole = file.read_bytes()
    for at in range(0, len(whole), 3):
        flip(file, at)
        found = newest_valid(folder)
        # White space may turn into other white space: that says the same.
        assert found.snapshot == older or json.loads(file.read_bytes()) == json.loads(whole), at
        file.write_bytes(whole)


def test_missing_cut_and_foreign_files_pass_a_snapshot_over(store: RocksStore, folder: Path, tmp_path: Path) -> None:
    snapshot = taken(store, folder, 1)
    reasons: list[str] = []
    for name in ("CURRENT", "manifest.json"):
        shutil.copytree(snapshot.folder, tmp_path / "kept")
        (snapshot.folder / name).unlink()
        reasons += newest_valid(folder).skipped
        shutil.rmtree(snapshot.folder)
        (tmp_path / "kept").rename(snapshot.folder)
    (snapshot.folder / "CURRENT").write_bytes(b"MANIFEST")
    reasons += newest_valid(folder).skipped
    (snapshot.folder / "note.txt").write_bytes(b"")
    reasons += newest_valid(folder).skipped
    assert reasons == [
        "snapshot 1: CURRENT is missing",
        "snapshot 1: manifest.json is missing",
        f"snapshot 1: CURRENT has 8 bytes instead of {snapshot.files['CURRENT'].bytes}",
        "snapshot 1: note.txt is not in the manifest",
    ]


def test_a_manifest_of_a_newer_format_is_passed_over(store: RocksStore, folder: Path) -> None:
    snapshot = taken(store, folder, 1)
    file = snapshot.folder / "manifest.json"
    file.write_text(file.read_text().replace('"format": 1', '"format": 2'))
    assert newest_valid(folder).skipped == (
        "snapshot 1: manifest.json has a format that this version does not know; it knows 1",
    )
    with pytest.raises(BadSnapshot):
        verify(replace(snapshot, files={}))


def test_no_folder_and_an_empty_one_have_no_snapshot(tmp_path: Path) -> None:
    assert newest_valid(tmp_path / "nowhere").snapshot is None
    assert newest_valid(tmp_path).snapshot is None


def test_a_half_made_snapshot_is_never_used_and_goes_with_the_next(store: RocksStore, folder: Path) -> None:
    first = taken(store, folder, 1)
    part = begin(store, folder)
    (folder / "9.part.tmp").mkdir()
    (folder / "0.gone").mkdir()
    assert newest_valid(folder).snapshot == first
    assert names(folder) == ["0.gone", "1", "2.part", "9.part.tmp"]
    second = taken(store, folder, 2)
    assert names(folder) == ["1", "2"]
    assert not part.exists()
    assert newest_valid(folder).snapshot == second


def test_a_snapshot_stands_for_the_moment_it_was_begun(store: RocksStore, folder: Path, tmp_path: Path) -> None:
    before = digest(store.range())
    part = begin(store, folder)
    store.put(b"later", b"1")
    open_copy(finish(part, MANIFEST, keep=1), tmp_path / "copy")
    copy = RocksStore(tmp_path / "copy")
    assert digest(copy.range()) == before
    copy.close()


def test_a_store_that_is_there_is_not_written_over(store: RocksStore, folder: Path, tmp_path: Path) -> None:
    snapshot = taken(store, folder, 1)
    with pytest.raises(StoreError, match="there is a store already"):
        open_copy(snapshot, store.path)
    (tmp_path / "copy.part").mkdir()
    (tmp_path / "copy.part" / "half").write_bytes(b"what a crash left")
    (tmp_path / "copy").mkdir()
    open_copy(snapshot, tmp_path / "copy")
    assert not (tmp_path / "copy.part").exists()
    assert not (tmp_path / "copy" / "half").exists()


CRASHER = """
import sys
from pathlib import Path
from samovar.state.rocks import RocksStore
from samovar.state.snapshots import take
from tests.state.test_snapshots import MANIFEST
root = Path(sys.argv[1])
take(RocksStore(root / "store"), root / "snapshots", MANIFEST, keep=1)
"""


@pytest.mark.parametrize(("point", "newest"), [("snapshot.before", 1), ("snapshot.after", 2)])
def test_a_kill_while_a_snapshot_is_taken_leaves_whole_ones(
    store: RocksStore, folder: Path, tmp_path: Path, root: Path, point: str, newest: int
) -> None:
    taken(store, folder, 1)
    store.close()
    command = [sys.executable, "-c", CRASHER, str(tmp_path)]
    killed = subprocess.run(command, check=False, cwd=root, env={"SAMOVAR_KILL": point, "PYTHONPATH": str(root)})
    assert killed.returncode == -9
    found = newest_valid(folder)
    assert found.snapshot is not None
    assert (found.snapshot.number, found.skipped) == (newest, ())
    again = RocksStore(store.path)
    assert taken(again, folder, 3, keep=1).number == newest + 1
    again.close()
    assert names(folder) == [str(newest + 1)]


def test_a_snapshot_says_how_large_it_is_and_all_that_can_be_read_are_listed(store: RocksStore, folder: Path) -> None:
    for number in (1, 2, 3):
        taken(store, folder, number)
    flip(folder / "2" / "manifest.json", 30)
    found = list(listed(folder))
    assert [snapshot.number for snapshot in found] == [1, 3]
    own = [path.stat().st_size for path in found[0].folder.iterdir() if path.name != "manifest.json"]
    assert found[0].bytes == sum(own)


def test_a_snapshot_that_cannot_be_written_leaves_nothing(
    store: RocksStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("samovar.state.snapshots.write_file", full)
    with pytest.raises(StoreFull):
        taken(store, folder, 1)
    assert names(folder) == []


def test_a_copy_that_cannot_be_made_leaves_nothing(
    store: RocksStore, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    snapshot = taken(store, folder, 1)
    monkeypatch.setattr("samovar.state.snapshots.sync", full)
    with pytest.raises(StoreFull):
        open_copy(snapshot, tmp_path / "copy")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("copy")]
