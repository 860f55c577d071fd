"""Snapshots of a store: copies that say what they stand for, verified before use, and kept a few deep.

    <state>/snapshots/7/              the seventh snapshot of a task
        CURRENT, MANIFEST-*, *.sst    a RocksDB checkpoint; table files are hard links to the store's own
        manifest.json                 written last

manifest.json is one JSON object:

    format      1
    changelog   topic, topic_id, partition, partitions; offset: the position the rows stand for; time_ms: log time of
                the last record before it
    inputs      "topic/partition" to next offset
    watermark_ms, journal             event time and journal position, or null
    formats     name of a format to its version, as the rows have them
    digest      of the rows (samovar.state.digest), or null where it was not taken
    created_ms
    files       name to bytes and sha256, of every other file in the folder
    checksum    sha256 of all the above as JSON with sorted keys and no spaces

A snapshot is made under the name 7.part and renamed when it is whole, so that no crash leaves half of one in use.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samovar.common.failpoints import hit
from samovar.common.folders import PART, link_or_copy, make_private, remove, rename_into_place, sync, tidy, write_file
from samovar.common.wire import from_wire, stored, to_wire
from samovar.state.errors import StoreError, explained
from samovar.state.rocks import RocksStore

FORMAT = 1
_NAME = "manifest.json"


@stored("topic topic_id partition partitions offset time_ms")
@dataclass(frozen=True, kw_only=True)
class ChangelogPosition:
    """Where in the changelog a snapshot is."""

    topic: str
    topic_id: str
    partition: int
    partitions: int
    offset: int
    time_ms: int


@stored("changelog inputs watermark_ms journal formats digest created_ms")
@dataclass(frozen=True, kw_only=True)
class SnapshotManifest:
    """What a snapshot stands for."""

    changelog: ChangelogPosition
    inputs: Mapping[str, int]
    watermark_ms: int | None
    journal: int | None
    formats: Mapping[str, int]
    digest: str | None
    created_ms: int


@stored("bytes sha256")
@dataclass(frozen=True)
class FileSum:
    """What a file must be."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Snapshot:
    """A snapshot whose manifest was read. Its files are only known to be right after `verify`."""

    folder: Path
    manifest: SnapshotManifest
    files: Mapping[str, FileSum]

    @property
    def number(self) -> int:
        return int(self.folder.name)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())


@dataclass(frozen=True)
class SnapshotChoice:
    """The snapshot to use, if any, and why newer ones were passed over."""

    snapshot: Snapshot | None
    skipped: tuple[str, ...]


class BadSnapshot(Exception):
    """This snapshot must not be used; the text says why."""


def take(store: RocksStore, folder: Path, manifest: SnapshotManifest, *, keep: int) -> Snapshot:
    """Snapshot a store into the next numbered folder, and delete all but the newest `keep`."""
    return finish(begin(store, folder), manifest, keep=keep)


def begin(store: RocksStore, folder: Path) -> Path:
    """The quick half: copy the store as it is now. Goes between two batches, with the positions they left."""
    make_private(folder)
    tidy(folder)
    part = folder / f"{max(_numbers(folder), default=0) + 1}{PART}"
    store.snapshot(part)
    return part


def finish(part: Path, manifest: SnapshotManifest, *, keep: int) -> Snapshot:
    """The slow half: checksums and manifest. Touches nothing but the copy, so a thread may do it."""
    assert keep > 0, keep
    path = part.with_name(part.name.removesuffix(PART))
    numbers, before = _numbers(path.parent), None
    with suppress(BadSnapshot):
        before = read(path.parent / str(numbers[-1])) if numbers else None
    files: dict[str, FileSum] = {}
    try:
        for file in sorted(part.iterdir()):
            known = None
            if before is not None and file.suffix == ".sst" and file.name in before.files:
                old = before.folder / file.name  # the same inode was read when that snapshot was taken
                known = before.files[file.name] if old.exists() and old.samefile(file) else None
            files[file.name] = known or _sum(file)
        fields = {"format": FORMAT, **to_wire(manifest), "files": to_wire(files)}
        write_file(part / _NAME, json.dumps({**fields, "checksum": _checksum(fields)}, indent=1).encode())
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise explained(error, part, "snapshot") from error
    hit("snapshot.before")
    rename_into_place(part, path)
    hit("snapshot.after")
    for number in _numbers(path.parent)[:-keep]:
        remove(path.parent / str(number))
    return Snapshot(path, manifest, files)


def _sum(file: Path) -> FileSum:
    with file.open("rb") as content:
        return FileSum(file.stat().st_size, hashlib.file_digest(content, "sha256").hexdigest())


def _numbers(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdecimal())


def _checksum(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def newest_valid(folder: Path) -> SnapshotChoice:
    """The newest snapshot that is whole, with every file read and compared. Older ones are tried where it is not."""
    skipped: list[str] = []
    for number in reversed(_numbers(folder)):
        try:
            snapshot = read(folder / str(number))
            verify(snapshot)
            return SnapshotChoice(snapshot, tuple(skipped))
        except BadSnapshot as error:
            skipped.append(f"snapshot {number}: {error}")
    return SnapshotChoice(None, tuple(skipped))


def listed(folder: Path) -> Iterator[Snapshot]:
    """All snapshots whose manifest can be read, oldest first. `verify` the one that is to be used."""
    for number in _numbers(folder):
        try:
            yield read(folder / str(number))
        except BadSnapshot:
            continue


def read(folder: Path) -> Snapshot:
    """A snapshot by its manifest alone."""
    try:
        fields = json.loads((folder / _NAME).read_bytes())
    except FileNotFoundError as error:
        raise BadSnapshot(f"{_NAME} is missing") from error
    except (OSError, ValueError) as error:
        raise BadSnapshot(f"{_NAME} cannot be read: {error}") from error
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise BadSnapshot(f"{_NAME} has a format that this version does not know; it knows {FORMAT}")
    if fields.pop("checksum", None) != _checksum(fields):
        raise BadSnapshot(f"{_NAME} is damaged: its checksum is another one")
    del fields["format"]
    files = {name: from_wire(FileSum, file) for name, file in fields.pop("files").items()}
    return Snapshot(folder, from_wire(SnapshotManifest, fields), files)


def verify(snapshot: Snapshot) -> None:
    """Read all files and compare them with the manifest; BadSnapshot says which one is not as it was."""
    there = {path.name for path in snapshot.folder.glob("*")} - {_NAME}
    if odd := sorted(there ^ snapshot.files.keys()):
        raise BadSnapshot(f"{odd[0]} is {'not in the manifest' if odd[0] in there else 'missing'}")
    for name, wanted in snapshot.files.items():
        try:
            found = _sum(snapshot.folder / name)
        except OSError as error:
            raise BadSnapshot(f"{name} cannot be read: {error}") from error
        if found.bytes != wanted.bytes:
            raise BadSnapshot(f"{name} has {found.bytes} bytes instead of {wanted.bytes}")
        if found != wanted:
            raise BadSnapshot(f"{name} is damaged: its checksum is another one")


def open_copy(snapshot: Snapshot, into: Path) -> None:
    """Make a store folder from a snapshot, whole or not at all. The snapshot stays as it is."""
    if into.exists() and any(into.iterdir()):
        hint = "Move it away first; a store is replaced whole, never written over."
        raise StoreError("there is a store already", into, hint)
    part = into.with_name(into.name + PART)
    shutil.rmtree(part, ignore_errors=True)
    make_private(part)
    try:
        for name in snapshot.files:
            source, target = snapshot.folder / name, part / name
            if source.suffix == ".sst":  # it never changes, so that a link is as good as a copy
                link_or_copy(source, target)
            else:  # RocksDB appends to these
                shutil.copyfile(source, target)
                sync(target)
        rename_into_place(part, into)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise explained(error, into, "restore from a snapshot") from error
