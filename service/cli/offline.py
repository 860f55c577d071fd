"""The commands that need no server: match, generate, rules test."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

MATCH_HELP = """Find what rules match in a file of events: a JSON object a line with `type` and `ts`.

RULE... are rule files or folders of them; EVENTS is the last argument, gzip or not, `-` for standard input. Prints a
match per line. Exit codes: 0 fine, 1 a rule has errors, 2 wrong usage or an unreadable file, 3 some lines were bad."""

TEST_HELP = """Run the tests inside rule files.

Exit codes: 0 all passed, 1 some failed or a rule has errors, 2 wrong usage or an unreadable file."""


def register(app: typer.Typer, rules: typer.Typer) -> None:
    app.command(help=MATCH_HELP)(match)
    app.command()(generate)
    rules.command(name="test", help=TEST_HELP)(rules_test)


def match(
    paths: Annotated[list[str], typer.Argument(metavar="RULE... EVENTS", show_default=False)],
    *,
    slack: Annotated[
        str | None, typer.Option(metavar="D", help="Mend disorder up to D (5s, 10m); later is late.")
    ] = None,
    no_flush: Annotated[bool, typer.Option("--no-flush", help="Let event time end at the largest ts.")] = False,
    type_field: Annotated[str, typer.Option(metavar="FIELD", help="The field with the event's type.")] = "type",
    time_field: Annotated[str, typer.Option(metavar="FIELD", help="The field with the event's time.")] = "ts",
    all: Annotated[bool, typer.Option("--all", help="Print suppressed matches too.")] = False,
    schema: Annotated[str | None, typer.Option(metavar="FILE", help="Fields by event type, YAML or JSON.")] = None,
    param: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Set a parameter of the rules.")] = None,
    list_: Annotated[
        list[str] | None, typer.Option("--list", metavar="NAME=FILE", help="Set a list: a value a line.")
    ] = None,
    max_partials: Annotated[int, typer.Option(min=1, metavar="N", help="Runs held a key and rule.")] = 1_000,
    max_events: Annotated[int, typer.Option(min=1, metavar="N", help="Events held a key and rule.")] = 10_000,
    max_matches: Annotated[int, typer.Option(min=1, metavar="N", help="Matches per event, key and rule.")] = 1_000,
    explain: Annotated[
        str | None, typer.Option(metavar="KEY", help="Say why a key did or did not match: c1, or card=c1,user=u2.")
    ] = None,
    score: Annotated[bool, typer.Option("--score", help="Hold the matches against planted frauds instead.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="JSON output (of matches: always).")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No warnings, progress and summary.")] = False,
) -> None:
    from samovar.service.offline.match import MatchRunOptions
    from samovar.service.offline.match import match as run

    if len(paths) < 2:
        raise typer.BadParameter("give at least one rule file and, last, the events", param_hint="RULE... EVENTS")
    options = MatchRunOptions(
        slack_ms=None if slack is None else milliseconds("--slack", slack),
        flush=not no_flush,
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
        json=json_,
    )
    raise typer.Exit(run(paths[:-1], paths[-1], options, sys.stdout.buffer, sys.stderr))


def rules_test(
    paths: Annotated[list[str], typer.Argument(metavar="FILE|DIR...", show_default=False)],
    *,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
    junit: Annotated[str | None, typer.Option(metavar="FILE", help="Write JUnit XML too.")] = None,
    schema: Annotated[str | None, typer.Option(metavar="FILE", help="Fields by event type, YAML or JSON.")] = None,
) -> None:
    from samovar.service.rules.testing import rules_test as run

    known = None if schema is None else read_schema(schema)
    raise typer.Exit(run(paths, sys.stdout, sys.stderr, as_json=json_, junit=junit, schema=known))


def generate(
    kind: Annotated[str, typer.Argument(metavar="fraud|sessions", show_default=False)],
    *,
    events: Annotated[int, typer.Option(min=0, help="How many events.")] = 100_000,
    keys: Annotated[int, typer.Option(min=1, help="How many people or visitors.")] = 5_000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same bytes.")] = 1,
    disorder: Annotated[str, typer.Option(metavar="D", help="Let lines come up to D late.")] = "0s",
    start: Annotated[str | None, typer.Option(metavar="TIME", help="Time of the first event, ISO 8601.")] = None,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="A file (.gz: zipped) instead of stdout.")] = None,
) -> None:
    """Write test events with planted and labelled frauds, a JSON object per line."""
    from samovar.service.offline.generate import START_MS, STREAMS, write

    if kind not in STREAMS:
        raise typer.BadParameter(f"`{kind}`: choose one of {', '.join(STREAMS)}", param_hint="fraud|sessions")
    begin = START_MS if start is None else instant("--start", start)
    try:
        write(kind, events, keys, seed, milliseconds("--disorder", disorder), begin, None if out is None else Path(out))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise typer.BadParameter(f"cannot write {out}: {error.strerror or error}", param_hint="--out") from None


# ---------------------------------------------------------------- reading options


def milliseconds(option: str, text: str) -> int:
    from samovar.patterns.syntax.constants import duration_ms

    ms = duration_ms(text)
    if ms is None:
        raise typer.BadParameter(f"`{text}` is not a time: write 500ms, 30s, 10m, 8h or 7d", param_hint=option)
    return ms


def instant(option: str, text: str) -> int:
    from samovar.patterns.engine.decode import RefusedError, time_of

    try:
        return time_of(text)
    except RefusedError:
        raise typer.BadParameter(f"`{text}` is not an ISO 8601 time, such as 2026-01-05", param_hint=option) from None


def read_schema(path: str) -> Any:
    from samovar.patterns.semantics.schema import Schema

    try:
        return Schema.parse(read_text("--schema", path))
    except ValueError as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="--schema") from None


def read_param(text: str) -> tuple[str, Any]:
    """`limit=200`: typed as in YAML 1.2; text in double or single quotes is text."""
    from samovar.patterns.syntax.yaml import core_value

    name, equals, value = text.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"`{text}`: write NAME=VALUE", param_hint="--param")
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        return name, value[1:-1]
    return name, core_value(value)


def read_list(text: str) -> tuple[str, list[Any]]:
    """`risky=FILE`: a value a line, typed as in YAML 1.2, but digits with a leading zero stay text."""
    from samovar.patterns.syntax.yaml import core_value

    name, equals, path = text.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"`{text}`: write NAME=FILE", param_hint="--list")
    lines = (line.strip() for line in read_text("--list", path).splitlines())
    zero = ("0", "-0", "+0")
    return name, [
        line if line.startswith(zero) and line.strip("+-0").isdigit() else core_value(line) for line in lines if line
    ]


def read_text(option: str, path: str) -> str:
    try:
        return Path(path).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise typer.BadParameter(f"cannot read {path}: {reason}", param_hint=option) from None
