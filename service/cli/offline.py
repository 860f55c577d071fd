"""The commands that need no server: match, rules test."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from samovar.service.cli.options import milliseconds, read_list, read_param, read_schema
from samovar.service.offline.match import MatchRunOptions
from samovar.service.offline.match import match as run_match
from samovar.service.rules import testing

SchemaFile = Annotated[str | None, typer.Option(metavar="FILE", help="Fields by event type, YAML or JSON.")]

app = typer.Typer(rich_markup_mode=None)
rules = typer.Typer(rich_markup_mode=None)


@app.command()
def match(
    paths: Annotated[list[str], typer.Argument(metavar="RULE... EVENTS", show_default=False)],
    *,
    slack: Annotated[
        str | None, typer.Option(metavar="D", help="Repair disorder up to D (5s, 10m); later is late.")
    ] = None,
    no_flush: Annotated[bool, typer.Option("--no-flush", help="Let event time end at the largest ts.")] = False,
    type_: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="The type of all events.")] = None,
    type_field: Annotated[str, typer.Option(metavar="FIELD", help="The field with the event's type.")] = "type",
    time_field: Annotated[str, typer.Option(metavar="FIELD", help="The field with the event's time.")] = "ts",
    all: Annotated[bool, typer.Option("--all", help="Print suppressed matches too.")] = False,
    schema: SchemaFile = None,
    param: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Set a parameter of the rules.")] = None,
    list_: Annotated[
        list[str] | None, typer.Option("--list", metavar="NAME=FILE", help="Set a list: one value per line.")
    ] = None,
    max_partials: Annotated[int, typer.Option(min=1, metavar="N", help="Runs held per key and rule.")] = 1_000,
    max_events: Annotated[int, typer.Option(min=1, metavar="N", help="Events held per key and rule.")] = 10_000,
    max_matches: Annotated[int, typer.Option(min=1, metavar="N", help="Matches per event, key and rule.")] = 1_000,
    explain: Annotated[
        str | None, typer.Option(metavar="KEY", help="Say why a key did or did not match: c1, or card=c1,user=u2.")
    ] = None,
    score: Annotated[
        str | None, typer.Option(metavar="LABELS", help="Hold the matches against these labels of `generate` instead.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON output (of matches: always).")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No warnings, progress and summary.")] = False,
) -> None:
    """Find what rules match in a file of events: a JSON object a line with `type` and `ts`.

    RULE... are rule files or folders of them; EVENTS is the last argument, gzip or not, `-` for standard input. Prints
    a match per line. Exit codes: 0 fine, 1 a rule has errors, 2 wrong usage or an unreadable file, 3 some lines were
    bad.
    """
    if len(paths) < 2:
        raise typer.BadParameter("give at least one rule file and, last, the events", param_hint="RULE... EVENTS")
    options = MatchRunOptions(
        slack_ms=None if slack is None else milliseconds("--slack", slack),
        flush=not no_flush,
        type=type_,
        type_field=type_field,
        time_field=time_field,
        all=all,
        quiet=quiet,
        schema=None if schema is None else read_schema(schema),
        params=dict(read_param(text) for text in param or ()),
        lists=dict(read_list(text) for text in list_ or ()),
        max_partials=max_partials,
        max_events=max_events,
        max_matches=max_matches,
        explain=explain,
        score=score,
        json=json,
    )
    raise typer.Exit(run_match(paths[:-1], paths[-1], options, sys.stdout.buffer, sys.stderr))


@rules.command("test")
def rules_test(
    paths: Annotated[list[str], typer.Argument(metavar="FILE|DIR...", show_default=False)],
    *,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
    junit: Annotated[str | None, typer.Option(metavar="FILE", help="Write JUnit XML too.")] = None,
    schema: SchemaFile = None,
) -> None:
    """Run the tests inside rule files.

    Exit codes: 0 all passed, 1 some failed or a rule has errors, 2 wrong usage or an unreadable file.
    """
    known = None if schema is None else read_schema(schema)
    raise typer.Exit(testing.rules_test(paths, sys.stdout, sys.stderr, as_json=json, junit=junit, schema=known))
