"""Alerts, sessions, events, ...: what the topics of a service hold, exported to Delta tables, each record once.

A commit has rows, and in its transaction ids up to which offset of each partition these are:

    samovar/SERVICE/TOPIC/TOPIC ID/PARTITION -> the offset after the last

So the next run reads where to from the table, and nothing else is to be kept: killed at any moment, the rows and the
offsets are there or neither is. Of two who export at once, one commits, and the other looks again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from samovar.changelog.log import Log, TopicPartition
from samovar.common.arrow import NO_READ_AHEAD
from samovar.common.errors import Refused
from samovar.common.failpoints import hit
from samovar.common.folders import make_private
from samovar.common.suggest import did_you_mean
from samovar.service.config.models import ServiceFile, TableSettings
from samovar.service.spark.frames.frame import FrameRange
from samovar.service.spark.frames.stream import StreamOffsets, stream_of
from samovar.service.topology.rule_registry import with_published_rules
from samovar.service.views.commands import QueryRows
from samovar.service.views.delta import OpenTable, Overtaken, evolved, table_schema
from samovar.service.views.sources import STATES, Sources

if TYPE_CHECKING:
    import pyarrow as pa

COMMIT_OFFSETS = 500_000  # of one commit, at most about
DAY = "day"  # the column of its partitions
EVERY_S = 5.0  # between two words on how far it is
OnRows = Callable[[str, int, int, float], None]  # table, records so far, all of them, seconds


@dataclass(frozen=True, kw_only=True)
class ExportedTable:
    """What came to one table; `offsets` are those that it has now."""

    name: str
    uri: str
    rows: int
    commits: int
    version: int | None
    offsets: Mapping[str, int]
    added: tuple[str, ...]  # columns
    merged: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.name, "uri": self.uri, "rows": self.rows, "commits": self.commits, "version": self.version,
            "offsets": dict(self.offsets), "added": list(self.added), "merged": self.merged,
            "seconds": round(self.seconds, 3),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TableListing:
    """A table, and how far it is behind; without a version it was never exported."""

    name: str
    uri: str
    version: int | None
    rows: int
    behind: int
    columns: Mapping[str, Any]
    snapshots: Sequence[Mapping[str, Any]]

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.name, "uri": self.uri, "version": self.version, "rows": self.rows, "behind": self.behind,
            "columns": dict(self.columns), "snapshots": list(self.snapshots),
        }  # fmt: skip


def export(
    settings: ServiceFile, log: Log, names: Sequence[str] = (), *, rewrite: bool = False,
    on_rows: OnRows | None = None,
) -> Iterator[ExportedTable | Refused]:  # fmt: skip
    """Brings tables up to what their topics hold now, some or all; of one that cannot be, yields the refusal."""
    for name in chosen(settings, names):
        try:
            yield _Export(settings, log, name, rewrite, on_rows).run()
        except Refused as refused:
            yield refused


def chosen(settings: ServiceFile, names: Sequence[str]) -> Sequence[str]:
    if not settings.tables:
        hint = "Write which of its topics become tables: `tables: [alerts, sessions]`."
        raise Refused("unknown-table", f"{settings.path} has no `tables`", hint)
    for name in names:
        if name not in settings.tables:
            hint = did_you_mean(name, settings.tables) or f"Tables are {', '.join(settings.tables)}."
            raise Refused("unknown-table", f"there is no table `{name}` in {settings.path}", hint)
    return names or list(settings.tables)


def list_tables(settings: ServiceFile, log: Log, names: Sequence[str] = ()) -> list[TableListing]:
    """What there is, from the tables' own logs."""
    return [_Export(settings, log, name).listing() for name in chosen(settings, names)]


def query_table(
    settings: ServiceFile, name: str, limit: int, *, version: int | None = None, as_of_ms: int | None = None
) -> QueryRows:
    """The first rows of a table, as it is or was."""
    chosen(settings, [name])
    table = OpenTable(uri_of(settings, name))
    if not table.exists:
        raise never_exported(name)
    moment = None if as_of_ms is None else datetime.fromtimestamp(as_of_ms / 1000, UTC)
    found = table.at(version if moment is None else moment).to_pyarrow_dataset().head(limit, **NO_READ_AHEAD)
    return QueryRows(tuple(found.column_names), tuple(tuple(row.values()) for row in found.to_pylist()))


def maintain_tables(settings: ServiceFile, names: Sequence[str] = ()) -> Iterator[tuple[str, int, int]]:
    """Compacts and expires tables: of each, how many files were merged, and deleted."""
    for name in chosen(settings, names):
        table = OpenTable(uri_of(settings, name))
        if table.exists:
            yield name, table.compact(), table.expire(None)


def uri_of(settings: ServiceFile, name: str) -> str:
    """Where a table is: below the folder of the service file, or at an address of an object store."""
    to = settings.tables[name].to or f".samovar/tables/{name}"
    return to if "://" in to else str(settings.folder / to)


def never_exported(name: str) -> Refused:
    return Refused(
        "table-not-made", f"the table {name} was never exported", f"`samovar tables export CONFIG {name}` does it."
    )


class _Export:
    """One table on its way."""

    def __init__(
        self, settings: ServiceFile, log: Log, name: str, rewrite: bool = False, on_rows: OnRows | None = None
    ) -> None:
        self.settings, self.log, self.name, self.rewrite, self.on_rows = settings, log, name, rewrite, on_rows
        self.set: TableSettings = settings.tables[name]
        self.uri = uri_of(settings, name)
        self.table = OpenTable(self.uri)
        self.added: tuple[str, ...] = ()
        self.total, self.begun, self.told = 0, time.monotonic(), time.monotonic()
        sources = self._sources()
        if name not in sources or name in STATES:
            known = [each for each in sources if each not in STATES]
            hint = did_you_mean(name, known) or f"What can be exported is {', '.join(known)}."
            raise Refused("unknown-table", f"`tables` names `{name}`, and the service has no such topic", hint)
        self.time = sources[name].time
        self.is_of_rule = sources[name].options["source"].startswith("alerts/")
        self.stream = stream_of(
            {
                "config": str(settings.path),
                "maxRecordsPerTrigger": str(COMMIT_OFFSETS),
                "failOnDataLoss": "true",
                **sources[name].options,
            }
        )

    def _sources(self) -> Sources:
        """With the rules of this moment: what new versions emit is to be a column before their alerts are read."""
        return Sources(with_published_rules(self.settings, self.log), self.log)

    def run(self) -> ExportedTable:
        rows, commits = 0, 0
        try:
            while True:
                try:
                    found = self._commit(rows)
                except Overtaken:
                    continue
                if found is None:
                    break
                rows, commits = rows + found, commits + 1
            merged = self.table.compact() if commits else 0
            if merged:
                self.table.expire(None)
            offsets = {} if not self.table.exists else self._offsets(self.table.at()).offsets
        finally:
            self.stream.close()
        version = self.table.at().version() if self.table.exists else None
        shown = {str(at): offset for at, offset in offsets.items()}
        seconds = time.monotonic() - self.begun
        return ExportedTable(
            name=self.name,
            uri=self.uri,
            rows=rows,
            commits=commits,
            version=version,
            offsets=shown,
            added=self.added,
            merged=merged,
            seconds=seconds,
        )

    def listing(self) -> TableListing:
        try:
            base = self.table.at() if self.table.exists else None
            behind = self._behind(base)
        finally:
            self.stream.close()
        if base is None:
            return TableListing(
                name=self.name, uri=self.uri, version=None, rows=0, behind=behind, columns={}, snapshots=()
            )
        columns = {each["name"]: each["type"] for each in json.loads(base.schema().to_json())["fields"]}
        snapshots = [
            {"version": each["version"], "made_ms": each["timestamp"], "operation": each["operation"]}
            for each in base.history(100)
        ]
        version = base.version()
        return TableListing(
            name=self.name,
            uri=self.uri,
            version=version,
            rows=self.table.rows(version),
            behind=behind,
            columns=columns,
            snapshots=snapshots,
        )

    def _behind(self, base: Any) -> int:
        start = self._start(base)
        bounds = self.log.bounds(list(StreamOffsets.of(self.stream.initial_offset()).offsets))
        return sum(max(each.end - start.offsets.get(at, each.begin), 0) for at, each in bounds.items())

    # ------------------------------------------------------------ one commit

    def _commit(self, before: int) -> int | None:
        """Rows of one more commit; None where the table has all that there is."""
        base = self.table.at() if self.table.exists else None
        start = self._start(base)
        self.total = self.total or self._behind(base)
        end = self.stream.latest_offset()
        ended = StreamOffsets.of(end)
        has_more = any(offset > start.offsets.get(at, 0) for at, offset in ended.offsets.items())
        if not has_more and (base is not None or not ended.offsets):
            return None
        parts = self.stream.parts(start.to_places(), end)
        frame = self._sources().frame(self.name)
        schema = self._schema(frame, base)
        note = {"table": self.name, "service": self.settings.service, "offsets": end["topics"]}
        applied = {self._application(at, ended.ids): offset for at, offset in ended.offsets.items()}
        rows = _Rows(frame, parts, schema, self.time, lambda count: self._tell(before + count))
        hit("export.before")
        if base is None and "://" not in self.uri:
            make_private(self.settings.folder / self.uri)
        self.table.append(
            base, rows.reader(), [DAY] if self.time else [], note, applied, self._configuration(base), rows
        )
        hit("export.after")
        return rows.count

    def _tell(self, rows: int) -> None:
        now = time.monotonic()
        if self.on_rows is not None and now - self.told > EVERY_S:
            self.told = now
            self.on_rows(self.name, rows, self.total, now - self.begun)

    def _start(self, base: Any) -> StreamOffsets:
        """Where the table goes on: what it has, or the beginning of the topic."""
        initial = StreamOffsets.of(self.stream.initial_offset())
        start = initial if base is None else self._offsets(base)
        if base is not None and initial.offsets and not start.offsets:
            raise Refused(
                "table-foreign",
                f"the table at {self.uri} does not say how far it is in {', '.join(initial.ids)}",
                "It is another one's, or the topic was made again since. Write another `to`, or remove it.",
                f"topic ids {', '.join(initial.ids.values())}",
            )
        places = start.to_places()
        self.stream.parts(places, places)  # its limit is counted from here
        return start

    def _offsets(self, base: Any) -> StreamOffsets:
        initial = StreamOffsets.of(self.stream.initial_offset())
        found = {at: base.transaction_version(self._application(at, initial.ids)) for at in initial.offsets}
        return StreamOffsets(initial.ids, {at: offset for at, offset in found.items() if offset is not None})

    def _application(self, at: TopicPartition, ids: Mapping[str, str]) -> str:
        return f"samovar/{self.settings.service}/{at.topic}/{ids[at.topic]}/{at.partition}"

    def _schema(self, frame: Any, base: Any) -> pa.Schema:
        """The columns of what comes, by the table's where it has them. A new field is a new column."""
        import pyarrow as pa  # noqa: PLC0415 - takes long to import
        from deltalake import Schema  # noqa: PLC0415 - large, and an extra

        # Of a rule that emits nothing there is no `emit`, which may become a struct.
        no_emit = self.is_of_rule and frame.schema.field("emit").type == pa.string()
        fields = [each for each in frame.schema if not (no_emit and each.name == "emit")]
        fields += [pa.field(DAY, pa.date32())] if self.time and DAY not in frame.schema.names else []
        if base is None:
            table_schema(Schema.from_arrow(pa.schema(fields)).to_json())  # names that cannot be columns
            return pa.schema(fields)
        old = json.loads(base.schema().to_json())
        change = evolved(old, json.loads(Schema.from_arrow(pa.schema(fields)).to_json()))
        if change.conflicts:
            if not self.rewrite:
                raise Refused(
                    "table-schema",
                    f"the table {self.name} has columns of other types: {'; '.join(change.conflicts)}",
                    "Rules, or the schema of a stream, say another type since. `samovar tables export CONFIG"
                    f" {self.name} --rewrite` gives all rows of the table the new types, in one commit.",
                )
            self.table.cast(base, pa.schema(fields), {"table": self.name, "kind": "rewrite"})
            raise Overtaken("the table was rewritten")
        self.added += change.added
        return pa.schema(fields)

    def _configuration(self, base: Any) -> dict[str, str | None] | None:
        """Of a new table: how long one can travel back."""
        days = max(1, -(-self.set.keep_ms // 86_400_000))
        kept = f"interval {days} days"
        named = {"delta.logRetentionDuration": kept, "delta.deletedFileRetentionDuration": kept}
        return None if base is not None else dict(named)


class _Rows:
    """Rows of some offsets, as a reader that others pull. What is refused meanwhile is kept: they would garble it."""

    def __init__(
        self, frame: Any, parts: Sequence[FrameRange], schema: pa.Schema, time: str | None, tell: Callable[[int], None]
    ) -> None:
        self.frame, self.parts, self.schema, self.time, self.tell = frame, parts, schema, time, tell
        self.count = 0
        self.fault: Exception | None = None

    def reader(self) -> pa.RecordBatchReader:
        import pyarrow as pa  # noqa: PLC0415 - takes long to import

        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - as above

        try:
            for part in self.parts:
                for batch in self.frame.read(part):
                    if self.time is not None and DAY not in batch.schema.names:
                        batch = batch.append_column(DAY, batch.column(self.time).cast(pa.date32()))
                    self.count += batch.num_rows
                    yield batch.select(self.schema.names).cast(self.schema)
                    self.tell(self.count)
                    hit("export.reading")
        except Exception as fault:
            self.fault = fault
            raise
