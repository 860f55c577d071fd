"""The shell of `samovar sql`: statements that end with `;`, commands that begin with `.` or `\\`.

.tables  .schema NAME  .mode table|line|json|csv  .limit N  .timer on|off  .follow QUERY  .help  .quit
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import duckdb
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings

from samovar.changelog.schema_registry import RegistryUnavailable
from samovar.common import folders
from samovar.common.errors import LogUnavailable, Refused, UsageError
from samovar.common.suggest import did_you_mean
from samovar.service.sql.output import MODES
from samovar.service.sql.session import SqlSession
from samovar.service.sql.tables import Catalog, describe

HELP = """
.tables           the tables (also \\dt)
.schema [NAME]    the columns of a table, or of all (also \\d)
.mode MODE        how rows are shown: table, line, json, csv
.limit N          at most so many rows; `.limit all` for no end
.timer on|off     how long each query took
.follow QUERY;    go on with what is committed later, until Ctrl-C
.help             this
.quit             leave (also \\q, Ctrl-D)

A statement ends with `;` and may have several lines. Tab completes tables, columns and functions. Ctrl-C ends a query,
or throws away what was typed.
""".strip()
COMMANDS = (".tables", ".schema", ".mode", ".limit", ".timer", ".follow", ".help", ".quit", ".exit")
SHORT = {"\\dt": ".tables", "\\d": ".schema", "\\q": ".quit", "\\?": ".help", "\\h": ".help", "\\timing": ".timer"}
SHELL_ROWS = 100
CATALOG_S = 30.0  # between two looks at what can be completed
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
MORE_KEYWORDS = (
    "between",
    "by",
    "exclude",
    "filter",
    "first",
    "interval",
    "last",
    "nulls",
    "over",
    "partition",
    "values",
)
FAULTS = (Refused, LogUnavailable, RegistryUnavailable, UsageError)


class SqlCompleter(Completer):
    """Commands; tables after `from` and `join`; columns of the tables that are named, functions and keywords."""

    def __init__(self, session: SqlSession) -> None:
        self._session = session
        self._looked_s = -CATALOG_S
        self._catalog: Catalog | None = None
        self._columns: dict[str, list[tuple[str, str]]] = {}
        with duckdb.connect() as base:
            found = base.execute("select distinct function_name from duckdb_functions()").fetchall()
            text = "select keyword_name from duckdb_keywords() where keyword_category in ('reserved', 'type_function')"
            words = base.execute(text).fetchall()
        self._functions = sorted(name for (name,) in found if WORD.match(name) and not name.startswith("_"))
        self._keywords = sorted({*MORE_KEYWORDS, *(word for (word,) in words)})

    def catalog(self) -> Catalog | None:
        """As it was some seconds ago: the log is not asked at each key."""
        if time.monotonic() - self._looked_s > CATALOG_S:
            self._looked_s = time.monotonic()
            try:
                self._catalog, self._columns = self._session.tables(), {}
            except FAULTS:
                return self._catalog
        return self._catalog

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:  # noqa: ARG002 - as prompt_toolkit calls it
        before = document.text_before_cursor
        word = found[0] if (found := re.search(r"[A-Za-z0-9_]*\Z", before)) else ""
        if before.lstrip().startswith(".") and " " not in before.strip():
            typed = before.strip()
            yield from _starting(typed, ((each, "") for each in COMMANDS))
            return
        catalog = self.catalog()
        tables = [] if catalog is None else catalog.names
        lead = before[: len(before) - len(word)].rstrip()
        if lead.lower().lstrip() == ".mode":
            yield from _starting(word, ((each, "") for each in MODES))
            return
        if re.search(r"(\b(from|join|describe|summarize|table)|^\s*\.schema|^\s*\\d)\Z", lead, re.IGNORECASE):
            yield from _starting(word, ((each, "table") for each in tables))
            return
        named = [name for name in tables if re.search(rf"\b{re.escape(name)}\b", document.text, re.IGNORECASE)]
        for name in named:
            yield from _starting(word, self._columns_of(name), self._keywords)
        if len(word) > 0 and not before.endswith("."):
            yield from _starting(word, ((each, "table") for each in tables if each not in named))
            yield from _starting(word, ((each, "") for each in self._keywords))
            yield from _starting(word, ((each, "function") for each in self._functions))

    def _columns_of(self, name: str) -> list[tuple[str, str]]:
        if name not in self._columns and self._catalog is not None:
            try:
                schema = self._catalog.open(name).schema
            except FAULTS:
                return []
            self._columns[name] = [(each.name, describe(each.type)) for each in schema]
        return self._columns.get(name, [])


def _starting(word: str, choices: Iterable[tuple[str, str]], quoted: Collection[str] = ()) -> Iterator[Completion]:
    for choice, meta in choices:
        if choice.lower().startswith(word.lower()) and choice != word:
            text = f'"{choice}"' if choice in quoted or not WORD.match(choice) else choice
            yield Completion(text if choice[:1] != "." else choice, start_position=-len(word), display_meta=meta)


def history() -> History:
    """In a private file, since queries may name what is marked; where none can be written, as long as the shell is."""
    path = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "samovar" / "sql_history"
    try:
        folders.make_private(path.parent)
        folders.make_private_file(path)
        return FileHistory(str(path))
    except OSError:
        return InMemoryHistory()


class Shell:
    """Reads statements and commands, and runs them, until its end."""

    def __init__(self, session: SqlSession, **terminal: Any) -> None:
        self.session, self.timer = session, False
        session.limit = session.limit or SHELL_ROWS
        session.more = ".limit shows more"
        keys = KeyBindings()
        keys.add("enter", filter=Condition(self._is_whole))(lambda event: event.current_buffer.validate_and_handle())
        self.prompt: PromptSession[str] = PromptSession(
            history=history(),
            completer=SqlCompleter(session),
            complete_while_typing=False,
            multiline=True,
            key_bindings=keys,
            enable_history_search=True,
            prompt_continuation="   ...> ",
            **terminal,
        )

    def _is_whole(self) -> bool:
        text = self.prompt.default_buffer.text.strip()
        return not text or (text.startswith((".", "\\")) and not text.startswith(".follow")) or ends(text)

    def run(self) -> None:
        session = self.session
        where = "Spark's" if session.spark is not None else "DuckDB's"
        _tell(f"{session.settings.service}: SQL as {where}, read only. `.help` says more, `.tables` what there is.")
        while True:
            try:
                text = self.prompt.prompt("samovar> ").strip()
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            if not text or text.strip("; \n") == "":
                continue
            try:
                if text.startswith((".", "\\")):
                    if self._command(text):
                        return
                else:
                    self._query(text)
            except FAULTS as fault:
                _tell(str(fault), sys.stderr)
            except KeyboardInterrupt:
                _tell("stopped", sys.stderr)
            except BrokenPipeError:
                return

    def _query(self, text: str) -> None:
        begun = time.monotonic()
        self.session.run(text, "<query>")
        if self.timer:
            _tell(f"{time.monotonic() - begun:.3f} s", sys.stderr)

    def _command(self, text: str) -> bool:
        """Whether it is the last one."""
        name, _, rest = text.rstrip("; \n").partition(" ")
        name, rest = SHORT.get(name, name), rest.strip()
        match name:
            case ".quit" | ".exit":
                return True
            case ".help":
                _tell(HELP)
            case ".tables":
                _tell("\n".join(self.session.tables().names))
            case ".schema" if not rest:
                tables = self.session.tables()
                for each in tables.names:
                    self._schema(tables, each)
            case ".schema":
                self._schema(self.session.tables(), rest)
            case ".mode" if rest in MODES:
                self.session.printer.mode = rest
            case ".limit" if rest == "all" or (rest.isdecimal() and int(rest)):
                self.session.limit = sys.maxsize if rest == "all" else int(rest)
            case ".timer" if rest in ("on", "off", ""):
                self.timer = rest == "on" if rest else not self.timer
                _tell(f"timer {'on' if self.timer else 'off'}")
            case ".follow" if rest:
                self.session.follow(rest, "<query>", None, 2.0)
            case _ if name in COMMANDS:
                usage = next(line for line in HELP.splitlines() if line.startswith(name))
                _tell(f"`{text}`: {' '.join(usage.split())}", sys.stderr)
            case _:
                hint = did_you_mean(name, COMMANDS) or "`.help` lists them."
                _tell(f"there is no command `{name}`: {hint}", sys.stderr)
        return False

    def _schema(self, tables: Catalog, name: str) -> None:
        known = tables.find(name)
        if known is None:
            tables.refuse_unknown(name)
        try:
            schema = tables.open(known).schema
        except Refused as refused:
            _tell(f"{known}: {refused.what}")
            return
        _tell(known)
        wide = max(len(each.name) for each in schema)
        for each in schema:
            _tell(f"  {each.name:{wide}}  {describe(each.type)}")


def _tell(text: str, out: IO[str] | None = None) -> None:
    out = out or sys.stdout
    out.write(text + "\n")
    out.flush()


def ends(text: str) -> bool:
    """Whether a `;` ends the text outside of quotes and comments.

    >>> ends("select ';"), ends("select 1; -- so"), ends("select 1 -- ;")
    (False, True, False)
    """
    bare = re.sub(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    return "'" not in bare and '"' not in bare and "/*" not in bare and bare.rstrip().endswith(";")
