"""What alerts do not carry themselves: severity, tags and form of the rule version that found them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from samovar.changelog.errors import Refused
from samovar.patterns.rulefile import load_text
from samovar.patterns.syntax import Rule, Session
from samovar.service.stores import Site
from samovar.tasks.plan import RuleText
from samovar.tasks.rebuild import journal_of


@dataclass(frozen=True)
class Known:
    """Of a rule's version, by its text."""

    severity: str | None
    tags: tuple[str, ...]
    is_session: bool


def known_rules(site: Site) -> Mapping[str, Known]:
    """All versions that ran, as the journals have them, and today's."""
    texts: dict[str, RuleText] = {}
    for here in site.stages():
        texts |= {text.version: text for text in here.plan.rules}
        for text in _journaled(here):
            texts.setdefault(text.version, text)
    return {version: found for version, text in texts.items() if (found := _known(text)) is not None}


def _journaled(site: Site) -> list[RuleText]:
    """Of partition 0: all partitions have the same rules."""
    if site.plan.task is not None or not site.log.topics([site.plan.topics.journal]):
        return []
    try:
        entries = journal_of(site.log, site.plan, 0)
    except Refused:
        return []  # its beginning is gone: today's rules are what is known
    return [RuleText(**facts) for entry in entries if entry.kind == "rules" for facts in entry.facts["rules"]]


def _known(text: RuleText) -> Known | None:
    rule: Rule | None = load_text(text.text, f"<{text.id}>", params=text.params, lists=text.lists).rule
    return None if rule is None else Known(rule.severity, tuple(rule.tags), isinstance(rule.form, Session))
