"""The commands of a rule's life: rules publish, disable, enable, rollback, history, diff, plan; and lists."""

from __future__ import annotations

import getpass
import json as jsonlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from inspect import Parameter, getdoc, signature
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from samovar.changelog.log import Log
from samovar.common.errors import Refused, UsageError
from samovar.common.progress import Progress
from samovar.patterns.explain.key_trace import iso_time
from samovar.patterns.rulefile.loading import load_given
from samovar.patterns.syntax.findings import render
from samovar.service.backtest.run import backtest as run_backtest
from samovar.service.cli.options import Config, Json, Name, add_group, instant_or_epoch, service_log
from samovar.service.cli.refusals import exit_on_refusal
from samovar.service.config.models import ServiceFile
from samovar.service.rules.change_plan import ChangePlan
from samovar.service.rules.lists import plan_lists
from samovar.service.rules.lists import show as show_lists
from samovar.service.rules.publishing import commit, plan_disable, plan_enable, plan_publish, plan_rollback, text_of
from samovar.service.rules.publishing import diff as diff_texts
from samovar.service.rules.schema_plan import plan_schema
from samovar.service.topology.rule_registry import RuleEntry, RuleRegistry, load_registry, with_published_rules
from samovar.service.topology.ruleset import lists_of

CODES = """A person is asked first; where nobody can be, --yes is required. --json alone prints the plan, and nothing is
written.

Exit codes: 0 fine, 1 it was not confirmed, 2 wrong usage or refused."""
UNCONFIRMED = 1

Planner: TypeAlias = Callable[[ServiceFile, Log], ChangePlan]
RuleName = Annotated[str, typer.Argument(metavar="RULE", show_default=False)]
Author = Annotated[str | None, typer.Option(metavar="WHO", help="Author of the change; by default your user.")]
Note = Annotated[str, typer.Option(metavar="TEXT", help="Why.", show_default=False)]
Drain = Annotated[bool, typer.Option("--drain", help="Matches that have begun go on under the old version.")]
WarmFrom = Annotated[
    str | None, typer.Option("--warm-from", metavar="TIME", help="Fold the history from then on first.")
]
Dry = Annotated[bool, typer.Option("--dry-run", help="Show what it would do, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Write it without asking; required where nobody can be asked.")]
Items = Annotated[list[str] | None, typer.Argument(metavar="ITEM...", show_default=False)]
ItemsFile = Annotated[
    Path | None, typer.Option("--file", metavar="FILE", help="Further items, one per line.", show_default=False)
]

app = typer.Typer(rich_markup_mode=None)
rules = typer.Typer(rich_markup_mode=None)
lists = add_group(app, "lists", "Shared lists of a service's rules.")


def change_command(group: typer.Typer, name: str) -> Callable[[Callable[..., Planner]], None]:
    """Makes a command of a function that reads its own options and returns what plans the change.

    CONFIG and the options about the change itself are the same in all of them, and come around its own.
    """

    def register(planner: Callable[..., Planner]) -> None:
        def run(
            config: Config,
            *,
            author: Author = None,
            note: Note = "",
            dry_run: Dry = False,
            yes: Yes = False,
            json: Json = False,
            **own: Any,
        ) -> None:
            with exit_on_refusal():
                make_plan = planner(**own)
            with service_log(config) as (settings, log):
                plan = make_plan(settings, log)
                if not json:
                    print(_plan_text(plan), flush=True)
                is_wanted = _is_confirmed(plan, dry_run=dry_run, yes=yes, json=json)
                if is_wanted:
                    commit(settings, log, plan, author or getpass.getuser(), note)
                if json:
                    print(jsonlib.dumps({**plan.to_json(), "written": is_wanted}, indent=2, ensure_ascii=False))
                elif is_wanted:
                    print(f"written: change {plan.number}. Running containers take it between two batches.")
                else:
                    print("nothing was written")
            raise typer.Exit(0 if is_wanted or dry_run or json else UNCONFIRMED)

        shared = signature(run, eval_str=True)
        first, *others = (each for each in shared.parameters.values() if each.kind is not Parameter.VAR_KEYWORD)
        own = signature(planner, eval_str=True).parameters.values()
        run.__signature__ = shared.replace(parameters=[first, *own, *others])  # type: ignore[attr-defined] # for typer
        group.command(name, help=f"{getdoc(planner)}\n\n{CODES}")(run)

    return register


def _is_confirmed(plan: ChangePlan, *, dry_run: bool, yes: bool, json: bool) -> bool:
    """Whether somebody said `--yes`, or says so now. A document alone is only a plan."""
    if dry_run:
        return False
    if yes or json:
        return yes
    if not sys.stdin.isatty():
        raise Refused(
            "confirmation-required",
            "nobody can be asked here, and nothing was written",
            "Add `--yes` to write the change, or `--dry-run` only to look at it.",
        )
    return typer.confirm(f"write change {plan.number}?", default=False)


def _plan_text(plan: ChangePlan) -> str:
    texts = [each.rule.text for each in plan.rules]
    lines = [render(finding, texts[0] if len(texts) == 1 else "") for finding in plan.findings]
    lines.append(plan.as_text())
    if plan.backtest is not None:
        for rule in plan.backtest["rules"]:
            compared = [f"{rule[name]:,} {name}" for name in ("same", "moved", "new", "gone") if rule[name] is not None]
            against = f"; against what runs: {', '.join(compared)}" if compared else ""
            found = f"{rule['rule']} finds {rule['found']:,}{against}"
            lines.append(f"backtest over {plan.backtest['events']:,} events: {found}")
    return "\n".join(lines)


@change_command(rules, "publish")
def _publish(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", show_default=False)],
    *,
    shadow: Annotated[bool, typer.Option("--shadow", help="The rules are counted, and raise no alert.")] = False,
    warm_from: WarmFrom = None,
    backtest: Annotated[
        str | None, typer.Option("--backtest", metavar="FROM..TO", help="Try it on that time first.")
    ] = None,
    drain: Drain = False,
) -> Planner:
    """Publish rules: a running service takes them between two batches, without a restart.

    What it will do is shown first: the lint's findings, the difference, what becomes of partial matches, how a new rule
    begins. A rule with errors is refused, and the old one goes on.
    """
    warm_ms = None if warm_from is None else instant_or_epoch("--warm-from", warm_from)
    texts = [_read_file(file, "utf-8") for file in files]

    def plan(settings: ServiceFile, log: Log) -> ChangePlan:
        planned = plan_publish(settings, log, texts, shadow=shadow, warm_from_ms=warm_ms, drain=drain)
        return planned if backtest is None else _add_backtest(planned, settings, log, texts, backtest)

    return plan


def _add_backtest(plan: ChangePlan, settings: ServiceFile, log: Log, texts: Sequence[str], span: str) -> ChangePlan:
    """The plan with what the rules would have found in a span of the past."""
    start, dots, end = span.partition("..")
    if not dots:
        raise UsageError(f"`{span}` is no span; write FROM..TO, two times")
    lists = lists_of(with_published_rules(settings, log))
    loaded = [load_given(text, "<rule>", settings.params, lists).rule for text in texts]
    progress = Progress(sys.stderr)
    found = run_backtest(
        settings,
        log,
        [rule for rule in loaded if rule is not None],  # the plan has none with errors
        instant_or_epoch("--backtest", start),
        instant_or_epoch("--backtest", end),
        lambda done, total: progress.reading(done, done / total if total else None),
    )
    progress.clear()
    return replace(plan, backtest=found.to_json())


@change_command(rules, "disable")
def _disable(name: RuleName, *, drain: Drain = False) -> Planner:
    """Stop a rule. Its partial matches are dropped, or with --drain go on to their end."""
    return lambda settings, log: plan_disable(settings, log, name, drain=drain)


@change_command(rules, "enable")
def _enable(
    name: RuleName,
    *,
    shadow: Annotated[bool, typer.Option("--shadow", help="It is counted, and raises no alert.")] = False,
    warm_from: WarmFrom = None,
) -> Planner:
    """Let a disabled rule run again, or a shadowed one alert; with --shadow it is only counted."""
    warm_ms = None if warm_from is None else instant_or_epoch("--warm-from", warm_from)
    return lambda settings, log: plan_enable(settings, log, name, shadow=shadow, warm_from_ms=warm_ms)


@change_command(rules, "rollback")
def _rollback(
    name: RuleName,
    *,
    to: Annotated[int | None, typer.Option(min=1, metavar="N", help="To this number; else to the text before.")] = None,
    drain: Drain = False,
) -> Planner:
    """Publish an earlier text of a rule again, as a new number."""
    return lambda settings, log: plan_rollback(settings, log, name, to, drain=drain)


@change_command(lists, "add")
def _add_items(name: Name, items: Items = None, *, file: ItemsFile = None) -> Planner:
    """Change a shared list; a running service takes it between two batches."""
    given = _read_items(items or [], file)
    return lambda settings, log: plan_lists(settings, log, name, add=given)


@change_command(lists, "remove")
def _remove_items(name: Name, items: Items = None, *, file: ItemsFile = None) -> Planner:
    """Change a shared list; a running service takes it between two batches."""
    given = _read_items(items or [], file)
    return lambda settings, log: plan_lists(settings, log, name, remove=given)


def _read_items(given: Sequence[str], file: Path | None) -> list[Any]:
    """Items as they stand in a rule: numbers and true or false are those, all else is text."""
    lines = [] if file is None else [line.strip() for line in _read_file(file, "utf-8-sig").splitlines()]
    items = []
    for text in [*given, *(line for line in lines if line and not line.startswith("#"))]:
        try:
            value = jsonlib.loads(text)
        except ValueError:
            value = text
        items.append(value if isinstance(value, (str, int, float)) else text)
    if not items:
        raise UsageError("no items: name some, or give a file with --file")
    return items


def _read_file(file: Path, encoding: str) -> str:
    try:
        return file.read_text(encoding)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from error


@rules.command()
def history(
    config: Config,
    name: Annotated[str | None, typer.Argument(metavar="RULE", show_default=False)] = None,
    *,
    text: Annotated[
        int | None, typer.Option("--text", metavar="N", min=1, help="Only the text of this number, to edit it.")
    ] = None,
    json: Json = False,
) -> None:
    """Show what was published: number, version, who, when, and where it came in.

    Exit codes: 0 fine, 2 wrong usage or refused.
    """
    if text is not None and (name is None or json):
        raise typer.BadParameter("it goes with a RULE, and without --json", param_hint="--text")
    with service_log(config) as (settings, log):
        if name is not None and text is not None:
            print(text_of(settings, log, name, text), end="")
            return
        registry = load_registry(settings, log)
        if name is not None and registry.change and registry.entry(name) is None:
            raise Refused("unknown-rule", f"there is no rule `{name}`", "`samovar rules history` without it shows all.")
        names = [name] if name is not None else [entry.name for entry in registry.entries]
        entries = [entry for each in names for entry in registry.history(each)]
        if json:
            found = [
                {**entry.to_json(), "took_effect": registry.took_effect(entry.name, entry.number)} for entry in entries
            ]
            print(jsonlib.dumps({"change": registry.change, "entries": found}, indent=2, ensure_ascii=False))
        elif not registry.change:
            print("nothing was published yet: the rules are those of the rules folder")
        else:
            print("\n".join(_history_lines(registry, entries, with_lists=name is None)))


def _history_lines(registry: RuleRegistry, entries: Sequence[RuleEntry], *, with_lists: bool) -> Iterator[str]:
    for entry in entries:
        note = f": {entry.note}" if entry.note else ""
        about = f"{entry.name} {entry.number}  {entry.version}  {entry.status}"
        yield f"{about}  {iso_time(entry.at_ms)}  {entry.act} by {entry.author}{note}"
        effect = registry.took_effect(entry.name, entry.number)
        if effect is None:
            yield "  not taken yet"
        for partition, inputs in sorted((effect or {}).items()):
            offsets = ", ".join(f"{stream} {offset:,}" for stream, offset in inputs.items())
            yield f"  partition {partition} from {offsets}"
    for change in registry.changes if with_lists else ():
        for name, each in change.lists.items():
            did = f"{len(each.added)} added, {len(each.removed)} removed, {len(each.items):,} items"
            note = f": {change.note}" if change.note else ""
            yield f"list {name}  change {change.number}  {did}  {iso_time(change.at_ms)}  by {change.author}{note}"


@rules.command()
def diff(
    config: Config,
    name: RuleName,
    a: Annotated[int, typer.Argument(metavar="A", min=1, show_default=False)],
    b: Annotated[int, typer.Argument(metavar="B", min=1, show_default=False)],
) -> None:
    """Show what differs between two numbers of a rule.

    Exit codes: 0 the same, 1 they differ, 2 wrong usage or refused.
    """
    with service_log(config) as (settings, log):
        found = diff_texts(settings, log, name, a, b)
    if found:
        print(found)
    raise typer.Exit(1 if found else 0)


@rules.command()
def plan(config: Config, *, json: Json = False) -> None:
    """Show which fields of the streams changed since the last change, and whether every rule can run with them.

    Exit codes: 0 all can, 1 one cannot, 2 wrong usage or refused.
    """
    with service_log(config) as (settings, log):
        found = plan_schema(settings, log)
    print(found.as_json() if json else found.as_text())
    raise typer.Exit(0 if found.ok else 1)


@lists.command("show")
def lists_show(
    config: Config,
    name: Annotated[str | None, typer.Argument(metavar="NAME", show_default=False)] = None,
    *,
    json: Json = False,
) -> None:
    """Show the shared lists as they are now.

    Exit codes: 0 fine, 2 wrong usage or refused.
    """
    with service_log(config) as (settings, log):
        found = show_lists(settings, log)
        if name is not None and name not in found:
            raise Refused("unknown-list", f"no rule has a list `{name}`", f"Lists are {', '.join(found) or 'none'}.")
        chosen = {each: list(items) for each, items in found.items() if name in (None, each)}
        if json:
            print(jsonlib.dumps(chosen, indent=2, ensure_ascii=False))
        else:
            print("\n".join(f"{each}: {', '.join(map(str, items)) or '(empty)'}" for each, items in chosen.items()))
