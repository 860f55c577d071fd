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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
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
from samovar.service.spark.jobs import refuse_away
from samovar.service.topology.plans import rule_plans
from samovar.service.topology.rule_registry import with_rulebook
from samovar.service.topology.ruleset import has_rules
from samovar.service.topology.topics import counted_topics, partitions_of
from samovar.service.views.files import View, bad_sql
from samovar.service.views.sources import (
    Offsets,
    Sources,
    ViewSource,
    bounds_of,
    named_in,
    offsets_in,
    partition_source,
    table_of,
)
from samovar.service.views.store import ViewManifest, ViewStore


@dataclass(frozen=True)
class ViewBuild:
    """What came of one view. Without a manifest nothing was new, and the old version stands."""

    view: View
    manifest: ViewManifest | None
    seconds: float
    notes: tuple[str, ...] = ()


@dataclass
class ViewBuilder:
    """Makes views of one service on one session. All of them see the same offsets."""

    settings: ServiceFile
    log: Log
    session: OpenSession
    on_progress: OnProgress = lambda _: None
    now_ms: Callable[[], int] = lambda: int(time.time() * 1000)

    def __post_init__(self) -> None:
        refuse_away(self.settings, self.session)
        self.settings = with_rulebook(self.settings, self.log)  # the rules that run, not those of the files

    @cached_property
    def sources(self) -> Sources:
        return Sources(self.settings, self.log)

    def table(
        self, name: str, offsets: Offsets, only: tuple[str, Sequence[str | None]] | None = None
    ) -> views.SqlTable:
        return table_of(self.sources[name], self.sources.frame(name), offsets, only, self.log)

    def rebuild(self, view: View) -> ViewBuild:
        """The whole view from all that its sources hold."""
        return _Making(self, view).full()

    def refresh(self, view: View) -> ViewBuild:
        """As its file says. Where nothing is new, nothing is made."""
        return _Making(self, view).refresh()

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


class _Making:
    """One view on its way."""

    def __init__(self, maker: ViewBuilder, view: View) -> None:
        self.maker, self.view, self.session = maker, view, maker.session
        self.store = ViewStore(maker.settings.views.store, view.name)
        self.begun = time.monotonic()
        self.notes: list[str] = []
        self.ticks = Path()  # where tasks tell how far they are, while it is being made
        self._check_sources()
        self.used = named_in(view.sql, maker.sources)
        self.offsets = {name: bounds_of(maker.sources.frame(name)) for name in self.used}

    def _check_sources(self) -> None:
        for name in self.view.partition_of:
            if name not in self.maker.sources:
                raise self._no_source(name, 0, 0)

    # ------------------------------------------------------------ full, or in part

    def refresh(self) -> ViewBuild:
        with self.store.writing():
            base = self.store.current_manifest()
        if base is None or base.digest != self.view.digest:
            return self.full()
        if base.sources == self.offsets:
            return ViewBuild(self.view, None, self._spent())
        follows = partition_source(self.view, self.maker.sources)
        others = [name for name in self.used if name not in follows]
        if self.view.refresh == "full" or any(self._moved(base, name) for name in others):
            return self.full()
        return self.part(base, follows)

    def _moved(self, base: ViewManifest, name: str) -> bool:
        ends = {at: end for at, (_, end) in self.offsets[name].items()}
        return ends != {at: end for at, (_, end) in base.sources.get(name, {}).items()}

    def full(self) -> ViewBuild:
        with self.store.writing(), self._ticking():
            self._put(self.used, None)
            version = self.store.next_version()
            part = self.store.being_made(version)
            frame = self._write(part)
            return self._publish(version, part, frame, "full", None, ())

    def part(self, base: ViewManifest, follows: Mapping[str, ViewSource]) -> ViewBuild:
        touched = self._touched(base, follows)
        if not touched:
            return ViewBuild(self.view, None, self._spent(), tuple(self.notes))
        column = self.view.partitioning[0]
        dirs = {views.folder_of(self.session, column, value) for value in touched}
        with self.store.writing(), self._ticking():
            self._put(self.used, touched)
            version = self.store.next_version()
            part = self.store.being_made(version)
            frame = self._write(part)
            there = {path.name for path in part.glob("*=*")}
            if not there <= dirs:
                shutil.rmtree(part, ignore_errors=True)
                raise Refused(
                    "view-partition",
                    f"rows of {min(there - dirs)} came of rows whose `partition_of` is {min(dirs)}, and others",
                    "Each partition must come of its own rows alone: repair `partition_of`, or write `refresh: full`.",
                    str(self.view.path),
                )
            self.store.keep_partitions(base.version, part, dirs)
            return self._publish(version, part, frame, "incremental", base.version, tuple(sorted(dirs)))

    def _touched(self, base: ViewManifest, follows: Mapping[str, ViewSource]) -> list[str | None]:
        """Partitions that new rows belong to, but for those whose older rows the log no longer has."""
        touched: set[str | None] = set()
        for name, source in follows.items():
            if name not in self.offsets:
                continue
            before = base.sources.get(name, {})
            news = {at: (max(start, before.get(at, (0, start))[1]), end) for at, (start, end) in self._at(name)}
            news = {at: (start, end) for at, (start, end) in news.items() if start < end}
            if not news:
                continue
            expression = self.view.partition_of[name]
            with self._told():
                found = set(views.values_of(self.session, self.maker.table(name, news), expression))
            if any(start > before.get(at, (start, 0))[0] for at, (start, _) in self._at(name)):
                found = self._still_whole(source, expression, found)
            touched |= found
        return sorted(touched, key=lambda value: (value is not None, value))

    def _at(self, name: str) -> list[tuple[str, tuple[int, int]]]:
        return list(self.offsets[name].items())

    def _still_whole(self, source: ViewSource, expression: str, found: set[str | None]) -> set[str | None]:
        """The oldest partition that the log has may have lost rows to retention: it stays as it is."""
        table = self.maker.table(source.name, self.offsets[source.name])
        least = views.least_of(self.session, table, expression)
        kept = {value for value in found if value is not None and least is not None and value <= least}
        if kept:
            listed = ", ".join(sorted(str(value) for value in kept))
            self.notes.append(
                f"{self.view.name}: new rows of {listed} are left out: retention took older rows of it from"
                f" {source.name}, and what was published stays"
            )
        return found - kept

    # ------------------------------------------------------------ on Spark

    @contextmanager
    def _ticking(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory(prefix="samovar-ticks-") as folder:
            self.ticks = Path(folder)
            yield

    def _put(self, names: list[str], touched: list[str | None] | None) -> None:
        tables = []
        for name in names:
            follows = touched is not None and name in self.view.partition_of
            only = (self.view.partition_of[name], touched or ()) if follows else None
            tables.append(self.maker.table(name, self.offsets[name], only))
        with self._told():
            views.put_tables(self.session, tables, self.ticks)

    def _write(self, part: Path) -> Any:
        view = self.view
        with self._told():
            frame = views.query(self.session, view.sql)
        self._check_columns(frame.columns)
        total = sum(map(offsets_in, self.offsets.values()))
        try:
            with self._told():
                views.write(
                    self.session,
                    view.name,
                    frame,
                    part,
                    view.partitioning,
                    view.key,
                    self.maker.on_progress,
                    total,
                    self.ticks,
                )
            if view.key and (twice := self._twice(frame, part)) is not None:
                raise Refused(
                    "view-key",
                    f"{view.name}: two rows have the key {dict(zip(view.key, twice, strict=True))}",
                    "Name all columns that tell rows apart in `key`, or group by them.",
                    str(view.path),
                )
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        return frame

    def _twice(self, frame: Any, part: Path) -> list[Any] | None:
        if next(part.rglob("*.parquet"), None) is None:
            return None
        return views.twice(self.session, frame, part, self.view.partitioning, self.view.key)

    def _check_columns(self, columns: list[str]) -> None:
        for name, wanted in (("key", self.view.key), ("partitioning", self.view.partitioning)):
            for column in wanted:
                if column not in columns:
                    hint = did_you_mean(column, columns) or f"Columns are {', '.join(columns)}."
                    raise bad_sql(
                        self.view, "view-sql", f"`{name}` names `{column}`, which is not a column", 0, 0, hint
                    )
        if self.view.partitioning and set(columns) == set(self.view.partitioning):
            hint = "Partitions are folders: at least one column must be left for the files in them."
            raise bad_sql(self.view, "view-sql", "all columns are in `partitioning`", 0, 0, hint)

    def _publish(
        self, version: int, part: Path, frame: Any, kind: str, base: int | None, written: tuple[str, ...]
    ) -> ViewBuild:
        for path in (*part.glob("_SUCCESS"), *part.glob(".*.crc"), *part.rglob(".*.crc")):
            path.unlink(missing_ok=True)
        _fill_empty(part, frame, self.session)
        manifest = ViewManifest(
            self.view.name,
            version,
            self.view.digest,
            self.maker.now_ms(),
            kind,
            count_rows(part),
            self.offsets,
            self.maker.rules,
            views.types_of(frame),
            self.view.partitioning,
            base,
            written,
            self.view.title,
            self._lineage(frame),
        )
        self.store.publish(manifest, self.maker.settings.views.keep)
        return ViewBuild(self.view, manifest, self._spent(), tuple(self.notes))

    def _lineage(self, frame: Any) -> dict[str, dict[str, Any]]:
        """Where columns come from, for those who may not see all of it."""
        found = lineage_of(frame, self.used)
        return {name: {"reads": sorted(each.reads), "plain": each.plain} for name, each in found.items()}

    def _spent(self) -> float:
        return time.monotonic() - self.begun

    # ------------------------------------------------------------ errors

    def _told(self) -> AbstractContextManager[None]:
        return telling(self.view, self.maker.sources)

    def _no_source(self, name: str, start: int, stop: int) -> Refused:
        return no_source(self.view, self.maker.sources, name, start, stop)


@contextmanager
def telling(view: View, sources: Mapping[str, ViewSource]) -> Iterator[None]:
    """Faults of a view's SQL as refusals with their line."""
    try:
        yield
    except views.SqlFault as fault:
        if fault.missing is not None:
            raise no_source(view, sources, fault.missing, fault.start, fault.stop) from fault
        names = ", ".join(fault.suggested[:5])
        hint = f"Did you mean one of {names}?" if names else "Views are queries in Spark's SQL: docs/views.md."
        raise bad_sql(view, "view-sql", fault.message, fault.start, fault.stop, hint) from fault


def no_source(view: View, sources: Mapping[str, ViewSource], name: str, start: int, stop: int) -> Refused:
    hint = did_you_mean(name, sources) or f"Sources are {', '.join(sources)}."
    return bad_sql(view, "view-source", f"there is no source `{name}`", start, stop, hint)


def count_rows(folder: Path) -> int:
    import pyarrow.parquet as pq  # noqa: PLC0415 - takes long to import

    return sum(pq.read_metadata(path).num_rows for path in folder.rglob("*.parquet"))


def _fill_empty(part: Path, frame: Any, session: OpenSession) -> None:
    """A view with no rows still has its columns."""
    if next(part.rglob("*.parquet"), None) is not None:
        return
    import pyarrow.parquet as pq  # noqa: PLC0415 - takes long to import

    part.mkdir(exist_ok=True)
    pq.write_table(session.run("columns", frame.limit(0).toArrow), part / "part-empty.parquet")
