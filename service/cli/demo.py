"""The commands that show Samovar at work: traffic and demo."""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from samovar.service.cli.refusals import told
from samovar.service.cli.service import Config, SetFlags

TRAFFIC_HELP = """Write generated events to the streams of a service, in real time: people and frauds, or visits.

The first start begins 75 minutes ago (--backfill), so that there is something to see at once. It may be stopped or
killed at any moment: the next start goes on at the present time, and no event comes twice.

Exit codes: 0 stopped, 2 wrong usage or refused."""


DEMO_HELP = """Run the two services of examples/ with generated traffic, and show their first alerts. Ctrl-C ends it.

All state is kept next to the service files: the next demo goes on from there. Needs a checkout of the sources.

Exit codes: 0 stopped, 1 a process ended by itself, 2 wrong usage or refused."""

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def register(app: typer.Typer) -> None:
    app.command(help=TRAFFIC_HELP)(traffic)
    app.command(help=DEMO_HELP)(demo)


def demo(
    *,
    kafka: Annotated[bool, typer.Option("--kafka", help="On a local broker, started where none runs.")] = False,
    kafka_dir: Annotated[Path, typer.Option(metavar="DIR", help="Where that broker's data is.")] = Path(
        ".samovar/kafka"
    ),
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where that broker listens.")] = 9092,
    http: Annotated[
        int, typer.Option(min=1, max=65534, help="Port of fraud's pages, or the next free one; sessions next.")
    ] = 8080,
    rate: Annotated[float, typer.Option(min=0.1, max=5_000, metavar="N", help="Events per second and service.")] = 20.0,
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Where fraud/ and sessions/ are.")] = EXAMPLES,
    for_: Annotated[str | None, typer.Option("--for", metavar="D", help="End after so long.")] = None,
) -> None:
    from samovar.service.cli.offline import milliseconds

    seconds = None if for_ is None else milliseconds("--for", for_) / 1000
    with told():
        from rich.console import Console

        from samovar.service.offline.demo import DemoOptions, on_broker
        from samovar.service.offline.demo import demo as run

        options = DemoOptions(folder, rate, seconds, http)
        console = Console()
        if not kafka:
            raise typer.Exit(run(console, options))
        with on_broker(kafka_dir, port, lambda text: print(text, file=sys.stderr, flush=True)) as address:
            raise typer.Exit(run(console, options, address))


def traffic(
    config: Config,
    *,
    rate: Annotated[float, typer.Option(min=0.1, max=20_000, metavar="N", help="Events per second.")] = 20.0,
    backfill: Annotated[str, typer.Option(metavar="D", help="The first start begins so long ago.")] = "75m",
    keys: Annotated[int | None, typer.Option(min=1, metavar="N", help="How many people; by default by rate.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same people.")] = 1,
    for_: Annotated[str | None, typer.Option("--for", metavar="D", help="End after so long.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Counts as JSON at the end, on standard output.")] = False,
    set_: SetFlags = None,
) -> None:
    from samovar.service.cli.offline import milliseconds

    backfill_ms = milliseconds("--backfill", backfill)
    for_ms = None if for_ is None else milliseconds("--for", for_)
    from samovar.service.runtime.processes import nothing_begun, stopping

    with nothing_begun(), told():
        from samovar.service.config.loading import load_service
        from samovar.service.offline.traffic import TrafficRequest, TrafficRun
        from samovar.service.topology.logs import opened

        settings = load_service(config, flags=set_ or ())
        with opened(settings) as log:
            run = TrafficRun(settings, log, TrafficRequest(rate, backfill_ms, seed, keys, for_ms), sys.stderr)
            with stopping(run.stop, run.stop):
                written = run.run()
    if json:
        print(jsonlib.dumps(asdict(written)))
    else:
        print(f"{written.events:,} events written", file=sys.stderr)
