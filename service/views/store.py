"""Published views: version folders, and one pointer to the version that readers see.

    STORE/NAME/versions/000007/            Parquet, a folder per partition; files of a kept partition are hard links
                       000007/_view.json   what it stands for: offsets of its sources, versions of rules (format 1)
              /current -> versions/000007  swapped by one rename: a reader sees the old version or the new one
    STORE/NAME/table/                      of a view in Delta Lake's format: one table, with a commit for each version
    STORE/catalog.parquet                  a row a view: name, version, path, rows, when; written after every swap

A version is made under another name (`.part`) and shown when it is whole. Names of files are never used twice, so that
a reader who goes through `current` while it is swapped finds a file or misses it, and never reads another's.

Of a Delta table the commit is the one moment at which readers see another version: the log of the table says which, and
`current` follows. A version folder has what is not in the table then: the manifest, and what is read by key.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from samovar.changelog.formats.record import newer
from samovar.common import folders
from samovar.common.errors import Refused
from samovar.common.failpoints import hit
from samovar.common.wire import from_wire, stored, to_wire
from samovar.patterns.explain.key_trace import iso_time
from samovar.service.views.delta import NULL, READERS_H, OpenTable, Overtaken, dropped, evolved, newest_note, note_of

if TYPE_CHECKING:
    from deltalake.transaction import AddAction

FORMAT = 1
MANIFEST = "_view.json"  # Spark passes over names that begin with an underscore
CATALOG = "catalog.parquet"
UNCOMMITTED = -1
MAINTAINED = "maintained"  # its time says when a Delta table was


@stored(
    "view version digest made_ms kind rows sources rules columns partitioning base written title lineage serving table"
)
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
    written: tuple[str, ...] = ()  # partitions that were rewritten
    title: str = ""
    lineage: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by column: reads, plain; not known: none
    serving: Mapping[str, Any] = field(default_factory=dict)  # of tables read by key: samovar.service.views.serve_build
    table: int | None = None  # the version of the Delta table that it is; none of Parquet

    def packed(self) -> bytes:
        return json.dumps({"format": FORMAT, **to_wire(self)}, indent=1, ensure_ascii=False).encode()

    @staticmethod
    def unpacked(data: bytes) -> ViewManifest:
        raw: dict[str, Any] = json.loads(data)
        if (version := raw.pop("format")) > FORMAT:
            raise newer("a view", version, FORMAT)
        return from_wire(ViewManifest, raw)


@dataclass(frozen=True, kw_only=True)
class DeltaRows:
    """What a version brings to a Delta table: its columns, as JSON, and the partitions that it replaces, or all."""

    schema: Mapping[str, Any]
    partitioning: tuple[str, ...]
    only: tuple[str | None, ...] | None
    any_schema: bool = False  # also one that readers of the old one may not know


class ViewStore:
    """The versions of one view. The source of truth for which of them readers see."""

    def __init__(self, store: Path, name: str) -> None:
        self.store, self.name = store, name
        self.folder = store / name
        self.pointer = self.folder / "current"
        self.table = self.folder / "table"
        self._attempt = uuid4().hex[:8]

    def versions(self) -> list[int]:
        there = self._folders()
        while there and there[-1] > (self._pointed() or 0) and not self._is_committed(there[-1]):
            there.pop()
        return there

    def _folders(self) -> list[int]:
        there = (self.folder / "versions").glob("[0-9]*")
        return sorted(int(path.name) for path in there if path.name.isdecimal())

    def _is_committed(self, version: int) -> bool:
        """Whether a version's folder is all of it, or a kill came before the commit to its table."""
        number = self.manifest(version).table
        note = None if number is None else note_of(self.table, number)
        return number is None or (note is not None and note.get("version") == version)

    def current(self) -> int | None:
        version = self._pointed()
        if version is None or self.manifest(version).table is not None:
            found = newest_note(self.table)
            version = int(found[1]["version"]) if found is not None and found[1] is not None else version
        return version

    def _pointed(self) -> int | None:
        try:
            return int(self.pointer.readlink().name)
        except FileNotFoundError:
            return None

    def path(self, version: int) -> Path:
        return self.folder / "versions" / f"{version:06}"

    def manifest(self, version: int) -> ViewManifest:
        return ViewManifest.unpacked((self.path(version) / MANIFEST).read_bytes())

    def place(self, manifest: ViewManifest) -> Path:
        """What others read: the folder of a version, or the Delta table, which has all of them."""
        return self.path(manifest.version) if manifest.table is None else self.table

    def snapshot(self, manifest: ViewManifest) -> int | None:
        """The version of the Delta table that holds a version's rows: of what is shown, the newest."""
        found = None if manifest.table is None else newest_note(self.table)
        return found[0] if found is not None and (found[1] or {}).get("version") == manifest.version else manifest.table

    def rows(self, manifest: ViewManifest) -> Any:
        """The rows of a version, as a dataset of Arrow."""
        if manifest.table is not None:
            return OpenTable(str(self.table)).at(self.snapshot(manifest)).to_pyarrow_dataset()
        import pyarrow as pa  # noqa: PLC0415 - takes long to import
        import pyarrow.dataset as ds  # noqa: PLC0415 - as above

        folder = self.path(manifest.version)
        files = sorted(map(str, folder.rglob("*.parquet")))
        places: Any = "hive"
        if files and all(NULL in Path(path).parent.name for path in files):  # of which no type can be told
            places = ds.partitioning(pa.schema([(name, pa.string()) for name in manifest.partitioning]), flavor="hive")
        return ds.dataset(files, format="parquet", partitioning=places, partition_base_dir=str(folder))

    def version_at(self, version: int | None = None, as_of_ms: int | None = None) -> ViewManifest:
        """The version that readers see, one of those that are kept, or the newest that was made at a time."""
        shown, there = self.current(), self.versions()
        if shown is None:
            raise never_made(self.name)
        if as_of_ms is not None:
            made = [each for each in map(self.manifest, there) if each.made_ms <= as_of_ms]
            version = made[-1].version if made else 0
        if version is not None and version not in there:
            kept = "; ".join(f"{each} was made {iso_time(self.manifest(each).made_ms)}" for each in there)
            what = f"of {self.name}, no version " + (
                f"{version} is kept" if as_of_ms is None else "of that time is kept"
            )
            raise Refused("view-version", what, f"Of those that are, {kept}. `views: {{keep: N}}` keeps more.")
        return self.manifest(shown if version is None else version)

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
                raise _busy(self.name) from None
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Alone; what a crash left half made goes."""
        with self.alone():
            (self.folder / "versions").mkdir(exist_ok=True)
            folders.tidy(self.folder / "versions")
            folders.tidy(self.folder)
            if self.table.exists():
                self._follow_table()
            yield

    def _follow_table(self) -> None:
        """After a kill: `current` leads to what the table shows, and a version that was not committed is none."""
        for version in set(self._folders()) - set(self.versions()):
            folders.remove(self.path(version))
        if (shown := self.current()) is not None and shown != self._pointed():
            self.point_to(shown)

    @property
    def application(self) -> str:
        """As transaction ids in the table's log have it."""
        return f"samovar/views/{self.name}"

    def next_version(self) -> int:
        """Never one that was used, also where it was rolled back from."""
        return max(self.versions(), default=0) + 1

    def being_made(self, version: int) -> Path:
        """A folder of this attempt alone: what is left of a killed one may still write to its own for a moment."""
        path = self.path(version)
        return path.with_name(f"{path.name}.{self._attempt}{folders.PART}")

    def publish(self, manifest: ViewManifest, keep: int, rows: DeltaRows | None = None) -> ViewManifest:
        """Show the folder that was made under `being_made`, and let the oldest versions go. `rows` are for a table."""
        part = self.being_made(manifest.version)
        files: list[AddAction] = []
        if rows is not None:  # nobody sees them before the commit, which says of which number it is
            manifest = replace(manifest, table=UNCOMMITTED)
            files = OpenTable(str(self.table)).take(part, f"{manifest.version:06}-{self._attempt}")
            for path in part.glob("*=*"):
                shutil.rmtree(path)
        folders.write_file(part / MANIFEST, manifest.packed())
        for path in part.rglob("*"):
            folders.sync(path)
        hit("publish.before")
        folders.rename_into_place(part, self.path(manifest.version))
        hit("publish.between")
        if rows is not None:
            manifest = self._commit(manifest, files, rows)
            hit("publish.committed")
        self.point_to(manifest.version)
        hit("publish.after")
        for version in self.versions()[: -keep or None] if keep < len(self.versions()) else []:
            if version != self.current():
                folders.remove(self.path(version))
        if rows is not None and _is_due(self.folder / MAINTAINED):
            self.maintain()
        if rows is None and self.table.exists() and all(self.manifest(each).table is None for each in self.versions()):
            folders.remove(self.table)  # the view is Parquet again, and so is all that can be gone back to
        return manifest

    # ------------------------------------------------------------ the Delta table

    def maintain(self, retain_h: int = READERS_H) -> tuple[int, int]:
        """Compacts the table and expires what no kept version needs: how many files were merged, and deleted."""
        kept = [each.table for each in map(self.manifest, self.versions()) if each.table is not None]
        if not kept:
            return 0, 0
        table = OpenTable(str(self.table))
        found = table.compact(), table.expire(kept, retain_h)
        table.forget(min(kept))
        (self.folder / MAINTAINED).touch()
        return found

    def _commit(self, manifest: ViewManifest, files: Sequence[AddAction], rows: DeltaRows) -> ViewManifest:
        """One commit with the version's rows, offsets and rules. Where it comes too late, it looks again."""
        table = OpenTable(str(self.table))
        note = {
            "view": self.name,
            "version": manifest.version,
            "kind": manifest.kind,
            "sources": to_wire(manifest)["sources"],
            "rules": dict(manifest.rules),
        }
        while True:
            found = newest_note(self.table)
            base = None if found is None else found[0]
            if base is not None and (table.reached(self.application) or 0) >= manifest.version:
                raise _busy(self.name)  # on a disk that many machines share, a lock may be no lock
            kept = 0 if base is None or rows.only is None else table.rows(base, rows.only)
            counted = sum(json.loads(each.stats)["numRecords"] for each in files)
            manifest = replace(manifest, table=0 if base is None else base + 1, rows=kept + counted)
            folders.write_file(self.path(manifest.version) / MANIFEST, manifest.packed())
            schema = rows.schema if base is None else self._schema_after(base, rows)
            applied = {self.application: manifest.version}
            try:
                table.replace(base, files, schema, rows.partitioning, rows.only, note, applied)
            except Overtaken:
                continue
            return manifest

    def check(self, rows: DeltaRows) -> bool:
        """Refuses what the table cannot take, before it is computed. Whether it would get other columns."""
        found = newest_note(self.table)
        return found is not None and self._schema_after(found[0], rows) != self._schema(found[0])

    def _schema(self, base: int) -> Mapping[str, Any]:
        schema: Mapping[str, Any] = json.loads(OpenTable(str(self.table)).at(base).schema().to_json())
        return schema

    def _schema_after(self, base: int, rows: DeltaRows) -> Mapping[str, Any]:
        """The table's columns with those of new rows. What readers rely on does not vanish under them."""
        old = self._schema(base)
        change, gone = evolved(old, rows.schema), dropped(old, rows.schema)
        places = tuple(OpenTable(str(self.table)).at(base).metadata().partition_columns)
        faults = [*change.conflicts, *(f"`{name}` is gone" for name in gone)]
        if places != rows.partitioning:
            faults.append(f"partitioning is {list(places)}, and would be {list(rows.partitioning)}")
        if faults and not rows.any_schema:
            raise Refused(
                "view-schema",
                f"{self.name}: its Delta table has other columns: {'; '.join(faults)}",
                "Readers of the table rely on them: keep the column, under its name and type, and add another one. If"
                f" they are to change all the same: `samovar views rebuild CONFIG {self.name} --overwrite-schema`.",
            )
        return rows.schema if faults else change.schema

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
        manifest = self.manifest(wanted)
        if self.manifest(current).table is None and manifest.table is None:
            self.point_to(wanted)
            return manifest
        if manifest.table is None:
            raise Refused(
                "view-version",
                f"version {wanted} of {self.name} is of Parquet files, and its readers now read a Delta table",
                "Write `format: parquet` in its file, and rebuild it.",
            )
        found = newest_note(self.table)
        assert found is not None
        note = {"view": self.name, "version": wanted, "kind": "rollback"}
        try:
            OpenTable(str(self.table)).rewind(found[0], manifest.table, note)
        except Overtaken:
            raise _busy(self.name) from None
        self.point_to(wanted)
        return manifest

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


def _is_due(marker: Path) -> bool:
    return not marker.exists() or time.time() - marker.stat().st_mtime > 3600 * READERS_H


def _busy(name: str) -> Refused:
    return Refused("view-busy", f"another process is making the view {name}", "Wait for it to end, and try again.")


def never_made(name: str) -> Refused:
    return Refused(
        "view-not-made", f"the view {name} was never made", f"`samovar views rebuild CONFIG {name}` makes it."
    )
