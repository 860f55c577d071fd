"""Lint of single conditions: what can never be true, what always is, and what changes nothing."""

from __future__ import annotations

from itertools import combinations, permutations

from samovar.patterns.analysis.domains import Scope
from samovar.patterns.analysis.lint.catalog import LintFindings
from samovar.patterns.analysis.lint.contexts import ConditionContext
from samovar.patterns.analysis.satisfiability import implies, satisfiable
from samovar.patterns.engine.compile import flatten
from samovar.patterns.syntax.tree import Expr, Field, History, Literal, walk
from samovar.patterns.syntax.unparse import unparse

# Every two parts are held against each other; a longer chain is generated, and nobody reads hints on it.
MAX_PARTS = 24


def check_condition(where: ConditionContext, notes: LintFindings) -> None:
    for part in walk(where.condition):
        if isinstance(part, History) and part.where is not None:
            _check(part.where, (), where.scope, notes)
    _check(where.condition, where.facts, where.scope, notes)


def _check(condition: Expr, facts: tuple[Expr, ...], scope: Scope, notes: LintFindings) -> None:
    parts = flatten(condition, "and")
    if condition == Literal(True) or len(parts) > MAX_PARTS:
        return
    if not satisfiable(parts, scope):
        _report_clash(condition, parts, scope, notes)
    elif not satisfiable((*facts, *parts), scope):
        _report_clash_with_steps(condition, parts, facts, scope, notes)
    else:
        _check_parts(parts, scope, notes)


def _report_clash(condition: Expr, parts: list[Expr], scope: Scope, notes: LintFindings) -> None:
    for part in parts:
        if not satisfiable([part], scope):
            notes.add("never-true", f"`{unparse(part)}` is never true", part.span, _never_hint(part, scope))
            return
    for one, two in combinations(parts, 2):
        if not satisfiable([one, two], scope):
            message = f"`{unparse(one)}` and `{unparse(two)}` are never true of one event"
            notes.add("never-true", message, two.span, "for either of them write `or`; for two events write two steps")
            return
    notes.add("never-true", "the parts of this condition are never true together", condition.span)


def _never_hint(part: Expr, scope: Scope) -> str | None:
    reads_type = any(item == Field("@type") for item in walk(part))
    if reads_type and "any" not in scope.types:
        return f"the bracket takes only events of type `{scope.types[0]}`"
    return None


def _report_clash_with_steps(
    condition: Expr, parts: list[Expr], facts: tuple[Expr, ...], scope: Scope, notes: LintFindings
) -> None:
    for part in parts:
        for fact in facts:
            if not satisfiable([fact, part], scope):
                text = f"`{unparse(part)}` is never true, because of the step before it `{unparse(fact)}`"
                notes.add("never-true", text, part.span)
                return
    notes.add("never-true", "together with the conditions of the steps before, this is never true", condition.span)


def _check_parts(parts: list[Expr], scope: Scope, notes: LintFindings) -> None:
    idle = [part for part in parts if part == Literal(True) or implies([], part, scope)]
    for part in idle:
        if part != Literal(True):
            notes.add("always-true", f"`{unparse(part)}` is always true", part.span, "leave it out")
    parts = [part for part in parts if part not in idle]
    for part in parts:
        _check_alternatives(part, [other for other in parts if other is not part], scope, notes)
    _check_covered(parts, scope, notes)


def _check_alternatives(part: Expr, others: list[Expr], scope: Scope, notes: LintFindings) -> None:
    alternatives = flatten(part, "or")
    if not 1 < len(alternatives) <= MAX_PARTS:
        return
    for alternative in alternatives:
        if not satisfiable([*others, alternative], scope):
            beside = " next to the rest of the condition" if satisfiable([alternative], scope) else ""
            notes.add("never-true", f"`{unparse(alternative)}` is never true{beside}", alternative.span)
    _report_covered([(wide, narrow) for narrow, wide in _implied(alternatives, scope)], "or", notes)


def _check_covered(parts: list[Expr], scope: Scope, notes: LintFindings) -> None:
    _report_covered(_implied(parts, scope), "and", notes)


def _implied(parts: list[Expr], scope: Scope) -> list[tuple[Expr, Expr]]:
    """Pairs of which the first implies the second; of two that say the same, only the later is second."""
    pairs = []
    for (at, one), (place, two) in permutations(enumerate(parts), 2):
        same = one == two or (at > place and implies([two], one, scope))
        if satisfiable([one], scope) and implies([one], two, scope) and not (same and at > place):
            pairs.append((one, two))
    return pairs


def _report_covered(pairs: list[tuple[Expr, Expr]], op: str, notes: LintFindings) -> None:
    seen: list[Expr] = []
    for strong, weak in pairs:
        if any(weak is known for known in seen):
            continue
        seen.append(weak)
        text = f"`{unparse(weak)}` changes nothing next to `{unparse(strong)}`"
        hint = "leave it out" if op == "and" else "leave it out, or did you mean `and`?"
        notes.add("covered-condition", text, weak.span, hint)
