"""Queries of one who asks: run by an engine, with progress on a terminal, and printed."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from samovar.changelog.log import Log
from samovar.common.errors import Refused
from samovar.service.config.models import ServiceFile
from samovar.service.runtime.processes import stopping
from samovar.service.sql.follow import ContinuousQuery
from samovar.service.sql.local import LocalEngine, QueryCancelled, Statement, statements_in
from samovar.service.sql.masking import TableMasks
from samovar.service.sql.output import Printer, rows_of
from samovar.service.sql.spark import SparkEngine
from samovar.service.sql.tables import Catalog, ScanWatch

TABLE_ROWS = 1_000  # of a table, where nobody says how many
QUIET_S = 1.0  # before progress is shown
EVERY_S = 0.3


class ScanDisplay:
    """A line on a terminal that is written over while a query reads."""

    def __init__(self) -> None:
        self._shown_s = 0.0
        self._is_shown = False

    def __call__(self, watch: ScanWatch) -> None:
        now = time.monotonic()
        if sys.stderr.isatty() and watch.done and now - watch.begun > QUIET_S and now - self._shown_s > EVERY_S:
            sys.stderr.write(f"\r\x1b[K{watch.text()}")
            sys.stderr.flush()
            self._shown_s, self._is_shown = now, True

    def clear(self) -> None:
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._is_shown = False


class SqlSession:
    """A service, an engine, and how rows are shown."""

    def __init__(
        self, settings: ServiceFile, log: Log, *, mode: str = "table", limit: int | None = None,
        sees_all: bool = False, on_spark: bool = False, master: str | None = None,
    ) -> None:  # fmt: skip
        self.settings, self.log, self.limit = settings, log, limit
        self.masks = TableMasks(settings, log, sees_all)
        self.display = ScanDisplay()
        self.local = LocalEngine(settings=settings, log=log, masks=self.masks, tell=self._tell)
        self.spark = SparkEngine(settings, log, self.masks, master) if on_spark else None
        self.printer = Printer(sys.stdout, mode, is_terminal=sys.stdout.isatty())
        self.more = "--limit shows more, --json and --csv all"
        self._stop = threading.Event()

    def __enter__(self) -> SqlSession:
        return self

    def __exit__(self, *_: object) -> None:
        if self.spark is not None:
            self.spark.close()

    def tables(self) -> Catalog:
        return self.local.tables()

    def run(self, text: str, path: str) -> None:
        """All statements of a text, one after another. Ctrl-C and SIGTERM end it, as KeyboardInterrupt."""
        _refuse_bytes(text)
        with terminated_as_interrupted():
            statements = statements_in(text, path) if self.spark is None else _one(text, path)
            for number, statement in enumerate(statements):
                if number and self.printer.mode in ("table", "csv"):
                    self.printer.out.write("\n")
                self.run_one(statement)

    def run_one(self, statement: Statement) -> int:
        limit = self.limit or (TABLE_ROWS if self.printer.mode in ("table", "line") else None)
        try:
            running = (
                self.local.run(statement)
                if self.spark is None
                else self.spark.run(statement, None if limit is None else limit + 1)
            )
            with running as rows:
                found = self._cleared(rows_of(rows.batches))
                if self.printer.mode == "table" and statement.text.lower().startswith("explain"):
                    self.printer.plans(found)
                    return 1
                count, has_more = self.printer.write(rows.columns, found, limit)
        except QueryCancelled:
            raise KeyboardInterrupt from None
        finally:
            self.display.clear()
        if self.printer.mode in ("table", "line") and (has_more or self.printer.is_terminal):
            told = f"the first {count:,} rows: {self.more}" if has_more else f"{count:,} row{'s' * (count != 1)}"
            sys.stderr.write(told + "\n")
        return count

    def _cleared(self, rows: Iterator[list[object]]) -> Iterator[list[object]]:
        for row in rows:
            self.display.clear()
            yield row

    def follow(self, text: str, path: str, start: str | None, every_s: float) -> None:
        """Until Ctrl-C or SIGTERM."""
        _refuse_bytes(text)
        statements = statements_in(text, path)
        if len(statements) != 1:
            raise Statement(text, 0, text, path).refused("one query can be followed at a time", "Leave the others out.")
        self._stop.clear()
        with stopping(self._stop.set, self._stop.set):
            try:
                ContinuousQuery(
                    engine=self.local,
                    statement=statements[0],
                    printer=self.printer,
                    start=start,
                    every_s=every_s,
                    stopped=self._stop.wait,
                ).run()
            except QueryCancelled:
                return
            finally:
                self.printer.grows = False
                self.display.clear()

    def _tell(self, watch: ScanWatch) -> None:
        if self._stop.is_set():
            raise KeyboardInterrupt
        self.display(watch)


def _refuse_bytes(text: str) -> None:
    """Bytes of an argument or a terminal that are not UTF-8 are surrogates in Python, which no engine takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Refused(
            "sql-query",
            f"the query is not UTF-8: character {error.start + 1} is the byte 0x{ord(text[error.start]) & 0xFF:02x}",
            "Write it in UTF-8; a file in another encoding is converted by `iconv -f latin1 -t utf-8`.",
        ) from None


def _one(text: str, path: str) -> list[Statement]:
    """For Spark, whose SQL nobody else reads: the text is one statement."""
    return [Statement(text.rstrip().removesuffix(";"), 0, text, path)]


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """So that SIGTERM leaves no files behind either."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
