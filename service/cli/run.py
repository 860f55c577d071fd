"""The commands that run a service."""

from __future__ import annotations

import json as jsonlib
import os
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from samovar.common.arenas import few_arenas
from samovar.service.cli.options import Config, SetFlags
from samovar.service.cli.refusals import exit_on_refusal
from samovar.service.config.addresses import place_from
from samovar.service.config.loading import load_service
from samovar.service.runtime.processes import ENDS_WITH_PARENT, end_with_parent, nothing_begun, run_processes
from samovar.service.runtime.running import run_here
from samovar.service.topology.logs import opened

app = typer.Typer(rich_markup_mode=None)


@app.command()
def run(
    config: Config,
    *,
    containers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Processes that share the partitions; by default 1.")
    ] = None,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="End when all that is in the streams has been processed.")
    ] = False,
    slot: Annotated[
        int | None, typer.Option(min=0, metavar="S", help="This container's number in the service; by default 0.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Counts as JSON at the end, on standard output.")] = False,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT", help="Serve metrics for Prometheus here; each further process at the next port."
        ),
    ] = None,
    leave: Annotated[
        bool | None, typer.Option("--leave", help="When it is stopped, hand its partitions to the others at once.")
    ] = None,
    log: Annotated[
        str | None, typer.Option("--log", metavar="text|json", help="Format of the log; by default text.")
    ] = None,
    http: Annotated[
        str | None, typer.Option(metavar="[HOST:]PORT", help="Serve the HTTP API and the pages here, next to it.")
    ] = None,
    advertise: Annotated[
        str | None, typer.Option(metavar="URL", help="With --http: URL of this node for others.")
    ] = None,
    answers_at: Annotated[str | None, typer.Option(metavar="URL", hidden=True)] = None,
    ends_with_parent: Annotated[bool, typer.Option(ENDS_WITH_PARENT, hidden=True)] = False,
    set_: SetFlags = None,
) -> None:
    """Run a service: read its streams, match its rules, write its alerts.

    SIGTERM and Ctrl-C end it after the batch at hand, with everything committed and no lock left. It may be killed at
    any moment: the next start goes on where the last commit was, with nothing lost and nothing twice.

    On Kafka the partitions of a container that ended wait some seconds for it to come back: a restart moves nothing.
    One that will not come back is ended with SIGUSR1, or was started with --leave: others go on with them at once.

    Exit codes: 0 stopped or caught up, 2 wrong usage or refused.
    """
    if log not in (None, "text", "json"):
        raise typer.BadParameter(f"`{log}`: choose text or json", param_hint="--log")
    # What the settings say before they are read: a refusal to read them should come in the same form.
    with nothing_begun(), exit_on_refusal(as_json=(log or os.environ.get("SAMOVAR_RUN__LOG")) == "json"):
        if ends_with_parent:
            end_with_parent()
        # The short flags of `run` are settings under `run`, and come after those of --set.
        own = {"slot": slot, "containers": containers, "metrics": metrics, "log": log, "leave": leave}
        own |= {"http": http, "advertise": advertise}
        texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in own.items()}
        flags = [*(set_ or ()), *(f"run.{name}={text}" for name, text in texts.items() if text is not None)]
        settings = load_service(config, flags=flags)
        containers, http = settings.run.containers, settings.run.http if answers_at is None else None
        archives = settings.archive is not None and not until_caught_up and not ends_with_parent
        if containers > 1 or http is not None or archives:
            passed_on = [part for flag in flags for part in ("--set", flag)]
            options, serve = [*passed_on, *(["--json"] if json and containers == 1 else [])], None
            if http is not None:
                address = place_from(http, settings.run.advertise, settings.http.scheme)
                options += ["--answers-at", address.advertised]
                serve = ["--host", address.host, "--port", str(address.port), "--advertise", address.advertised]
                serve += passed_on
            code = run_processes(
                config,
                containers,
                until_caught_up=until_caught_up,
                options=options,
                serve=serve,
                archive=passed_on if archives else None,
                first=settings.run.slot,
                metrics=settings.run.metrics,
            )
            raise typer.Exit(code)

        few_arenas()
        with opened(settings) as source:
            counts = run_here(
                settings,
                source,
                sys.stderr,
                until_caught_up=until_caught_up,
                address=answers_at,
                quiet=json and until_caught_up,
            )
    if json:
        print(jsonlib.dumps(asdict(counts)))
