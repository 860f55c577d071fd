"""Open tables: folders that any reader of Delta Lake understands, and that change by commits, each whole or not at all.

    TABLE/_delta_log/00000000000000000012.json    a commit: files that came and went, the columns, and our note
          000007-3f2a9c1e/00000-*.parquet    files of a view's version; of which partition they are, the log says
          day=2026-01-05/*.parquet           files of exports and of compaction

A commit of ours has a note, which Spark shows as `userMetadata` of `describe history`, and says in transaction ids of
applications how far it is: `samovar/views/NAME` at 7. They are part of the same commit, so that what was interrupted
can ask the table itself whether it was done. A commit is for exactly the number that follows what was looked at: of
two writers one comes too late, looks again and decides again.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from samovar.common import folders
from samovar.common.errors import Refused

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

NOTE = "userMetadata"
LOG = "_delta_log"
NULL = "__HIVE_DEFAULT_PARTITION__"
SMALL_FILES = 12  # of one partition: more of them are compacted
SMALL_BYTES = 16 * 2**20
READERS_H = 1  # what no kept version needs stays so long for those who read it now
_COMMIT = re.compile(r"(\d{20})\.json\Z")
_LONG = 64  # a text of more has no bounds in the log
_UNFIT = re.compile(r"[ ,;{}()\n\t=]")  # in a name of a column, for Delta Lake
_NOT_NULL = re.compile(r'"(nullable|containsNull|valueContainsNull)":\s*false')


class Overtaken(Exception):
    """Somebody else's commit came first. Look again."""


@dataclass(frozen=True)
class TableChange:
    """What the columns of a table became, or why they cannot."""

    schema: Mapping[str, Any]
    added: tuple[str, ...]
    conflicts: tuple[str, ...]


def require_delta() -> None:
    """To be asked before deltalake is imported, which is done late because it is large."""
    if find_spec("deltalake") is None or find_spec("pyarrow") is None:
        what = "Delta tables need deltalake, which is not installed"
        raise Refused("delta-missing", what, "`pip install 'samovar[delta]'`.")


# ---------------------------------------------------------------- columns


def evolved(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> TableChange:
    """A table's columns, as JSON of Spark and Delta Lake, with those of new rows. What is there stays, in its order.

    >>> one, two = ({"type": "struct", "fields": [{"name": "n", "type": kind}]} for kind in ("long", "string"))
    >>> evolved(one, two).conflicts
    ('`n` is long, and would be string',)
    >>> more = {"type": "struct", "fields": [*one["fields"], {"name": "m", "type": "date"}]}
    >>> evolved(one, more).added, evolved(more, one).conflicts
    (('m',), ())
    """
    coming = {each["name"]: each for each in new["fields"]}
    fields: list[Any] = []
    added: list[str] = []
    conflicts: list[str] = []
    for each in old["fields"]:
        known, name = coming.pop(each["name"], each), prefix + each["name"]
        if _is_struct(each["type"]) and _is_struct(known["type"]):
            inner = evolved(each["type"], known["type"], f"{name}.")
            each = {**each, "type": inner.schema}
            added += inner.added
            conflicts += inner.conflicts
        elif _plain(each["type"]) != _plain(known["type"]):
            conflicts.append(f"`{name}` is {_word(each['type'])}, and would be {_word(known['type'])}")
        fields.append(each)
    added += [prefix + name for name in coming]
    return TableChange({**old, "fields": [*fields, *coming.values()]}, tuple(added), tuple(conflicts))


def dropped(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The columns that new rows have no more.

    >>> dropped({"fields": [{"name": "a", "type": "long"}]}, {"fields": []})
    ['a']
    """
    there = {each["name"] for each in new["fields"]}
    return [each["name"] for each in old["fields"] if each["name"] not in there]


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, Mapping) and kind.get("type") == "struct"


def _plain(kind: Any) -> Any:
    """A type without what says nothing of its values."""
    if isinstance(kind, Mapping):
        left_out = ("metadata", "nullable", "containsNull", "valueContainsNull")
        return {name: _plain(value) for name, value in kind.items() if name not in left_out}
    return [_plain(each) for each in kind] if isinstance(kind, list) else kind


def _word(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind.get("type"))


def table_schema(text: str) -> dict[str, Any]:
    """The columns that Spark tells as JSON, as a table has them: each may be null."""
    found: dict[str, Any] = json.loads(_NOT_NULL.sub(r'"\1":true', text))
    for each in found["fields"]:
        if _UNFIT.search(each["name"]):
            what = f"a column of a Delta table cannot be called `{each['name']}`"
            raise Refused("table-column", what, "Give it a name with `as`, without blanks, commas and brackets.")
    return found


# ---------------------------------------------------------------- the log, as files


def newest_note(table: Path) -> tuple[int, dict[str, Any] | None] | None:
    """The number of the newest commit, and the newest note of ours; None where there is no table. Reads files only."""
    names = (_COMMIT.search(path.name) for path in (table / LOG).glob("*.json"))
    numbers = sorted(int(name[1]) for name in names if name is not None)
    for number in reversed(numbers):
        if (found := note_of(table, number)) is not None:
            return numbers[-1], found
    return (numbers[-1], None) if numbers else None


def note_of(table: Path, number: int) -> dict[str, Any] | None:
    """Our note in a commit; None where it is somebody else's, or none, or gone."""
    with suppress(FileNotFoundError):
        for line in (table / LOG / f"{number:020}.json").read_text().splitlines():
            text = json.loads(line).get("commitInfo", {}).get(NOTE) if '"commitInfo"' in line else None
            with suppress(ValueError):  # of somebody else
                found = json.loads(text) if isinstance(text, str) else None
                if isinstance(found, dict) and "samovar" in found:
                    return found
    return None


# ---------------------------------------------------------------- a table


@dataclass
class OpenTable:
    """One table. The log in its folder is the source of truth for its rows, its columns, and how far it is."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_delta()

    @property
    def exists(self) -> bool:
        from deltalake import DeltaTable  # noqa: PLC0415 - large, and an extra

        return DeltaTable.is_deltatable(self.uri, dict(self.options))

    def at(self, version: int | datetime | None = None) -> DeltaTable:
        """The table as it is, or was after a commit."""
        from deltalake import DeltaTable  # noqa: PLC0415 - as above
        from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as above

        try:
            if not isinstance(version, datetime):
                return DeltaTable(self.uri, version, storage_options=dict(self.options))
            found = DeltaTable(self.uri, storage_options=dict(self.options))
            commits = {each.get("version"): each.get("timestamp") for each in found.history()}
            found.load_as_version(version)  # of a time before all commits that is the first
            made_ms = commits.get(found.version())
            if made_ms is not None and made_ms > version.timestamp() * 1000:
                made = datetime.fromtimestamp(made_ms / 1000, UTC)
                raise ValueError(f"its oldest version, {found.version()}, was made at {made}")
            return found
        except (DeltaError, OSError, ValueError) as error:
            what = f"{self.uri} cannot be read" + ("" if version is None else f" at version {version}")
            hint = "Versions that were expired are gone; otherwise look whether the folder is whole."
            raise Refused("table-unreadable", what, hint, str(error)) from error

    def reached(self, application: str) -> int | None:
        """The newest number that an application committed."""
        return self.at().transaction_version(application) if self.exists else None

    def replace(
        self, base: int | None, files: Sequence[AddAction], schema: Mapping[str, Any], partitioning: Sequence[str],
        only: Sequence[str | None] | None, note: Mapping[str, Any], applied: Mapping[str, int],
    ) -> int:  # fmt: skip
        """Commits files that are there already in place of all that the table had, or of some partitions, on top of
        version `base`; what version it made.
        """
        from deltalake import Schema  # noqa: PLC0415 - as above
        from deltalake.transaction import create_table_with_add_actions  # noqa: PLC0415 - as above

        columns, commit = Schema.from_json(json.dumps(schema)), _commit(note, applied)
        with _refusing(self.uri):
            if base is None:
                create_table_with_add_actions(
                    self.uri, columns, list(files), "error", list(partitioning), commit_properties=commit,
                    configuration={"delta.enableExpiredLogCleanup": "false"}, storage_options=dict(self.options),
                )  # fmt: skip
                return 0
            table, mode, gone = self.at(base), "overwrite", None
            if only is None:
                actions: list[Any] = list(files)
            elif None not in only:
                actions, gone = list(files), [(partitioning[0], "in", list(only))]
            else:  # of no value, that finds nothing
                actions, mode = [*files, *_removals(table, partitioning[0], only)], "append"
            table.create_write_transaction(
                actions,
                mode,
                columns,
                list(partitioning),
                gone,
                commit_properties=commit,
            )
        return base + 1

    def append(
        self, base: DeltaTable | None, rows: Any, partitioning: Sequence[str], note: Mapping[str, Any],
        applied: Mapping[str, int], configuration: Mapping[str, str | None] | None, source: Any,
    ) -> None:  # fmt: skip
        """Writes rows, and commits them on top of what was looked at. `source` has what was refused while they came."""
        from deltalake import write_deltalake  # noqa: PLC0415 - as above

        with _refusing(self.uri, source):
            write_deltalake(
                base if base is not None else self.uri, rows, mode="append", schema_mode="merge",
                partition_by=list(partitioning) or None, configuration=configuration,
                storage_options=dict(self.options), commit_properties=_commit(note, applied),
            )  # fmt: skip

    def cast(self, base: DeltaTable, schema: pa.Schema, note: Mapping[str, Any]) -> None:
        """Gives all rows other types, in one commit."""
        import pyarrow as pa  # noqa: PLC0415 - takes long to import
        from deltalake import write_deltalake  # noqa: PLC0415 - as above

        dataset, wanted = base.to_pyarrow_dataset(), {each.name: each for each in schema}
        target = pa.schema([wanted.get(each.name, each) for each in dataset.schema])

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in dataset.to_batches():
                columns = [_cast(batch.column(each.name), each.type) for each in target]
                yield pa.record_batch(columns, schema=target)

        with _refusing(self.uri):
            write_deltalake(
                base, pa.RecordBatchReader.from_batches(target, batches()), mode="overwrite", schema_mode="overwrite",
                partition_by=base.metadata().partition_columns or None, commit_properties=_commit(note, {}),
            )  # fmt: skip

    def rewind(self, base: int, to: int, note: Mapping[str, Any]) -> None:
        """Commits what the table was at an older version on top of `base`."""
        with _refusing(self.uri):
            self.at(base).restore(to, commit_properties=_commit(note, {}))

    def compact(self) -> int:
        """Merges small files of partitions that have many; how many files went. Rows and their versions stay."""
        table = self.at()
        counted: dict[tuple[tuple[str, Any], ...], int] = {}
        for each in _rows_of(table.get_add_actions(flatten=True)):
            place = tuple((name[10:], value) for name, value in each.items() if name.startswith("partition."))
            counted[place] = counted.get(place, 0) + (each["size_bytes"] < SMALL_BYTES)
        merged = 0
        for place, count in counted.items():
            if count > SMALL_FILES:
                found = [(name, "=", "" if value is None else str(value)) for name, value in place]
                with suppress(Overtaken), _refusing(self.uri):
                    merged += table.optimize.compact(partition_filters=found or None)["numFilesRemoved"]
                    table.update_incremental()
        return merged

    def expire(self, kept: Sequence[int] | None, hours: int | None = None) -> int:
        """Deletes files that no kept version needs, nor the newest, once they are older than this; how many. Of a table
        without versions that are kept by number, those that are older than the table itself says.
        """
        table = self.at()
        given: dict[str, Any] = {"full": True, "enforce_retention_duration": False}
        given |= {} if kept is None else {"keep_versions": sorted({*kept, table.version()})}
        found = table.vacuum(hours, dry_run=True, **given)
        if found:
            with suppress(Overtaken), _refusing(self.uri):
                table.vacuum(hours, dry_run=False, **given)
        return len(found)

    def forget(self, oldest: int) -> int:
        """Deletes commits before the oldest kept version, of a table on this machine's disks; how many."""
        log = Path(self.uri) / LOG
        found = [path for path in log.glob("[0-9]*") if path.name[:20].isdecimal() and int(path.name[:20]) < oldest]
        if found:
            self.at(oldest).create_checkpoint()  # what was before it is in it
            for path in found:
                path.unlink(missing_ok=True)
        return len(found)

    def listing(self, version: int) -> tuple[str, Any]:
        """Its columns as JSON, and as a table of Arrow the path of each file with the values of its partition."""
        import pyarrow as pa  # noqa: PLC0415 - takes long to import

        table = self.at(version)
        if table.protocol().reader_features:  # rows may be deleted in files that are still there
            what = f"{self.uri} uses {', '.join(table.protocol().reader_features or ())}, which is not read here"
            raise Refused("table-unreadable", what, "Read it with Spark and its connector for Delta Lake.")
        columns = table.metadata().partition_columns
        found = pa.table(table.get_add_actions(flatten=True)).select(
            ["path", *(f"partition.{name}" for name in columns)]
        )
        return table.schema().to_json(), found.rename_columns(["path", *columns])

    def take(self, source: Path, folder: str) -> list[AddAction]:
        """Moves Parquet files, as Spark wrote them to a folder, to one of the table's, where a commit may show them."""
        target, made = Path(self.uri) / folder, []
        folders.make_private(target)
        for number, path in enumerate(sorted(source.rglob("*.parquet"))):
            places: dict[str, str | None] = {}
            for part in path.relative_to(source).parts[:-1]:
                name, _, value = part.partition("=")
                places[unquote(name)] = None if value == NULL else unquote(value)
            moved = target / f"{number:05}-{path.name}"  # Spark's names are alike in different partitions
            path.replace(moved)
            folders.sync(moved)
            made.append(_file(Path(self.uri), moved, places))
        folders.sync(target)
        folders.sync(target.parent)
        return made

    def rows(self, version: int, without: Sequence[str | None] | None = None) -> int:
        """How many rows it had, but for those of some partitions."""
        table = self.at(version)
        counts = {_name(each["path"]): each["num_records"] or 0 for each in _rows_of(table.get_add_actions())}
        for each in () if without is None else _removals(table, table.metadata().partition_columns[0], without):
            counts.pop(_name(each.path))
        return sum(counts.values())


def _removals(table: DeltaTable, column: str, values: Sequence[str | None]) -> list[RemoveAction]:
    """Its files of some partitions, as actions that take them away."""
    from deltalake.transaction import RemoveAction  # noqa: PLC0415 - as above

    known = {_name(each["path"]): each for each in _rows_of(table.get_add_actions())}
    found, now = [], int(time.time() * 1000)
    for value in values:
        for uri in table.file_uris(file_pruning_predicate=[(column, "=", value or "")]):  # an empty text is null
            each = known[_name(uri)]
            found.append(RemoveAction(each["path"], True, now, each["size_bytes"], {column: value}))
    return found


def _name(path: str) -> str:
    """A file's own name, which no two files of a table share."""
    return path.rpartition("/")[2]


def _rows_of(found: Any) -> list[dict[str, Any]]:
    import pyarrow as pa  # noqa: PLC0415 - takes long to import

    rows: list[dict[str, Any]] = pa.table(found).to_pylist()
    return rows


def _commit(note: Mapping[str, Any], applied: Mapping[str, int]) -> CommitProperties:
    from deltalake import CommitProperties, Transaction  # noqa: PLC0415 - as above

    text = json.dumps({"samovar": 1, **note}, ensure_ascii=False)
    return CommitProperties({NOTE: text}, 0, [Transaction(name, number) for name, number in applied.items()])


def _cast(column: Any, kind: Any) -> Any:
    """Values of other types, also inside a struct, which may have got more fields.

    >>> import pyarrow as pa
    >>> _cast(pa.array([{"n": 1}]), pa.struct([("n", pa.string()), ("m", pa.int64())])).to_pylist()
    [{'n': '1', 'm': None}]
    """
    import pyarrow as pa  # noqa: PLC0415 - takes long to import

    if not (pa.types.is_struct(kind) and pa.types.is_struct(column.type)):
        return column.cast(kind)
    there = {column.type.field(place).name: place for place in range(column.type.num_fields)}
    fields = [kind.field(place) for place in range(kind.num_fields)]
    values = [
        _cast(column.field(there[each.name]), each.type) if each.name in there else pa.nulls(len(column), each.type)
        for each in fields
    ]
    return pa.StructArray.from_arrays(values, fields=fields, mask=column.is_null())


@contextmanager
def _refusing(uri: str, source: Any = None) -> Iterator[None]:
    """A commit that came too late is one that can be tried again; other faults are refusals."""
    from deltalake.exceptions import CommitFailedError, DeltaError  # noqa: PLC0415 - as above

    try:
        yield
    except CommitFailedError as error:
        raise Overtaken(str(error)) from error
    except Exception as error:
        if source is not None and source.fault is not None:
            raise source.fault from error
        if not isinstance(error, DeltaError | OSError):
            raise
        hint = "The table is as it was. Look at what the message says, and try again."
        raise Refused("table-write", f"{uri} cannot be written", hint, str(error)) from error


# ---------------------------------------------------------------- files with their bounds


def _file(table: Path, path: Path, places: Mapping[str, str | None]) -> AddAction:
    import pyarrow.parquet as pq  # noqa: PLC0415 - takes long to import
    from deltalake.transaction import AddAction  # noqa: PLC0415 - as above

    stat, bounds = path.stat(), json.dumps(_bounds(pq.read_metadata(path)))
    return AddAction(
        path.relative_to(table).as_posix(), stat.st_size, dict(places), int(stat.st_mtime * 1000), True, bounds
    )


def _bounds(facts: Any) -> dict[str, Any]:
    """What the log says of a file's columns, so that readers need not open it. A bound may be wider, never narrower."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [facts.row_group(number) for number in range(facts.num_row_groups)]
    top = {name.name for name in facts.schema.to_arrow_schema() if not _is_nested(name.type)}
    for place in range(facts.num_columns):
        name = facts.schema.column(place).path
        found = [group.column(place).statistics for group in groups]
        if name not in top or any(each is None or not each.has_null_count for each in found):
            continue
        nulls[name] = sum(each.null_count for each in found)
        valued = [each for each in found if each.num_values]
        if valued and all(each.has_min_max for each in valued):
            low, high = min(each.min for each in valued), max(each.max for each in valued)
            if (one := _bound(low, up=False)) is not None and (two := _bound(high, up=True)) is not None:
                least[name], most[name] = one, two
    return {"numRecords": facts.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _is_nested(kind: Any) -> bool:
    import pyarrow as pa  # noqa: PLC0415 - as above

    return bool(pa.types.is_nested(kind))


def _bound(value: Any, *, up: bool) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | str | date):
        return None  # of bytes and decimals there is none
    if isinstance(value, float) and value != value:  # noqa: PLR0124 - NaN, which is greater than all for Spark
        return None
    if isinstance(value, str):
        return value if len(value) <= _LONG else None
    if isinstance(value, datetime):  # in whole milliseconds
        whole = value - timedelta(microseconds=value.microsecond % 1000)
        whole += timedelta(milliseconds=1) if up and whole != value else timedelta()
        text = whole.astimezone(UTC).replace(tzinfo=None) if whole.tzinfo else whole
        return text.isoformat(timespec="milliseconds") + ("Z" if whole.tzinfo else "")
    return value.isoformat() if isinstance(value, date) else value
