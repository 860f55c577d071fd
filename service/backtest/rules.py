"""The rules of a backtest: loaded and checked as the service would, and how far back each of them looks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from samovar.common.errors import Refused
from samovar.patterns.rulefile.loading import RuleSet, SettingError, load_given, load_set, rendered
from samovar.patterns.semantics.event_types import brackets_of
from samovar.patterns.semantics.versioning import lasting_ms
from samovar.patterns.syntax.findings import Finding
from samovar.patterns.syntax.tree import History, Overlap, Rule, SequenceForm, SessionForm, walk
from samovar.service.config.models import ServiceFile
from samovar.service.topology.ruleset import BadRules, check_types, lists_of, schema_of
from samovar.service.topology.stages import stages_of, streams_of

ANY = "+any"  # no rule's id has a plus: a variant's cannot be another rule's
HINT = "Name a rule file, or a folder of them."


@dataclass(frozen=True)
class Group:
    """Rules that are run together: over each partition by itself, or (`apart` is False) over all partitions as one."""

    rules: tuple[Rule, ...]
    streams: tuple[str, ...]
    apart: bool


def load_rules(settings: ServiceFile, given: Sequence[str | Path | Rule]) -> tuple[Rule, ...]:
    """Rules, rule files, folders of them, and texts of rules (more than one line), checked against the streams.

    They have the parameters and lists of the service, as they are now.
    """
    schema, params, lists = schema_of(settings.streams), settings.params, lists_of(settings)
    rules = [each for each in given if isinstance(each, Rule)]
    texts = [each for each in given if isinstance(each, str) and "\n" in each]
    for text in texts:
        loaded = load_given(text, "<rule>", params, lists, schema)
        if loaded.rule is None:
            raise _bad_rules([each for each in loaded.findings if each.level == "error"], {"<rule>": text})
        rules.append(loaded.rule)
    paths = [each for each in given if not isinstance(each, Rule) and each not in texts]
    if paths:
        try:
            found = load_set(paths, schema=schema)
            # Other parameters and lists are for other rules.
            own_params = {name: params[name] for rule in found.rules for name in rule.params if name in params}
            own_lists = {name: lists[name] for rule in found.rules for name in rule.lists if name in lists}
            if own_params or own_lists:
                found = load_set(paths, schema=schema, params=own_params, lists=own_lists)
        except SettingError as error:
            raise Refused("backtest-rules", str(error), HINT) from error
        if found.errors:
            raise _bad_rules(found.errors)
        rules += found.rules
    if not rules:
        raise Refused("backtest-rules", "there is no rule to try", HINT)
    names = [rule.id for rule in rules]
    for name in names:
        if names.count(name) > 1:
            hint = "Each rule of a backtest needs its own name: try two versions of one rule one after the other."
            raise Refused("backtest-rules", f"two of the rules are called {name}", hint)
    check_types(RuleSet(tuple(rules), ()), settings.streams)
    return tuple(rules)


def _bad_rules(errors: Sequence[Finding], texts: dict[str, str] | None = None) -> BadRules:
    count = "an error" if len(errors) == 1 else f"{len(errors)} errors"
    hint = "`samovar rules check` shows them too"
    return BadRules("rule-errors", f"the rules have {count}", hint, rendered(errors, texts))


def grouped(settings: ServiceFile, rules: Sequence[Rule], partitions: int) -> list[Group]:
    """Rules whose keys are in one partition each, and the others."""
    main, *others = stages_of(rules, settings.streams, partitions)
    groups = []
    for own, apart in ((main.rules, True), ([rule for stage in others for rule in stage.rules], False)):
        if own:
            wanted = {name for rule in own for name in streams_of(rule, settings.streams)}
            streams = tuple(name for name in settings.streams if name in wanted)
            groups.append(Group(tuple(own), streams, apart))
    return groups


def any_variants(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Those of the rules that could find more with `overlap=any`, written so."""
    return tuple(
        replace(rule, id=rule.id + ANY, form=replace(rule.form, overlap=Overlap.ANY))
        for rule in rules
        if isinstance(rule.form, SequenceForm) and rule.form.overlap is not Overlap.ANY
    )


def warm_up_ms(rule: Rule) -> int:
    """For how long before a moment events can matter to what a rule finds at it, as a rule.

    Twice the rule's own span: a match before the moment can use up events after it. A session that never pauses goes
    back further than any span.
    """
    expressions = [bracket.condition for bracket in brackets_of(rule)] + [value for _, value in rule.emit]
    if rule.form.having is not None:
        expressions.append(rule.form.having)
    histories = (part.span_ms for each in expressions for part in walk(each) if isinstance(part, History))
    span = lasting_ms(rule)
    if isinstance(rule.form, SessionForm):
        span = max(span, 24 * 3_600_000)
    return 2 * span + max(histories, default=0) + (rule.suppress_ms or 0)
