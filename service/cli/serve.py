"""The commands around the HTTP API: serve, and tokens add, list and remove."""

from __future__ import annotations

import getpass
import json as jsonlib
import sys
from typing import Annotated

import typer

from samovar.common.arenas import few_arenas
from samovar.patterns.explain.key_trace import iso_time
from samovar.service.auth.audit import record
from samovar.service.auth.tokens import add_token, load_tokens, remove_token, role_of
from samovar.service.cli.options import Config, Json, Name, SetFlags, add_group, service_log
from samovar.service.cli.refusals import exit_on_refusal
from samovar.service.config.loading import load_service
from samovar.service.http.app import serve as run
from samovar.service.runtime.processes import ENDS_WITH_PARENT, end_with_parent

NONE_LEFT = "no tokens are left: nobody may use the HTTP API, until `samovar tokens add` makes one"


app = typer.Typer(rich_markup_mode=None)
tokens = add_group(app, "tokens", "API tokens: who may use the HTTP API.")


@app.command()
def serve(
    config: Config,
    *,
    host: Annotated[str, typer.Option(metavar="HOST", help="The address to bind.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="0: any that is free.")] = 8080,
    advertise: Annotated[
        str | None, typer.Option(metavar="URL", help="URL of this node for others; by default its address.")
    ] = None,
    ends_with_parent: Annotated[bool, typer.Option(ENDS_WITH_PARENT, hidden=True)] = False,
    set_: SetFlags = None,
) -> None:
    """Serve a service's HTTP API and its pages, in a process of its own next to the containers.

    Binds 127.0.0.1. Any other address needs API tokens: `samovar tokens add`. What it serves is described at
    /api/v1/openapi.json, and in docs/http.md.

    Exit codes: 0 stopped, 2 wrong usage or refused.
    """
    with exit_on_refusal():
        if ends_with_parent:
            end_with_parent()
        few_arenas()
        settings = load_service(config, flags=set_ or ())
        run(settings, host, port, advertise, sys.stderr, settings.run.slot)


@tokens.command("add")
def tokens_add(
    config: Config,
    name: Name,
    *,
    role: Annotated[str, typer.Option(metavar="viewer|author|operator", help="What it may do.")] = "viewer",
    json: Json = False,
) -> None:
    """Make an API token and print it: this once, never again. Only its hash is kept.

    Exit codes: 0 fine, 2 wrong usage or refused.
    """
    with exit_on_refusal():
        wanted = role_of(role)
    with service_log(config) as (settings, log):
        token = add_token(settings, log, name, wanted, getpass.getuser())
        record(log, settings, getpass.getuser(), "token added", {"name": name, "role": wanted.word})
    print(jsonlib.dumps({"name": name, "role": wanted.word, "token": token}) if json else token)


@tokens.command("list")
def tokens_list(config: Config, *, json: Json = False) -> None:
    """Show the names and roles of all API tokens.

    Exit codes: 0 fine, 2 wrong usage or refused.
    """
    with service_log(config) as (settings, log):
        known = load_tokens(log, settings.service)
    if json:
        print(jsonlib.dumps([token.data() for token in known.all]))
        return
    for token in known.all:
        print(f"{token.name}  {token.role.word}  made {iso_time(token.at)} by {token.by}")
    if not known.all:
        print(NONE_LEFT if known.was_made else "no tokens: only this machine may use the HTTP API")


@tokens.command("remove")
def tokens_remove(config: Config, name: Name) -> None:
    """Remove an API token: it is refused from the next second on, and what was opened with it is closed.

    When the last one is removed, nobody may use the HTTP API until another is made.

    Exit codes: 0 fine, 2 wrong usage or refused.
    """
    with service_log(config) as (settings, log):
        remove_token(settings, log, name)
        record(log, settings, getpass.getuser(), "token removed", {"name": name})
        is_last = not len(load_tokens(log, settings.service))
    print(f"{name} is removed")
    if is_last:
        print(NONE_LEFT)
