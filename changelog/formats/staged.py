"""A task's state on its way to a node: table files and what they stand for, in a folder that all machines can reach.

    STAGING/<stage, or main>/<partition>/
        000001.sst, 000002.sst, ...    taken in this order (samovar.state.tables)
        manifest.json                  written last; the folder gets its name when all of it is there

manifest.json is one JSON object:

    format      1
    service, stage, partition
    source      "changelog": the rows follow it, up to the offset that their own row says; "source": they were folded
                from the input and follow none yet
    topic, topic_id, partitions, offset, time_ms   of the changelog; null with "source"
    moment_ms   of a state of the past, else null
    position    the task's position, as its row has it (samovar.changelog.formats.record), or null
    records     read to make it
    rows, digest
    formats     name of a format to its version, as the rows have them
    created_ms
    files       name to bytes and sha256
    checksum    sha256 of all the above as JSON with sorted keys and no spaces

A folder is made under a name of its own attempt and renamed: of two that make the same, one wins, and both are right.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from samovar.changelog.formats.record import ChangelogCheckpoint, refuse_newer
from samovar.common.errors import Refused
from samovar.common.folders import PART, make_private, remove, rename_into_place, sync, write_file
from samovar.common.wire import from_wire, stored, to_wire

FORMAT = 1
NAME = "manifest.json"
MAIN_NAME = "main"  # of the stage that has no name


@stored(
    "service stage partition source topic topic_id partitions offset time_ms moment_ms position records rows "
    "digest formats created_ms files"
)
@dataclass(frozen=True, kw_only=True)
class StagedManifest:
    """What staged tables stand for."""

    service: str
    stage: str
    partition: int
    source: str
    topic: str | None
    topic_id: str | None
    partitions: int | None
    offset: int | None
    time_ms: int | None
    moment_ms: int | None
    position: str | None
    records: int
    rows: int
    digest: str
    formats: Mapping[str, int]
    created_ms: int
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def checkpoint(self) -> ChangelogCheckpoint | None:
        """Where in which changelog the rows are."""
        if self.topic is None or self.topic_id is None or self.partitions is None or self.offset is None:
            return None
        return ChangelogCheckpoint(
            topic=self.topic,
            topic_id=self.topic_id,
            partition=self.partition,
            partitions=self.partitions,
            next=self.offset,
            time_ms=self.time_ms or 0,
        )


@dataclass(frozen=True)
class StagedTables:
    """Staged tables of one task."""

    folder: Path
    manifest: StagedManifest

    @property
    def files(self) -> list[Path]:
        return [self.folder / name for name in sorted(self.manifest.files)]


def place_of(staging: Path, stage: str, partition: int) -> Path:
    return staging / (stage or MAIN_NAME) / str(partition)


def attempt(place: Path) -> Path:
    """A new folder to fill, next to where it will be."""
    folder = place.with_name(f"{place.name}.{uuid4().hex[:12]}{PART}")
    make_private(folder)
    return folder


def finish(folder: Path, place: Path, manifest: StagedManifest, files: Sequence[Path]) -> StagedTables:
    """Write the manifest and give the folder its name. What had the name before goes."""
    for file in files:
        sync(file)
    told = {file.name: {"bytes": file.stat().st_size, "sha256": _sha256(file)} for file in files}
    body = {"format": FORMAT, **to_wire(manifest), "files": told}
    write_file(folder / NAME, json.dumps({**body, "checksum": _checksum(body)}, indent=1).encode())
    remove(place)
    try:
        rename_into_place(folder, place)
    except OSError:
        if not (place / NAME).exists():
            raise
        shutil.rmtree(folder)  # another attempt was first
    return look(place)


def look(place: Path) -> StagedTables:
    """What is staged here, its files counted and whole; refused where it is not."""
    try:
        body = json.loads((place / NAME).read_bytes())
        checksum = body.pop("checksum")
        if body.pop("format") > FORMAT:
            raise _unusable(place, "it is of a newer version of Samovar")
        if checksum != _checksum({"format": FORMAT, **body}):
            raise _unusable(place, "its manifest was changed")
        manifest = from_wire(StagedManifest, body)
    except FileNotFoundError:
        raise Refused(
            "staging-missing",
            f"nothing is staged in {place}",
            "Stage it first: `samovar restore CONFIG --engine spark --staging PATH`; or name other partitions.",
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise _unusable(place, f"its manifest cannot be read: {error}") from None
    refuse_newer(manifest.formats, f"what is staged in {place}")
    return StagedTables(place, manifest)


def verify(staged: StagedTables) -> None:
    """Read every file and hold it against the manifest."""
    for name, told in staged.manifest.files.items():
        file = staged.folder / name
        if not file.is_file() or file.stat().st_size != told["bytes"] or _sha256(file) != told["sha256"]:
            raise _unusable(staged.folder, f"{name} is missing or is not what was written")


def _unusable(place: Path, reason: str) -> Refused:
    return Refused(
        "staging-unusable",
        f"what is staged in {place} cannot be taken: {reason}",
        "Stage it again: `samovar restore CONFIG --engine spark --staging PATH`.",
    )


def _sha256(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
