"""The commands of a rule's life: rules publish, disable, enable, rollback, history, diff; and lists."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samovar.service.cli.publishing import (
    ChangeRequest,
    backtested,
    do,
    history_json,
    history_text,
    lists_shown,
    read_items,
    read_texts,
    time_ms,
)
from samovar.service.cli.refusals import told
from samovar.service.cli.service import Config, Json
from samovar.service.config.loading import load_service
from samovar.service.rules.lists import plan_lists
from samovar.service.rules.publishing import diff as find
from samovar.service.rules.publishing import plan_disable, plan_enable, plan_publish, plan_rollback, text_of
from samovar.service.rules.schema_plan import plan_schema
from samovar.service.topology.logs import opened

if TYPE_CHECKING:
    from samovar.service.rules.change_plan import ChangePlan

CODES = """A person is asked first; where nobody can be, --yes is required. --json alone prints the plan, and nothing is
written.

Exit codes: 0 fine, 1 it was not confirmed, 2 wrong usage or refused."""

PUBLISH_HELP = f"""Publish rules: a running service takes them between two batches, without a restart.

What it will do is shown first: the lint's findings, the difference, what becomes of partial matches, how a new rule
begins. A rule with errors is refused, and the old one goes on.

{CODES}"""
DISABLE_HELP = f"""Stop a rule. Its partial matches are dropped, or with --drain go on to their end.

{CODES}"""
ENABLE_HELP = f"""Let a rule run again that was disabled, or alert that was in shadow; with --shadow it is only counted.

{CODES}"""
ROLLBACK_HELP = f"""Publish an earlier text of a rule again, as a new number.

{CODES}"""
HISTORY_HELP = """Show what was published: number, version, who, when, and where it came in.

Exit codes: 0 fine, 2 wrong usage or refused."""
DIFF_HELP = """Show what differs between two numbers of a rule.

Exit codes: 0 the same, 1 they differ, 2 wrong usage or refused."""
PLAN_HELP = """Show which fields of the streams changed since the last change, and whether every rule can run with them.

Exit codes: 0 all can, 1 one cannot, 2 wrong usage or refused."""
LISTS_HELP = f"""Change a shared list; a running service takes it between two batches.

{CODES}"""
SHOW_HELP = """Show the shared lists as they are now.

Exit codes: 0 fine, 2 wrong usage or refused."""

Name = Annotated[str, typer.Argument(metavar="RULE", show_default=False)]
Author = Annotated[str | None, typer.Option(metavar="WHO", help="Who changes it; you, if nothing is said.")]
Note = Annotated[str, typer.Option(metavar="TEXT", help="Why.", show_default=False)]
Drain = Annotated[bool, typer.Option("--drain", help="Matches that have begun go on under the old version.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Show what it would do, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Write it without asking; required where nobody can be asked.")]
Items = Annotated[list[str] | None, typer.Argument(metavar="ITEM...", show_default=False)]
ItemsFile = Annotated[
    Path | None, typer.Option("--file", metavar="FILE", help="Further items, one per line.", show_default=False)
]


def register(app: typer.Typer, rules: typer.Typer) -> None:
    rules.command(name="publish", help=PUBLISH_HELP)(publish)
    rules.command(name="disable", help=DISABLE_HELP)(disable)
    rules.command(name="enable", help=ENABLE_HELP)(enable)
    rules.command(name="rollback", help=ROLLBACK_HELP)(rollback)
    rules.command(name="history", help=HISTORY_HELP)(history)
    rules.command(name="diff", help=DIFF_HELP)(diff)
    rules.command(name="plan", help=PLAN_HELP)(plan)
    lists = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Shared lists of a service's rules.")
    lists.command(name="add", help=LISTS_HELP)(lists_add)
    lists.command(name="remove", help=LISTS_HELP)(lists_remove)
    lists.command(name="show", help=SHOW_HELP)(lists_show)
    app.add_typer(lists, name="lists")


def publish(
    config: Config,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", show_default=False)],
    *,
    shadow: Annotated[bool, typer.Option("--shadow", help="The rules are counted, and raise no alert.")] = False,
    warm_from: Annotated[
        str | None, typer.Option("--warm-from", metavar="TIME", help="Fold the history from then on first.")
    ] = None,
    backtest: Annotated[
        str | None, typer.Option("--backtest", metavar="FROM..TO", help="Try it on that time first.")
    ] = None,
    drain: Drain = False,
    author: Author = None,
    note: Note = "",
    dry_run: Dry = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    with told():
        warm_ms = None if warm_from is None else time_ms("--warm-from", warm_from)
        texts = read_texts(files)
        done = _do(
            config,
            lambda settings, log: backtested(
                plan_publish(settings, log, texts, shadow=shadow, warm_from_ms=warm_ms, drain=drain),
                settings,
                log,
                texts,
                backtest,
            ),
            (author, note),
            dry_run=dry_run,
            yes=yes,
            json=json,
        )
    raise typer.Exit(done)


def disable(
    config: Config,
    name: Name,
    *,
    drain: Drain = False,
    author: Author = None,
    note: Note = "",
    dry_run: Dry = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    with told():
        done = _do(
            config,
            lambda settings, log: plan_disable(settings, log, name, drain=drain),
            (author, note),
            dry_run=dry_run,
            yes=yes,
            json=json,
        )
    raise typer.Exit(done)


def enable(
    config: Config,
    name: Name,
    *,
    shadow: Annotated[bool, typer.Option("--shadow", help="It is counted, and raises no alert.")] = False,
    warm_from: Annotated[
        str | None, typer.Option("--warm-from", metavar="TIME", help="Fold the history from then on first.")
    ] = None,
    author: Author = None,
    note: Note = "",
    dry_run: Dry = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    with told():
        warm_ms = None if warm_from is None else time_ms("--warm-from", warm_from)
        done = _do(
            config,
            lambda settings, log: plan_enable(settings, log, name, shadow=shadow, warm_from_ms=warm_ms),
            (author, note),
            dry_run=dry_run,
            yes=yes,
            json=json,
        )
    raise typer.Exit(done)


def rollback(
    config: Config,
    name: Name,
    *,
    to: Annotated[int | None, typer.Option(min=1, metavar="N", help="To this number; else to the text before.")] = None,
    drain: Drain = False,
    author: Author = None,
    note: Note = "",
    dry_run: Dry = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    with told():
        done = _do(
            config,
            lambda settings, log: plan_rollback(settings, log, name, to, drain=drain),
            (author, note),
            dry_run=dry_run,
            yes=yes,
            json=json,
        )
    raise typer.Exit(done)


def history(
    config: Config,
    name: Annotated[str | None, typer.Argument(metavar="RULE", show_default=False)] = None,
    *,
    text: Annotated[
        int | None, typer.Option("--text", metavar="N", min=1, help="Only the text of this number, to edit it.")
    ] = None,
    json: Json = False,
) -> None:
    with told():
        if text is not None and (name is None or json):
            raise typer.BadParameter("it goes with a RULE, and without --json", param_hint="--text")
        settings = load_service(config)
        with opened(settings) as log:
            if name is not None and text is not None:
                print(text_of(settings, log, name, text), end="")
            else:
                print((history_json if json else history_text)(settings, log, name))


def diff(
    config: Config,
    name: Name,
    a: Annotated[int, typer.Argument(metavar="A", min=1, show_default=False)],
    b: Annotated[int, typer.Argument(metavar="B", min=1, show_default=False)],
) -> None:
    with told():
        settings = load_service(config)
        with opened(settings) as log:
            found = find(settings, log, name, a, b)
    if found:
        print(found)
    raise typer.Exit(1 if found else 0)


def plan(config: Config, *, json: Json = False) -> None:
    with told():
        settings = load_service(config)
        with opened(settings) as log:
            found = plan_schema(settings, log)
    print(found.as_json() if json else found.as_text())
    raise typer.Exit(0 if found.ok else 1)


def lists_add(
    config: Config,
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    items: Items = None,
    *,
    file: ItemsFile = None,
    author: Author = None,
    note: Note = "",
    dry_run: Dry = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    raise typer.Exit(_lists(config, name, items, file, "add", (author, note), dry_run=dry_run, yes=yes, json=json))


def lists_remove(
    config: Config,
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    items: Items = None,
    *,
    file: ItemsFile = None,
    author: Author = None,
    note: Note = "",
    dry_run: Dry = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    raise typer.Exit(_lists(config, name, items, file, "remove", (author, note), dry_run=dry_run, yes=yes, json=json))


def lists_show(
    config: Config,
    name: Annotated[str | None, typer.Argument(metavar="NAME", show_default=False)] = None,
    *,
    json: Json = False,
) -> None:
    with told():
        settings = load_service(config)
        with opened(settings) as log:
            print(lists_shown(settings, log, name, json=json))


def _lists(
    config: Path,
    name: str,
    items: list[str] | None,
    file: Path | None,
    act: str,
    by: tuple[str | None, str],
    *,
    dry_run: bool,
    yes: bool,
    json: bool,
) -> int:
    with told():
        found = read_items(items or [], file)
        wanted = {"add": found} if act == "add" else {"remove": found}
        return _do(
            config,
            lambda settings, log: plan_lists(settings, log, name, **wanted),
            by,
            dry_run=dry_run,
            yes=yes,
            json=json,
        )


def _do(config: Path, look: object, by: tuple[str | None, str], *, dry_run: bool, yes: bool, json: bool) -> int:
    """Look, show, ask, write."""
    doing = ChangeRequest(by[0], by[1], dry_run=dry_run, yes=yes, json=json, ask=_asked)
    return do(config, look, doing, sys.stdout)  # type: ignore[arg-type] # its types are heavy to import


def _asked(plan: ChangePlan) -> bool:
    return typer.confirm(f"write change {plan.number}?", default=False)
