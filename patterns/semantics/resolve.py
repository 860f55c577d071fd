"""The raw tree to the resolved one, expression by expression, with the kinds of all values on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from samovar.patterns.semantics.calls import resolve_call, resolve_history
from samovar.patterns.semantics.names import resolve_name
from samovar.patterns.semantics.scope import CheckerContext, ExpressionContext, TooLarge, Typed, where
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.functions import ANY, BOOLEAN, LIST, NULL, NUMBER, TEXT

_ORDER = ("<", "<=", ">", ">=")
_COMPARISONS = ("==", "!=", *_ORDER)


def resolve(node: tree.Expr, place: ExpressionContext, bench: CheckerContext) -> Typed:
    with bench.inside(where(node.span, place)):
        return _RESOLVERS[type(node)](node, place, bench)


def resolve_guarded(
    node: tree.Expr, place: ExpressionContext, bench: CheckerContext, condition: bool = False
) -> tree.Expr:
    """As `resolve`, for a whole expression; one that grows without bound becomes a finding."""
    try:
        expr, kind = resolve(node, place, bench)
        if condition:
            require_boolean(expr, kind, node.span, bench)
        return expr
    except TooLarge as fault:
        if not bench.exhausted:
            hint = "let definitions that use each other multiply: make them simpler"
            bench.report.error("too-large", "the rule is too large once `let` is written out", fault.span, hint=hint)
        bench.exhausted = True
        return tree.Literal(True, node.span)


def require_boolean(expr: tree.Expr, kind: str, span: tree.Span, bench: CheckerContext) -> None:
    if kind in (BOOLEAN, ANY):
        return
    hint = "compare it, as in `... > 0`" if kind == NUMBER else None
    if kind == TEXT and not isinstance(expr, tree.Literal):
        hint = 'compare it, as in `... == "text"` or `... != null`'
    message = f"a condition must be true or false; this is {_named(kind)}"
    bench.report.error("not-a-condition", message, span, expected="a comparison", hint=hint)


def _literal(node: tree.Literal, place: ExpressionContext, _: CheckerContext) -> Typed:
    kind = {type(None): NULL, bool: BOOLEAN, str: TEXT}.get(type(node.value), NUMBER)
    return (node if place.at is None else tree.Literal(node.value, place.at)), kind


def _unary(node: tree.Unary, place: ExpressionContext, bench: CheckerContext) -> Typed:
    operand, kind = resolve(node.operand, place, bench)
    span = where(node.span, place)
    if node.op == "not":
        require_boolean(operand, kind, operand.span, bench)
        return tree.Unary("not", operand, span), BOOLEAN
    _require_number(kind, "-", operand.span, bench)
    return tree.Unary("-", operand, span), NUMBER


def _binary(node: tree.Binary, place: ExpressionContext, bench: CheckerContext) -> Typed:
    left, left_kind = resolve(node.left, place, bench)
    right, right_kind = resolve(node.right, place, bench)
    expr = tree.Binary(node.op, left, right, where(node.span, place), where(node.op_span, place))
    if node.op in ("and", "or"):
        require_boolean(left, left_kind, left.span, bench)
        require_boolean(right, right_kind, right.span, bench)
        return expr, BOOLEAN
    if node.op in _COMPARISONS:
        kinds = (left_kind, right_kind)
        if NULL in kinds and node.op in _ORDER:
            hint = "`== null` and `!= null` ask for null"
            bench.report.warning("null-order", f"`{node.op} null` is never true", expr.span, hint=hint)
        elif NULL not in kinds and (_mismatched(*kinds) or LIST in kinds):
            message, tip = f"{_named(left_kind)} is compared with {_named(right_kind)}", _mismatch_hint(expr, *kinds)
            expected = f"{_named(left_kind)} on both sides"
            bench.report.error("type-mismatch", message, expr.span, expected=expected, hint=tip)
        return expr, BOOLEAN
    _require_number(left_kind, node.op, left.span, bench)
    _require_number(right_kind, node.op, right.span, bench)
    return expr, NUMBER


def _require_number(kind: str, op: str, span: tree.Span, bench: CheckerContext) -> None:
    if kind in (NUMBER, ANY, NULL):
        return
    tip = "texts are joined by concat(a, b)" if op == "+" else "number(...) turns text into a number"
    message = f"`{op}` takes numbers; this is {_named(kind)}"
    bench.report.error("not-a-number", message, span, expected="a number", hint=tip if kind == TEXT else None)


def _mismatched(left: str, right: str) -> bool:
    return ANY not in (left, right) and NULL not in (left, right) and left != right


def _mismatch_hint(node: tree.Binary, left: str, right: str) -> str | None:
    for value, kind, other in ((node.right, right, left), (node.left, left, right)):
        if not isinstance(value, tree.Literal):
            continue
        if other == TEXT:
            text = str(value.value).lower() if isinstance(value.value, bool) else value.value
            return f'write it as text: "{text}"'
        if kind == TEXT and other == NUMBER and _is_number(str(value.value)):
            return f"write it without quotes: {value.value}"
        if kind == TEXT and other == BOOLEAN and str(value.value).lower() in ("true", "false"):
            return f"write it without quotes: {str(value.value).lower()}"
    return (
        "number(...) turns text into a number, string(...) a number into text" if BOOLEAN not in (left, right) else None
    )


def _is_number(text: str) -> bool:
    try:
        float(text[:400])
    except ValueError:
        return False
    return True


def _named(kind: str) -> str:
    return {"number": "a number", "text": "text", "boolean": "true or false", "list": "a list"}.get(kind, kind)


def _in(node: tree.In, place: ExpressionContext, bench: CheckerContext) -> Typed:
    assert isinstance(node.items, tuple)
    operand, kind = resolve(node.operand, place, bench)
    items = []
    fitting: set[str] = set()  # kinds that can be compared with the operand's
    for raw in node.items:
        # A list may be long: its literals do not count as nodes, and each is looked at briefly.
        item, item_kind = _literal(raw, place, bench) if isinstance(raw, tree.Literal) else resolve(raw, place, bench)
        items.append(item)
        if item_kind not in fitting and _mismatched(kind, item_kind):
            tip = _mismatch_hint(tree.Binary("==", operand, item, item.span), kind, item_kind)
            message = f"{_named(kind)} is compared with {_named(item_kind)}"
            bench.report.error("type-mismatch", message, item.span, expected=_named(kind), hint=tip)
        else:
            fitting.add(item_kind)
    listed: tuple[tree.Expr, ...] = tuple(items)
    literals = [item for item in items if isinstance(item, tree.Literal)]
    if tree.LONG_LIST < len(items) == len(literals):
        long = tree.LongList(literals)
        listed = bench.long_lists.setdefault(long, long)
    return tree.In(operand, listed, node.negated, node.ignore_case, where(node.span, place)), BOOLEAN


def _text_match(node: tree.TextMatch, place: ExpressionContext, bench: CheckerContext) -> Typed:
    operand, kind = resolve(node.operand, place, bench)
    span = where(node.span, place)
    if kind in (NUMBER, BOOLEAN):
        hint = "compare it with == or <"
        bench.report.warning("pattern-on-number", f"`{node.kind}` on {_named(kind)} is never true", span, hint=hint)
    return tree.TextMatch(node.kind, operand, node.patterns, node.ignore_case, span), BOOLEAN


_RESOLVERS: dict[type, Callable[[Any, ExpressionContext, CheckerContext], Typed]] = {
    tree.Literal: _literal,
    tree.Name: resolve_name,
    tree.Unary: _unary,
    tree.Binary: _binary,
    tree.In: _in,
    tree.TextMatch: _text_match,
    tree.Call: resolve_call,
    tree.History: resolve_history,
}
