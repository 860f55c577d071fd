"""What the commands of a rule's life do: show a change, ask, write it; and what was published so far."""

from __future__ import annotations

import getpass
import json as jsons
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, TypeAlias

from samovar.changelog.log import Log
from samovar.common.errors import Refused, UsageError
from samovar.common.progress import Progress
from samovar.patterns.explain.key_trace import iso_time
from samovar.patterns.rulefile.loading import load_given
from samovar.patterns.syntax.findings import render
from samovar.patterns.syntax.tree import Rule
from samovar.service.backtest.run import backtest
from samovar.service.cli.options import instant
from samovar.service.config.loading import load_service
from samovar.service.config.models import ServiceFile
from samovar.service.rules.change_plan import ChangePlan
from samovar.service.rules.lists import show as show_lists
from samovar.service.rules.publishing import commit
from samovar.service.topology.logs import opened
from samovar.service.topology.rule_registry import RuleEntry, RuleRegistry, read_rulebook, with_rulebook
from samovar.service.topology.ruleset import lists_of

Looking: TypeAlias = Callable[[ServiceFile, Log], ChangePlan]
UNCONFIRMED = 1


@dataclass(frozen=True)
class ChangeRequest:
    """How a change is to be made. `ask` is whether the person wants it, who sees it."""

    author: str | None
    note: str
    dry_run: bool
    yes: bool
    json: bool
    ask: Callable[[ChangePlan], bool]


def do(config: Path, look: Looking, doing: ChangeRequest, out: IO[str]) -> int:
    """Look, show, ask, write."""
    settings = load_service(config)
    with opened(settings) as log:
        plan = look(settings, log)
        if not doing.json:
            out.write(shown(plan) + "\n")
            out.flush()
        is_wanted = is_confirmed(doing, plan)
        if is_wanted:
            commit(settings, log, plan, doing.author or getpass.getuser(), doing.note)
        if doing.json:
            out.write(jsons.dumps({**plan.to_json(), "written": is_wanted}, indent=2, ensure_ascii=False) + "\n")
        elif is_wanted:
            out.write(f"written: change {plan.number}. Running containers take it between two batches.\n")
        else:
            out.write("nothing was written\n")
    return 0 if is_wanted or doing.dry_run or doing.json else UNCONFIRMED


def is_confirmed(doing: ChangeRequest, plan: ChangePlan) -> bool:
    """Whether a change is to be written: somebody said `--yes`, or says so now. A document alone is only a plan, and
    where nobody can be asked, nothing is taken for a yes.
    """
    if doing.dry_run:
        return False
    if doing.yes or doing.json:
        return doing.yes
    if not sys.stdin.isatty():
        raise Refused(
            "confirmation-required",
            "nobody can be asked here, and nothing was written",
            "Add `--yes` to write the change, or `--dry-run` only to look at it.",
        )
    return doing.ask(plan)


def shown(plan: ChangePlan) -> str:
    texts = [each.rule.text for each in plan.rules]
    findings = [render(finding, texts[0] if len(texts) == 1 else "") for finding in plan.findings]
    return "\n".join([*findings, plan.as_text(), *_backtest_lines(plan)])


def _backtest_lines(plan: ChangePlan) -> Iterator[str]:
    for rule in [] if plan.backtest is None else plan.backtest["rules"]:
        compared = [f"{rule[name]:,} {name}" for name in ("same", "moved", "new", "gone") if rule[name] is not None]
        against = f"; against what runs: {', '.join(compared)}" if compared else ""
        assert plan.backtest is not None
        yield f"backtest over {plan.backtest['events']:,} events: {rule['rule']} finds {rule['found']:,}{against}"


# ---------------------------------------------------------------- what is given


def read_texts(files: Sequence[Path]) -> list[str]:
    """The texts of rule files."""
    found = []
    for file in files:
        try:
            found.append(file.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from error
    return found


def read_items(given: Sequence[str], file: Path | None) -> list[Any]:
    """Items as they stand in a rule: numbers and true or false are those, all else is text."""
    lines: list[str] = []
    if file is not None:
        try:
            lines = [line.strip() for line in file.read_text("utf-8-sig").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from error
    items = [item_of(text) for text in [*given, *(line for line in lines if line and not line.startswith("#"))]]
    if not items:
        raise UsageError("no items: name some, or give a file with --file")
    return items


def item_of(text: str) -> Any:
    """An item of a list.

    >>> item_of("casino"), item_of("7"), item_of("0.5"), item_of("true"), item_of('"7"')
    ('casino', 7, 0.5, True, '7')
    """
    try:
        value = jsons.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (str, int, float)) else text


def time_ms(option: str, text: str) -> int:
    """A time as commands take it: ISO, or epoch in ms."""
    return int(text) if text.isdecimal() else instant(option, text)


def backtested(plan: ChangePlan, settings: ServiceFile, log: Log, texts: Sequence[str], span: str | None) -> ChangePlan:
    """The plan with what the rules would have found in a span of the past, where that is asked for."""
    if span is None:
        return plan
    start, dots, end = span.partition("..")
    if not dots:
        raise UsageError(f"`{span}` is no span; write FROM..TO, two times")
    rules = [_rule(settings, log, text) for text in texts]
    progress = Progress(sys.stderr)
    found = backtest(
        settings,
        log,
        rules,
        time_ms("--backtest", start),
        time_ms("--backtest", end),
        lambda done, total: progress.reading(done, done / total if total else None),
    )
    progress.clear()
    return replace(plan, backtest=found.to_json())


def _rule(settings: ServiceFile, log: Log, text: str) -> Rule:
    """A rule that was looked at, and so has no errors."""
    rule = load_given(text, "<rule>", settings.params, lists_of(with_rulebook(settings, log))).rule
    assert rule is not None
    return rule


# ---------------------------------------------------------------- what there is


def history_json(settings: ServiceFile, log: Log, name: str | None) -> str:
    book = read_rulebook(settings, log)
    entries = [_effect_json(book, entry) for entry in _chosen(book, name)]
    return jsons.dumps({"change": book.change, "entries": entries}, indent=2, ensure_ascii=False)


def _effect_json(book: RuleRegistry, entry: RuleEntry) -> dict[str, Any]:
    found = book.took_effect(entry.name, entry.number)
    where = None if found is None else {str(partition): dict(inputs) for partition, inputs in found.items()}
    return {**entry.to_json(), "took_effect": where}


def history_text(settings: ServiceFile, log: Log, name: str | None) -> str:
    book = read_rulebook(settings, log)
    if not book.change:
        return "nothing was published yet: the rules are those of the rules folder"
    lines = []
    for entry in _chosen(book, name):
        note = f": {entry.note}" if entry.note else ""
        about = f"{entry.name} {entry.number}  {entry.version}  {entry.status}"
        lines.append(f"{about}  {iso_time(entry.at_ms)}  {entry.act} by {entry.author}{note}")
        lines += _effect_lines(book, entry)
    lines += _list_lines(book) if name is None else []
    return "\n".join(lines)


def _effect_lines(book: RuleRegistry, entry: RuleEntry) -> Iterator[str]:
    found = book.took_effect(entry.name, entry.number)
    if found is None:
        yield "  not taken yet"
        return
    for partition, inputs in sorted(found.items()):
        yield f"  partition {partition} from {', '.join(f'{stream} {offset:,}' for stream, offset in inputs.items())}"


def _list_lines(book: RuleRegistry) -> Iterator[str]:
    for change in book.changes:
        for name, each in change.lists.items():
            did = f"{len(each.added)} added, {len(each.removed)} removed, {len(each.items):,} items"
            note = f": {change.note}" if change.note else ""
            yield f"list {name}  change {change.number}  {did}  {iso_time(change.at_ms)}  by {change.author}{note}"


def _chosen(book: RuleRegistry, name: str | None) -> list[RuleEntry]:
    if name is not None and book.change and book.entry(name) is None:
        raise Refused("unknown-rule", f"there is no rule `{name}`", "`samovar rules history` without it shows all.")
    names = [name] if name is not None else [entry.name for entry in book.entries]
    return [entry for each in names for entry in book.history(each)]


def lists_shown(settings: ServiceFile, log: Log, name: str | None, *, json: bool) -> str:
    found = show_lists(settings, log)
    if name is not None and name not in found:
        raise Refused("unknown-list", f"no rule has a list `{name}`", f"Lists are {', '.join(found) or 'none'}.")
    chosen = {each: list(items) for each, items in found.items() if name in (None, each)}
    if json:
        return jsons.dumps(chosen, indent=2, ensure_ascii=False)
    return "\n".join(f"{each}: {', '.join(map(str, items)) or '(empty)'}" for each, items in chosen.items())
