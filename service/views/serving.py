"""Views read by key: the tables of the version that is shown, opened once, and completed by what came since.

    served = ViewServer(settings=settings, log=log)
    served.get("cards", ["c1"])  -> ServedRow(row={"card": "c1", "purchases": 4, ...}, version=7, live=True, ...)

    STATE/../serving/NAME/000007-SUM/    a store of RocksDB that took the version's files in, as links where it can

Of each view one version is open. A newer one is opened when somebody asks after it was shown; who reads the old one
finishes, and then it is closed and deleted. No Spark, and no view file, is needed to answer.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samovar.changelog.log import Log
from samovar.common import folders
from samovar.common.arrow import require_arrow
from samovar.common.errors import Refused
from samovar.patterns.explain.key_trace import iso_time
from samovar.service.config.models import ServiceFile
from samovar.service.views.commands import plain
from samovar.service.views.files import NAME, view_named
from samovar.service.views.served_rows import FOLDER, FORMAT, RowCodec
from samovar.service.views.store import ViewManifest, ViewStore, never_made
from samovar.state.reading import MB, RocksMemory
from samovar.state.rocks import RocksStore
from samovar.state.secondary import SecondaryStore

if TYPE_CHECKING:
    from samovar.service.views.live import Tail

MOST_OPEN = 32  # views


@dataclass(frozen=True, kw_only=True)
class ServedRow:
    """A row of a view, and what it stands for. `offsets` are those up to which it is complete."""

    view: str
    key: dict[str, Any]
    row: dict[str, Any]
    manifest: ViewManifest
    offsets: dict[str, int]
    records_since: int | None
    live: bool
    reason: str

    def to_json(self, shown: Callable[[str, Any], Any] = lambda _, value: value) -> dict[str, Any]:
        """For people; `shown` gives the values of columns as they may be seen."""
        return {
            "view": self.view,
            "key": {name: shown(name, plain(value)) for name, value in self.key.items()},
            "row": {name: shown(name, plain(value)) for name, value in self.row.items()},
            "version": self.manifest.version,
            "made": self.manifest.made_ms,
            "offsets": self.offsets,
            "records_since": self.records_since,
            "live": self.live,
            "reason": self.reason or None,
        }


@dataclass(eq=False, kw_only=True)
class _Served:
    """One version that is open."""

    manifest: ViewManifest
    codec: RowCodec
    tables: SecondaryStore
    tail: Tail
    folder: Path
    users: int = 0
    is_old: bool = False


@dataclass(kw_only=True)
class ViewServer:
    """The source of truth for which versions are open to be read by key. Threads may share it."""

    settings: ServiceFile
    log: Log
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _open: OrderedDict[str, _Served] = field(default_factory=OrderedDict)
    _opening: dict[str, threading.Lock] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = self.settings.state.parent / "serving"
        self._memory = RocksMemory(cache_bytes=32 * MB, write_buffer_bytes=4 * MB)

    def manifest(self, name: str) -> ViewManifest:
        """Of the version that is read now; refused where the view is not served."""
        with self._reading(name) as served:
            return served.manifest

    def get(self, name: str, texts: Sequence[str]) -> ServedRow:
        """The row of a key, completed where its query allows it."""
        with self._reading(name) as served:
            manifest, codec = served.manifest, served.codec
            key = codec.parsed(texts)
            packed = codec.packed_key(key)
            data = served.tables.get(packed)
            values = None if data is None else codec.unpacked(data)
            count = len(manifest.columns)
            row = None if values is None else dict(zip(manifest.columns, values[:count], strict=True))
            found = served.tail.completed(key, packed)
            query = served.tail.query
            if found.states is not None and query is not None:
                held = found.states if values is None else query.joined(query.unpacked(values[count:]), found.states)
                row = query.row(key, held)
            if row is None:
                behind = f" {found.reason}: `samovar views refresh` adds what came since." if found.reason else ""
                hint = f"It stands for version {manifest.version}, made {iso_time(manifest.made_ms)}.{behind}"
                raise Refused("unknown-row", f"the view {name} has no row of this key", hint)
            return ServedRow(
                view=name,
                key=dict(zip(codec.key, key, strict=True)),
                row=row,
                manifest=manifest,
                offsets=dict(found.offsets),
                records_since=found.since,
                live=not found.reason,
                reason=found.reason,
            )

    def close(self) -> None:
        with self._lock:
            for name in list(self._open):
                self._retire(name)

    @contextmanager
    def _reading(self, name: str) -> Iterator[_Served]:
        served = self._take(name)
        try:
            yield served
        finally:
            with self._lock:
                served.users -= 1
                self._let_go(served)

    def _take(self, name: str) -> _Served:
        store = ViewStore(self.settings.views.store, name)
        version = store.current() if NAME.match(name) else None
        if version is None:
            view_named(self.settings, name)  # says what is near
            raise never_made(name)
        with self._lock:
            held = self._held(name)
            opening = self._opening.setdefault(name, threading.Lock())
            if held is not None and (held.manifest.version == version or opening.locked()):
                held.users += 1  # while another one opens the new version, the old one answers
                return held
        with opening:
            with self._lock:
                held = self._held(name)
                if held is not None and held.manifest.version == version:
                    held.users += 1
                    return held
            made = self._opened(store, version)
            with self._lock:
                self._retire(name)
                self._open[name] = made
                while len(self._open) > MOST_OPEN:
                    self._retire(next(iter(self._open)))
            return made

    def _held(self, name: str) -> _Served | None:
        held = self._open.get(name)
        if held is not None:
            self._open.move_to_end(name)
        return held

    def _retire(self, name: str) -> None:
        held = self._open.pop(name, None)
        if held is not None:
            held.is_old = True
            self._let_go(held)

    @staticmethod
    def _let_go(held: _Served) -> None:
        if held.is_old and not held.users:
            held.tables.close()

    # ------------------------------------------------------------ opening a version

    def _opened(self, store: ViewStore, version: int) -> _Served:
        require_arrow("rows of views")
        from samovar.service.views.live import Tail  # noqa: PLC0415 - Arrow and a parser of SQL take long to import

        manifest = store.manifest(version)
        serving = manifest.serving
        if not serving or serving["format"] > FORMAT:
            raise Refused(
                "view-not-served",
                f"version {version} of the view {store.name} has no tables to be read by key",
                f"Write `serve: true` in its file, and run `samovar views refresh CONFIG {store.name}`."
                f" `samovar views query` reads its rows without.",
            )
        tables, folder = self._tables(store, manifest)
        codec = RowCodec(manifest.columns, tuple(serving["key"]))
        return _Served(
            manifest=manifest,
            codec=codec,
            tables=tables,
            tail=Tail(settings=self.settings, log=self.log, manifest=manifest, codec=codec),
            folder=folder,
            users=1,
        )

    def _tables(self, store: ViewStore, manifest: ViewManifest) -> tuple[SecondaryStore, Path]:
        """The version's files in a store of this node. Several processes share it; one makes it."""
        files = manifest.serving["files"]
        told = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:12]
        folder = self.folder / store.name / f"{manifest.version:06}-{told}"
        folders.make_private(folder.parent)
        with (folder.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            folders.tidy(folder.parent)
            if not folder.exists():
                part = folder.with_name(folder.name + folders.PART)
                paths = [_checked(store, manifest.version, name, files[name][2]) for name in sorted(files)]
                made = RocksStore(part, memory=self._memory)
                try:
                    made.ingest_tables(paths)
                finally:
                    made.close()
                folders.rename_into_place(part, folder)
            opened = SecondaryStore(folder, memory=self._memory)
            for other in folder.parent.glob("[0-9]*"):
                if other != folder:  # who has it open reads on: its files stay until it is closed
                    shutil.rmtree(other, ignore_errors=True)
        return opened, folder


def _checked(store: ViewStore, version: int, name: str, sha256: str) -> Path:
    path = store.path(version) / FOLDER / name
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        found = str(error.strerror)
    if found != sha256:
        what = f"{path} is not the file that version {version} of the view {store.name} was published with"
        hint = (
            f"`samovar views rebuild CONFIG {store.name}` makes a new version; `views rollback` shows the one before."
        )
        raise Refused("view-damaged", what, hint, found)
    return path
