"""What the lint can find, by ids that never change, and a rule's conditions with what is known where they stand.

docs/lint.md lists the findings, with examples; a test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial, reduce

from samovar.patterns.analysis.satisfiability import Effort, Scope
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.findings import Finding, Level, Report
from samovar.patterns.syntax.positions import whole
from samovar.patterns.syntax.tree import rewrite, walk
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

    rule: tree.Rule
    schema: Schema | None
    effort: Effort = field(default_factory=Effort)
    report: Report = field(init=False)

    def __post_init__(self) -> None:
        self.report = Report(self.rule.path)

    def add(self, id: str, message: str, span: tree.Span, hint: str | None = None) -> None:
        self.report.add(
            Finding(
                id=id, level=LINTS[id][0], message=message, path=self.rule.path, span=span, expected=None, hint=hint
            )
        )

    def sections(self) -> dict[str, tuple[tree.Span, Node]]:
        """The keys of the rule's file: where each stands, and its value."""
        node = read(whole(self.rule.text), Report(self.rule.path))
        return {key.text: (key.span, value) for key, value in node.entries} if isinstance(node, YamlMap) else {}


@dataclass(frozen=True, kw_only=True)
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
        found = [
            ConditionContext(condition=b.condition, scope=event_scope(b, schema, effort), bracket=b)
            for b in form.brackets
        ]
        if form.having is not None:
            counts: dict[str | None, tuple[int, int | None]] = {}
            if isinstance(form, tree.SessionForm | tree.WindowForm):
                counts[None] = (1, None)
            types = tuple(bracket.type for bracket in form.brackets)
            scope = Scope(types=types, schema=schema, counts=counts, effort=effort)
            found.append(ConditionContext(condition=form.having, scope=scope, having=True))
        return found
    found = []
    for index, step in enumerate(form.steps):
        before = [earlier for earlier in form.steps[:index] if earlier.kind is not tree.StepKind.ABSENT]
        for bracket in step.brackets:
            scope = _after(before, event_scope(bracket, schema, effort), form)
            own = {step.name: (0, step.runs_max)} if step.repeated else {}
            scope = replace(scope, counts={**scope.counts, **own})
            found.append(
                ConditionContext(
                    condition=bracket.condition, scope=scope, facts=_facts(before), index=index, bracket=bracket
                )
            )
    if form.until is not None:
        scope = event_scope(form.until, schema, effort)
        found.append(ConditionContext(condition=form.until.condition, scope=scope, bracket=form.until))
    if form.having is not None:
        last = tuple(bracket.type for bracket in form.taken[-1].brackets)
        scope = replace(_after(form.taken, Scope(types=last, schema=schema, effort=effort), form), span_ms=None)
        found.append(ConditionContext(condition=form.having, scope=scope, facts=_facts(form.taken), having=True))
    return found


def event_scope(bracket: tree.Bracket, schema: Schema | None, effort: Effort) -> Scope:
    """What is known of an event that a bracket looks at: its type, and that its key is not null."""
    present = frozenset(key.value for key in bracket.by or () if not isinstance(key.value, tree.Literal))
    return Scope(types=(bracket.type,), schema=schema, present=present, effort=effort)


def _after(steps: Iterable[tree.Step], scope: Scope, form: tree.SequenceForm) -> Scope:
    """What is known when these steps have been taken."""
    types: dict[str, tuple[str, ...]] = {}
    counts: dict[str | None, tuple[int, int | None]] = {}
    present = set(scope.present)
    for step in steps:
        for name, brackets in step.readings:
            types[name] = tuple(bracket.type for bracket in brackets)
            counts[name] = (0 if step.optional else step.runs_min, step.runs_max)
            if not step.optional:
                present.add(tree.OfStep(name, tree.Field("@time")))
                present |= {tree.OfStep(name, key.value) for bracket in brackets[:1] for key in bracket.by or ()}
    return replace(scope, steps=types, counts=counts, present=frozenset(present), span_ms=form.maxspan_ms)


def _facts(steps: Iterable[tree.Step]) -> tuple[tree.Expr, ...]:
    """What the conditions of steps say of their events, as seen from later steps: `amount < 2` of step probe is
    `probe.amount < 2`; a function of its fields is read as a whole, as a `let` is.
    """

    def of_one_event(condition: tree.Expr) -> bool:
        return not any(isinstance(part, tree.OfStep | tree.Aggregate | tree.History) for part in walk(condition))

    def of_step(name: str, part: tree.Expr) -> tree.Expr | None:
        return tree.OfStep(name, part, part.span) if isinstance(part, tree.Field | tree.Call) else None

    facts = []
    for step in steps:
        for name, brackets in step.readings:
            conditions = [bracket.condition for bracket in brackets]
            if not step.optional and all(map(of_one_event, conditions)):
                alternatives = [rewrite(condition, partial(of_step, name)) for condition in conditions]
                facts.append(reduce(lambda one, two: tree.Binary("or", one, two), alternatives))
    return tuple(facts)
