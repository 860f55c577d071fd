"""Making a version of a view: all of it, or only the partitions that have new rows.

An incremental refresh looks at what came since the last version, asks which partitions of the view those rows belong
to (`partition_of`), makes these again from all of their rows, and keeps the others as they are. So late rows rewrite
their partition, and no other. It is full where that cannot be right: the view's file changed, or a source did whose
rows no partition is known of.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from samovar.changelog.log import Log
from samovar.changelog.spark import views
from samovar.changelog.spark.lineage import lineage_of
from samovar.changelog.spark.progress import OnProgress
from samovar.changelog.spark.session import OpenSession
from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.service.backtest.current import reached
from samovar.service.config.models import ServiceFile
from samovar.service.spark.jobs import refuse_unshared
from samovar.service.spark.session import refuse_remote_executors
from samovar.service.topology.plans import rule_plans
from samovar.service.topology.rule_registry import with_published_rules
from samovar.service.topology.ruleset import has_rules
from samovar.service.topology.topics import counted_topics, partitions_of
from samovar.service.views.delta import table_schema
from samovar.service.views.files import View, bad_sql
from samovar.service.views.serve_build import TableBuild
from samovar.service.views.sources import Offsets, Sources, bounds_of, offsets_in
from samovar.service.views.store import DeltaRows, ViewManifest, ViewStore

# By the class of Spark's error.
_HINTS = {
    "": "Views are queries in Spark's SQL: docs/views.md.",
    "PARSE_SYNTAX_ERROR": "What is wrong stands there or just before it. A view is one `select`, or `with ... select`.",
    "MISSING_GROUP_BY": "Group by all columns that are not aggregated: `group by all`.",
    "MISSING_AGGREGATION": "Group by all columns that are not aggregated: `group by all`.",
}


@dataclass(frozen=True)
class ViewBuild:
    """What came of one view. Without a manifest nothing was new, and the old version stands."""

    view: View
    manifest: ViewManifest | None
    seconds: float
    notes: tuple[str, ...] = ()


@dataclass(kw_only=True)
class ViewBuilder:
    """Makes views of one service on one session. All of them see the same offsets."""

    settings: ServiceFile
    log: Log
    session: OpenSession
    on_progress: OnProgress = lambda _: None
    any_schema: bool = False  # a Delta table may get columns that its readers do not know

    def __post_init__(self) -> None:
        refuse_remote_executors(self.settings, is_local=self.session.is_local)
        refuse_unshared(self.session, self.log, self.settings.views.store)
        self.settings = with_published_rules(self.settings, self.log)  # the rules that run, not those of the files

    @cached_property
    def sources(self) -> Sources:
        return Sources(self.settings, self.log)

    @cached_property
    def rules(self) -> Mapping[str, str]:
        """The rules that the service runs and their versions, by its last positions."""
        if not has_rules(self.settings):
            return {}
        topics = self.log.topics(counted_topics(self.settings))
        found: dict[str, str] = {}
        for plan in rule_plans(self.settings, partitions_of(self.settings, topics)):
            found |= reached(self.log, plan.topics.changelog).rules
        return dict(sorted(found.items()))

    def rebuild(self, view: View) -> ViewBuild:
        """The whole view from all that its sources hold."""
        return _Build(self, view).full()

    def refresh(self, view: View) -> ViewBuild:
        """As its file says. Where nothing is new, nothing is made."""
        return _Build(self, view).refresh()


class _OtherColumns(Exception):
    """A Delta table gets new columns, and rows of no partition are replaced: a commit of a part does not take both."""


class _Build:
    """One view on its way."""

    def __init__(self, builder: ViewBuilder, view: View) -> None:
        self.builder, self.view, self.session, self.sources = builder, view, builder.session, builder.sources
        self.store = ViewStore(builder.settings.views.store, view.name)
        self.begun = time.monotonic()
        self.notes: list[str] = []
        for name in view.partition_of:
            if name not in self.sources:
                raise self._no_source(name, 0, 0)
        with self._faults():
            named = views.tables_in(self.session, view.sql)
        self.used = [name for name in self.sources if name.lower() in named]
        self.offsets = {name: bounds_of(self.sources.frame(name)) for name in self.used}
        self.tables = TableBuild(self.session, view, self.sources, self.used)

    def refresh(self) -> ViewBuild:
        with self.store.writing():
            base = self.store.current_manifest()
        if base is None or base.digest != self.view.digest:
            return self.full()
        if base.sources == self.offsets:
            return self._result(None)
        # A source whose rows no partition is known of may have changed any.
        others = [name for name in self.used if name not in self.view.partition_of]
        has_moved = any(_ends(self.offsets[name]) != _ends(base.sources.get(name, {})) for name in others)
        if self.view.refresh == "full" or has_moved:
            return self.full()
        try:
            return self._incremental(base)
        except _OtherColumns:
            return self.full()

    def full(self) -> ViewBuild:
        with self.store.writing():
            version = self.store.next_version()
            frame = self._write(self.store.being_made(version), None)
            return self._publish(version, frame, "full")

    def _incremental(self, base: ViewManifest) -> ViewBuild:
        touched = self._touched(base)
        if not touched:
            return self._result(None)
        column = self.view.partitioning[0]
        dirs = {views.folder_of(self.session, column, value) for value in touched}
        with self.store.writing():
            version = self.store.next_version()
            part = self.store.being_made(version)
            frame = self._write(part, touched)
            there = {path.name for path in part.glob("*=*")}
            if not there <= dirs:
                shutil.rmtree(part, ignore_errors=True)
                raise Refused(
                    "view-partition",
                    f"rows of {min(there - dirs)} came of rows whose `partition_of` is {min(dirs)}, and others",
                    "Each partition must come of its own rows alone: repair `partition_of`, or write `refresh: full`.",
                    str(self.view.path),
                )
            if self.view.format == "parquet":
                self.store.keep_partitions(base.version, part, dirs)
            self.tables.keep(self.store.path(base.version), base.serving, part, dirs)
            return self._publish(version, frame, "incremental", base.version, tuple(sorted(dirs)), touched)

    def _touched(self, base: ViewManifest) -> list[str | None]:
        """Partitions that new rows belong to, but for those whose older rows the log no longer has."""
        touched: set[str | None] = set()
        for name, expression in self.view.partition_of.items():
            if name not in self.offsets:
                continue
            before, now = base.sources.get(name, {}), self.offsets[name]
            news = {at: (max(start, before.get(at, (0, start))[1]), end) for at, (start, end) in now.items()}
            news = {at: (start, end) for at, (start, end) in news.items() if start < end}
            if not news:
                continue
            with self._faults():
                found = set(views.values_of(self.session, self.sources.table(name, news), expression))
            if any(start > before.get(at, (start, 0))[0] for at, (start, _) in now.items()):
                # The oldest partition that the log has may have lost rows to retention: it stays as it is.
                least = views.least_of(self.session, self.sources.table(name, now), expression)
                kept = {value for value in found if value is not None and least is not None and value <= least}
                found -= kept
                if kept:
                    self.notes.append(
                        f"{self.view.name}: new rows of {', '.join(sorted(kept))} are left out: retention took older"
                        f" rows of it from {name}, and what was published stays"
                    )
            touched |= found
        return sorted(touched, key=lambda value: (value is not None, value))

    def _write(self, part: Path, touched: list[str | None] | None) -> Any:
        """Runs the query over all rows of its sources, or over those of the touched partitions."""
        view, session = self.view, self.session
        tables = []
        for name in self.used:
            follows = touched is not None and name in view.partition_of
            only = (view.partition_of[name], touched or ()) if follows else None
            tables.append(self.sources.table(name, self.offsets[name], only))
        total = sum(map(offsets_in, self.offsets.values()))
        with (
            tempfile.TemporaryDirectory(prefix="samovar-ticks-") as ticks,
            views.known_tables(session, tables, Path(ticks)),
        ):
            with self._faults():
                frame = views.query(session, view.sql)
            self._check_columns(frame.columns)
            if (
                view.format == "delta"
                and self.store.check(self._delta_rows(frame, touched))
                and None in (touched or ())
            ):
                raise _OtherColumns
            try:
                with self._faults(), self.tables.whole(frame) as rows:
                    progress = self.builder.on_progress, total, Path(ticks)
                    shown = rows.drop(*self.tables.states)
                    views.write(session, view.name, shown, part, view.partitioning, view.key, *progress)
                    self._check_key(frame, part)
                    self.tables.write(rows, part, total)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
        return frame

    def _check_key(self, frame: Any, part: Path) -> None:
        view = self.view
        if view.key and next(part.rglob("*.parquet"), None) is not None:
            twice = views.twice(self.session, frame, part, view.partitioning, view.key)
            if twice is not None:
                raise Refused(
                    "view-key",
                    f"{view.name}: two rows have the key {dict(zip(view.key, twice, strict=True))}",
                    "Name all columns that tell rows apart in `key`, or group by them.",
                    str(view.path),
                )

    def _check_columns(self, columns: list[str]) -> None:
        for name, wanted in (("key", self.view.key), ("partitioning", self.view.partitioning)):
            for column in wanted:
                if column not in columns:
                    hint = did_you_mean(column, columns) or f"Columns are {', '.join(columns)}."
                    what = f"`{name}` names `{column}`, which is not a column"
                    raise bad_sql(self.view, "view-sql", what, 0, 0, hint)
        if self.view.partitioning and set(columns) == set(self.view.partitioning):
            hint = "Partitions are folders: at least one column must be left for the files in them."
            raise bad_sql(self.view, "view-sql", "all columns are in `partitioning`", 0, 0, hint)

    def _publish(
        self, version: int, frame: Any, kind: str, base: int | None = None, written: tuple[str, ...] = (),
        touched: Sequence[str | None] | None = None,
    ) -> ViewBuild:  # fmt: skip
        import pyarrow.parquet as pq  # noqa: PLC0415 - takes long to import

        view, part = self.view, self.store.being_made(version)
        for path in (*part.glob("_SUCCESS"), *part.rglob(".*.crc")):
            path.unlink(missing_ok=True)
        is_delta = view.format == "delta"
        if not is_delta and next(part.rglob("*.parquet"), None) is None:  # a view with no rows still has its columns
            part.mkdir(exist_ok=True)
            empty = self.session.run("columns", frame.limit(0).toArrow)
            pq.write_table(empty, part / "part-empty.parquet")
        rows = sum(pq.read_metadata(path).num_rows for path in part.rglob("*.parquet"))
        origins = lineage_of(frame, self.used)
        manifest = ViewManifest(
            view=view.name,
            version=version,
            digest=view.digest,
            made_ms=int(time.time() * 1000),
            kind=kind,
            rows=rows,
            sources=self.offsets,
            rules=self.builder.rules,
            columns={field.name: field.dataType.simpleString() for field in frame.schema.fields},
            partitioning=view.partitioning,
            base=base,
            written=written,
            title=view.title,
            serving=self.tables.manifest(),
            lineage={name: {"reads": sorted(each.reads), "plain": each.plain} for name, each in origins.items()},
        )
        delta = self._delta_rows(frame, touched) if is_delta else None
        manifest = self.store.publish(manifest, self.builder.settings.views.keep, delta)
        return self._result(manifest)

    def _delta_rows(self, frame: Any, touched: Sequence[str | None] | None) -> DeltaRows:
        return DeltaRows(
            schema=table_schema(frame.schema.json()),
            partitioning=self.view.partitioning,
            only=None if touched is None else tuple(touched),
            any_schema=self.builder.any_schema,
        )

    def _result(self, manifest: ViewManifest | None) -> ViewBuild:
        return ViewBuild(self.view, manifest, time.monotonic() - self.begun, tuple(self.notes))

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Faults of the view's SQL as refusals with their line."""
        try:
            yield
        except views.SqlFault as fault:
            if fault.missing is not None:
                raise self._no_source(fault.missing, fault.start, fault.stop) from fault
            names = ", ".join(fault.suggested[:5])
            hint = f"Did you mean one of {names}?" if names else _HINTS.get(fault.kind, _HINTS[""])
            raise bad_sql(self.view, "view-sql", fault.message, fault.start, fault.stop, hint) from fault

    def _no_source(self, name: str, start: int, stop: int) -> Refused:
        hint = did_you_mean(name, self.sources) or f"Sources are {', '.join(self.sources)}."
        return bad_sql(self.view, "view-source", f"there is no source `{name}`", start, stop, hint)


def _ends(offsets: Offsets) -> dict[str, int]:
    return {at: end for at, (_, end) in offsets.items()}
