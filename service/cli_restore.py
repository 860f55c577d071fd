"""The command that brings state back: restore."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samovar.service.cli_service import Config, Json
from samovar.service.cli_state import DIFFERENT, Partitions, Stage, at_site

if TYPE_CHECKING:
    from samovar.service.restore_plan import Asked, Planned
    from samovar.service.restoring import Restored
    from samovar.service.stores import Site

RESTORE_HELP = """Build the stores of a service anew: from a snapshot and what came after, the changelog, or the input.

Says first what it will do. It can be stopped at any moment and run again, never touches a store that a container has
open, and ends with the digest of each partition. `--from source` folds input and journal again by the same rules, and
then makes the changelog agree; the service must not run.

To the past: `--to-offset N` (of one partition's changelog) or `--to-time T`, with `--out DIR`. T is log time, and with
`--from source` event time. Read it with `samovar state get CONFIG KEY --store DIR`.

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
    json: Json = False,
) -> None:
    from samovar.service.restore_plan import SOURCES, Asked

    if source is not None and source not in SOURCES:
        raise typer.BadParameter(f"`{source}`: choose one of {', '.join(SOURCES)}", param_hint="--from")
    if to_offset is not None and to_time is not None:
        raise typer.BadParameter("one moment is enough: leave --to-offset or --to-time out", param_hint="--to-time")
    moment = None if to_time is None else _moment(to_time)
    asked = Asked(tuple(partition or ()), source, to_offset, moment, out, dry_run, stage)
    with at_site(config) as site:
        report, is_equal = _run(site, asked, verify=verify, quiet=json)
    if json:
        print(jsonlib.dumps(report, ensure_ascii=False))
    raise typer.Exit(0 if is_equal else DIFFERENT)


def _moment(text: str) -> int:
    from samovar.service.cli_offline import instant

    return int(text) if text.isdecimal() else instant("--to-time", text)


def _run(site: Site, asked: Asked, *, verify: bool, quiet: bool) -> tuple[dict[str, Any], bool]:
    from samovar.service.restore_plan import measured_rate, plan_lines, plan_restore
    from samovar.service.topics import ensure

    screen = sys.stderr if quiet else sys.stdout
    if asked.source == "source" and asked.out is None and not asked.dry_run:
        ensure(site.log, site.settings)  # a changelog that was deleted is made again
    plans = plan_restore(site, asked, _now_ms())
    rate = measured_rate(site, plans)
    print("\n".join(plan_lines(plans, rate, asked)), file=screen, flush=True)
    report: dict[str, Any] = {"plan": [each.data() for each in plans], "records_per_s": rate and round(rate)}
    if asked.dry_run:
        return report | _compared(site, plans, screen), True
    restored = _restored(site, asked, plans, screen, quiet=quiet)
    report["restored"] = [each.data() for each in restored]
    if verify and any(each.moment_ms is not None for each in plans):
        print("not verified: a moment of the source has nothing to be held against", file=screen)
        verify = False
    if not verify:
        return report, True
    verdicts = _verified(site, asked, restored, screen)
    return report | {"verify": [each.data() for each in verdicts]}, all(each.is_equal for each in verdicts)


def _compared(site: Site, plans: list[Planned], screen: Any) -> dict[str, Any]:
    from samovar.service.restoring import compared

    found = []
    for planned in plans:
        if planned.until is None or planned.moment_ms is not None:
            continue
        here = site.at(planned.stage)
        seen = compared(here, planned, lambda _: None)
        rows, states = len(seen.mended), seen.states_differ
        found.append({**here.placed(planned.partition), "rows_to_mend": rows, "states_differ": states})
        print(
            f"{planned.name}: {states:,} states differ from the changelog, of which {rows:,} rows would be mended",
            file=screen,
        )
    return {"dry_run": True} | ({"differences": found} if found else {})


def _restored(site: Site, asked: Asked, plans: list[Planned], screen: Any, *, quiet: bool) -> list[Restored]:
    from samovar.service.restore_show import Bars, restored_line
    from samovar.service.restoring import restore_all

    done = []
    with Bars(plans, sys.stderr, quiet=quiet) as bars:
        for planned, restored in zip(plans, restore_all(site, asked, plans, bars.moved), strict=True):
            bars.done(planned, restored)
            done.append(restored)
    print("\n".join(map(restored_line, done)), file=screen)
    return done


def _verified(site: Site, asked: Asked, restored: list[Restored], screen: Any) -> list[Any]:
    from samovar.service.stores import at_state
    from samovar.service.verifying import text_of_verdict
    from samovar.service.verifying import verify as verified

    there = at_state(site, asked.out)
    verdicts = [verified(there.at(each.stage), each.partition, _now_ms()) for each in restored]
    for verdict in verdicts:
        print("\n".join(text_of_verdict(verdict)), file=screen)
    return verdicts


def _now_ms() -> int:
    return int(time.time() * 1000)
