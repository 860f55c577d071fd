"""The commands about settings: config show and config check."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated

import typer

from samovar.service.cli.options import Config, Json, SetFlags, add_group
from samovar.service.cli.refusals import exit_on_refusal
from samovar.service.config.loading import load
from samovar.service.config.show import as_text, check_text, rows_of
from samovar.service.config.show import check as check_settings

FOUND = 1

app = typer.Typer(rich_markup_mode=None)
config = add_group(app, "config", "The settings of a service: from its file, the environment and flags.")


@config.command()
def show(config: Config, *, set_: SetFlags = None, json: Json = False) -> None:
    """Show every setting, its value, and where that came from: file, environment, flag or default.

    Secrets are hidden. Exit codes: 0 fine, 2 wrong usage, or the settings have errors.
    """
    with exit_on_refusal():
        loaded = load(config, flags=set_ or (), lenient=True)
        rows = rows_of(loaded)
        document = {"file": str(loaded.settings.path), "settings": rows}
        print(jsonlib.dumps(document, indent=1) if json else as_text(rows))


@config.command()
def check(
    config: Config,
    *,
    set_: SetFlags = None,
    strict: Annotated[bool, typer.Option("--strict", help="A warning counts as an error.")] = False,
    json: Json = False,
) -> None:
    """Say all that is wrong with the settings, and which variables look like settings and are none.

    Asks nothing of the log; `samovar doctor` does.

    Exit codes: 0 no errors (with --strict: and no warnings), 1 some, 2 wrong usage.
    """
    with exit_on_refusal():
        found = check_settings(config, set_ or [])
        print(jsonlib.dumps(found) if json else check_text(found))
    raise typer.Exit(FOUND if found["errors"] or (strict and found["warnings"]) else 0)
