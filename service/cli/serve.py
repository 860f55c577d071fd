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
from samovar.service.cli.refusals import told
from samovar.service.cli.service import Config, Json, SetFlags
from samovar.service.config.loading import load_service
from samovar.service.http.app import serve as run
from samovar.service.runtime.processes import ENDS_WITH_PARENT, end_with_parent
from samovar.service.topology.logs import opened

SERVE_HELP = """Serve a service's HTTP API and its pages, in a process of its own next to the containers.

Binds 127.0.0.1. Any other address needs API tokens: `samovar tokens add`. What it serves is described at
/api/v1/openapi.json, and in docs/http.md.

Exit codes: 0 stopped, 2 wrong usage or refused."""

ADD_HELP = """Make an API token and print it: this once, never again. Only its hash is kept.

Exit codes: 0 fine, 2 wrong usage or refused."""

LIST_HELP = """Show the names and roles of all API tokens.

Exit codes: 0 fine, 2 wrong usage or refused."""

REMOVE_HELP = """Remove an API token: it is refused from the next second on, and what was opened with it is closed.

When the last one is removed, nobody may use the HTTP API until another is made.

Exit codes: 0 fine, 2 wrong usage or refused."""

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


def register(app: typer.Typer) -> None:
    app.command(help=SERVE_HELP)(serve)
    tokens = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="API tokens: who may use the HTTP API.")
    tokens.command(name="add", help=ADD_HELP)(tokens_add)
    tokens.command(name="list", help=LIST_HELP)(tokens_list)
    tokens.command(name="remove", help=REMOVE_HELP)(tokens_remove)
    app.add_typer(tokens, name="tokens")


def serve(
    config: Config,
    *,
    host: Annotated[str, typer.Option(metavar="HOST", help="The address to bind.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="0: any that is free.")] = 8080,
    advertise: Annotated[
        str | None, typer.Option(metavar="URL", help="What other nodes reach this one by; without it, the address.")
    ] = None,
    ends_with_parent: Annotated[bool, typer.Option(ENDS_WITH_PARENT, hidden=True)] = False,
    set_: SetFlags = None,
) -> None:
    with told():
        if ends_with_parent:
            end_with_parent()

        few_arenas()
        settings = load_service(config, flags=set_ or ())
        run(settings, host, port, advertise, sys.stderr, settings.run.slot)


def tokens_add(
    config: Config,
    name: Name,
    *,
    role: Annotated[str, typer.Option(metavar="viewer|author|operator", help="What it may do.")] = "viewer",
    json: Json = False,
) -> None:
    with told():
        settings = load_service(config)
        wanted = role_of(role)
        with opened(settings) as log:
            token = add_token(settings, log, name, wanted, getpass.getuser())
            record(log, settings, getpass.getuser(), "token added", {"name": name, "role": wanted.word})
    if json:
        print(jsonlib.dumps({"name": name, "role": wanted.word, "token": token}))
    else:
        print(token)


def tokens_list(config: Config, *, json: Json = False) -> None:
    with told():
        settings = load_service(config)
        with opened(settings) as log:
            known = load_tokens(log, settings.service)
    found = known.all
    if json:
        print(jsonlib.dumps([token.data() for token in found]))
        return
    for token in found:
        print(f"{token.name}  {token.role.word}  made {iso_time(token.at)} by {token.by}")
    if not found and known.was_made:
        print("no tokens are left: nobody may use the HTTP API, until `samovar tokens add` makes one")
    elif not found:
        print("no tokens: only this machine may use the HTTP API")


def tokens_remove(config: Config, name: Name) -> None:
    with told():
        settings = load_service(config)
        with opened(settings) as log:
            remove_token(settings, log, name)
            record(log, settings, getpass.getuser(), "token removed", {"name": name})
            is_last = not len(load_tokens(log, settings.service))
    print(f"{name} is removed")
    if is_last:
        print("no tokens are left: nobody may use the HTTP API, until `samovar tokens add` makes one")
