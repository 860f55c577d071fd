"""The commands that show Samovar at work: demo, traffic and generate."""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from samovar.service.cli.options import Config, SetFlags, instant, milliseconds
from samovar.service.cli.refusals import exit_on_refusal
from samovar.service.config.loading import load_service
from samovar.service.offline.demo import DemoOptions, on_broker, services_folder
from samovar.service.offline.demo import demo as run_demo
from samovar.service.offline.generate import START_MS, STREAMS, write
from samovar.service.offline.traffic import TrafficRequest, TrafficRun
from samovar.service.runtime.processes import nothing_begun, stopping
from samovar.service.topology.logs import opened

For = Annotated[str | None, typer.Option("--for", metavar="D", help="End after this long.")]

app = typer.Typer(rich_markup_mode=None)


@app.command()
def demo(
    *,
    kafka: Annotated[bool, typer.Option("--kafka", help="Use a local broker; start one if none runs.")] = False,
    kafka_dir: Annotated[Path, typer.Option(metavar="DIR", help="Where that broker's data is.")] = Path(
        ".samovar/kafka"
    ),
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where that broker listens.")] = 9092,
    http: Annotated[
        int, typer.Option(min=1, max=65534, help="Port of fraud's pages, or the next free one; sessions next.")
    ] = 8080,
    rate: Annotated[
        float, typer.Option(min=0.1, max=40_000, metavar="N", help="Events per second; of sessions at most 200.")
    ] = 20_000.0,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where fraud/ and sessions/ are. [default: examples/ or ./samovar-demo]"),
    ] = None,
    for_: For = None,
) -> None:
    """Run the two example services with generated traffic, and show their first alerts. Ctrl-C ends it.

    In a checkout of the sources these are demo.yml of examples/fraud and examples/sessions; otherwise they are copied
    to ./samovar-demo. All state is kept next to these files: the next demo goes on from there.

    Exit codes: 0 stopped, 1 a process ended by itself or --for passed without an alert, 2 wrong usage or refused.
    """
    seconds = None if for_ is None else milliseconds("--for", for_) / 1000
    with exit_on_refusal():
        options = DemoOptions(folder or services_folder(), rate, seconds, http)
        if not kafka:
            raise typer.Exit(run_demo(Console(), options))
        with on_broker(kafka_dir, port, lambda text: print(text, file=sys.stderr, flush=True)) as address:
            raise typer.Exit(run_demo(Console(), options, address))


@app.command()
def traffic(
    config: Config,
    *,
    rate: Annotated[float, typer.Option(min=0.1, max=40_000, metavar="N", help="Events per second.")] = 20.0,
    backfill: Annotated[str, typer.Option(metavar="D", help="How far in the past the first start begins.")] = "75m",
    backfill_rate: Annotated[
        float, typer.Option(min=0.1, max=40_000, metavar="N", help="Events per second until now, at most --rate.")
    ] = 20.0,
    keys: Annotated[int | None, typer.Option(min=1, metavar="N", help="How many people; by default by rate.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same people.")] = 1,
    for_: For = None,
    json: Annotated[bool, typer.Option("--json", help="Counts as JSON at the end, on standard output.")] = False,
    set_: SetFlags = None,
) -> None:
    """Write generated events to the streams of a service, in real time: people and frauds, or visits.

    The first start begins 75 minutes ago (--backfill), so that there is something to see at once. It may be stopped or
    killed at any moment: the next start goes on at the present time, and no event comes twice.

    Exit codes: 0 stopped, 2 wrong usage or refused.
    """
    backfill_ms = milliseconds("--backfill", backfill)
    for_ms = None if for_ is None else milliseconds("--for", for_)
    with nothing_begun(), exit_on_refusal():
        settings = load_service(config, flags=set_ or ())
        with opened(settings) as log:
            run = TrafficRun(
                settings,
                log,
                TrafficRequest(
                    rate=rate, backfill_ms=backfill_ms, seed=seed, keys=keys, for_ms=for_ms, backfill_rate=backfill_rate
                ),
                sys.stderr,
            )
            with stopping(run.stop, run.stop):
                written = run.run()
    if json:
        print(jsonlib.dumps(asdict(written)))
    else:
        print(f"{written.events:,} events written", file=sys.stderr)


@app.command()
def generate(
    kind: Annotated[str, typer.Argument(metavar="fraud|sessions", show_default=False)],
    *,
    events: Annotated[int, typer.Option(min=0, help="How many events.")] = 100_000,
    keys: Annotated[int, typer.Option(min=1, help="How many people or visitors.")] = 5_000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same bytes.")] = 1,
    disorder: Annotated[str, typer.Option(metavar="D", help="Let lines come up to D late.")] = "0s",
    start: Annotated[str | None, typer.Option(metavar="TIME", help="Time of the first event, ISO 8601.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="A file (.gz: zipped) instead of stdout.")] = None,
    labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Which events are planted, for `samovar match --score`.")
    ] = None,
) -> None:
    """Write test events with planted frauds, a JSON object per line, and on request labels that say which."""
    if kind not in STREAMS:
        raise typer.BadParameter(f"`{kind}`: choose one of {', '.join(STREAMS)}", param_hint="fraud|sessions")
    begin = START_MS if start is None else instant("--start", start)
    try:
        write(kind, events, keys, seed, milliseconds("--disorder", disorder), begin, out, labels)
    except BrokenPipeError:
        raise
    except OSError as error:
        hint = "--labels" if error.filename and error.filename == str(labels) else "--out"
        path = error.filename or out
        raise typer.BadParameter(f"cannot write {path}: {error.strerror or error}", param_hint=hint) from None
