"""`samovar sql`: queries over what a service holds, and a shell for them."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Annotated

import typer

from samovar.common.arrow import require_sql
from samovar.service.auth.audit import record_reading
from samovar.service.cli.options import Config, Engine, Master, milliseconds, read_text, refuse_engine, service_log

app = typer.Typer(rich_markup_mode=None)
QUERY = "<query>"


@app.command()
def sql(
    config: Config,
    query: Annotated[str | None, typer.Argument(metavar="[QUERY]", show_default=False)] = None,
    *,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", metavar="FILE", help="Run the queries in this file; - is standard input."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="A JSON object per row and line.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="CSV with a header.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="At most so many rows; 1000 of a table, all as JSON and CSV.", show_default=False
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what is committed later; Ctrl-C ends it.")
    ] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="PLACE", help="With --follow: begin, end, -N, an offset or a time.", show_default=False
        ),
    ] = None,
    every: Annotated[
        str, typer.Option("--every", metavar="TIME", help="With --follow: how often a result is made again.")
    ] = "2s",
    engine: Engine = "local",
    master: Master = None,
    pii: Annotated[bool, typer.Option("--pii", help="Also values of fields marked `pii`.")] = False,
) -> None:
    """Run SQL over alerts, sessions, inputs, states and published views, as they are now; without QUERY, a shell.

    Tables are those of docs/sql.md; nothing is written. The SQL is DuckDB's, or Spark's with `--engine spark`.

    Exit codes: 0 fine, 2 wrong usage or refused, 130 stopped by Ctrl-C.
    """
    refuse_engine(engine, master)
    if json and csv:
        raise typer.BadParameter("choose one of --json and --csv", param_hint="--csv")
    if query is not None and file is not None:
        raise typer.BadParameter("it is for queries that are not in the command", param_hint="--file")
    if start is not None and not follow:
        raise typer.BadParameter("it is for --follow", param_hint="--from")
    if follow and engine == "spark":
        raise typer.BadParameter(
            "Spark follows by `readStream` (docs/spark.md); leave --engine out", param_hint="--follow"
        )
    every_s = milliseconds("--every", every) / 1000
    has_shell = query is None and file is None and sys.stdin.isatty()
    if has_shell and follow:
        raise typer.BadParameter("give it a query; in the shell it is `.follow`", param_hint="--follow")
    with service_log(config, past=True) as (settings, log), ExitStack() as stack:
        require_sql()
        from samovar.service.sql.session import SqlSession  # noqa: PLC0415 - DuckDB takes long to import

        mode = "json" if json else "csv" if csv else "table"
        opened = SqlSession(
            settings, log, mode=mode, limit=limit, sees_all=pii, master=master, on_spark=engine == "spark"
        )
        session = stack.enter_context(opened)
        if pii:
            record_reading(log, settings, "sql --pii", {"query": query or file or "shell"})
        if has_shell:
            from samovar.service.sql.shell import Shell  # noqa: PLC0415 - prompt_toolkit takes long to import

            Shell(session).run()
            return
        if query is not None:
            text, path = query, QUERY
        else:
            path = "<stdin>" if file in (None, "-") else str(file)
            text = read_text("--file", file or "-")
        if follow:
            session.follow(text, path, start, every_s)
        else:
            session.run(text, path)
