"""Which events a rule reads: the brackets that have a key, and their types."""

from __future__ import annotations

from samovar.patterns.syntax.tree import Bracket, Literal, Rule, SequenceForm


def brackets_of(rule: Rule) -> list[Bracket]:
    form = rule.form
    if not isinstance(form, SequenceForm):
        return list(form.brackets)
    steps = [bracket for step in form.steps for bracket in step.brackets]
    return steps if form.until is None else [*steps, form.until]


def keyed_brackets(rule: Rule) -> list[Bracket]:
    """The brackets whose events belong to a key: not those where all of `by` is null."""
    nulls = Literal(None)
    return [each for each in brackets_of(rule) if not each.by or any(key.value != nulls for key in each.by)]


def reads_all(rule: Rule) -> bool:
    """Whether events of every type make a difference: a `next` step depends on every event of its key."""
    form = rule.form
    return isinstance(form, SequenceForm) and any(step.next for step in form.steps)


def reads_type(rule: Rule, event_type: str) -> bool:
    """Whether events of a type make a difference to a rule."""
    return reads_all(rule) or any(bracket.type in ("any", event_type) for bracket in keyed_brackets(rule))
