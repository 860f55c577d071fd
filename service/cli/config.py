"""The commands about settings: config show and config check."""

from __future__ import annotations

from typing import Annotated

import typer

from samovar.service.cli.refusals import told
from samovar.service.cli.service import Config, Json, SetFlags
from samovar.service.config.loading import load
from samovar.service.config.show import as_json, as_text, rows_of
from samovar.service.config.show import check as look

CONFIG_HELP = "The settings of a service: from its file, the environment and flags."

SHOW_HELP = """Show every setting, its value, and where that came from: file, environment, flag or default.

Secrets are hidden. Exit codes: 0 fine, 2 wrong usage, or the settings have errors."""

CHECK_HELP = """Say all that is wrong with the settings, and which variables look like settings and are none.

Asks nothing of the log; `samovar doctor` does.

Exit codes: 0 no errors (with --strict: and no warnings), 1 some, 2 wrong usage."""

FOUND = 1


def register(app: typer.Typer) -> None:
    config = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=CONFIG_HELP)
    config.command(name="show", help=SHOW_HELP)(show)
    config.command(name="check", help=CHECK_HELP)(check)
    app.add_typer(config, name="config")


def show(config: Config, *, set_: SetFlags = None, json: Json = False) -> None:
    with told():
        loaded = load(config, flags=set_ or (), lenient=True)
        rows = rows_of(loaded)
        print(as_json(loaded, rows) if json else as_text(rows))


def check(
    config: Config,
    *,
    set_: SetFlags = None,
    strict: Annotated[bool, typer.Option("--strict", help="A warning counts as an error.")] = False,
    json: Json = False,
) -> None:
    with told():
        found = look(config, set_ or [])
        print(found.json() if json else found.text())
    raise typer.Exit(FOUND if found.count or (strict and found.warnings) else 0)
