"""The commands of open tables: tables list, show, export, query, maintain."""

from __future__ import annotations

import json as jsonlib
import sys
import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from samovar.common.errors import LogUnavailable, Refused
from samovar.patterns.explain.key_trace import iso_time
from samovar.service.auth.audit import record_reading
from samovar.service.cli.options import Config, Json, Name, add_group, instant_or_epoch, milliseconds, service_log
from samovar.service.cli.refusals import exit_on_refusal
from samovar.service.cli.views import FAILED, Every, Names, rows_as_text
from samovar.service.config.loading import load_service
from samovar.service.runtime.processes import stopping
from samovar.service.views.export import (
    ExportedTable,
    TableListing,
    chosen,
    export,
    list_tables,
    maintain_tables,
    query_table,
)

app = typer.Typer(rich_markup_mode=None)
tables = add_group(app, "tables", "Open tables: topics of a service exported to Delta Lake, each record once.")


@tables.command("list")
def tables_list(config: Config, *, json: Json = False) -> None:
    """List the tables of a service: version, rows, and how many records they are behind.

    Exit codes: 0 fine, 2 wrong usage or refused.
    """
    with service_log(config) as (settings, log):
        found = list_tables(settings, log)
    if json:
        print(jsonlib.dumps([each.to_json() for each in found], ensure_ascii=False))
        return
    wide = max(len(each.name) for each in found)
    for each in found:
        print(f"{each.name:{wide}}  {_state(each)}")


def _state(each: TableListing) -> str:
    if each.version is None:
        return f"never exported; {each.uri}"
    behind = f"{each.behind:,} records behind" if each.behind else "up to date"
    return f"version {each.version}, {each.rows:,} rows; {behind}; {each.uri}"


@tables.command("show")
def tables_show(config: Config, name: Name, *, json: Json = False) -> None:
    """Show a table: its columns and its last hundred commits.

    Exit codes: 0 fine, 2 wrong usage or refused.
    """
    with service_log(config) as (settings, log):
        (found,) = list_tables(settings, log, [name])
    if json:
        print(jsonlib.dumps(found.to_json(), ensure_ascii=False))
        return
    print(f"{found.name}: {_state(found)}")
    for column, kind in found.columns.items():
        print(f"  {column} {kind if isinstance(kind, str) else kind['type']}")
    for each in found.snapshots:
        print(f"  version {each['version']}: {iso_time(each['made_ms'])}, {each['operation'].lower()}")


@tables.command("export")
def tables_export(
    config: Config,
    names: Names = None,
    *,
    every: Every = None,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Where a column has another type since, give it to all rows.")
    ] = False,
    json: Json = False,
) -> None:
    """Bring tables up to what their topics hold. Without NAME, all of `tables` in the service file. No Spark is needed.

    Each record is in its table once: it may be killed at any moment, and run again or twice at once. Where nothing is
    new, nothing is written. With --every it goes on; SIGTERM and Ctrl-C end it after the table at hand.

    Exit codes: 0 fine, 1 some tables could not be written (they are as they were), 2 wrong usage or refused.
    """
    every_s = None if every is None else milliseconds("--every", every) / 1000
    failed, stop = False, threading.Event()
    with exit_on_refusal():
        chosen(load_service(config), names or [])
        if every_s is None:
            failed = _round(config, names or [], rewrite, json, goes_on=False)
        else:
            with stopping(stop.set, stop.set):
                while not stop.is_set():
                    failed = _round(config, names or [], rewrite, json, goes_on=True)
                    stop.wait(every_s)
    raise typer.Exit(FAILED if failed else 0)


def _round(config: Path, names: list[str], rewrite: bool, json: bool, *, goes_on: bool) -> bool:
    """One time through the tables; whether one failed. What may be over at the next try does not end what goes on."""
    failed = False
    when = f"{iso_time(int(time.time() * 1000))} " if goes_on and not json else ""
    try:
        with service_log(config) as (settings, log):
            for made in export(settings, log, names, rewrite=rewrite, on_rows=None if json else _tell):
                if isinstance(made, Refused):
                    failed = True
                    print(f"{when}{made}", file=sys.stderr, flush=True)
                elif json or not goes_on or made.commits:
                    print(jsonlib.dumps(made.to_json()) if json else when + _text(made), flush=True)
    except LogUnavailable as error:
        if not goes_on:
            raise
        print(f"{when}{error}", file=sys.stderr, flush=True)
        failed = True
    return failed


def _tell(name: str, rows: int, total: int, seconds: float) -> None:
    rate = rows / max(seconds, 0.001)
    left = f", {max(total - rows, 0) / rate:,.0f} s left" if rows else ""
    print(f"{name}: {rows:,} of {total:,} records, {rate:,.0f}/s{left}", file=sys.stderr, flush=True)


def _text(made: ExportedTable) -> str:
    if not made.commits:
        return f"{made.name}: nothing new" + ("" if made.version is None else f", version {made.version}")
    added = f", new columns {', '.join(made.added)}" if made.added else ""
    merged = f", {made.merged:,} small files merged" if made.merged else ""
    return f"{made.name}: {made.rows:,} rows more, version {made.version}{added}{merged}, {made.seconds:.1f} s"


@tables.command("query")
def tables_query(
    config: Config,
    name: Name,
    *,
    version: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="As it was in this version.", show_default=False)
    ] = None,
    as_of: Annotated[str | None, typer.Option(metavar="T", help="As it was at this time.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, metavar="N", help="At most so many rows.")] = 20,
    json: Json = False,
) -> None:
    """Show rows of a table, as it is or was. `tables show` lists its versions.

    Exit codes: 0 fine, 2 wrong usage or refused.
    """
    if version is not None and as_of is not None:
        raise typer.BadParameter("one version is enough: leave --version or --as-of out", param_hint="--as-of")
    as_of_ms = None if as_of is None else instant_or_epoch("--as-of", as_of)
    with service_log(config) as (settings, log):
        found = query_table(settings, name, limit, version=version, as_of_ms=as_of_ms)
        record_reading(log, settings, "tables query", {"table": name})
    print(jsonlib.dumps(found.to_json(), ensure_ascii=False) if json else rows_as_text(found))


@tables.command("maintain")
def tables_maintain(config: Config, names: Names = None, *, json: Json = False) -> None:
    """Compact tables, and delete files that were replaced longer ago than `keep`. Without NAME, all.

    An export does so by itself where a day has many small files. Exit codes: 0 fine, 2 wrong usage or refused.
    """
    with exit_on_refusal():
        for name, merged, deleted in maintain_tables(load_service(config), names or []):
            found = {"table": name, "merged": merged, "deleted": deleted}
            text = f"{name}: {merged:,} small files merged, {deleted:,} files deleted"
            print(jsonlib.dumps(found) if json else text, flush=True)
