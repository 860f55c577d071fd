"""Where conditions stand in a rule, and what is known there: the ground on which the lint reasons."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce

from samovar.patterns.analysis.domains import Effort, Scope
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.tree import rewrite, walk


@dataclass(frozen=True)
class ConditionContext:
    """A condition and what is known where it stands; `facts` hold of the steps that came before.

    `index` is the step's place in the sequence; None for `until`, `having` and the brackets of the other forms.
    """

    condition: tree.Expr
    scope: Scope
    facts: tuple[tree.Expr, ...] = ()
    index: int | None = None
    bracket: tree.Bracket | None = None
    having: bool = False


def places(rule: tree.Rule, schema: Schema | None, effort: Effort) -> list[ConditionContext]:
    """Every condition of a rule's match."""
    form = rule.form
    if not isinstance(form, tree.SequenceForm):
        found = [ConditionContext(b.condition, event_scope(b, schema, effort), bracket=b) for b in form.brackets]
        if form.having is not None:
            counts: dict[str | None, tuple[int, int | None]] = {}
            if isinstance(form, tree.SessionForm | tree.WindowForm):
                counts[None] = (1, None)
            types = tuple(bracket.type for bracket in form.brackets)
            scope = Scope(types, schema, counts=counts, effort=effort)
            found.append(ConditionContext(form.having, scope, having=True))
        return found
    found = []
    for index, step in enumerate(form.steps):
        before = [earlier for earlier in form.steps[:index] if earlier.kind is not tree.StepKind.ABSENT]
        for bracket in step.brackets:
            scope = _after(before, event_scope(bracket, schema, effort), form)
            own = {step.name: (0, step.runs_max)} if step.repeated else {}
            scope = replace(scope, counts={**scope.counts, **own})
            found.append(ConditionContext(bracket.condition, scope, _facts(before), index, bracket))
    if form.until is not None:
        scope = event_scope(form.until, schema, effort)
        found.append(ConditionContext(form.until.condition, scope, bracket=form.until))
    if form.having is not None:
        last = tuple(bracket.type for bracket in form.taken[-1].brackets)
        scope = replace(_after(form.taken, Scope(last, schema, effort=effort), form), span_ms=None)
        found.append(ConditionContext(form.having, scope, _facts(form.taken), having=True))
    return found


def event_scope(bracket: tree.Bracket, schema: Schema | None, effort: Effort) -> Scope:
    """What is known of an event that a bracket looks at: its type, and that its key is not null."""
    present = frozenset(key.value for key in bracket.by or () if not isinstance(key.value, tree.Literal))
    return Scope((bracket.type,), schema, present, effort=effort)


def _after(steps: Iterable[tree.Step], scope: Scope, form: tree.SequenceForm) -> Scope:
    """What is known when these steps have been taken."""
    types: dict[str, tuple[str, ...]] = {}
    counts: dict[str | None, tuple[int, int | None]] = {}
    present = set(scope.present)
    for step in steps:
        for name, brackets in named_brackets(step):
            types[name] = tuple(bracket.type for bracket in brackets)
            counts[name] = (0 if step.optional else step.runs_min, step.runs_max)
            if not step.optional:
                present.add(tree.OfStep(name, tree.Field("@time")))
                present |= {tree.OfStep(name, key.value) for bracket in brackets[:1] for key in bracket.by or ()}
    return replace(scope, steps=types, counts=counts, present=frozenset(present), span_ms=form.maxspan_ms)


def named_brackets(step: tree.Step) -> list[tuple[str, tuple[tree.Bracket, ...]]]:
    """The names under which a step is read, and the brackets behind each."""
    if step.kind is tree.StepKind.UNORDERED:
        return [(str(member.name), (member,)) for member in step.brackets]
    return [(str(step.name), step.brackets)]


def _facts(steps: Iterable[tree.Step]) -> tuple[tree.Expr, ...]:
    """What the conditions of steps say of their events, as seen from later steps: `amount < 2` of step probe is
    `probe.amount < 2`; a function of its fields is read as a whole, as a `let` is.
    """

    def of_one_event(condition: tree.Expr) -> bool:
        return not any(isinstance(part, tree.OfStep | tree.Aggregate | tree.History) for part in walk(condition))

    facts = []
    for step in steps:
        for name, brackets in named_brackets(step):

            def moved(part: tree.Expr, name: str = name) -> tree.Expr | None:
                return tree.OfStep(name, part, part.span) if isinstance(part, tree.Field | tree.Call) else None

            conditions = [bracket.condition for bracket in brackets]
            if not step.optional and all(map(of_one_event, conditions)):
                alternatives = [rewrite(condition, moved) for condition in conditions]
                facts.append(reduce(lambda one, two: tree.Binary("or", one, two), alternatives))
    return tuple(facts)
