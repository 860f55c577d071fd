"""The commands around a service: init, produce, read, topics plan and topics check."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from samovar.service.auth.audit import record_reading
from samovar.service.cli.options import Config, Json, add_group, service_log
from samovar.service.cli.refusals import exit_on_refusal
from samovar.service.config.loading import load_service
from samovar.service.offline.init import init as make_service
from samovar.service.offline.init import next_steps
from samovar.service.offline.produce import produce as run_produce
from samovar.service.query.read import ReadOptions
from samovar.service.query.read import read as read_topic
from samovar.service.topology import acls
from samovar.service.topology.copartitioning import misplaced
from samovar.service.topology.plans import rule_plans
from samovar.service.topology.ruleset import has_rules
from samovar.service.topology.topics import bootstrap_of, check, plan, plan_here

MISMATCHES = 1

app = typer.Typer(rich_markup_mode=None)
topics = add_group(app, "topics", "The topics of a service.")


@app.command()
def init(folder: Annotated[Path, typer.Argument(metavar="DIR", show_default=False)]) -> None:
    """Make a service folder that runs as it is: a service file, two rules with tests, some events.

    Exit codes: 0 fine, 2 refused, as where the folder is not empty.
    """
    with exit_on_refusal():
        for path in make_service(folder):
            print(path)
    print(next_steps(folder))


@app.command()
def produce(
    config: Config,
    given: Annotated[list[str], typer.Argument(metavar="[STREAM] FILE", show_default=False)],
    *,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad lines out, and count them.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no summary.")] = False,
) -> None:
    """Write JSON lines to the topic of a stream, which is made where it is missing.

    Without STREAM each line goes to the stream that has events of its `type`, as `samovar generate` writes them. FILE
    may be gzip, and `-` is standard input. A record's key is the text of the stream's key field; murmur2 of it says the
    partition. A bad line stops it: what stands before it has been written.

    Exit codes: 0 fine, 2 wrong usage or refused, 3 stopped at a bad line.
    """
    if len(given) > 2:
        raise typer.BadParameter("give a stream and a file, or only a file", param_hint="[STREAM] FILE")
    stream, file = (None, *given)[-2:]
    with exit_on_refusal():
        code = run_produce(load_service(config), stream, str(file), sys.stderr, skip_bad=skip_bad, quiet=quiet)
    raise typer.Exit(code)


@app.command()
def read(
    config: Config,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    *,
    start: Annotated[str, typer.Option("--from", metavar="FROM", help="Where to begin.")] = "begin",
    stop: Annotated[str | None, typer.Option("--to", metavar="TO", help="Where to end.", show_default=False)] = None,
    partition: Annotated[int | None, typer.Option(min=0, metavar="P", help="Only this partition.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as records come, until stopped.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most this many records.")] = None,
    json: Annotated[bool, typer.Option("--json", help="A JSON object per line.")] = False,
) -> None:
    """Show the records of a topic: partition/offset, time, key, value, headers.

    TOPIC is a stream's name, one of alerts, late, dead-letters, changelog, journal, or the name of any topic. FROM and
    TO are begin, end, an offset, -N for the last N of each partition, or a time; TO itself is left out.

    Exit codes: 0 fine, 2 wrong usage or refused.
    """
    if follow and stop is not None:
        raise typer.BadParameter("--follow has no end: leave one of the two out", param_hint="--to")
    with service_log(config, past=True) as (settings, log):
        record_reading(log, settings, "read", {"topic": topic, "from": start, "to": stop})
        read_topic(
            log,
            settings,
            topic,
            ReadOptions(start=start, stop=stop, partition=partition, follow=follow, limit=limit, json=json),
            sys.stdout,
        )


@topics.command("plan")
def topics_plan(
    config: Config,
    *,
    json: Json = False,
    commands: Annotated[bool, typer.Option("--commands", help="Kafka's own commands for all of it.")] = False,
) -> None:
    """Show the topics that a service needs, their settings, and the least access rights.

    Nothing is asked of the log and nothing is made. Exit codes: 0 fine, 2 the service file has errors.
    """
    with exit_on_refusal():
        settings = load_service(config, lenient=True)  # anyone who grants rights need not know the secrets
        show = acls.as_json if json else acls.as_commands if commands else acls.as_text
        print(show(settings, plan(settings)))


@topics.command("check")
def topics_check(config: Config, *, json: Json = False) -> None:
    """Compare the topics of a service with what they should be. Nothing is made or changed.

    Exit codes: 0 all is well, 1 a topic is missing or is otherwise, 2 wrong usage or refused.
    """
    with service_log(config) as (settings, log):
        specs = plan_here(log, settings)
        found = check(log, specs, bootstrap_of(settings))
        if not found and has_rules(settings):
            partitions = specs[0].partitions
            found = misplaced(log, settings, rule_plans(settings, partitions), partitions)
        print(acls.check_json(specs, found) if json else acls.check_text(specs, found))
    raise typer.Exit(MISMATCHES if found else 0)
