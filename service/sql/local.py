"""Queries by DuckDB, in this process: over the tables of a service, and over nothing else.

    engine = LocalEngine(settings=settings, log=log, masks=masks)
    for statement in statements_in("select count(*) from alerts", "<query>"):
        with engine.run(statement) as rows:
            for batch in rows.batches: ...

A database in memory with no access to files and network, whose settings are locked, and that is made again for each
query. What does not fit into memory it puts into a private folder that goes with it. Tables are those that DuckDB's own
parser and binder find to be missing, so that `with alerts as (...)` reads no alerts of ours.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, TypeVar

import duckdb
import pyarrow as pa

from samovar.changelog.log import Log
from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.patterns.syntax.findings import Finding, render
from samovar.patterns.syntax.positions import whole
from samovar.service.config.models import ServiceFile
from samovar.service.sql.masking import TableMasks
from samovar.service.sql.tables import Catalog, ScanWatch, TableDataset
from samovar.service.views.files import BadView

BATCH_ROWS = 2_000
LOOK_S = 0.1
MEMORY = "2GB"  # of DuckDB's; more goes to files
CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "memory_limit": MEMORY,
}
LOCKED = ("set errors_as_json = true", "set TimeZone = 'UTC'", "set lock_configuration = true")
EXPLAIN = "explain (format json) "
QUERIES = "Tables are read here, never written: select, with, from, values, describe, summarize, show tables, explain."
_SHOW = re.compile(r"\s*show\s+(all\s+)?tables\s*;?\s*\Z", re.IGNORECASE)
_BARE_AT = re.compile(
    r"('(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/)|\bat\b(?!\s+time\b)", re.DOTALL | re.IGNORECASE
)
_RESERVED = re.compile(r"(?<![\w\"])(end|at)(?![\w\"])", re.IGNORECASE)  # columns of alerts that SQL has words for
_NAMED = re.compile(r"(?:Table|View) with name \"?(.*?)\"? does not exist")
T = TypeVar("T")


@dataclass
class BadQuery(BadView):
    """A query with an error; as text, with its line and caret."""


class QueryCancelled(Exception):
    """Somebody ended the query."""


@dataclass(frozen=True)
class Statement:
    """A statement of a text that may have several, for errors to be told with their place in it."""

    text: str
    start: int
    whole: str
    path: str

    def refused(self, message: str, hint: str, start: int | None = None, stop: int = 0) -> Refused:
        if start is None:
            return Refused("sql-query", message, hint)
        first = min(self.start + start, max(len(self.whole) - 1, 0))
        span = whole(self.whole).locate(first, max(self.start + stop, first + 1))
        shown = render(Finding(id="sql-query", level="error", message=message, path=self.path, span=span), self.whole)
        return BadQuery("sql-query", "the query cannot run", hint, shown)


@dataclass(frozen=True)
class Rows:
    """What a query gives, batch by batch."""

    columns: tuple[str, ...]
    batches: Iterator[pa.RecordBatch]


def statements_in(text: str, path: str) -> list[Statement]:
    """The statements of a text; only queries are taken."""
    with duckdb.connect(config=CONFIG) as base:
        base.execute(LOCKED[0])
        try:
            parsed = base.extract_statements(text)
        except duckdb.Error as error:
            # A column of ours is a word of DuckDB's, for tables that are asked for as of a moment. No table here is.
            text, given = _BARE_AT.sub(lambda found: found[1] or '"at"', text), text
            try:
                parsed = base.extract_statements(text)
            except duckdb.Error:
                raise refusal_of(error, Statement(given, 0, given, path), ()) from error
        found, at = [], 0
        for each in parsed:
            start = text.find(each.query, at)
            at = start + len(each.query)
            statement = Statement(each.query.rstrip().removesuffix(";").rstrip(), start, text, path)
            if each.type not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
                word = statement.text.split(None, 1)[0].lower()
                if each.type == duckdb.StatementType.MULTI and word in ("pivot", "from"):
                    raise statement.refused(
                        "`pivot` needs its values here", "Name them: pivot t on c in ('a', 'b').", 0
                    )
                hint = "" if word == "create" else did_you_mean(word, ("select", "with", "from", "describe", "show"))
                shown = statement.refused(f"`{word}` is not a query", hint or QUERIES, 0, len(word))
                raise BadQuery("sql-statement", "only queries are taken", hint or QUERIES, shown.detail)
            found.append(statement)
        return found


@dataclass(kw_only=True)
class LocalEngine:
    """Runs one query at a time. `tell` is called now and then while it runs."""

    settings: ServiceFile
    log: Log
    masks: TableMasks
    tell: Callable[[ScanWatch], None] = lambda _: None
    watch: ScanWatch = field(default_factory=ScanWatch)

    def tables(self) -> Catalog:
        """As they are now."""
        return Catalog(self.settings, self.log, self.masks)

    @contextmanager
    def run(self, statement: Statement, catalog: Catalog | None = None) -> Iterator[Rows]:
        """Rows of what is committed now; Ctrl-C ends the query, as QueryCancelled."""
        tables = catalog or self.tables()
        if _SHOW.match(statement.text):
            names = pa.record_batch({"name": pa.array(tables.names)})
            yield Rows(("name",), iter([names]))
            return
        with self.opened(statement, tables) as query:
            yield Rows(tuple(query.relation.columns), query.batches())

    @contextmanager
    def opened(self, statement: Statement, tables: Catalog) -> Iterator[BoundQuery]:
        """A query whose tables are found, and that has not begun."""
        self.watch = watch = ScanWatch()
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="samovar-sql-"))
            base = stack.enter_context(duckdb.connect(config={**CONFIG, "temp_directory": folder}))
            for text in LOCKED:
                base.execute(text)
            pool = stack.enter_context(ThreadPoolExecutor(1, "sql"))
            query = BoundQuery(base, statement, tables, watch, self.tell, pool)
            try:
                query.bind()
                yield query
            finally:
                query.close()


class BoundQuery:
    """A query on its way through DuckDB, in a thread of its own, so that this one can be asked to end it."""

    def __init__(
        self, base: Any, statement: Statement, tables: Catalog, watch: ScanWatch,
        tell: Callable[[ScanWatch], None], pool: ThreadPoolExecutor,
    ) -> None:  # fmt: skip
        self.base, self.statement, self.tables, self.watch = base, statement, tables, watch
        self.used: dict[str, Any] = {}
        self.relation: Any = None
        self.plan: Any = None
        self._tell, self._pool = tell, pool
        self._reader: Any = None

    def bind(self) -> None:
        """Finds the tables: each that DuckDB misses is looked for here."""
        text = self.statement.text
        is_explain = text[:7].lower() == "explain"
        while True:
            try:
                if not is_explain:
                    ((_, plan),) = self._call(lambda: self.base.execute(EXPLAIN + text).fetchall())
                    self.plan = json.loads(plan)
                self.relation = self._call(lambda: self.base.sql(text))
                return
            except duckdb.CatalogException as error:
                told = _told(error)
                found = _NAMED.match(str(told.get("exception_message", "")))
                name = None if found is None else self.tables.find(found[1])
                if name is None or name in self.used:
                    self._raise(error, is_explained=not is_explain)
                self.used[name] = TableDataset(self.tables.open(name), self.watch)
                self.base.register(name, self.used[name])
            except duckdb.Error as error:
                self._raise(error, is_explained=not is_explain)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Once; `again` starts the query again."""
        try:
            self._reader = self._call(lambda: self.relation.to_arrow_reader(BATCH_ROWS))
            while (batch := self._call(partial(next, self._reader, None))) is not None:
                yield batch
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            self._raise(error)

    def again(self) -> Iterator[pa.RecordBatch]:
        self.relation = self._call(lambda: self.base.sql(self.statement.text))
        return self.batches()

    def close(self) -> None:
        """What still reads ends."""
        self.watch.is_cancelled.set()
        if self._reader is not None:
            self._pool.submit(self._reader.close).result()
        self._reader = self.relation = None

    def _call(self, do: Callable[[], T]) -> T:
        running: Future[T] = self._pool.submit(do)
        try:
            while True:
                try:
                    return running.result(LOOK_S)
                except NotYet:
                    if running.done():
                        raise
                    self._tell(self.watch)
        except KeyboardInterrupt:
            self.watch.is_cancelled.set()
            while not running.done():
                self.base.interrupt()  # again and again: it may not have begun
                with_timeout(running)
            raise QueryCancelled from None

    def _raise(self, error: BaseException, *, is_explained: bool = False) -> NoReturn:
        if self.watch.failure is not None:
            raise self.watch.failure from None
        raise refusal_of(error, self.statement, self.tables.names, is_explained=is_explained) from error


def with_timeout(running: Future[Any]) -> None:
    try:
        running.exception(LOOK_S)
    except NotYet:
        return


# ---------------------------------------------------------------- what DuckDB finds wrong


def _told(error: BaseException) -> dict[str, Any]:
    _, begins, rest = str(error).partition("{")
    try:
        found = json.loads(begins + rest)
    except ValueError:
        return {"exception_message": str(error)}
    return found if isinstance(found, dict) else {}


def refusal_of(
    error: BaseException, statement: Statement, tables: Sequence[str], *, is_explained: bool = False
) -> Refused:
    """With the place in the text, and what was perhaps meant."""
    told = _told(error)
    message = str(told.get("exception_message") or error)
    first, _, more = message.partition("\n")
    first = re.sub(r"\s*Did you mean \".*", "", first).strip().rstrip("!")
    hint = " ".join(more.split()) or "The SQL is DuckDB's: https://duckdb.org/docs/stable/sql/introduction"
    name, candidates = str(told.get("name", "")), re.findall(r'[^",\s]+', str(told.get("candidates", "")))
    missing = _NAMED.match(message)
    if missing is not None:
        first = f"there is no table `{missing[1]}`"
        hint = did_you_mean(missing[1], tables) or f"Tables are {', '.join(tables)}."
    elif told.get("error_subtype") == "COLUMN_NOT_FOUND":
        first = f"there is no column `{name}`"
        names = [each.rpartition(".")[2] for each in candidates]
        hint = did_you_mean(name, names) or (f"Near it are {', '.join(names)}." if names else hint)
    elif told.get("error_subtype") == "MISSING_ENTRY" and candidates:
        first = f"there is no {str(told.get('type', 'function')).lower()} `{name}`"
        hint = f"did you mean `{candidates[0]}`?"
    elif told.get("error_subtype") == "SYNTAX_ERROR" and (words := _RESERVED.search(statement.text)) is not None:
        hint = f'As the name of a column, `{words[0]}` is written "{words[0].lower()}".'
    elif told.get("exception_type") == "Permission":
        first, hint = "queries reach no files and no network", f"Tables are {', '.join(tables)}." if tables else QUERIES
    place = re.match(r"\[(\d+),(\d+)\]", str(told.get("location", "")))
    if place is None:
        return statement.refused(first, hint)
    data, before = statement.text.encode(), len(EXPLAIN) if is_explained else 0
    start, size = max(int(place[1]) - before, 0), int(place[2])
    begin = len(data[:start].decode("utf-8", "ignore"))
    return statement.refused(first, hint, begin, begin + len(data[start : start + size].decode("utf-8", "ignore")))
