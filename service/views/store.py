"""Published views: version folders, and one pointer to the version that readers see.

    STORE/NAME/versions/000007/            Parquet, a folder per partition; files of a kept partition are hard links
                       000007/_view.json   what it stands for: offsets of its sources, versions of rules (format 1)
              /current -> versions/000007  swapped by one rename: a reader sees the old version or the new one
    STORE/catalog.parquet                  a row a view: name, version, path, rows, when; written after every swap

A version is made under another name (`.part`) and shown when it is whole. Names of files are never used twice, so that
a reader who goes through `current` while it is swapped finds a file or misses it, and never reads another's.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from samovar.changelog.formats.record import newer
from samovar.common import folders
from samovar.common.errors import Refused
from samovar.common.failpoints import hit
from samovar.common.wire import from_wire, stored, to_wire

FORMAT = 1
MANIFEST = "_view.json"  # Spark passes over names that begin with an underscore
CATALOG = "catalog.parquet"


@stored("view version digest made_ms kind rows sources rules columns partitioning base written title lineage serving")
@dataclass(frozen=True, kw_only=True)
class ViewManifest:
    """What a version stands for. `sources` have, by `topic/partition`, the first offset and the one after the last."""

    view: str
    version: int
    digest: str  # of the view's file
    made_ms: int
    kind: str  # full or incremental
    rows: int
    sources: Mapping[str, Mapping[str, tuple[int, int]]]
    rules: Mapping[str, str]  # rule to version, as the service ran them
    columns: Mapping[str, str]
    partitioning: tuple[str, ...] = ()
    base: int | None = None  # the version whose other partitions an incremental one has kept
    written: tuple[str, ...] = ()  # partitions that were made anew
    title: str = ""
    lineage: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by column: reads, plain; not known: none
    serving: Mapping[str, Any] = field(default_factory=dict)  # of tables read by key: samovar.service.views.serve_build

    def packed(self) -> bytes:
        return json.dumps({"format": FORMAT, **to_wire(self)}, indent=1, ensure_ascii=False).encode()

    @staticmethod
    def unpacked(data: bytes) -> ViewManifest:
        raw: dict[str, Any] = json.loads(data)
        if (version := raw.pop("format")) > FORMAT:
            raise newer("a view", version, FORMAT)
        return from_wire(ViewManifest, raw)


class ViewStore:
    """The versions of one view. The source of truth for which of them readers see."""

    def __init__(self, store: Path, name: str) -> None:
        self.store, self.name = store, name
        self.folder = store / name
        self.pointer = self.folder / "current"
        self._attempt = uuid4().hex[:8]

    def versions(self) -> list[int]:
        there = (self.folder / "versions").glob("[0-9]*")
        return sorted(int(path.name) for path in there if path.name.isdecimal())

    def current(self) -> int | None:
        try:
            return int(self.pointer.readlink().name)
        except FileNotFoundError:
            return None

    def path(self, version: int) -> Path:
        return self.folder / "versions" / f"{version:06}"

    def manifest(self, version: int) -> ViewManifest:
        return ViewManifest.unpacked((self.path(version) / MANIFEST).read_bytes())

    def current_manifest(self) -> ViewManifest | None:
        version = self.current()
        return None if version is None else self.manifest(version)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One at a time: refused where another process makes a version."""
        folders.make_private(self.folder)
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Refused(
                    "view-busy", f"another process is making the view {self.name}", "Wait for it to end, and try again."
                ) from None
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Alone; what a crash left half made goes."""
        with self.alone():
            (self.folder / "versions").mkdir(exist_ok=True)
            folders.tidy(self.folder / "versions")
            folders.tidy(self.folder)
            yield

    def next_version(self) -> int:
        """Never one that was used, also where it was rolled back from."""
        return max(self.versions(), default=0) + 1

    def being_made(self, version: int) -> Path:
        """A folder of this attempt alone: what is left of a killed one may still write to its own for a moment."""
        path = self.path(version)
        return path.with_name(f"{path.name}.{self._attempt}{folders.PART}")

    def publish(self, manifest: ViewManifest, keep: int) -> None:
        """Show the folder that was made under `being_made`, and let the oldest versions go."""
        part = self.being_made(manifest.version)
        folders.write_file(part / MANIFEST, manifest.packed())
        for path in part.rglob("*"):
            folders.sync(path)
        hit("publish.before")
        folders.rename_into_place(part, self.path(manifest.version))
        hit("publish.between")
        self.point_to(manifest.version)
        hit("publish.after")
        for version in self.versions()[: -keep or None] if keep < len(self.versions()) else []:
            if version != self.current():
                folders.remove(self.path(version))

    def point_to(self, version: int) -> None:
        """The one moment at which readers see another version."""
        part = self.pointer.with_name("current" + folders.PART)
        part.unlink(missing_ok=True)
        part.symlink_to(Path("versions") / f"{version:06}")
        part.replace(self.pointer)
        folders.sync(self.folder)

    def roll_back(self, to: int | None = None) -> ViewManifest:
        """Show the version before the current one, or another that is still there."""
        there, current = self.versions(), self.current()
        if current is None:
            raise never_made(self.name)
        before = [version for version in there if version < current]
        wanted = to if to is not None else before[-1] if before else None
        if wanted is None or wanted not in there:
            listed = ", ".join(map(str, there))
            what = "there is no version before it" if wanted is None else f"there is no version {wanted}"
            raise Refused("view-version", f"{self.name} shows version {current}, and {what}", f"There are {listed}.")
        self.point_to(wanted)
        return self.manifest(wanted)

    def keep_partitions(self, base: int, part: Path, without: set[str]) -> None:
        """Take partitions of another version over, but for some; as links where the disk can."""
        for path in sorted(self.path(base).rglob("*.parquet")):
            inside = path.relative_to(self.path(base))
            if inside.parts[0] not in without:
                (part / inside).parent.mkdir(parents=True, exist_ok=True)
                try:
                    (part / inside).hardlink_to(path)
                except OSError:
                    shutil.copy2(path, part / inside)


def published(store: Path) -> list[ViewStore]:
    """All views that readers can see, also those whose file is gone or broken."""
    found = [ViewStore(store, path.parent.name) for path in sorted(store.glob("*/current"))]
    return [each for each in found if each.current() is not None]


def never_made(name: str) -> Refused:
    return Refused(
        "view-not-made", f"the view {name} was never made", f"`samovar views rebuild CONFIG {name}` makes it."
    )
