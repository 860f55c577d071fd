"""The commands `samovar kafka start`, `stop` and `status`: a Kafka broker on this machine."""

from __future__ import annotations

import json as jsontext
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samovar.changelog.broker import node as broker
from samovar.service.cli.refusals import told

if TYPE_CHECKING:
    from samovar.changelog.broker.node import Broker

NOT_RUNNING = 3  # as init scripts say it
NO_ANSWER = 4

START_HELP = """Start a Kafka broker on this machine and wait until it answers; one that runs already is left alone.

For trials and tests: one node, on 127.0.0.1 only, no password. Needs Java; the first start fetches Kafka's jars.

Exit codes: 0 it runs, 2 wrong usage, or it could not be started."""

STOP_HELP = """Stop the broker that was started in this folder and wait until it is gone. Its data stays.

Exit codes: 0 none runs any more, 2 wrong usage, or the folder cannot be used."""

STATUS_HELP = """Say whether the broker of this folder runs.

Exit codes: 0 it runs and answers, 3 it does not run, 4 it runs and does not answer, 2 wrong usage."""

Dir = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where its data, settings and log are.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document.")]
DEFAULT_DIR = Path(".samovar/kafka")


def register(app: typer.Typer) -> None:
    kafka = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="A Kafka broker for trials and tests.")
    kafka.command(name="start", help=START_HELP)(kafka_start)
    kafka.command(name="stop", help=STOP_HELP)(kafka_stop)
    kafka.command(name="status", help=STATUS_HELP)(kafka_status)
    app.add_typer(kafka, name="kafka")


def kafka_start(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where it listens.")] = 9092,
    folder: Dir = DEFAULT_DIR,
    json: Json = False,
) -> None:
    with told():
        show(broker.start(folder, port, lambda text: print(text, file=sys.stderr, flush=True)), json)


def kafka_stop(folder: Dir = DEFAULT_DIR, json: Json = False) -> None:
    with told():
        stopped = broker.stop(folder)
    if json:
        print(jsontext.dumps({"running": False, "stopped": stopped}))
    else:
        print("stopped" if stopped else f"no broker runs in {folder}")


def kafka_status(folder: Dir = DEFAULT_DIR, json: Json = False) -> None:
    found = broker.status(folder)
    if found is None:
        print(jsontext.dumps({"running": False}) if json else f"no broker runs in {folder}")
        raise typer.Exit(NOT_RUNNING)
    show(found, json)
    raise typer.Exit(0 if found.answers else NO_ANSWER)


def show(broker: Broker, json: bool) -> None:
    if json:
        print(jsontext.dumps(described(broker)))
        return
    state = "runs" if broker.answers else "does not answer"
    print(f"Kafka {broker.kafka} {state} at {broker.address}")
    for name, value in (("pid", broker.pid), ("dir", broker.folder), ("log", broker.log)):
        print(f"  {name}  {value}")


def described(broker: Broker) -> dict[str, Any]:
    return {
        "running": True,
        "answers": broker.answers,
        "started": broker.started,
        "address": broker.address,
        "pid": broker.pid,
        "kafka": broker.kafka,
        "dir": str(broker.folder),
        "log": str(broker.log),
    }
