"""The command that brings state back: restore."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samovar.service.auth.audit import record_export
from samovar.service.cli.options import instant
from samovar.service.cli.service import Config, Json
from samovar.service.cli.spark import Engine, Master, refuse_engine
from samovar.service.cli.state import DIFFERENT, Partitions, Stage, at_site
from samovar.service.query.verify import text_of_verdict
from samovar.service.query.verify import verify as verified
from samovar.service.recovery.restore.plan import SOURCES, RestoreRequest, measured_rate, plan_lines, plan_restore
from samovar.service.recovery.restore.progress import Bars, restored_line
from samovar.service.recovery.restore.run import compared, restore_all
from samovar.service.spark.progress import ProgressDisplay
from samovar.service.spark.restore import FromStaging, OnSpark, plan_ingest, refuse_unreachable, stage_to
from samovar.service.spark.session import starting_for
from samovar.service.topology.stores import at_state
from samovar.service.topology.topics import ensure

if TYPE_CHECKING:
    from samovar.service.recovery.restore.plan import RestorePlan
    from samovar.service.recovery.restore.run import Engine as Builder
    from samovar.service.recovery.restore.run import RestoreResult
    from samovar.service.topology.stores import StateLocation

RESTORE_HELP = """Build the stores of a service anew: from a snapshot and what came after, the changelog, or the input.

Says first what it will do. It can be stopped at any moment and run again, never touches a store that a container has
open, and ends with the digest of each partition. `--from source` folds input and journal again by the same rules, and
then makes the changelog agree; the service must not run.

To the past: `--to-offset N` (of one partition's changelog) or `--to-time T`, with `--out DIR`. T is log time, and with
`--from source` event time. Read it with `samovar state get CONFIG KEY --store DIR`.

`--engine spark` reads and folds on Spark, a task partition in parallel with others: on this machine, or with `--master`
on a cluster. There `--staging PATH` writes table files to a folder that all machines reach, and `--ingest PATH` on each
node takes them.

Exit codes: 0 fine, 1 --verify found a difference, 2 wrong usage or refused."""


def register(app: typer.Typer) -> None:
    app.command(help=RESTORE_HELP)(restore)


def restore(
    config: Config,
    *,
    partition: Partitions = None,
    stage: Stage = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="changelog|snapshot|source", help="Otherwise a snapshot where one is valid."),
    ] = None,
    to_offset: Annotated[int | None, typer.Option(min=0, metavar="N", help="As it was at this offset.")] = None,
    to_time: Annotated[str | None, typer.Option(metavar="T", help="As it was at this time.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write here, and leave the live store alone.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
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
    refuse_engine(engine, master)
    _refuse_staging(engine, staging, ingest, (source, to_offset, to_time, out))
    if source is not None and source not in SOURCES:
        raise typer.BadParameter(f"`{source}`: choose one of {', '.join(SOURCES)}", param_hint="--from")
    if to_offset is not None and to_time is not None:
        raise typer.BadParameter("one moment is enough: leave --to-offset or --to-time out", param_hint="--to-time")
    moment = None if to_time is None else _moment(to_time)
    asked = RestoreRequest(tuple(partition or ()), source, to_offset, moment, out, dry_run, stage, engine)
    with at_site(config) as site:
        if (out or staging) and not dry_run:
            record_export(site.log, site.settings, "restore", out or staging)
        if ingest is not None:
            report, is_equal = _ingested(site, asked, ingest, verify=verify, quiet=json)
        elif engine == "spark" and not dry_run:
            report, is_equal = _on_spark(site, asked, master, staging, verify=verify, quiet=json)
        else:
            report, is_equal = _run(site, asked, verify=verify, quiet=json)
    if json:
        print(jsonlib.dumps(report, ensure_ascii=False))
    raise typer.Exit(0 if is_equal else DIFFERENT)


def _moment(text: str) -> int:
    return int(text) if text.isdecimal() else instant("--to-time", text)


def _refuse_staging(engine: str, staging: Path | None, ingest: Path | None, others: tuple[Any, ...]) -> None:
    if staging is not None and engine != "spark":
        raise typer.BadParameter("table files are made by `--engine spark`", param_hint="--staging")
    if staging is not None and others[-1] is not None:
        raise typer.BadParameter("one place is enough: leave --out or --staging out", param_hint="--staging")
    if ingest is not None and (engine == "spark" or staging is not None or any(each is not None for each in others)):
        raise typer.BadParameter("only --partition, --stage, --dry-run and --verify go with it", param_hint="--ingest")


def _run(site: StateLocation, asked: RestoreRequest, *, verify: bool, quiet: bool) -> tuple[dict[str, Any], bool]:
    _make_topics(site, asked)
    plans = plan_restore(site, asked, _now_ms())
    report = _told_plan(site, asked, plans, quiet=quiet)
    if asked.dry_run:
        return report | _compared(site, plans, _screen(quiet)), True
    return _done(site, asked, plans, report, None, verify=verify, quiet=quiet)


def _make_topics(site: StateLocation, asked: RestoreRequest) -> None:
    if asked.source == "source" and asked.out is None and not asked.dry_run:
        ensure(site.log, site.settings)  # a changelog that was deleted is made again


def _told_plan(site: StateLocation, asked: RestoreRequest, plans: list[RestorePlan], *, quiet: bool) -> dict[str, Any]:
    rate = measured_rate(site, plans) if asked.engine == "local" else None
    print("\n".join(plan_lines(plans, rate, asked)), file=_screen(quiet), flush=True)
    return {"plan": [each.data() for each in plans], "records_per_s": rate and round(rate)}


def _done(
    site: StateLocation,
    asked: RestoreRequest,
    plans: list[RestorePlan],
    report: dict[str, Any],
    engine: Builder | None,
    *,
    verify: bool,
    quiet: bool,
) -> tuple[dict[str, Any], bool]:
    """Restore, and verify where that was asked for."""
    screen = _screen(quiet)
    restored = _restored(site, asked, plans, engine, screen, quiet=quiet)
    report["restored"] = [each.data() for each in restored]
    if verify and any(each.moment_ms is not None for each in plans):
        print("not verified: a moment of the source has nothing to be held against", file=screen)
        verify = False
    if not verify:
        return report, True
    verdicts = _verified(site, asked, restored, screen)
    return report | {"verify": [each.data() for each in verdicts]}, all(each.is_equal for each in verdicts)


def _on_spark(
    site: StateLocation, asked: RestoreRequest, master: str | None, staging: Path | None, *, verify: bool, quiet: bool
) -> tuple[dict[str, Any], bool]:
    _make_topics(site, asked)
    plans = plan_restore(site, asked, _now_ms())
    with (
        ProgressDisplay(sys.stderr, as_json=quiet) as showing,
        starting_for(site.settings, "samovar restore", master, showing.say) as start,
    ):
        report = _told_plan(site, asked, plans, quiet=quiet)
        session = start.ready()
        refuse_unreachable(site, session, staging)
        if staging is None:
            engine = OnSpark(session, showing)
            with engine.tables(site):
                return _done(site, asked, plans, report, engine, verify=verify, quiet=quiet)
        staged = stage_to(session, site, plans, staging.absolute(), showing)
    for each in staged:
        found = each.manifest
        print(
            f"{each.folder}: {found.rows:,} rows of {found.records:,} records, digest {found.digest}",
            file=_screen(quiet),
        )
    print(f"On the node that is to have it: samovar restore CONFIG --ingest {staging}", file=_screen(quiet))
    return report | {"staged": [{"folder": str(each.folder), **asdict(each.manifest)} for each in staged]}, True


def _ingested(
    site: StateLocation, asked: RestoreRequest, staging: Path, *, verify: bool, quiet: bool
) -> tuple[dict[str, Any], bool]:
    plans = plan_ingest(site, asked, staging, _now_ms())
    if any(each.until is not None for each in plans):
        asked = replace(asked, source="source")  # the changelog then follows
    report = _told_plan(site, replace(asked, engine="spark"), plans, quiet=quiet)
    if asked.dry_run:
        return report | {"dry_run": True}, True
    return _done(site, asked, plans, report, FromStaging(), verify=verify, quiet=quiet)


def _screen(quiet: bool) -> Any:
    return sys.stderr if quiet else sys.stdout


def _compared(site: StateLocation, plans: list[RestorePlan], screen: Any) -> dict[str, Any]:
    found = []
    for planned in plans:
        if planned.until is None or planned.moment_ms is not None:
            continue
        here = site.at(planned.stage)
        seen = compared(here, planned, lambda _: None)
        rows, states = len(seen.repaired), seen.states_differ
        found.append({**here.placed(planned.partition), "rows_to_repair": rows, "states_differ": states})
        print(
            f"{planned.name}: {states:,} states differ from the changelog, of which {rows:,} rows would be repaired",
            file=screen,
        )
    return {"dry_run": True} | ({"differences": found} if found else {})


def _restored(
    site: StateLocation,
    asked: RestoreRequest,
    plans: list[RestorePlan],
    engine: Builder | None,
    screen: Any,
    *,
    quiet: bool,
) -> list[RestoreResult]:
    done = []
    with Bars(plans, sys.stderr, quiet=quiet) as bars:
        for planned, restored in zip(plans, restore_all(site, asked, plans, bars.moved, engine), strict=True):
            bars.done(planned, restored)
            done.append(restored)
    print("\n".join(map(restored_line, done)), file=screen)
    return done


def _verified(site: StateLocation, asked: RestoreRequest, restored: list[RestoreResult], screen: Any) -> list[Any]:
    there = at_state(site, asked.out)
    verdicts = [verified(there.at(each.stage), each.partition, _now_ms()) for each in restored]
    for verdict in verdicts:
        print("\n".join(text_of_verdict(verdict)), file=screen)
    return verdicts


def _now_ms() -> int:
    return int(time.time() * 1000)
