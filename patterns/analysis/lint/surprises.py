"""Lint of habits that surprise: across steps under `latest`, repeated steps, `not` of a missing field, division."""

from __future__ import annotations

from collections.abc import Iterator

from samovar.patterns.analysis.domains import Scope
from samovar.patterns.analysis.lint.catalog import LintFindings
from samovar.patterns.analysis.lint.contexts import ConditionContext, named_brackets, places
from samovar.patterns.analysis.satisfiability import implies
from samovar.patterns.engine.compile import flatten
from samovar.patterns.syntax.tree import (
    Aggregate,
    Binary,
    Call,
    Expr,
    Field,
    History,
    In,
    Literal,
    OfStep,
    Overlap,
    SequenceForm,
    Step,
    StepKind,
    TextMatch,
    Unary,
    children,
    walk,
)
from samovar.patterns.syntax.unparse import is_difference, unparse


def check_habits(notes: LintFindings) -> None:
    rule = notes.rule
    found = places(rule, notes.schema, notes.effort)
    for where in found:
        parts = flatten(where.condition, "and")
        for part in parts:
            if isinstance(rule.form, SequenceForm) and rule.form.overlap is Overlap.LATEST:
                _check_across(part, where, rule.form, notes)
            _check_not(part, parts, where.scope, notes)
            _check_division(part, parts, where, notes)
    shown = [expr for _, expr in rule.emit] + [part for part in rule.message if not isinstance(part, str)]
    for expr in shown:
        _check_division(expr, [], None, notes)
    if isinstance(rule.form, SequenceForm):
        _check_repeated(rule.form, found, shown, notes)


# ---------------------------------------------------------------- conditions across steps


def _check_across(part: Expr, where: ConditionContext, form: SequenceForm, notes: LintFindings) -> None:
    read = _foreign(part, where, form)
    if not read:
        return
    listed = " and ".join(f"`{name}`" for name in read)
    text = f"`overlap=latest` keeps only the newest start, so a match that needs an older {listed} is missed"
    notes.add("across-steps", text, part.span, _by_hint(part, form) or "write `overlap=all`")


def _foreign(part: Expr, where: ConditionContext, form: SequenceForm) -> list[str]:
    """The steps that a condition reads and that could have been others, had they been kept."""
    taken = [step for step in form.steps if step.kind is not StepKind.ABSENT]
    own = form.steps[where.index] if where.index is not None else taken[-1]
    if _strictly_follows(own, where, form):
        return []
    names = {name: step for step in taken for name, _ in named_brackets(step)}
    read: dict[str, None] = {}
    for item in walk(part):
        name = item.step if isinstance(item, OfStep) else item.target if isinstance(item, Aggregate) else None
        bag = isinstance(item, Aggregate) and names.get(str(name)) is taken[0] and taken[0].repeated
        if name in names and names[name] is not own and not bag:
            read[name] = None
    return list(read)


def _strictly_follows(own: Step, where: ConditionContext, form: SequenceForm) -> bool:
    """`[a] next [b] next [c]`: the events are neighbours, so no other ones could have been taken."""
    if where.having or where.index is None:
        return False
    upto = [step for step in form.steps[: where.index + 1] if step.kind is not StepKind.ABSENT]
    chain = upto[1:] if own.kind is not StepKind.ABSENT else upto
    return bool(chain) and all(step.next and not step.repeated for step in chain) and not upto[0].repeated


def _by_hint(part: Expr, form: SequenceForm) -> str | None:
    """For `x == step.x`: make it part of the key."""
    if not isinstance(part, Binary) or part.op != "==":
        return None
    here, there = (part.left, part.right) if isinstance(part.right, OfStep) else (part.right, part.left)
    if not isinstance(here, Field) or not isinstance(there, OfStep) or not isinstance(there.value, Field):
        return None
    if here.path.startswith("@") or there.value.path.startswith("@"):
        return None
    before = ", ".join(key.name for key in form.by)
    lead = f"{before}, " if before else ""
    if here == there.value:
        return f"make it part of the key: `sequence by {lead}{here.path}`, or write `overlap=all`"
    return (
        f"make it part of the key: `by {lead}{there.value.path}` on `{there.step}` and `by {lead}{here.path}` here, "
        "or write `overlap=all`"
    )


# ---------------------------------------------------------------- repeated steps


def _check_repeated(form: SequenceForm, found: list[ConditionContext], shown: list[Expr], notes: LintFindings) -> None:
    repeated = {str(step.name): step for step in form.steps if step.repeated}
    told: set[tuple[str, Expr]] = set()
    for expr, own in _readers(form, found, shown):
        for item in walk(expr):
            if not isinstance(item, OfStep) or item.step not in repeated or item.step == own:
                continue
            if (item.step, item.value) not in told:
                told.add((item.step, item.value))
                _report_repeated(item, notes)


def _readers(form: SequenceForm, found: list[ConditionContext], shown: list[Expr]) -> Iterator[tuple[Expr, str | None]]:
    for where in found:
        yield where.condition, form.steps[where.index].name if where.index is not None else None
    for expr in shown:
        yield expr, None


def _report_repeated(item: OfStep, notes: LintFindings) -> None:
    text = unparse(item)
    notes.add(
        "last-of-repeated",
        f"`{item.step}` is repeated, and `{text}` reads only its last event",
        item.span,
        f"write `last({text})` if that is meant, or first(...), min(...), max(...), sum(...), distinct(...)",
    )


# ---------------------------------------------------------------- not


def _check_not(part: Expr, parts: list[Expr], scope: Scope, notes: LintFindings) -> None:
    for item in _negations(part):
        inner = item.operand if isinstance(item, Unary) else In(item.operand, item.items, False, item.ignore_case)
        others = [other for other in parts if other is not part]
        missing = [
            name
            for name in _may_be_missing(inner, scope)
            if not implies(others, Binary("!=", name, Literal(None)), scope)
        ]
        if missing:
            _report_not(item, inner, missing[0], notes)


def _negations(expr: Expr) -> Iterator[Unary | In]:
    for item in walk(expr):
        if (isinstance(item, Unary) and item.op == "not") or (isinstance(item, In) and item.negated):
            yield item


def _may_be_missing(expr: Expr, scope: Scope) -> Iterator[Expr]:
    """The fields that decide by being missing; what asks for null itself, or gives a default, knows."""
    match expr:
        case Field(path):
            if not path.startswith("@") and expr not in scope.present:
                yield expr
        case Literal() | Aggregate() | Call("coalesce"):
            return
        case Binary("==" | "!=", left, right) if Literal(None) in (left, right):
            return
        case Unary("not"):
            return  # it is looked at by itself
        case OfStep():
            if expr not in scope.present:
                yield expr
        case History(function, value):
            if function == "seen" and value is not None:
                yield from _may_be_missing(value, scope)
        case _:
            for child in children(expr):
                yield from _may_be_missing(child, scope)


def _report_not(item: Unary | In, inner: Expr, missing: Expr, notes: LintFindings) -> None:
    name = unparse(missing)
    compared = isinstance(item, Unary) and isinstance(inner, Binary | TextMatch)
    hint = f"where that is not meant, add `{name} != null`"
    if isinstance(inner, Binary) and inner.op == "==":
        hint = f"`{unparse(Binary('!=', inner.left, inner.right))}` is false where it is missing"
    text = f"`{unparse(item)}` is true also where `{name}` is missing"
    notes.add("not-of-missing" if compared else "not-in-missing", text, item.span, hint)


# ---------------------------------------------------------------- division


def _check_division(expr: Expr, parts: list[Expr], where: ConditionContext | None, notes: LintFindings) -> None:
    for item in _divisions(expr):
        times = [inner for inner in walk(item.right) if isinstance(inner, Binary) and is_difference(inner)]
        if not times or (where is not None and _is_kept_apart(times[0], parts, where, notes)):
            continue
        text = f"`{unparse(times[0])}` is 0 for two events of one moment; a division by 0 is null"
        hint = (
            "multiply instead, as in `km > 900 * (@time - a.@time) / 1h`"
            if where
            else "give a default: coalesce(..., 0)"
        )
        notes.add("division-by-time", text, item.span, hint)


def _divisions(expr: Expr) -> Iterator[Binary]:
    """Those for which nobody has thought of null: what stands in coalesce(...) has its default."""
    if isinstance(expr, Call) and expr.function == "coalesce":
        return
    if isinstance(expr, Binary) and expr.op in ("/", "%"):
        yield expr
    for child in children(expr):
        yield from _divisions(child)


def _is_kept_apart(difference: Binary, parts: list[Expr], where: ConditionContext, notes: LintFindings) -> bool:
    """Whether `after`, or another part of the condition, makes sure that the two times differ."""
    form = notes.rule.form
    if isinstance(form, SequenceForm) and where.index is not None and (form.steps[where.index].after_ms or 0) > 0:
        return True
    zero = Literal(0)
    apart = (
        Binary("!=", difference, zero),
        Binary(">", difference, zero),
        Binary("!=", difference.left, difference.right),
    )
    return any(implies(parts, condition, where.scope) for condition in apart)
