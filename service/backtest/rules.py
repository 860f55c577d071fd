"""The rules of a backtest: loaded and checked as the service would, and how far back each of them looks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samovar.common.errors import Refused
from samovar.patterns.rulefile.loading import RuleSet, SettingError, load_set, rendered
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.semantics.event_types import brackets_of
from samovar.patterns.semantics.versioning import lasting_ms
from samovar.patterns.syntax.findings import Finding, render
from samovar.patterns.syntax.tree import Expr, History, Overlap, Rule, SequenceForm, SessionForm, walk
from samovar.service.config.models import ServiceFile
from samovar.service.topology.ruleset import BadRules, check_types, lists_of, schema_of
from samovar.service.topology.stages import stages_of, streams_of

ANY = "+any"  # no rule's id has a plus: a variant's cannot be another rule's


@dataclass(frozen=True)
class Group:
    """Rules that are run together: over each partition by itself, or (`apart` is False) over all partitions as one."""

    rules: tuple[Rule, ...]
    streams: tuple[str, ...]
    apart: bool


def load_rules(settings: ServiceFile, given: Sequence[str | Path | Rule]) -> tuple[Rule, ...]:
    """Rules, rule files, folders of them, and texts of rules (more than one line), checked against the streams."""
    texts = [each for each in given if isinstance(each, str) and "\n" in each]
    paths = [each for each in given if not isinstance(each, Rule) and each not in texts]
    rules = [each for each in given if isinstance(each, Rule)]
    rules += [_of_text(settings, text) for text in texts]
    if paths:
        rules += _of_paths(settings, paths)
    if not rules:
        raise Refused("backtest-rules", "there is no rule to try", "Name a rule file, or a folder of them.")
    names = [rule.id for rule in rules]
    for name in names:
        if names.count(name) > 1:
            raise Refused(
                "backtest-rules",
                f"two of the rules are called {name}",
                "Each rule of a backtest needs its own name: try two versions of one rule one after the other.",
            )
    check_types(RuleSet(tuple(rules), ()), settings.streams)
    return tuple(rules)


def _of_text(settings: ServiceFile, text: str) -> Rule:
    loaded = load_text(text, schema=schema_of(settings.streams))
    if loaded.rule is not None and (own := _own_settings(settings, [loaded.rule])):
        loaded = load_text(text, schema=schema_of(settings.streams), **own)
    if loaded.rule is None:
        raise _bad(loaded.findings, "\n".join(render(each, text) for each in loaded.findings if each.level == "error"))
    return loaded.rule


def _of_paths(settings: ServiceFile, paths: Sequence[str | Path]) -> tuple[Rule, ...]:
    schema = schema_of(settings.streams)
    try:
        loaded = load_set(paths, schema=schema)
        if own := _own_settings(settings, loaded.rules):
            loaded = load_set(paths, schema=schema, **own)
    except SettingError as error:
        raise Refused("backtest-rules", str(error), "Name a rule file, or a folder of them.") from error
    if loaded.errors:
        raise _bad(loaded.errors, rendered(loaded.errors))
    return loaded.rules


def _own_settings(settings: ServiceFile, rules: Iterable[Rule]) -> dict[str, Any]:
    """Parameters and lists of the service, as they are now, that these rules have; others are for other rules."""
    params = {name for rule in rules for name in rule.params}
    lists = {name for rule in rules for name in rule.lists}
    own = {
        "params": {name: value for name, value in settings.params.items() if name in params},
        "lists": {name: value for name, value in lists_of(settings).items() if name in lists},
    }
    return own if any(own.values()) else {}


def _bad(findings: Sequence[Finding], shown: str) -> BadRules:
    count = sum(each.level == "error" for each in findings)
    text = "an error" if count == 1 else f"{count} errors"
    return BadRules("rule-errors", f"the rules have {text}", "`samovar rules check` shows them too", shown)


# ---------------------------------------------------------------- how they are run


def grouped(settings: ServiceFile, rules: Sequence[Rule], partitions: int) -> list[Group]:
    """Rules whose keys are in one partition each, and the others."""
    main, *others = stages_of(rules, settings.streams, partitions)
    found = [(main.rules, True), ([rule for stage in others for rule in stage.rules], False)]
    return [Group(tuple(each), _streams(settings, each), apart) for each, apart in found if each]


def _streams(settings: ServiceFile, rules: Iterable[Rule]) -> tuple[str, ...]:
    wanted = {name for rule in rules for name in streams_of(rule, settings.streams)}
    return tuple(name for name in settings.streams if name in wanted)


def with_any(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules, and after them those that could find more with `overlap=any`, written so."""
    rules = tuple(rules)
    return (*rules, *(each for rule in rules for each in _any_variant(rule)))


def _any_variant(rule: Rule) -> Iterator[Rule]:
    if isinstance(rule.form, SequenceForm) and rule.form.overlap is not Overlap.ANY:
        yield replace(rule, id=rule.id + ANY, form=replace(rule.form, overlap=Overlap.ANY))


def warm_up_ms(rule: Rule) -> int:
    """For how long before a moment events can matter to what a rule finds at it, as a rule.

    Twice the rule's own span: a match before the moment can use up events after it. A session that never pauses goes
    back further than any span.
    """
    histories = (part.span_ms for each in _expressions(rule) for part in walk(each) if isinstance(part, History))
    span = lasting_ms(rule)
    if isinstance(rule.form, SessionForm):
        span = max(span, 24 * 3_600_000)
    return 2 * span + max(histories, default=0) + (rule.suppress_ms or 0)


def _expressions(rule: Rule) -> Iterator[Expr]:
    for bracket in brackets_of(rule):
        yield bracket.condition
    having = rule.form.having
    if having is not None:
        yield having
    for _, value in rule.emit:
        yield value
