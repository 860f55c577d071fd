"""What a condition read: the kernel notes the values of its leaves in order, and here they get their names back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from samovar.native.kernel import Other
from samovar.patterns.syntax.tree import (
    Aggregate,
    Binary,
    Call,
    Expr,
    Field,
    History,
    In,
    Literal,
    LongList,
    OfStep,
    TextMatch,
    Unary,
    walk,
)
from samovar.patterns.syntax.unparse import unparse

Shows: TypeAlias = Callable[[Expr], bool]  # whether an expression, and what it gives, may be told


def shows_all(_: Expr) -> bool:
    return True


def leaves(expr: Expr) -> list[Expr]:
    """What a condition reads, in the order in which the kernel notes the values."""
    match expr:
        case Field() | OfStep() | Aggregate() | History():
            return [expr]
        case Binary("==" | "!=", left, right) if Literal(None) in (left, right):
            return leaves(left if right == Literal(None) else right)
        case Binary(_, left, right):
            return leaves(left) + leaves(right)
        case Unary(_, operand) | TextMatch(_, operand):
            return leaves(operand)
        case In(operand, items):
            inner = items if isinstance(items, tuple) and not isinstance(items, LongList) else ()
            return leaves(operand) + [leaf for item in inner for leaf in leaves(item)]
        case Call(_, args):
            return [leaf for arg in args for leaf in leaves(arg)]
    return []


def leaves_of_match(expr: Expr) -> list[Expr]:
    """The same for `having`, where an expression over the last event alone is read as a whole."""
    if not any(isinstance(part, OfStep | Aggregate) for part in walk(expr)) and leaves(expr):
        return [expr]
    match expr:
        case Binary("==" | "!=", left, right) if Literal(None) in (left, right):
            return leaves_of_match(left if right == Literal(None) else right)
        case Binary(_, left, right):
            return leaves_of_match(left) + leaves_of_match(right)
        case Unary(_, operand) | TextMatch(_, operand):
            return leaves_of_match(operand)
        case In(operand, items):
            inner = items if isinstance(items, tuple) and not isinstance(items, LongList) else ()
            return leaves_of_match(operand) + [leaf for item in inner for leaf in leaves_of_match(item)]
        case Call(_, args):
            return [leaf for arg in args for leaf in leaves_of_match(arg)]
    return leaves(expr)


def read_text(expr: Expr, read: Sequence[Any], of_match: bool = False, shows: Shows = shows_all) -> str:
    """`amount > 200` (amount is 35). Of a condition that may not be told, only which fields it is on."""
    if not shows(expr):
        paths = dict.fromkeys(part.path for part in walk(expr) if isinstance(part, Field))
        return f"a condition on {', '.join(paths)}"
    parts = leaves_of_match(expr) if of_match else leaves(expr)
    told = zip(parts, read, strict=False)
    shown = {unparse(part): value_text(value) if shows(part) else "hidden" for part, value in told}
    values = ", ".join(f"{name} is {value}" for name, value in shown.items() if name != unparse(expr))
    return f"`{unparse(expr)}`" + (f" ({values})" if values else "")


def value_text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Other):
        value = value.json
    text = f'"{value}"' if isinstance(value, str) else f"{value:g}" if _is_round(value) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_round(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer() and abs(value) < 1e6
