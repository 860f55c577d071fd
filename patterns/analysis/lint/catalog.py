"""The findings of the lint: their ids, which never change, how grave they are, and what they say in general.

docs/lint.md lists the same, with examples; a test holds the two equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from samovar.patterns.analysis.domains import Effort
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax.findings import Finding, Level, Report
from samovar.patterns.syntax.positions import whole
from samovar.patterns.syntax.tree import Rule, Span
from samovar.patterns.syntax.yaml import Node, YamlMap, read

LINTS: dict[str, tuple[Level, str]] = {
    # conditions
    "never-true": ("warning", "a condition, or a part of it, can never be true"),
    "always-true": ("warning", "a condition, or a part of it, is always true"),
    "covered-condition": ("info", "a part of a condition changes nothing next to another part"),
    "across-steps": ("warning", "a condition reads an earlier step, and overlap=latest keeps only the newest start"),
    "last-of-repeated": ("warning", "a repeated step is read as if it were one event"),
    "not-of-missing": ("warning", "`not` is true also where the field is missing"),
    "not-in-missing": ("info", "`not in`, `not seen` and the like are true also where the field is missing"),
    "division-by-time": ("warning", "a division by a time difference that can be 0"),
    # steps
    "never-in-time": ("warning", "the times of the steps cannot all be kept"),
    "within-over-maxspan": ("warning", "`within` is longer than `maxspan`, and so changes nothing"),
    "zero-maxspan": ("warning", "several events must have the very same time"),
    "killed-step": ("warning", "every event that could be the step is forbidden by the negation before it"),
    "until-takes-step": ("warning", "every event that could be the step is taken by `until` first"),
    "idle-negation": ("info", "a negation before `next` forbids nothing"),
    "covered-alternative": ("warning", "an alternative after `or` is covered by another one"),
    "covered-bracket": ("info", "a bracket takes in no event that another one does not"),
    "waiting-absence": ("warning", "while a negation waits for its time, further starts of the same key are dropped"),
    # bounds
    "many-partials": ("warning", "overlap=any makes more partial matches than are kept"),
    "large-state": ("warning", "one key can come to hold very much state"),
    "open-session": ("info", "a key that never rests never ends its session"),
    "many-windows": ("warning", "every event enters very many windows"),
    "long-span": ("info", "the state of every key is held for very long"),
    "long-history": ("info", "a look back over very long holds every event of the key for that time"),
    "one-key": ("info", "without `by` all events have one key, which one task must hold"),
    # alerts
    "suppress-hides-repeat": ("warning", "`suppress` silences what `repeat` asks for"),
    "idle-suppress": ("info", "`suppress` is too short to silence anything"),
    # leftovers
    "unused-let": ("info", "a `let` that nothing reads"),
    "unused-param": ("info", "a parameter that nothing reads"),
    "unused-list": ("info", "a list that nothing reads"),
}


@dataclass
class LintFindings:
    """Gathers the findings of one rule."""

    rule: Rule
    schema: Schema | None
    effort: Effort = field(default_factory=Effort)
    report: Report = field(init=False)

    def __post_init__(self) -> None:
        self.report = Report(self.rule.path)

    def add(self, id: str, message: str, span: Span, hint: str | None = None) -> None:
        self.report.add(Finding(id, LINTS[id][0], message, self.rule.path, span, None, hint))

    def sections(self) -> dict[str, tuple[Span, Node]]:
        """The keys of the rule's file: where each stands, and its value."""
        node = read(whole(self.rule.text), Report(self.rule.path))
        return {key.text: (key.span, value) for key, value in node.entries} if isinstance(node, YamlMap) else {}
