"""Lint of conditions: what can never be true, what always is, what changes nothing, and what surprises."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations

from samovar.patterns.analysis.lint.catalog import ConditionContext, LintFindings
from samovar.patterns.analysis.satisfiability import Scope, implies, satisfiable
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.tree import children, flatten, walk
from samovar.patterns.syntax.unparse import is_difference, unparse

# Every two parts are held against each other; a longer chain is generated, and nobody reads hints on it.
MAX_PARTS = 24


def check_conditions(found: list[ConditionContext], notes: LintFindings) -> None:
    """Looks at every condition of a rule, and at what it shows."""
    form = notes.rule.form
    for where in found:
        for part in walk(where.condition):
            if isinstance(part, tree.History) and part.where is not None:
                _check_truth(part.where, (), where.scope, notes)
        _check_truth(where.condition, where.facts, where.scope, notes)
    for where in found:
        parts = flatten(where.condition, "and")
        for part in parts:
            if isinstance(form, tree.SequenceForm) and form.overlap is tree.Overlap.LATEST:
                _check_across(part, where, form, notes)
            _check_not(part, parts, where.scope, notes)
            _check_division(part, parts, where, notes)
    for expr in notes.rule.shown:
        _check_division(expr, [], None, notes)
    if isinstance(form, tree.SequenceForm):
        _check_repeated(form, found, notes)


def _check_truth(condition: tree.Expr, facts: tuple[tree.Expr, ...], scope: Scope, notes: LintFindings) -> None:
    parts = flatten(condition, "and")
    if condition == tree.Literal(True) or len(parts) > MAX_PARTS:
        return
    if not satisfiable(parts, scope):
        _report_clash(condition, parts, scope, notes)
        return
    if not satisfiable((*facts, *parts), scope):
        text, where = "together with the conditions of the steps before, this is never true", condition.span
        clashes = ((part, fact) for part in parts for fact in facts if not satisfiable([fact, part], scope))
        for part, fact in clashes:
            text = f"`{unparse(part)}` is never true, because of the step before it `{unparse(fact)}`"
            where = part.span
            break
        notes.add("never-true", text, where)
        return
    idle = [part for part in parts if part == tree.Literal(True) or implies([], part, scope)]
    for part in idle:
        if part != tree.Literal(True):
            notes.add("always-true", f"`{unparse(part)}` is always true", part.span, "leave it out")
    parts = [part for part in parts if part not in idle]
    for part in parts:
        alternatives = flatten(part, "or")
        if not 1 < len(alternatives) <= MAX_PARTS:
            continue
        others = [other for other in parts if other is not part]
        for alternative in alternatives:
            if not satisfiable([*others, alternative], scope):
                suffix = " next to the rest of the condition" if satisfiable([alternative], scope) else ""
                notes.add("never-true", f"`{unparse(alternative)}` is never true{suffix}", alternative.span)
        swapped = [(wide, narrow) for narrow, wide in _implied_pairs(alternatives, scope)]
        _report_covered(swapped, "leave it out, or did you mean `and`?", notes)
    _report_covered(_implied_pairs(parts, scope), "leave it out", notes)


def _report_clash(condition: tree.Expr, parts: list[tree.Expr], scope: Scope, notes: LintFindings) -> None:
    for part in parts:
        if not satisfiable([part], scope):
            of_type = any(item == tree.Field("@type") for item in walk(part)) and "any" not in scope.types
            hint = f"the bracket takes only events of type `{scope.types[0]}`" if of_type else None
            notes.add("never-true", f"`{unparse(part)}` is never true", part.span, hint)
            return
    for one, two in combinations(parts, 2):
        if not satisfiable([one, two], scope):
            text = f"`{unparse(one)}` and `{unparse(two)}` are never true of one event"
            notes.add("never-true", text, two.span, "for either of them write `or`; for two events write two steps")
            return
    notes.add("never-true", "the parts of this condition are never true together", condition.span)


def _implied_pairs(parts: list[tree.Expr], scope: Scope) -> list[tuple[tree.Expr, tree.Expr]]:
    """Pairs of which the first implies the second; of two that say the same, only the later is second."""
    pairs = []
    for (at, one), (place, two) in permutations(enumerate(parts), 2):
        same = one == two or (at > place and implies([two], one, scope))
        if satisfiable([one], scope) and implies([one], two, scope) and not (same and at > place):
            pairs.append((one, two))
    return pairs


def _report_covered(pairs: list[tuple[tree.Expr, tree.Expr]], hint: str, notes: LintFindings) -> None:
    seen: list[tree.Expr] = []
    for strong, weak in pairs:
        if not any(weak is known for known in seen):
            seen.append(weak)
            text = f"`{unparse(weak)}` changes nothing next to `{unparse(strong)}`"
            notes.add("covered-condition", text, weak.span, hint)


def _check_across(part: tree.Expr, where: ConditionContext, form: tree.SequenceForm, notes: LintFindings) -> None:
    """Of a condition under `latest`: the steps that it reads and that could have been others, had they been kept."""
    taken = form.taken
    own = form.steps[where.index] if where.index is not None else taken[-1]
    if not where.having and where.index is not None:
        # `[a] next [b] next [c]`: the events are neighbours, so no other ones could have been taken.
        upto = [step for step in form.steps[: where.index + 1] if step.kind is not tree.StepKind.ABSENT]
        chain = upto[1:] if own.kind is not tree.StepKind.ABSENT else upto
        if chain and all(step.next and not step.repeated for step in chain) and not upto[0].repeated:
            return
    names = {name: step for step in taken for name, _ in step.readings}
    read: dict[str, None] = {}
    for item in walk(part):
        name = item.step if isinstance(item, tree.OfStep) else item.target if isinstance(item, tree.Aggregate) else None
        bag = isinstance(item, tree.Aggregate) and names.get(str(name)) is taken[0] and taken[0].repeated
        if name in names and names[name] is not own and not bag:
            read[name] = None
    if read:
        listed = " and ".join(f"`{name}`" for name in read)
        text = f"`overlap=latest` keeps only the newest start, so a match that needs an older {listed} is missed"
        notes.add("across-steps", text, part.span, _by_hint(part, form) or "write `overlap=all`")


def _by_hint(part: tree.Expr, form: tree.SequenceForm) -> str | None:
    """For `x == step.x`: make it part of the key."""
    lead = "".join(f"{key.name}, " for key in form.by)
    match part:
        case tree.Binary("==", tree.Field() as here, tree.OfStep(step, tree.Field() as there)):
            pass
        case tree.Binary("==", tree.OfStep(step, tree.Field() as there), tree.Field() as here):
            pass
        case _:
            return None
    if here.path.startswith("@") or there.path.startswith("@"):
        return None
    if here == there:
        return f"make it part of the key: `sequence by {lead}{here.path}`, or write `overlap=all`"
    return (
        f"make it part of the key: `by {lead}{there.path}` on `{step}` and `by {lead}{here.path}` here, "
        "or write `overlap=all`"
    )


def _check_repeated(form: tree.SequenceForm, found: list[ConditionContext], notes: LintFindings) -> None:
    repeated = {str(step.name) for step in form.steps if step.repeated}
    readers = [(each.condition, None if each.index is None else form.steps[each.index].name) for each in found]
    told: set[tuple[str, tree.Expr]] = set()
    for expr, own in [*readers, *((expr, None) for expr in notes.rule.shown)]:
        for item in walk(expr):
            if not isinstance(item, tree.OfStep) or item.step not in repeated or item.step == own:
                continue
            if (item.step, item.value) not in told:
                told.add((item.step, item.value))
                text = f"`{item.step}` is repeated, and `{unparse(item)}` reads only its last event"
                last = f"last({unparse(item)})"
                hint = f"write `{last}` if that is meant, or first(...), min(...), max(...), sum(...), distinct(...)"
                notes.add("last-of-repeated", text, item.span, hint)


def _check_not(part: tree.Expr, parts: list[tree.Expr], scope: Scope, notes: LintFindings) -> None:
    others = [other for other in parts if other is not part]
    for item in walk(part):
        match item:
            case tree.Unary("not", inner):
                pass
            case tree.In(operand, items, True, ignore_case):
                inner = tree.In(operand, items, False, ignore_case)
            case _:
                continue
        fields = _may_be_missing(inner, scope)
        missing = [each for each in fields if not implies(others, tree.Binary("!=", each, tree.Literal(None)), scope)]
        if not missing:
            continue
        name = unparse(missing[0])
        hint = f"where that is not meant, add `{name} != null`"
        if isinstance(inner, tree.Binary) and inner.op == "==":
            hint = f"`{unparse(tree.Binary('!=', inner.left, inner.right))}` is false where it is missing"
        text = f"`{unparse(item)}` is true also where `{name}` is missing"
        compared = isinstance(item, tree.Unary) and isinstance(inner, tree.Binary | tree.TextMatch)
        notes.add("not-of-missing" if compared else "not-in-missing", text, item.span, hint)


def _may_be_missing(expr: tree.Expr, scope: Scope) -> Iterator[tree.Expr]:
    """The fields that decide by being missing; what asks for null itself, or gives a default, knows."""
    match expr:
        case tree.Field(path) if not path.startswith("@") and expr not in scope.present:
            yield expr
        case tree.Field() | tree.Literal() | tree.Aggregate() | tree.Call("coalesce"):
            return
        case tree.Binary("==" | "!=", left, right) if tree.Literal(None) in (left, right):
            return
        case tree.Unary("not"):
            return  # it is looked at by itself
        case tree.OfStep():
            if expr not in scope.present:
                yield expr
        case tree.History(function, value):
            if function == "seen" and value is not None:
                yield from _may_be_missing(value, scope)
        case _:
            for child in children(expr):
                yield from _may_be_missing(child, scope)


def _check_division(
    expr: tree.Expr, parts: list[tree.Expr], where: ConditionContext | None, notes: LintFindings
) -> None:
    """Divisions by a time difference for which nobody has thought of null: inside coalesce(...) there is a default."""
    if isinstance(expr, tree.Call) and expr.function == "coalesce":
        return
    if isinstance(expr, tree.Binary) and expr.op in ("/", "%"):
        times = [inner for inner in walk(expr.right) if isinstance(inner, tree.Binary) and is_difference(inner)]
        if times and (where is None or not _is_kept_apart(times[0], parts, where, notes)):
            text = f"`{unparse(times[0])}` is 0 for two events of one moment; a division by 0 is null"
            hint = "multiply instead, as in `km > 900 * (@time - a.@time) / 1h`"
            notes.add("division-by-time", text, expr.span, hint if where else "give a default: coalesce(..., 0)")
    for child in children(expr):
        _check_division(child, parts, where, notes)


def _is_kept_apart(
    difference: tree.Binary, parts: list[tree.Expr], where: ConditionContext, notes: LintFindings
) -> bool:
    """Whether `after`, or another part of the condition, makes sure that the two times differ."""
    form = notes.rule.form
    if isinstance(form, tree.SequenceForm) and where.index is not None and (form.steps[where.index].after_ms or 0) > 0:
        return True
    zero = tree.Literal(0)
    differs = tree.Binary("!=", difference.left, difference.right)
    apart = tree.Binary("!=", difference, zero), tree.Binary(">", difference, zero), differs
    return any(implies(parts, condition, where.scope) for condition in apart)
