"""The same tables on Spark, in Spark's SQL: for data that is too large for one machine."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from samovar.changelog.log import Log
from samovar.changelog.spark import views
from samovar.common.suggest import did_you_mean
from samovar.service.config.models import ServiceFile
from samovar.service.spark.progress import ProgressDisplay
from samovar.service.spark.session import starting_for
from samovar.service.sql.local import Rows, Statement
from samovar.service.sql.masking import TableMasks
from samovar.service.sql.tables import Catalog, ScanWatch, ViewTable
from samovar.service.views.delta import OpenTable
from samovar.service.views.sources import bounds_of, offsets_in

HINT = "The SQL is Spark's: https://spark.apache.org/docs/latest/sql-ref.html"


class SparkEngine:
    """One session for all queries, started while the first is typed."""

    def __init__(self, settings: ServiceFile, log: Log, masks: TableMasks, master: str | None) -> None:
        self.settings, self.log, self.masks = settings, log, masks
        self._stack = ExitStack()
        self._display = self._stack.enter_context(ProgressDisplay(sys.stderr))
        starting = starting_for(settings, "samovar sql", master, self._display.say)
        self._start = self._stack.enter_context(starting)

    def close(self) -> None:
        self._stack.close()

    def tables(self) -> Catalog:
        return Catalog(self.settings, self.log, self.masks)

    @contextmanager
    def run(self, statement: Statement, limit: int | None = None) -> Iterator[Rows]:
        """At most so many rows, all of them at once."""
        session, tables = self._start.ready(), self.tables()
        with tempfile.TemporaryDirectory(prefix="samovar-ticks-") as ticks, _faults(statement, tables):
            named = views.tables_in(session, statement.text)
            used = [name for name in tables.names if name.lower() in named]
            offsets = {name: bounds_of(tables.sources.frame(name)) for name in used if name in tables.sources}
            read = [tables.sources.table(name, offsets[name]) for name in offsets]
            total = sum(map(offsets_in, offsets.values()))
            with views.known_tables(session, read, Path(ticks)):
                for name in used:
                    if name not in offsets:
                        _view(session, tables.open(name)).createOrReplaceTempView(name)
                frame = views.query(session, statement.text, files=False)
                frame = frame if limit is None else frame.limit(limit)
                watched: dict[str, Any] = {"total": total, "ticks": Path(ticks)} if session.is_local else {}
                found: pa.Table = session.run("query", frame.toArrow, self._display, **watched)
                self._display.clear()
        yield Rows(tuple(found.column_names), iter(found.to_batches(max_chunksize=2_000)))


def _view(session: Any, table: Any) -> Any:
    """A published view. One with marked columns is masked here: it is small."""
    assert isinstance(table, ViewTable)
    columns = list(table.schema.names)
    if table.mask is not None:
        batches = table.read(columns, None, ScanWatch())
        return session.spark.createDataFrame(pa.Table.from_batches(batches, table.schema))
    version = table.store.snapshot(table.manifest)
    if version is not None:
        listing = OpenTable(str(table.store.table)).listing(version)
        return views.frame_of_files(session, table.store.table, *listing).select(*(f"`{name}`" for name in columns))
    schema = ", ".join(f"`{name}` {table.manifest.columns[name]}" for name in columns)
    folder = str(table.store.path(table.manifest.version))
    return session.spark.read.schema(schema).parquet(folder).select(*(f"`{name}`" for name in columns))


@contextmanager
def _faults(statement: Statement, tables: Catalog) -> Iterator[None]:
    try:
        yield
    except views.SqlFault as fault:
        if fault.missing is not None:
            hint = did_you_mean(fault.missing, tables.names) or f"Tables are {', '.join(tables.names)}."
            raise statement.refused(f"there is no table `{fault.missing}`", hint, fault.start, fault.stop) from fault
        hint = f"Did you mean one of {', '.join(fault.suggested[:5])}?" if fault.suggested else HINT
        raise statement.refused(fault.message, hint, fault.start, fault.stop) from fault
