"""The views of a service: made on Spark, published as Parquet, read by anyone.

    list_views(settings)                        what there is, and what is published of it
    rebuild(settings, log, session, names)      all rows anew
    refresh(settings, log, session, names)      as each view's file says
    query(settings, "alerts-by-hour", None, 100) -> Rows(columns, rows)

Only what makes views, and a query in SQL, needs Spark; the rest reads files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samovar.changelog.log import Log
from samovar.common import folders
from samovar.common.arrow import require_arrow
from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.service.config.models import ServiceFile
from samovar.service.views.files import View, load_views, table_name, view_named
from samovar.service.views.store import CATALOG, ViewManifest, ViewStore, never_made, published

if TYPE_CHECKING:
    from samovar.changelog.spark.progress import OnProgress
    from samovar.changelog.spark.session import OpenSession
    from samovar.service.views.build import ViewBuild

MOST_ROWS = 100_000


@dataclass(frozen=True)
class ViewListing:
    """A view, and its version that readers see; None where it was never made."""

    view: View
    manifest: ViewManifest | None
    versions: tuple[int, ...]
    path: Path | None

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
            "path": None if self.path is None else str(self.path),
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


def list_views(settings: ServiceFile) -> list[ViewListing]:
    """All views that there are files of."""
    return [_listing(settings, view) for view in load_views(settings)]


def show(settings: ServiceFile, name: str) -> ViewListing:
    return _listing(settings, view_named(load_views(settings), name, settings))


def _listing(settings: ServiceFile, view: View) -> ViewListing:
    store = ViewStore(settings.views.store, view.name)
    version = store.current()
    path = None if version is None else store.path(version)
    return ViewListing(view, store.current_manifest(), tuple(store.versions()), path)


def path_of(settings: ServiceFile, name: str) -> Path:
    """The folder of the version that readers see now. It stays as it is until so many newer ones are made."""
    store = _store(settings, name)
    version = store.current()
    assert version is not None
    return store.path(version)


def roll_back(settings: ServiceFile, name: str, to: int | None = None) -> ViewManifest:
    """Show the version before the current one, or another that is still there."""
    store = _store(settings, name)
    with store.writing():
        manifest = store.roll_back(to)
    update_catalog(settings)
    return manifest


def _store(settings: ServiceFile, name: str) -> ViewStore:
    """A published view. Its file is not looked at: a broken one must not keep anybody from reading or going back."""
    for store in published(settings.views.store):
        if store.name == name:
            return store
    view_named(load_views(settings), name, settings)
    raise never_made(name)


def rebuild(
    settings: ServiceFile,
    log: Log,
    session: OpenSession,
    names: Sequence[str] = (),
    on_progress: OnProgress = lambda _: None,
    *,
    only_new: bool = False,
) -> Iterator[ViewBuild | Refused]:
    """Makes views again, all or some, whole or only what is new; of one that cannot be made, yields the refusal."""
    from samovar.service.views.build import ViewBuilder  # noqa: PLC0415 - with Spark only

    views = chosen(settings, names)
    builder = ViewBuilder(settings, log, session, on_progress)
    for view in views:
        try:
            made = builder.refresh(view) if only_new else builder.rebuild(view)
        except Refused as refused:
            yield refused
            continue
        update_catalog(settings)  # also where nothing is new: a process may have been killed before it did
        yield made


refresh = partial(rebuild, only_new=True)


def chosen(settings: ServiceFile, names: Sequence[str]) -> list[View]:
    views = load_views(settings)
    if not views:
        folders = ", ".join(map(str, settings.views.files))
        raise Refused("unknown-view", f"there is no view in {folders}", "Put a view file *.yml there: docs/views.md.")
    return [view_named(views, name, settings) for name in names] if names else views


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
                "view": made.view, "title": made.title, "version": made.version, "path": str(store.path(made.version)),
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


def query(settings: ServiceFile, name: str, sql: str | None, limit: int) -> QueryRows:
    """The first rows of a view; or, on Spark, those of a query in its SQL, to which all published views are tables."""
    limit = max(1, min(limit, MOST_ROWS))
    store = _store(settings, name)
    if sql is not None:
        return _query_sql(settings, sql, limit)
    require_arrow("rows of views")
    import pyarrow.dataset as ds  # noqa: PLC0415 - takes long to import

    manifest = store.current_manifest()
    assert manifest is not None
    folder = store.path(manifest.version)
    files = sorted(map(str, folder.rglob("*.parquet")))
    found = ds.dataset(files, format="parquet", partitioning="hive", partition_base_dir=str(folder)).head(limit)
    columns = [name for name in manifest.columns if name in found.column_names]
    rows = found.select(columns).to_pylist()
    return QueryRows(tuple(columns), tuple(tuple(row.values()) for row in rows))


def _query_sql(settings: ServiceFile, text: str, limit: int) -> QueryRows:
    from samovar.changelog.spark import views as sql  # noqa: PLC0415 - with Spark only
    from samovar.changelog.spark.session import starting  # noqa: PLC0415 - as above

    tables = {table_name(store.name): store.path(store.current() or 0) for store in published(settings.views.store)}
    with starting("samovar views query") as start:
        session = start.ready()
        for name, folder in tables.items():
            session.spark.read.parquet(str(folder)).createOrReplaceTempView(name)
        try:
            columns, rows = sql.rows_of(session, sql.query(session, text, files=False), limit)
        except sql.SqlFault as fault:
            if fault.missing is not None:
                hint = did_you_mean(fault.missing, tables) or f"Published views are {', '.join(tables)}."
                raise Refused("view-source", f"there is no table `{fault.missing}`", hint) from fault
            hint = f"Did you mean one of {', '.join(fault.suggested[:5])}?" if fault.suggested else "Fix the query."
            raise Refused("view-sql", fault.message, hint) from fault
    return QueryRows(tuple(columns), tuple(map(tuple, rows)))


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
