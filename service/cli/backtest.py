"""The command `samovar rules backtest`."""

from __future__ import annotations

import json as jsonlib
import secrets
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samovar.common.folders import write_file
from samovar.common.progress import Progress
from samovar.service.auth.audit import record_export
from samovar.service.auth.tokens import load_tokens
from samovar.service.backtest.masking import masked_backtest
from samovar.service.backtest.report import html, text_of
from samovar.service.backtest.run import BacktestOptions, backtest
from samovar.service.backtest.spark import engine_on
from samovar.service.cli.options import instant
from samovar.service.cli.refusals import REFUSED, told
from samovar.service.cli.service import Json
from samovar.service.cli.spark import Engine, Master, refuse_engine
from samovar.service.config.loading import load_service
from samovar.service.masking.fields import Lineage, Masks
from samovar.service.spark.progress import ProgressDisplay
from samovar.service.spark.session import starting_for
from samovar.service.topology.logs import opened
from samovar.service.topology.ruleset import BadRules

if TYPE_CHECKING:
    from samovar.service.backtest.run import Backtest

BACKTEST_HELP = """Run rules over the history of a service's inputs, and compare with what the service found.

RULE is a rule file or a folder of them; CONFIG the service file. FROM and TO are event times, ISO 8601 or epoch ms; TO
itself is left out. Nothing of the service is touched, and it may run meanwhile. Says what is new, gone and the same,
how many alerts per day there are, precision and recall where alerts are labelled, and what `overlap=any` would find in
addition.

Exit codes: 0 fine, 1 a rule has errors, 2 wrong usage or refused."""

RULE_ERRORS = 1


def register(rules: typer.Typer) -> None:
    rules.command(name="backtest", help=BACKTEST_HELP)(rules_backtest)


def rules_backtest(
    rules: Annotated[list[str], typer.Argument(metavar="RULE...", show_default=False)],
    config: Annotated[Path, typer.Argument(metavar="CONFIG", show_default=False, help="The service file.")],
    *,
    start: Annotated[str | None, typer.Option("--from", metavar="T", help="Otherwise as far back as there is.")] = None,
    stop: Annotated[str | None, typer.Option("--to", metavar="T", help="Otherwise all that there is.")] = None,
    engine: Engine = "local",
    master: Master = None,
    examples: Annotated[int, typer.Option(min=0, max=100, metavar="N", help="So many of each kind and rule.")] = 3,
    overlap_any: Annotated[
        bool, typer.Option("--overlap-any/--no-overlap-any", help="Also try sequences with overlap=any.")
    ] = True,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report with charts.")] = None,
    pii: Annotated[bool, typer.Option("--pii", help="Also values of fields that are marked `pii`.")] = False,
    json: Json = False,
) -> None:
    refuse_engine(engine, master)
    from_ms, to_ms = _moment("--from", start), _moment("--to", stop)
    asked = BacktestOptions(overlap_any=overlap_any, examples=examples, engine=engine)
    with told():
        try:
            run = _run if engine == "local" else partial(_run_on_spark, master)
            found = run(rules, config, from_ms, to_ms, asked, quiet=json)
        except BadRules as bad:
            print(bad, file=sys.stderr)
            raise typer.Exit(RULE_ERRORS) from None
        found = found if pii else _masked(config, found)
        if html is not None:
            _write(config, html, found)
    print(jsonlib.dumps(found.to_json(), ensure_ascii=False) if json else text_of(found), flush=True)


def _moment(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    return int(text) if text.isdecimal() and len(text) > 4 else instant(option, text)


def _run(
    rules: list[str], config: Path, from_ms: int | None, to_ms: int | None, asked: BacktestOptions, *, quiet: bool
) -> Backtest:
    settings = load_service(config)
    progress = Progress(sys.stderr, quiet=quiet)

    def moved(done: int, total: int) -> None:
        progress.reading(done, done / total if total else None)

    with opened(settings) as log:
        found = backtest(settings, log, rules, from_ms, to_ms, moved, asked)
    progress.clear()
    return found


def _run_on_spark(
    master: str | None,
    rules: list[str],
    config: Path,
    from_ms: int | None,
    to_ms: int | None,
    asked: BacktestOptions,
    *,
    quiet: bool,
) -> Backtest:
    settings = load_service(config)
    with (
        ProgressDisplay(sys.stderr, as_json=quiet) as showing,
        starting_for(settings, "samovar rules backtest", master, showing.say) as start,
        opened(settings) as log,
    ):
        asked = replace(asked, run=engine_on(start.ready, showing))
        return backtest(settings, log, rules, from_ms, to_ms, asked=asked)


def _masked(config: Path, found: Backtest) -> Backtest:
    """Reports are passed on: what is marked stands in them as it does on a viewer's pages."""
    settings = load_service(config)
    lineage = Lineage(settings)
    if not lineage.any:
        return found
    with told(), opened(settings) as log:
        secret = load_tokens(log, settings.service).mask_secret
    return masked_backtest(Masks(lineage, secret or secrets.token_bytes(32)), found)


def _write(config: Path, path: Path, found: Backtest) -> None:
    try:
        write_file(path, html(found).encode())
    except OSError as fault:
        print(f"unwritable: cannot write {path}: {fault.strerror or fault}", file=sys.stderr)
        raise typer.Exit(REFUSED) from None
    settings = load_service(config)
    with opened(settings) as log:
        record_export(log, settings, "rules backtest", path)
