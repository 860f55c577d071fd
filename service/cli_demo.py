"""The commands that show Samovar at work: traffic and demo."""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from samovar.service.cli_refusals import told
from samovar.service.cli_service import Config, SetFlags

TRAFFIC_HELP = """Write generated events to the streams of a service, in real time: people and frauds, or visits.

The first start begins 75 minutes ago (--backfill), so that there is something to see at once. It may be stopped or
killed at any moment: the next start goes on at the present time, and no event comes twice.

Exit codes: 0 stopped, 2 wrong usage or refused."""


def register(app: typer.Typer) -> None:
    app.command(help=TRAFFIC_HELP)(traffic)


def traffic(
    config: Config,
    *,
    rate: Annotated[float, typer.Option(min=0.1, max=20_000, metavar="N", help="Events a second.")] = 20.0,
    backfill: Annotated[str, typer.Option(metavar="D", help="The first start begins so long ago.")] = "75m",
    keys: Annotated[int | None, typer.Option(min=1, metavar="N", help="How many people; by default by rate.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same people.")] = 1,
    for_: Annotated[str | None, typer.Option("--for", metavar="D", help="End after so long.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Counts as JSON at the end, on standard output.")] = False,
    set_: SetFlags = None,
) -> None:
    from samovar.service.cli_offline import milliseconds

    backfill_ms = milliseconds("--backfill", backfill)
    for_ms = None if for_ is None else milliseconds("--for", for_)
    from samovar.service.processes import nothing_begun, stopping

    with nothing_begun(), told():
        from samovar.service.logs import opened
        from samovar.service.settings import load_service
        from samovar.service.traffic import Run, Wanted

        settings = load_service(config, flags=set_ or ())
        with opened(settings) as log:
            run = Run(settings, log, Wanted(rate, backfill_ms, seed, keys, for_ms), sys.stderr)
            with stopping(run.stop):
                written = run.run()
    if json:
        print(jsonlib.dumps(asdict(written)))
    else:
        print(f"{written.events:,} events written", file=sys.stderr)
