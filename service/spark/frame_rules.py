"""What alerts do not carry themselves: severity, tags, form and types of the rule version that found them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from samovar.common.errors import Refused
from samovar.common.wire import from_wire
from samovar.patterns.rulefile import load_text
from samovar.patterns.schema import Schema
from samovar.patterns.syntax import Rule, Session
from samovar.service.spark.frames_emit import emit_of, merged
from samovar.service.topology.ruleset import schema_of
from samovar.service.topology.stores import Site
from samovar.tasks.model.plan import RuleText
from samovar.tasks.replay.rebuild import journal_of


@dataclass(frozen=True)
class Known:
    """Of a rule's version, by its text. `emit` has the fields that it emits and their types."""

    rule: str
    severity: str | None
    tags: tuple[str, ...]
    is_session: bool
    emit: Mapping[str, str]


def known_rules(site: Site) -> Mapping[str, Known]:
    """All versions that ran, as the journals have them, and today's."""
    schema = schema_of(site.settings.streams)
    texts: dict[str, RuleText] = {}
    for here in site.stages():
        texts |= {text.version: text for text in here.plan.rules}
        for text in _journaled(here):
            texts.setdefault(text.version, text)
    return {version: found for version, text in texts.items() if (found := _known(text, schema)) is not None}


def _journaled(site: Site) -> list[RuleText]:
    """Of partition 0: all partitions have the same rules."""
    if site.plan.task is not None or not site.log.topics([site.plan.topics.journal]):
        return []
    try:
        entries = journal_of(site.log, site.plan, 0)
    except Refused:
        return []  # its beginning is gone: today's rules are what is known
    return [from_wire(RuleText, facts) for entry in entries if entry.kind == "rules" for facts in entry.facts["rules"]]


def _known(text: RuleText, schema: Schema | None) -> Known | None:
    rule: Rule | None = load_text(text.text, f"<{text.id}>", params=text.params, lists=text.lists).rule
    if rule is None:
        return None
    return Known(rule.id, rule.severity, tuple(rule.tags), isinstance(rule.form, Session), emit_of(rule, schema))


def emits_of(known: Mapping[str, Known]) -> dict[str, dict[str, str]]:
    """By rule: the fields of `emit` and their types, of all its versions."""
    rules = {each.rule: [other.emit for other in known.values() if other.rule == each.rule] for each in known.values()}
    return {rule: merged(versions) for rule, versions in rules.items()}
