"""The command `samovar rules backtest`."""

from __future__ import annotations

import json as jsonlib
import secrets
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from samovar.changelog.log import Log
from samovar.common.folders import write_file
from samovar.common.progress import Progress
from samovar.common.texts import counted
from samovar.patterns.syntax.tree import Rule
from samovar.service.auth.audit import record_export
from samovar.service.auth.tokens import load_tokens
from samovar.service.backtest import report
from samovar.service.backtest.masking import masked_backtest
from samovar.service.backtest.preview import preview
from samovar.service.backtest.preview import text_of as text_of_preview
from samovar.service.backtest.report import text_of
from samovar.service.backtest.rules import load_rules
from samovar.service.backtest.run import BacktestOptions, backtest, state_bytes
from samovar.service.backtest.samples import extend_samples, key_specs
from samovar.service.backtest.spark import engine_on
from samovar.service.cli.options import Config, Engine, Json, Master, instant, refuse_engine
from samovar.service.cli.refusals import REFUSED, exit_on_refusal
from samovar.service.config.loading import load_service
from samovar.service.config.models import ServiceFile
from samovar.service.masking.fields import Lineage, Masks
from samovar.service.spark.progress import ProgressDisplay
from samovar.service.spark.session import starting_for
from samovar.service.topology.archives import opened_with_archive
from samovar.service.topology.logs import opened
from samovar.service.topology.rule_registry import with_published_rules
from samovar.service.topology.ruleset import BadRules, rules_of

RULE_ERRORS = 1

rules = typer.Typer(rich_markup_mode=None)


@rules.command("backtest")
def rules_backtest(
    rules: Annotated[list[str], typer.Argument(metavar="RULE...", show_default=False)],
    config: Config,
    *,
    start: Annotated[str | None, typer.Option("--from", metavar="T", help="By default the oldest events.")] = None,
    stop: Annotated[str | None, typer.Option("--to", metavar="T", help="By default the newest events.")] = None,
    engine: Engine = "local",
    master: Master = None,
    examples: Annotated[int, typer.Option(min=0, max=100, metavar="N", help="Examples per kind and rule.")] = 3,
    overlap_any: Annotated[
        bool, typer.Option("--overlap-any/--no-overlap-any", help="Also try sequences with overlap=any.")
    ] = True,
    fast: Annotated[
        bool,
        typer.Option("--preview", help="Within seconds: exact for some keys, estimated for all; see `rules sample`."),
    ] = False,
    memory: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="GIB", help="Of states; beyond it on disk. Otherwise half of what is free."),
    ] = None,
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
    if fast:
        if start or stop or html or engine != "local":
            print("usage: --preview goes with no --from, --to, --html and --engine", file=sys.stderr)
            raise typer.Exit(REFUSED)
        _preview(rules, config, json=json)
        return
    span = _event_time("--from", start), _event_time("--to", stop)
    options = BacktestOptions(overlap_any=overlap_any, examples=examples, engine=engine)
    if memory is not None or engine == "local":
        options = replace(options, state_bytes=state_bytes(memory))
    with exit_on_refusal():
        settings = load_service(config)
        try:
            if engine == "local":
                progress = Progress(sys.stderr, quiet=json)
                with opened_with_archive(settings, prefers_archive=True) as log:
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
                    opened_with_archive(settings) as log,
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


def _preview(rules: list[str], config: Path, *, json: bool) -> None:
    with exit_on_refusal():
        settings = load_service(config)
        with opened_with_archive(settings, prefers_archive=True) as log:
            loaded = _loaded(settings, log, rules)
            found = [preview(settings, log, rule) for rule in loaded]
    hint = f"`samovar rules sample {config}` once, and it is of all that there is."
    if json:
        print(jsonlib.dumps({"service": settings.service, "rules": [each.to_json() for each in found]}), flush=True)
    else:
        print("\n\n".join(text_of_preview(each, hint) for each in found), flush=True)


def _loaded(settings: ServiceFile, log: Log, rules: list[str]) -> tuple[Rule, ...]:
    try:
        return load_rules(with_published_rules(settings, log), rules)
    except BadRules as bad:
        print(bad, file=sys.stderr)
        raise typer.Exit(RULE_ERRORS) from None


@rules.command("sample")
def rules_sample(
    config: Config,
    rules: Annotated[list[str] | None, typer.Argument(metavar="[RULE...]", show_default=False)] = None,
    *,
    json: Json = False,
) -> None:
    """Keep the events of some keys in files, so that previews of rules by those keys take seconds, whatever there is.

    CONFIG is the service file. Keys are those of RULE (rule files or folders of them), or of the service's own rules.
    Reads all that the topics hold, once; what comes later is added by the next one, and by previews. It can be stopped,
    and goes on where it was. The files hold events in the clear, for this user alone.

    Exit codes: 0 fine, 1 a rule has errors, 2 wrong usage or refused.
    """
    progress = Progress(sys.stderr, quiet=json)
    with exit_on_refusal():
        settings = load_service(config)
        with opened_with_archive(settings, prefers_archive=True) as log:
            own = with_published_rules(settings, log)
            found = _loaded(settings, log, rules) if rules else rules_of(own, 1).rules
            specs = {keys: spec for rule in found for keys, spec in key_specs(rule).items() if keys}

            def on_progress(done: int, total: int) -> bool:
                progress.reading(done, done / total if total else None)
                return True

            made = extend_samples(settings, log, specs, on_progress)
    progress.clear()
    if json:
        facts = [{"keys": each.keys, "of": each.of, "events": each.events} for each in made.values()]
        print(jsonlib.dumps({"service": settings.service, "samples": facts}), flush=True)
        return
    for each in made.values():
        keys = "all keys" if each.of == 1 else f"one key in {each.of:,}"
        print(f"{each.keys}: {keys}, {counted(each.events, 'event')} of {each.records:,}")


def _event_time(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    return int(text) if text.isdecimal() and len(text) > 4 else instant(option, text)
