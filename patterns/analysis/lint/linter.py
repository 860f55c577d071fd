"""Lint: what is allowed, and yet probably not meant. Errors are the checker's; here are warnings and infos only."""

from __future__ import annotations

import re
from collections.abc import Iterator

from samovar.patterns.analysis.lint.catalog import LINTS, LintFindings, places
from samovar.patterns.analysis.lint.conditions import check_conditions
from samovar.patterns.analysis.lint.steps import check_bounds, check_steps
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax.findings import Finding
from samovar.patterns.syntax.tree import Rule, SequenceForm
from samovar.patterns.syntax.yaml import List, Node, Text, YamlMap

__all__ = ["LINTS", "lint"]

_WORD = re.compile(r"\$?[^\W\d][\w-]*")
_READING = ("match", "emit", "message", "suppress", "let")


def lint(rule: Rule, schema: Schema | None = None) -> tuple[Finding, ...]:
    """Findings of level warning or info, in the order of the file. With a schema more can be known of values."""
    notes = LintFindings(rule, schema)
    check_conditions(places(rule, schema, notes.effort), notes)
    if isinstance(rule.form, SequenceForm):
        check_steps(rule.form, notes)
    check_bounds(notes)
    _check_unused(notes)
    return notes.report.findings()


def _check_unused(notes: LintFindings) -> None:
    sections = {name: node for name, (_, node) in notes.sections().items()}
    texts = [(name, text) for name in _READING for text in _texts(sections.get(name))]
    dollars = {word.group()[1:] for _, text in texts for word in _WORD.finditer(text.text) if word.group()[0] == "$"}
    for section, id in (("params", "unused-param"), ("lists", "unused-list")):
        for key, _ in _entries(sections.get(section)):
            if key.text not in dollars:
                notes.add(id, f"nothing reads `${key.text}`", key.span, "leave it out, or is the name misspelt?")
    for key, own in _entries(sections.get("let")):
        word = re.compile(rf"(?<![\w$]){re.escape(key.text)}(?!\w)")
        if not any(word.search(text.text) for _, text in texts if text is not own):
            notes.add("unused-let", f"nothing reads `{key.text}`", key.span, "leave it out, or is the name misspelt?")


def _entries(node: Node | None) -> list[tuple[Text, Node]]:
    return list(node.entries) if isinstance(node, YamlMap) else []


def _texts(node: Node | None) -> Iterator[Text]:
    if isinstance(node, Text):
        yield node
    elif isinstance(node, YamlMap):
        for _, value in node.entries:
            yield from _texts(value)
    elif isinstance(node, List):
        for item in node.items:
            yield from _texts(item)
