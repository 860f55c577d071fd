"""Where the lint says that a step can never be taken, no events make the rule match."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from samovar.patterns.analysis.lint.linter import lint
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.syntax.tree import Rule, SequenceForm, Span, Step, StepKind
from tests import oracle
from tests.support.random_rules import random_events, random_rule

DEADLY = {"never-true", "killed-step", "never-in-time", "until-takes-step"}


def required(rule: Rule) -> list[Step]:
    """Steps without which there is no match, and which have one bracket only."""
    assert isinstance(rule.form, SequenceForm)
    return [
        step for step in rule.form.steps if step.kind is StepKind.TAKE and not step.optional and len(step.brackets) == 1
    ]


def is_inside(inner: Span, outer: Span) -> bool:
    start, end = (outer.line, outer.column), (outer.end_line, outer.end_column)
    return start <= (inner.line, inner.column) and (inner.end_line, inner.end_column) <= end


def is_dead(rule: Rule) -> bool:
    """Whether a finding says that a required step, or the whole of its condition, is impossible."""
    if any(word in rule.match_text for word in (" or ", "not ", "seen(")):
        return False  # there a finding may be of a part of the condition only
    deadly = [finding for finding in lint(rule) if finding.id in DEADLY]
    return any(is_inside(finding.span, step.span) for finding in deadly for step in required(rule))


def make_dead(text: str, rng: Random) -> str:
    """Most random rules are sound: this spoils one."""
    clash = rng.choice(("n > 1 and n < 1", "n == 1 and n == 2", 'f == "p" and f == "q"', "n == null and n > 0"))
    return text.replace("where true]", f"where {clash}]", 1)


@given(st.randoms(use_true_random=False))
def test_a_dead_rule_never_matches(rng: Random) -> None:
    text = random_rule(rng)
    rule = load_text(make_dead(text, rng) if rng.random() < 0.5 else text).rule
    if rule is None or not isinstance(rule.form, SequenceForm) or not is_dead(rule):
        return
    events = random_events(rng, 30, ["a", "b", "c", "d"])
    assert oracle.run([rule], events).matches == []


def test_dead_rules_are_met() -> None:
    found = 0
    for seed in range(100):
        rng = Random(seed)
        rule = load_text(make_dead(random_rule(rng), rng)).rule
        found += rule is not None and isinstance(rule.form, SequenceForm) and is_dead(rule)
    assert found > 5
