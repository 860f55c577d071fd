"""The command that brings state back: restore."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from samovar.service.auth.audit import record_export
from samovar.service.cli.options import Config, DryRun, Engine, Json, Master, instant_or_epoch, refuse_engine
from samovar.service.cli.state import DIFFERENT, Partitions, Stage, at_site
from samovar.service.query.verify import text_of_verdict
from samovar.service.query.verify import verify as verified
from samovar.service.recovery.restore.plan import (
    SOURCES,
    RestorePlan,
    RestoreRequest,
    measured_rate,
    plan_lines,
    plan_restore,
)
from samovar.service.recovery.restore.progress import Bars, restored_line
from samovar.service.recovery.restore.run import Engine as Builder
from samovar.service.recovery.restore.run import compared, restore_all
from samovar.service.spark.progress import ProgressDisplay
from samovar.service.spark.restore import FromStaging, OnSpark, plan_ingest, refuse_unreachable, stage_to
from samovar.service.spark.session import starting_for
from samovar.service.topology.stores import StateLocation
from samovar.service.topology.topics import ensure

app = typer.Typer(rich_markup_mode=None)


@app.command()
def restore(
    config: Config,
    *,
    partition: Partitions = None,
    stage: Stage = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="changelog|snapshot|source", help="By default a snapshot, where one is valid."),
    ] = None,
    to_offset: Annotated[int | None, typer.Option(min=0, metavar="N", help="As it was at this offset.")] = None,
    to_time: Annotated[str | None, typer.Option(metavar="T", help="As it was at this time.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write here, and leave the live store alone.")] = None,
    dry_run: DryRun = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare with the changelog and the source at the end.")
    ] = False,
    engine: Engine = "local",
    master: Master = None,
    staging: Annotated[
        Path | None, typer.Option(metavar="PATH", help="With spark: write table files here, and touch no store.")
    ] = None,
    ingest: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Take what `--staging PATH` wrote, and what came after it.")
    ] = None,
    json: Json = False,
) -> None:
    """Rebuild the stores of a service: from a snapshot and what came after, the changelog, or the input.

    Says first what it will do. It can be stopped at any moment and run again, never touches a store that a container
    has open, and ends with the digest of each partition. `--from source` folds input and journal again by the same
    rules, and then makes the changelog agree; the service must not run.

    To the past: `--to-offset N` (of one partition's changelog) or `--to-time T`, with `--out DIR`. T is log time, and
    with `--from source` event time. Read it with `samovar state get CONFIG KEY --store DIR`.

    `--engine spark` reads and folds on Spark, a task partition in parallel with others: on this machine, or with
    `--master` on a cluster. There `--staging PATH` writes table files to a folder that all machines reach, and
    `--ingest PATH` on each node takes them.

    Exit codes: 0 fine, 1 --verify found a difference, 2 wrong usage or refused.
    """
    refuse_engine(engine, master)
    if staging is not None and engine != "spark":
        raise typer.BadParameter("table files are made by `--engine spark`", param_hint="--staging")
    if staging is not None and out is not None:
        raise typer.BadParameter("one place is enough: leave --out or --staging out", param_hint="--staging")
    others = (source, to_offset, to_time, out, staging)
    if ingest is not None and (engine == "spark" or any(each is not None for each in others)):
        raise typer.BadParameter("only --partition, --stage, --dry-run and --verify go with it", param_hint="--ingest")
    if source is not None and source not in SOURCES:
        raise typer.BadParameter(f"`{source}`: choose one of {', '.join(SOURCES)}", param_hint="--from")
    if to_offset is not None and to_time is not None:
        raise typer.BadParameter("one moment is enough: leave --to-offset or --to-time out", param_hint="--to-time")
    to_ms = None if to_time is None else instant_or_epoch("--to-time", to_time)
    request = RestoreRequest(
        partitions=tuple(partition or ()),
        source=source,
        to_offset=to_offset,
        to_time_ms=to_ms,
        out=out,
        dry_run=dry_run,
        stage=stage,
        engine=engine,
    )
    with at_site(config) as site:
        if (out or staging) and not dry_run:
            record_export(site.log, site.settings, "restore", out or staging)
        report, is_equal = _run(site, request, master, staging, ingest, verify=verify, quiet=json)
    if json:
        print(jsonlib.dumps(report, ensure_ascii=False))
    raise typer.Exit(0 if is_equal else DIFFERENT)


def _run(
    site: StateLocation,
    request: RestoreRequest,
    master: str | None,
    staging: Path | None,
    ingest: Path | None,
    *,
    verify: bool,
    quiet: bool,
) -> tuple[dict[str, Any], bool]:
    """Plans, shows the plan, and builds the stores. Returns a report, and whether `verify` found them equal."""
    screen = sys.stderr if quiet else sys.stdout
    if ingest is not None:
        plans = plan_ingest(site, request, ingest, _now_ms())
        if any(each.until is not None for each in plans):
            request = replace(request, source="source")  # the changelog then follows
    else:
        if request.source == "source" and request.out is None and not request.dry_run:
            ensure(site.log, site.settings)  # a changelog that was deleted is made again
        plans = plan_restore(site, request, _now_ms())

    def show_plan() -> dict[str, Any]:
        shown = request if ingest is None else replace(request, engine="spark")
        rate = measured_rate(site, plans) if shown.engine == "local" else None
        print("\n".join(plan_lines(plans, rate, shown)), file=screen, flush=True)
        return {"plan": [each.data() for each in plans], "records_per_s": rate and round(rate)}

    if request.dry_run or request.engine == "local":
        report = show_plan()
        if not request.dry_run:
            builder = None if ingest is None else FromStaging()
            return _build(site, request, plans, report, builder, screen, verify=verify)
        differences = [] if ingest is not None else _differences(site, plans, screen)
        return report | {"dry_run": True} | ({"differences": differences} if differences else {}), True
    with (
        ProgressDisplay(sys.stderr, as_json=quiet) as display,
        starting_for(site.settings, "samovar restore", master, display.say) as start,
    ):
        report = show_plan()
        session = start.ready()
        refuse_unreachable(site, session, staging)
        if staging is None:
            engine = OnSpark(session, display)
            with engine.tables(site):
                return _build(site, request, plans, report, engine, screen, verify=verify)
        staged = stage_to(session, site, plans, staging.absolute(), display)
    for each in staged:
        files = each.manifest
        print(f"{each.folder}: {files.rows:,} rows of {files.records:,} records, digest {files.digest}", file=screen)
    print(f"On the node that is to have it: samovar restore CONFIG --ingest {staging}", file=screen)
    return report | {"staged": [{"folder": str(each.folder), **asdict(each.manifest)} for each in staged]}, True


def _build(
    site: StateLocation,
    request: RestoreRequest,
    plans: list[RestorePlan],
    report: dict[str, Any],
    builder: Builder | None,
    screen: Any,
    *,
    verify: bool,
) -> tuple[dict[str, Any], bool]:
    """Restores, and verifies where that was asked for."""
    done = []
    with Bars(plans, sys.stderr, quiet=screen is sys.stderr) as bars:
        for planned, restored in zip(plans, restore_all(site, request, plans, bars.moved, builder), strict=True):
            bars.done(planned, restored)
            done.append(restored)
    print("\n".join(map(restored_line, done)), file=screen)
    report["restored"] = [each.data() for each in done]
    if not verify:
        return report, True
    if any(each.moment_ms is not None for each in plans):
        print("not verified: a moment of the source has nothing to be held against", file=screen)
        return report, True
    there = replace(site, state=request.out or site.state)
    verdicts = [verified(there.at(each.stage), each.partition, _now_ms()) for each in done]
    for verdict in verdicts:
        print("\n".join(text_of_verdict(verdict)), file=screen)
    return report | {"verify": [each.data() for each in verdicts]}, all(each.is_equal for each in verdicts)


def _differences(site: StateLocation, plans: list[RestorePlan], screen: Any) -> list[dict[str, Any]]:
    """Where a fold of the source differs from the changelog."""
    found = []
    for planned in plans:
        if planned.until is None or planned.moment_ms is not None:
            continue
        here = site.at(planned.stage)
        seen = compared(here, planned, lambda _: None)
        rows, states = len(seen.repaired), seen.states_differ
        found.append({**here.placed(planned.partition), "rows_to_repair": rows, "states_differ": states})
        differ = f"{states:,} states differ from the changelog, of which {rows:,} rows would be repaired"
        print(f"{planned.name}: {differ}", file=screen)
    return found


def _now_ms() -> int:
    return int(time.time() * 1000)
