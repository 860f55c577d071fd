"""The views of a service: made on Spark, published as Parquet, read by anyone.

    list_views(settings, log)                   what there is, what is published of it, and how far it is behind
    makeable(settings, names)                   the views that can be made now, and why others cannot
    rebuild(settings, log, session, views)      all rows again
    refresh(settings, log, session, views)      as each view's file says
    query(settings, "alerts-by-hour", 100) -> Rows(columns, rows)

Only what makes views needs Spark; the rest reads files.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samovar.changelog.log import Log, TopicPartition
from samovar.common import folders
from samovar.common.arrow import NO_READ_AHEAD, require_arrow
from samovar.common.errors import LogUnavailable, Refused
from samovar.service.config.models import ServiceFile
from samovar.service.ops.status import first_times
from samovar.service.views.delta import READERS_H, require_delta
from samovar.service.views.files import BadView, View, load_views, view_named
from samovar.service.views.store import CATALOG, ViewManifest, ViewStore, never_made, published

if TYPE_CHECKING:
    from samovar.changelog.spark.progress import OnProgress
    from samovar.changelog.spark.session import OpenSession
    from samovar.service.views.build import ViewBuild

MOST_ROWS = 100_000


@dataclass(frozen=True)
class ViewLag:
    """What came to the sources of a view since its version: at most so many records, and the log time of the first."""

    records: int
    since_ms: int | None

    @property
    def behind_s(self) -> float:
        return 0.0 if self.since_ms is None else round(max(time.time() - self.since_ms / 1000, 0.0), 3)


@dataclass(frozen=True, kw_only=True)
class ViewListing:
    """A view, and its version that readers see; None where it was never made."""

    view: View
    manifest: ViewManifest | None
    path: Path | None
    snapshots: Sequence[ViewManifest] = ()
    lag: ViewLag | None = None

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(each.version for each in self.snapshots)

    def to_json(self) -> dict[str, Any]:
        made = self.manifest
        return {
            "view": self.view.name,
            "title": self.view.title,
            "refresh": self.view.refresh,
            "key": list(self.view.key),
            "partitioning": list(self.view.partitioning),
            "table": self.view.table,
            "sql": self.view.sql,
            "version": None if made is None else made.version,
            "versions": list(self.versions),
            "rows": None if made is None else made.rows,
            "made": None if made is None else made.made_ms,
            "changed": made is not None and made.digest != self.view.digest,
            "lag": None if self.lag is None else self.lag.records,
            "behind_s": None if self.lag is None else self.lag.behind_s,
            "path": None if self.path is None else str(self.path),
            "format": "parquet" if made is None or made.table is None else "delta",
            "snapshots": [
                {name: getattr(each, name) for name in ("version", "made_ms", "kind", "rows", "table")}
                for each in self.snapshots
            ],
            "columns": {} if made is None else dict(made.columns),
            "sources": {} if made is None else {name: dict(each) for name, each in made.sources.items()},
            "rules": {} if made is None else dict(made.rules),
            "kind": None if made is None else made.kind,
        }


@dataclass(frozen=True)
class QueryRows:
    """What a query gives."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def to_json(self) -> dict[str, Any]:
        return {"columns": list(self.columns), "rows": [list(map(plain, row)) for row in self.rows]}


def list_views(settings: ServiceFile, log: Log | None = None) -> tuple[list[ViewListing], BadView | None]:
    """All views that there are files of, and what is wrong with other files; how far behind, where a log is there."""
    views, bad = load_views(settings)
    return _listings(settings, views, log), bad


def show(settings: ServiceFile, name: str, log: Log | None = None) -> ViewListing:
    (found,) = _listings(settings, [view_named(settings, name)], log)
    return found


def _listings(settings: ServiceFile, views: Sequence[View], log: Log | None) -> list[ViewListing]:
    stores = [ViewStore(settings.views.store, view.name) for view in views]
    made = [store.current_manifest() for store in stores]
    lags: dict[str, ViewLag] = {}
    if log is not None:
        with suppress(LogUnavailable):  # what is published can be read all the same
            lags = _lags(settings, log, [each for each in made if each is not None])
    return [
        ViewListing(
            view=view,
            manifest=manifest,
            path=None if manifest is None else store.place(manifest),
            snapshots=[] if manifest is None else [store.manifest(version) for version in store.versions()],
            lag=lags.get(view.name),
        )
        for view, store, manifest in zip(views, stores, made, strict=True)
    ]


def _lags(settings: ServiceFile, log: Log, made: Sequence[ViewManifest]) -> dict[str, ViewLag]:
    """By view, what its version does not have yet. Offsets that are markers of transactions are counted, too."""
    reached: dict[str, dict[TopicPartition, int]] = {}
    for each in made:
        ends = {at.rpartition("/"): end for offsets in each.sources.values() for at, (_, end) in offsets.items()}
        reached[each.view] = {TopicPartition(topic, int(number)): end for (topic, _, number), end in ends.items()}
        if "labels" in each.sources:  # its topic may not have been there
            reached[each.view].setdefault(TopicPartition(f"{settings.service}-labels", 0), 0)
    topics = log.topics({at.topic for known in reached.values() for at in known})
    places = [TopicPartition(name, number) for name, topic in topics.items() for number in range(topic.partitions)]
    bounds = log.bounds(places) if places else {}
    found: dict[str, ViewLag] = {}
    for view, known in reached.items():
        read = {at.topic for at in known}
        starts = {at: max(known.get(at, 0), begin) for at, (begin, _) in bounds.items() if at.topic in read}
        behind = {at: start for at, start in starts.items() if start < bounds[at].end}
        times = first_times(log, behind, {at: bounds[at].end for at in behind}) if behind else {}
        found[view] = ViewLag(sum(bounds[at].end - behind[at] for at in times), min(times.values(), default=None))
    return found


def path_of(settings: ServiceFile, name: str) -> Path:
    """What others read: the folder of the version that readers see now, which stays as it is until so many newer ones
    are made; or the Delta table.
    """
    store = published_view(settings, name)
    return store.place(store.version_at())


def roll_back(settings: ServiceFile, name: str, to: int | None = None) -> ViewManifest:
    """Show the version before the current one, or another that is still there."""
    store = published_view(settings, name)
    with store.writing():
        manifest = store.roll_back(to)
    update_catalog(settings)
    return manifest


def published_view(settings: ServiceFile, name: str) -> ViewStore:
    """A published view. Its file is not looked at: a broken one must not keep anybody from reading or going back."""
    for store in published(settings.views.store):
        if store.name == name:
            return store
    view_named(settings, name)
    raise never_made(name)


def rebuild(
    settings: ServiceFile,
    log: Log,
    session: OpenSession,
    views: Sequence[View],
    on_progress: OnProgress = lambda _: None,
    *,
    only_new: bool = False,
    any_schema: bool = False,
) -> Iterator[ViewBuild | Refused]:
    """Makes views again, whole or only what is new; of one that cannot be made, yields the refusal."""
    from samovar.service.views.build import ViewBuilder  # noqa: PLC0415 - with Spark only

    builder = ViewBuilder(settings=settings, log=log, session=session, on_progress=on_progress, any_schema=any_schema)
    for view in views:
        try:
            made = builder.refresh(view) if only_new else builder.rebuild(view)
        except Refused as refused:
            yield refused
            continue
        update_catalog(settings)  # also where nothing is new: a process may have been killed before it did
        yield made


refresh = partial(rebuild, only_new=True)


def maintain(settings: ServiceFile, names: Sequence[str], retain_h: int = READERS_H) -> Iterator[tuple[str, int, int]]:
    """Compacts and expires Delta tables of views, some or all: of each, how many files were merged, and deleted."""
    for store in [published_view(settings, name) for name in names] if names else published(settings.views.store):
        if store.table.exists():
            with store.writing():
                yield store.name, *store.maintain(retain_h)


def makeable(settings: ServiceFile, names: Sequence[str]) -> tuple[list[View], list[Refused]]:
    """The views that can be made now, all or some, and why others cannot: known before Spark starts."""
    views, bad = load_views(settings)
    if not views:
        folders = ", ".join(map(str, settings.views.files))
        none = Refused("unknown-view", f"there is no view in {folders}", "Put a view file *.yml there: docs/views.md.")
        raise bad or none
    found: list[View] = []
    refused: list[Refused] = [bad] if bad is not None and not names else []
    for view in [view_named(settings, name) for name in names] if names else views:
        try:
            with ViewStore(settings.views.store, view.name).alone():
                if view.format == "delta":
                    require_delta()
                found.append(view)
        except Refused as busy:
            refused.append(busy)
    return found, refused


def update_catalog(settings: ServiceFile) -> None:
    """Writes the table of all published views, which any reader of Parquet can read."""
    import pyarrow as pa  # noqa: PLC0415 - takes long to import
    import pyarrow.parquet as pq  # noqa: PLC0415 - as above

    schema = pa.schema(
        [
            ("view", pa.string()), ("title", pa.string()), ("version", pa.int64()), ("path", pa.string()),
            ("rows", pa.int64()), ("made", pa.timestamp("ms", "UTC")), ("kind", pa.string()),
            ("sources", pa.string()), ("rules", pa.string()),
        ]
    )  # fmt: skip
    rows = []
    for store in published(settings.views.store):
        made = store.current_manifest()
        assert made is not None
        sources = {name: dict(offsets) for name, offsets in made.sources.items()}
        rows.append(
            {
                "view": made.view, "title": made.title, "version": made.version, "path": str(store.place(made)),
                "rows": made.rows, "made": made.made_ms, "kind": made.kind,
                "sources": json.dumps(sources), "rules": json.dumps(dict(made.rules)),
            }
        )  # fmt: skip
    if not rows:
        return
    part = settings.views.store / (CATALOG + folders.PART)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), part)
    folders.sync(part)
    part.replace(settings.views.store / CATALOG)
    folders.sync(settings.views.store)


def query(
    settings: ServiceFile, name: str, limit: int, *, version: int | None = None, as_of_ms: int | None = None
) -> QueryRows:
    """The first rows of a view, as it is or was. Queries are for `samovar sql`."""
    limit = max(1, min(limit, MOST_ROWS))
    store = published_view(settings, name)
    manifest = store.version_at(version, as_of_ms)
    require_arrow("rows of views")
    found = store.rows(manifest).head(limit, **NO_READ_AHEAD)
    columns = [name for name in manifest.columns if name in found.column_names]
    rows = found.select(columns).to_pylist()
    return QueryRows(tuple(columns), tuple(tuple(row.values()) for row in rows))


def plain(value: Any) -> Any:
    """A value of a row as JSON has it: times and dates in ISO 8601, decimals as numbers, bytes in hex."""
    if isinstance(value, dict):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    return value.isoformat() if hasattr(value, "isoformat") else float(value)


def manifest_json(manifest: ViewManifest) -> dict[str, Any]:
    return asdict(manifest)
