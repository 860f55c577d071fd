"""The commands `samovar kafka start`, `stop` and `status`: a Kafka broker on this machine."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from samovar.changelog.broker import node
from samovar.service.cli.options import Json, add_group
from samovar.service.cli.refusals import exit_on_refusal

NOT_RUNNING = 3  # as init scripts say it
NO_ANSWER = 4

Dir = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where its data, settings and log are.")]
DEFAULT_DIR = Path(".samovar/kafka")

app = typer.Typer(rich_markup_mode=None)
kafka = add_group(app, "kafka", "A Kafka broker for trials and tests.")


@kafka.command()
def start(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where it listens.")] = 9092,
    folder: Dir = DEFAULT_DIR,
    json: Json = False,
) -> None:
    """Start a Kafka broker on this machine and wait until it answers; one that runs already is left alone.

    For trials and tests: one node, on 127.0.0.1 only, no password. Needs Java; the first start fetches Kafka's jars.

    Exit codes: 0 it runs, 2 wrong usage, or it could not be started.
    """
    with exit_on_refusal():
        _show(node.start(folder, port, lambda text: print(text, file=sys.stderr, flush=True)), json)


@kafka.command()
def stop(folder: Dir = DEFAULT_DIR, json: Json = False) -> None:
    """Stop the broker that was started in this folder and wait until it is gone. Its data stays.

    Exit codes: 0 none runs any more, 2 wrong usage, or the folder cannot be used.
    """
    with exit_on_refusal():
        stopped = node.stop(folder)
    if json:
        print(jsonlib.dumps({"running": False, "stopped": stopped}))
    else:
        print("stopped" if stopped else f"no broker runs in {folder}")


@kafka.command()
def status(folder: Dir = DEFAULT_DIR, json: Json = False) -> None:
    """Say whether the broker of this folder runs.

    Exit codes: 0 it runs and answers, 3 it does not run, 4 it runs and does not answer, 2 wrong usage.
    """
    found = node.status(folder)
    if found is None:
        print(jsonlib.dumps({"running": False}) if json else f"no broker runs in {folder}")
        raise typer.Exit(NOT_RUNNING)
    _show(found, json)
    raise typer.Exit(0 if found.answers else NO_ANSWER)


def _show(broker: node.Broker, json: bool) -> None:
    if json:
        about = {"running": True, "answers": broker.answers, "started": broker.started, "address": broker.address}
        about |= {"pid": broker.pid, "kafka": broker.kafka, "dir": str(broker.folder), "log": str(broker.log)}
        print(jsonlib.dumps(about))
        return
    print(f"Kafka {broker.kafka} {'runs' if broker.answers else 'does not answer'} at {broker.address}")
    for name, value in (("pid", broker.pid), ("dir", broker.folder), ("log", broker.log)):
        print(f"  {name}  {value}")
