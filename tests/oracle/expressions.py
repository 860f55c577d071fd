"""The value of an expression of the resolved tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import re2

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
    TextMatch,
    Unary,
)
from tests.oracle.aggregates import aggregate
from tests.oracle.events import Event
from tests.oracle.values import FUNCTIONS, Value, calculate, compare, is_number, is_text, is_true


@dataclass(frozen=True)
class Scope:
    """What an expression may read.

    `event` is the one that plain fields are read from. `named` holds the events of each step or bracket, `events` all
    that were taken, each once. `remember` answers history functions.
    """

    event: Event | None
    named: Mapping[str, Sequence[Event]] = field(default_factory=dict)
    events: Sequence[Event] = ()
    remember: Callable[[History], Value] | None = None


def holds(condition: Expr, scope: Scope) -> bool:
    return is_true(evaluate(condition, scope))


def evaluate(expr: Expr, scope: Scope) -> Value:
    match expr:
        case Literal():
            return expr.value
        case Field():
            return None if scope.event is None else read_field(expr.path, scope.event)
        case OfStep():
            # A step's name reads its last event; a step that was skipped reads as null.
            events = scope.named.get(expr.step, ())
            return evaluate(expr.value, Scope(events[-1])) if events else None
        case Aggregate():
            return of_many(expr, scope)
        case History():
            assert scope.remember is not None, "history functions stand in bracket conditions only"
            return scope.remember(expr)
        case Unary():
            return unary(expr.op, evaluate(expr.operand, scope))
        case Binary():
            return binary(expr, scope)
        case In():
            return is_in(expr, scope) != expr.negated
        case TextMatch():
            return fits_text(expr, evaluate(expr.operand, scope))
        case Call():
            return FUNCTIONS[expr.function](*(evaluate(arg, scope) for arg in expr.args))
    raise AssertionError(f"not of the resolved tree: {expr}")


def read_field(path: str, event: Event) -> Value:
    """A dotted name is the nested field first, then a flat field of that very name. Objects and lists are not
    values.
    """
    if path == "@time":
        return event.time
    if path == "@type":
        return event.type
    value: Value = event.fields
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if value is None:
        value = event.fields.get(path)
    return None if isinstance(value, Mapping | list) else value


def of_many(expr: Aggregate, scope: Scope) -> Value:
    """`count(probe)` counts events; anything else is of the values that the events give."""
    events = scope.events if expr.target is None else scope.named.get(expr.target, ())
    if expr.value is None:
        return len(events)
    return aggregate(expr.function, [evaluate(expr.value, Scope(event)) for event in events])


def unary(op: str, value: Value) -> Value:
    """`not` of what is not true is true, also of a comparison with null."""
    if op == "not":
        return not is_true(value)
    return -value if is_number(value) else None


def binary(expr: Binary, scope: Scope) -> Value:
    match expr.op:
        case "and":
            return holds(expr.left, scope) and holds(expr.right, scope)
        case "or":
            return holds(expr.left, scope) or holds(expr.right, scope)
    left, right = evaluate(expr.left, scope), evaluate(expr.right, scope)
    if expr.op in ("==", "!=") and (is_null(expr.left) or is_null(expr.right)):
        # `f == null` asks for null; only the written null does.
        return (left is None and right is None) == (expr.op == "==")
    if expr.op in ("==", "!=", "<", "<=", ">", ">="):
        return compare(expr.op, left, right)
    return calculate(expr.op, left, right)


def is_null(expr: Expr) -> bool:
    return isinstance(expr, Literal) and expr.value is None


def is_in(expr: In, scope: Scope) -> bool:
    """Null fits no list, and a null in a list fits nothing."""
    value = evaluate(expr.operand, scope)
    assert isinstance(expr.items, tuple), "lists are inlined in the resolved tree"
    for item in expr.items:
        other = evaluate(item, scope)
        if expr.ignore_case and is_text(value) and is_text(other):
            if regex(re2.escape(other), True).fullmatch(value):
                return True
        elif compare("==", value, other):
            return True
    return False


def fits_text(expr: TextMatch, value: Value) -> bool:
    """`like` takes the whole text, `regex` searches in it. What is not text fits no pattern."""
    if not is_text(value):
        return False
    if expr.kind == "like":
        return any(like(pattern, expr.ignore_case).fullmatch(value) for pattern in expr.patterns)
    return any(regex(pattern, expr.ignore_case).search(value) for pattern in expr.patterns)


@cache
def like(pattern: str, ignore_case: bool) -> re.Pattern[str]:
    """`*` is any text, `?` any one character, everything else itself."""
    parts = {"*": ".*", "?": "."}
    return regex("(?s)" + "".join(parts.get(char, re2.escape(char)) for char in pattern), ignore_case)


@cache
def regex(pattern: str, ignore_case: bool) -> re.Pattern[str]:
    options = re2.Options()
    options.case_sensitive = not ignore_case
    compiled: re.Pattern[str] = re2.compile(pattern, options)
    return compiled
