"""What a condition read: the kernel notes the values of its leaves in order, and here they get their names back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from samovar.native.kernel import Other
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.tree import walk
from samovar.patterns.syntax.unparse import unparse

Shows: TypeAlias = Callable[[tree.Expr], bool]  # whether an expression, and what it gives, may be told


def shows_all(_: tree.Expr) -> bool:
    return True


def leaves(expr: tree.Expr, of_match: bool = False) -> list[tree.Expr]:
    """What a condition reads, in the order in which the kernel notes the values.

    Of a match, as in `having`, an expression over the last event alone is read as a whole.
    """
    if of_match and not any(isinstance(part, tree.OfStep | tree.Aggregate) for part in walk(expr)) and leaves(expr):
        return [expr]
    parts: tuple[tree.Expr, ...] = ()
    match expr:
        case tree.Field() | tree.OfStep() | tree.Aggregate() | tree.History():
            return [expr]
        case tree.Binary("==" | "!=", left, right) if tree.Literal(None) in (left, right):
            parts = (left if right == tree.Literal(None) else right,)
        case tree.Binary(_, left, right):
            parts = left, right
        case tree.Unary(_, operand) | tree.TextMatch(_, operand):
            parts = (operand,)
        case tree.In(operand, items):
            parts = operand, *(items if isinstance(items, tuple) and not isinstance(items, tree.LongList) else ())
        case tree.Call(_, args):
            parts = args
    return [leaf for part in parts for leaf in leaves(part, of_match)]


def read_text(expr: tree.Expr, read: Sequence[Any], of_match: bool = False, shows: Shows = shows_all) -> str:
    """`amount > 200` (amount is 35). Of a condition that may not be told, only which fields it is on."""
    if not shows(expr):
        paths = dict.fromkeys(part.path for part in walk(expr) if isinstance(part, tree.Field))
        return f"a condition on {', '.join(paths)}"
    told = zip(leaves(expr, of_match), read, strict=False)
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
    is_round = isinstance(value, float) and value.is_integer() and abs(value) < 1e6
    text = f'"{value}"' if isinstance(value, str) else f"{value:g}" if is_round else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
