"""The commands that run a service."""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from samovar.service.cli_refusals import told
from samovar.service.cli_service import Config
from samovar.service.processes import nothing_begun, run_processes

RUN_HELP = """Run a service: read its streams, match its rules, write its alerts.

SIGTERM and Ctrl-C end it after the batch at hand, with everything committed and no lock left. It may be killed at any
moment: the next start goes on where the last commit was, with nothing lost and nothing twice.

On Kafka the partitions of a container that ended wait some seconds for it to come back: a restart moves nothing.
One that will not come back is ended with SIGUSR1, or was started with --leave: others go on with them at once.

Exit codes: 0 stopped or caught up, 2 wrong usage or refused."""


def register(app: typer.Typer) -> None:
    app.command(help=RUN_HELP)(run)


def run(
    config: Config,
    *,
    containers: Annotated[int, typer.Option(min=1, metavar="N", help="So many processes share the partitions.")] = 1,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="End when all that is in the streams has been processed.")
    ] = False,
    slot: Annotated[int, typer.Option(min=0, metavar="S", help="This container's number in the service.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Counts as JSON at the end, on standard output.")] = False,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Serve metrics for Prometheus here; slot S at the port S above."),
    ] = None,
    leave: Annotated[
        bool, typer.Option("--leave", help="When it is stopped, hand its partitions to the others at once.")
    ] = False,
    log: Annotated[str, typer.Option("--log", metavar="text|json", help="How it tells what it does.")] = "text",
) -> None:
    if log not in ("text", "json"):
        raise typer.BadParameter(f"`{log}`: choose text or json", param_hint="--log")
    with nothing_begun(), told(as_json=log == "json"):
        if containers > 1:
            options = ["--log", log, *(["--metrics", metrics] if metrics is not None else [])]
            options += ["--leave"] if leave else []
            raise typer.Exit(run_processes(config, containers, until_caught_up=until_caught_up, options=options))
        from samovar.service.logs import opened
        from samovar.service.running import run_here
        from samovar.service.settings import load_service

        settings = load_service(config)
        with opened(settings) as source:
            counts = run_here(
                settings,
                source,
                slot,
                sys.stderr,
                until_caught_up=until_caught_up,
                form=log,
                metrics=metrics,
                leave=leave,
            )
    if json:
        print(jsonlib.dumps(asdict(counts)))
