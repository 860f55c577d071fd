"""The command `samovar rules backtest`."""

from __future__ import annotations

import json as jsonlib
import secrets
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from samovar.common.folders import write_file
from samovar.common.progress import Progress
from samovar.service.auth.audit import record_export
from samovar.service.auth.tokens import load_tokens
from samovar.service.backtest import report
from samovar.service.backtest.masking import masked_backtest
from samovar.service.backtest.report import text_of
from samovar.service.backtest.run import BacktestOptions, backtest
from samovar.service.backtest.spark import engine_on
from samovar.service.cli.options import Config, Engine, Json, Master, instant, refuse_engine
from samovar.service.cli.refusals import REFUSED, exit_on_refusal
from samovar.service.config.loading import load_service
from samovar.service.masking.fields import Lineage, Masks
from samovar.service.spark.progress import ProgressDisplay
from samovar.service.spark.session import starting_for
from samovar.service.topology.logs import opened
from samovar.service.topology.ruleset import BadRules

RULE_ERRORS = 1

rules = typer.Typer(rich_markup_mode=None)


@rules.command("backtest")
def rules_backtest(
    rules: Annotated[list[str], typer.Argument(metavar="RULE...", show_default=False)],
    config: Config,
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
    """Run rules over the history of a service's inputs, and compare with what the service found.

    RULE is a rule file or a folder of them; CONFIG the service file. FROM and TO are event times, ISO 8601 or epoch ms;
    TO itself is left out. Nothing of the service is touched, and it may run meanwhile. Says what is new, gone and the
    same, how many alerts per day there are, precision and recall where alerts are labelled, and what `overlap=any`
    would find in addition.

    Exit codes: 0 fine, 1 a rule has errors, 2 wrong usage or refused.
    """
    refuse_engine(engine, master)
    span = _event_time("--from", start), _event_time("--to", stop)
    options = BacktestOptions(overlap_any=overlap_any, examples=examples, engine=engine)
    with exit_on_refusal():
        settings = load_service(config)
        try:
            if engine == "local":
                progress = Progress(sys.stderr, quiet=json)
                with opened(settings) as log:
                    found = backtest(
                        settings,
                        log,
                        rules,
                        *span,
                        lambda done, total: progress.reading(done, done / total if total else None),
                        options,
                    )
                progress.clear()
            else:
                with (
                    ProgressDisplay(sys.stderr, as_json=json) as display,
                    starting_for(settings, "samovar rules backtest", master, display.say) as session,
                    opened(settings) as log,
                ):
                    options = replace(options, run=engine_on(session.ready, display))
                    found = backtest(settings, log, rules, *span, asked=options)
        except BadRules as bad:
            print(bad, file=sys.stderr)
            raise typer.Exit(RULE_ERRORS) from None
        lineage = None if pii else Lineage(settings)
        # Reports are passed on: marked values stand in them as on a viewer's pages.
        if lineage is not None and lineage.any:
            with opened(settings) as log:
                secret = load_tokens(log, settings.service).mask_secret
            found = masked_backtest(Masks(lineage, secret or secrets.token_bytes(32)), found)
        if html is not None:
            try:
                write_file(html, report.html(found).encode())
            except OSError as fault:
                print(f"unwritable: cannot write {html}: {fault.strerror or fault}", file=sys.stderr)
                raise typer.Exit(REFUSED) from None
            with opened(settings) as log:
                record_export(log, settings, "rules backtest", html)
    print(jsonlib.dumps(found.to_json(), ensure_ascii=False) if json else text_of(found), flush=True)


def _event_time(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    return int(text) if text.isdecimal() and len(text) > 4 else instant(option, text)
