"""The commands of views: views list, show, rebuild, refresh, query, get, rollback, path, maintain."""

from __future__ import annotations

import json as jsonlib
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samovar.common.errors import LogUnavailable, Refused
from samovar.patterns.explain.key_trace import iso_time
from samovar.service.auth.audit import record_reading
from samovar.service.cli.options import (
    Config,
    Json,
    Master,
    Name,
    add_group,
    instant_or_epoch,
    milliseconds,
    service_log,
)
from samovar.service.cli.refusals import exit_on_refusal
from samovar.service.config.loading import load_service
from samovar.service.runtime.processes import stopping
from samovar.service.spark.progress import ProgressDisplay
from samovar.service.spark.session import starting_for
from samovar.service.topology.logs import opened
from samovar.service.views.commands import (
    QueryRows,
    ViewListing,
    list_views,
    maintain,
    makeable,
    manifest_json,
    plain,
    query,
    rebuild,
    refresh,
    roll_back,
    show,
)
from samovar.service.views.delta import READERS_H
from samovar.service.views.serving import ViewServer
from samovar.service.views.store import never_made

if TYPE_CHECKING:
    from samovar.service.views.build import ViewBuild

FAILED = 1

Every = Annotated[
    str | None, typer.Option("--every", metavar="TIME", show_default=False, help="Again and again: 1m, 30s.")
]
Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME...]", show_default=False)]

app = typer.Typer(rich_markup_mode=None)
views = add_group(app, "views", "Views: Spark SQL over what a service holds, published as Parquet for anyone to read.")


class ViewReader(StrEnum):
    DUCKDB = "duckdb"
    SPARK = "spark"
    TRINO = "trino"


@views.command("list")
def views_list(config: Config, *, json: Json = False) -> None:
    """List the views of a service: version, rows, when it was made, and what came to its sources since.

    Exit codes: 0 fine, 1 some files are no views, 2 wrong usage or refused.
    """
    with exit_on_refusal():
        settings = load_service(config)
        with opened(settings) as log:
            found, bad = list_views(settings, log)
    if json:
        print(jsonlib.dumps([each.to_json() for each in found], ensure_ascii=False))
    else:
        wide = max((len(each.view.name) for each in found), default=0)
        for each in found:
            print(f"{each.view.name:{wide}}  {_state(each)}")
        if not found and bad is None:
            print("no views")
    if bad is not None:
        print(bad, file=sys.stderr)
        raise typer.Exit(FAILED)


def _state(each: ViewListing) -> str:
    made, lag = each.manifest, each.lag
    if made is None:
        return f"{each.view.refresh}, never made"
    text = f"{each.view.refresh}, version {made.version}, {made.rows:,} rows, made {iso_time(made.made_ms)}"
    if lag is None:
        text += "; lag unknown: the log cannot be reached"
    elif lag.since_ms is None:
        text += "; up to date"
    else:
        text += f"; {lag.records:,} records behind, the first of {iso_time(lag.since_ms)}"
    return text + ("; its file changed since" if made.digest != each.view.digest else "")


@views.command("show")
def views_show(config: Config, name: Name, *, json: Json = False) -> None:
    """Show a view: its columns, its versions, and the offsets and rule versions that it stands for.

    Exit codes: 0 fine, 2 wrong usage or refused.
    """
    with exit_on_refusal():
        settings = load_service(config)
        with opened(settings) as log:
            found = show(settings, name, log)
    if json:
        print(jsonlib.dumps(found.to_json(), ensure_ascii=False))
        return
    print(f"{found.view.name}: {found.view.title}\n{_state(found)}")
    if found.manifest is None:
        return
    made = found.manifest
    delta = "" if made.table is None else ", a Delta table"
    print(f"versions: {', '.join(map(str, found.versions))}; {found.path}{delta}")
    for each in reversed(found.snapshots):
        of_table = "" if each.table is None else f", versionAsOf {each.table}"
        print(f"  {each.version}: made {iso_time(each.made_ms)}, {each.kind}, {each.rows:,} rows{of_table}")
    for column, kind in made.columns.items():
        marks = ["key"] * (column in found.view.key) + ["partition"] * (column in found.view.partitioning)
        print(f"  {column} {kind}" + (f" ({', '.join(marks)})" if marks else ""))
    for source, offsets in made.sources.items():
        for at, (start, end) in offsets.items():
            print(f"  {source}: {at} from {start:,} up to {end:,}")
    for rule, version in made.rules.items():
        print(f"  rule {rule} version {version}")


@views.command("rebuild")
def views_rebuild(
    config: Config,
    names: Names = None,
    *,
    overwrite_schema: Annotated[
        bool, typer.Option("--overwrite-schema", help="Delta tables may lose columns, and get other types.")
    ] = False,
    master: Master = None,
    json: Json = False,
) -> None:
    """Make views again from all that their sources hold, and publish them. Without NAME, all.

    Readers see the old version until the new one is whole. It can be stopped at any moment and run again.

    Exit codes: 0 fine, 1 some views could not be made (their old versions stand), 2 wrong usage or refused.
    """
    _build(config, names or [], master, json, partial(rebuild, any_schema=overwrite_schema))


@views.command("refresh")
def views_refresh(
    config: Config, names: Names = None, *, every: Every = None, master: Master = None, json: Json = False
) -> None:
    """Bring views up to date, as their files say: `full`, or `incremental` by offsets. Without NAME, all.

    An incremental view makes only the partitions again that have new rows; late ones rewrite theirs. Where nothing is
    new, nothing is made. With --every it goes on with one Spark, and says when what was made or could not be; SIGTERM
    and Ctrl-C end it after the round at hand.

    Exit codes: 0 fine, 1 some views could not be made (their old versions stand), 2 wrong usage or refused.
    """
    _build(config, names or [], master, json, refresh, None if every is None else milliseconds("--every", every) / 1000)


def _build(
    config: Path, names: list[str], master: str | None, json: bool, build: Any, every_s: float | None = None
) -> None:
    failed, stop = False, threading.Event()
    with exit_on_refusal():
        settings = load_service(config)
        views, refused = makeable(settings, names)
        for each in refused:  # told before Spark starts
            print(each, file=sys.stderr)
        if not views:
            raise typer.Exit(FAILED)
        failed = bool(refused)
        with (
            ProgressDisplay(sys.stderr, as_json=json) as display,
            starting_for(settings, "samovar views", master, display.say) as start,
            opened(settings) as log,
            nullcontext() if every_s is None else stopping(stop.set, stop.set),
        ):
            while True:
                for made in _round(build, settings, log, start.ready(), views, display, goes_on=every_s is not None):
                    display.clear()
                    when = "" if every_s is None or json else f"{iso_time(int(time.time() * 1000))} "
                    if isinstance(made, Refused):
                        failed = True
                        print(f"{when}{made}", file=sys.stderr, flush=True)
                    elif every_s is None or made.manifest is not None or made.notes:
                        print(_build_json(made) if json else when + _build_text(made), flush=True)
                if every_s is None or stop.wait(every_s):
                    break
                views, refused = makeable(settings, names)
                failed = bool(refused)
                for each in refused:
                    print(each, file=sys.stderr, flush=True)
    raise typer.Exit(FAILED if failed else 0)


def _round(build: Any, *given: Any, goes_on: bool) -> Iterator[ViewBuild | Refused]:
    """Refreshes the views once. With `--every` an error is reported, and the next round tries again."""
    try:
        yield from build(*given)
    except (Refused, LogUnavailable) as error:
        if not goes_on:
            raise
        yield error if isinstance(error, Refused) else Refused("log-unavailable", str(error), "It is tried again.")


def _build_json(made: ViewBuild) -> str:
    manifest = None if made.manifest is None else manifest_json(made.manifest)
    document = {"view": made.view.name, "seconds": round(made.seconds, 3), "made": manifest, "notes": list(made.notes)}
    return jsonlib.dumps(document, ensure_ascii=False)


def _build_text(made: ViewBuild) -> str:
    notes = "".join(f"\n  {note}" for note in made.notes)
    manifest = made.manifest
    if manifest is None:
        return f"{made.view.name}: nothing new{notes}"
    how = "" if manifest.kind == "full" else f", {len(manifest.written)} partitions rewritten"
    return f"{made.view.name}: version {manifest.version}, {manifest.rows:,} rows{how}, {made.seconds:.1f} s{notes}"


@views.command("query")
def views_query(
    config: Config,
    name: Name,
    *,
    version: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="As it was in this version.", show_default=False)
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(metavar="T", help="The newest version made at this time.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, metavar="N", help="At most so many rows.")] = 20,
    json: Json = False,
) -> None:
    """Show the first rows of a view, as it is or was; `views show` lists its versions. For queries: `samovar sql`.

    Exit codes: 0 fine, 2 wrong usage or refused.
    """
    if version is not None and as_of is not None:
        raise typer.BadParameter("one version is enough: leave --version or --as-of out", param_hint="--as-of")
    with exit_on_refusal():
        settings = load_service(config)
        as_of_ms = None if as_of is None else instant_or_epoch("--as-of", as_of)
        found = query(settings, name, limit, version=version, as_of_ms=as_of_ms)
        with opened(settings) as log:
            record_reading(log, settings, "views query", {"view": name})
    print(jsonlib.dumps(found.to_json(), ensure_ascii=False) if json else rows_as_text(found))


def rows_as_text(found: QueryRows) -> str:
    cells = [list(found.columns), *([_cell(plain(value)) for value in row] for row in found.rows)]
    wide = [max(len(row[place]) for row in cells) for place in range(len(found.columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, wide, strict=True)).rstrip() for row in cells]
    return "\n".join([lines[0], "  ".join("-" * width for width in wide), *lines[1:]])


def _cell(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else jsonlib.dumps(value, ensure_ascii=False)


@views.command("get")
def views_get(
    config: Config,
    name: Name,
    key: Annotated[list[str], typer.Argument(metavar="KEY...", show_default=False)],
    *,
    json: Json = False,
) -> None:
    """Show the row of a key, of a view that is served: its version's, completed by what came since. No Spark is needed.

    KEY is a value for each column of the view's key, in their order. Exit codes: 0 fine, 2 wrong usage or refused.
    """
    with service_log(config) as (settings, log), closing(ViewServer(settings=settings, log=log)) as served:
        found = served.get(name, key)
        record_reading(log, settings, "views get", {"view": name})
    if json:
        print(jsonlib.dumps(found.to_json(), ensure_ascii=False))
        return
    for column, value in found.row.items():
        print(f"{column}: {_cell(plain(value))}")
    made = f"version {found.manifest.version}, made {iso_time(found.manifest.made_ms)}"
    count = found.records_since
    since = "" if count is None else f", {count:,} record{'s' * (count != 1)} since"
    print(f"{made}{since}, " + ("in it" if found.live else f"not in it: {found.reason}"))


@views.command("rollback")
def views_rollback(
    config: Config,
    name: Name,
    *,
    to: Annotated[int | None, typer.Option(min=1, metavar="N", help="This version.", show_default=False)] = None,
) -> None:
    """Show readers the version of a view before the current one, or another that is still there.

    The next rebuild or refresh makes a newer one. Exit codes: 0 fine, 2 wrong usage or refused.
    """
    with exit_on_refusal():
        manifest = roll_back(load_service(config), name, to)
    print(f"{name}: version {manifest.version}, {manifest.rows:,} rows")


@views.command("path")
def views_path(
    config: Config,
    name: Name,
    *,
    reader: Annotated[ViewReader | None, typer.Option("--for", help="A statement for this reader instead.")] = None,
) -> None:
    """Print the folder of a view's current version, for DuckDB, Spark, Trino and other readers.

    The folder stays as it is while newer versions are made, until `keep` of them are; a Delta table has all of them.

    Exit codes: 0 fine, 2 wrong usage or refused.
    """
    with exit_on_refusal():
        found = show(load_service(config), name)
        if found.path is None:
            raise never_made(name)
        print(found.path if reader is None else _statement(found, reader))


@views.command("maintain")
def views_maintain(
    config: Config,
    names: Names = None,
    *,
    retain_hours: Annotated[
        int, typer.Option(min=0, metavar="N", help="Files that were replaced stay so long, for those who read them.")
    ] = READERS_H,
    json: Json = False,
) -> None:
    """Compact the Delta tables of views, and delete what no version that is kept needs. Without NAME, all.

    A refresh does the same, once an hour at most. Exit codes: 0 fine, 2 wrong usage or refused.
    """
    with exit_on_refusal():
        for name, merged, deleted in maintain(load_service(config), names or [], retain_hours):
            found = {"view": name, "merged": merged, "deleted": deleted}
            text = f"{name}: {merged:,} small files merged, {deleted:,} files deleted"
            print(jsonlib.dumps(found) if json else text, flush=True)


def _statement(found: ViewListing, reader: ViewReader) -> str:
    path, table = found.path, found.view.table
    if found.manifest is not None and found.manifest.table is not None:
        return {
            ViewReader.DUCKDB: f"create or replace view {table} as select * from delta_scan('{path}');",  # noqa: S608 - for people to paste
            ViewReader.SPARK: f"create table {table} using delta location '{path}';",
            ViewReader.TRINO: f"call delta.system.register_table('default', '{table}', 'file://{path}');",
        }[reader]
    if reader is ViewReader.DUCKDB:
        return f"create or replace view {table} as select * from read_parquet('{path}/**/*.parquet');"  # noqa: S608 - for people to paste
    if reader is ViewReader.SPARK:
        return f"create or replace temporary view {table} using parquet options (path '{path}');"
    parts = ", ".join(f"'{column}'" for column in found.view.partitioning)
    more = f", partitioned_by = array[{parts}]" if parts else ""
    columns = found.manifest.columns if found.manifest else {}
    # Trino wants partition columns last.
    ordered = sorted(columns.items(), key=lambda item: item[0] in found.view.partitioning)
    kinds = {"string": "varchar", "int": "integer", "timestamp": "timestamp(6)", "binary": "varbinary"}
    typed = ", ".join(
        f'"{column}" {kinds.get(kind, kind.replace("<", "(").replace(">", ")").replace("string", "varchar"))}'
        for column, kind in ordered
    )
    return f"create table {table} ({typed}) with (external_location = 'file://{path}', format = 'PARQUET'{more});"
