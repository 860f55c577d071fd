"""An expression as a rule author would write it: for findings, drawings and explanations."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from samovar.common.times import UNITS, duration_text
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.tree import walk

# The tighter a sign binds, the higher its number; a part that binds less than its place needs brackets.
_BINDING = {"or": 1, "and": 2, "==": 4, "!=": 4, "<": 4, "<=": 4, ">": 4, ">=": 4}
_BINDING |= {"+": 5, "-": 5, "*": 6, "/": 6, "%": 6}
_NOT, _COMPARISON, _SIGN, _ATOM = 3, 4, 7, 8
_SHOWN_ITEMS = 6
Item = TypeVar("Item")
_PLAIN_NAME = re.compile(r"[@?]?[^\W\d][\w@-]*(\.[@\w-]+)*\Z")


def unparse(expr: tree.Expr) -> str:
    """The text of an expression; long lists are cut.

    >>> unparse(tree.Binary("and", tree.Binary("<", tree.Field("amount"), tree.Literal(2)), tree.Field("ok")))
    'amount < 2 and ok'
    """
    return _write(expr, 0)


def _write(expr: tree.Expr, place: int) -> str:
    text, binding = _parts(expr)
    return f"({text})" if binding < place else text


def _parts(expr: tree.Expr) -> tuple[str, int]:  # noqa: PLR0911 - one return per kind of expression
    match expr:
        case tree.Literal(value):
            return literal_text(value), _ATOM
        case tree.Field(path) | tree.Name(path):
            return name_text(path), _ATOM
        case tree.OfStep(step, value):
            return _of_step(step, value), _ATOM
        case tree.Unary("not", operand):
            return f"not {_write(operand, _NOT)}", _NOT
        case tree.Unary(_, operand):
            return f"-{_write(operand, _SIGN)}", _SIGN
        case tree.Binary(op, left, right):
            binding = _BINDING[op]
            associative = op in ("and", "or", "+", "*")
            times = (binding == _COMPARISON and is_difference(left)) or (op == "/" and any(map(is_moment, walk(left))))
            shown = _write(right, binding + (not associative))
            if times and isinstance(right, tree.Literal) and type(right.value) is int and right.value >= UNITS["s"]:
                shown = duration_text(right.value)
            return f"{_write(left, binding + (binding == _COMPARISON))} {op} {shown}", binding
        case tree.In(operand, items, negated, ignore_case):
            sign = ("not " * negated) + "in" + "~" * ignore_case
            listed = _first(items, unparse)
            return f"{_write(operand, 5)} {sign} ({listed})", _COMPARISON
        case tree.TextMatch(kind, operand, patterns, ignore_case):
            sign = kind + "~" * ignore_case
            shown = literal_text(patterns[0]) if len(patterns) == 1 else f"({_first(patterns, literal_text)})"
            return f"{_write(operand, 5)} {sign} {shown}", _COMPARISON
        case tree.Call(function, args):
            return f"{function}({', '.join(map(unparse, args))})", _ATOM
        case tree.Aggregate(function, target, value):
            inner = target or "" if value is None else unparse(value if target is None else tree.OfStep(target, value))
            return f"{function}({inner})", _ATOM
        case tree.History(function, value, span_ms, where):
            inner = "" if value is None else f"{unparse(value)}, "
            condition = "" if where is None else f" where {unparse(where)}"
            return f"{function}({inner}{duration_text(span_ms)}{condition})", _ATOM


def literal_text(value: tree.Scalar) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
        return f'"{escaped}"'
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def name_text(path: str) -> str:
    return path if _PLAIN_NAME.match(path) else f"`{path}`"


def _of_step(step: str, value: tree.Expr) -> str:
    """`probe.amount`; of a `let`, every field in it is written with the step's name."""
    if isinstance(value, tree.Field):
        return f"{step}.{name_text(value.path)}"
    match value:
        case tree.Binary(op, left, right):
            return f"({_of_step(step, left)} {op} {_of_step(step, right)})"
        case tree.Unary(op, operand):
            return f"{op} {_of_step(step, operand)}" if op == "not" else f"-{_of_step(step, operand)}"
        case tree.Call(function, args):
            return f"{function}({', '.join(_of_step(step, arg) for arg in args)})"
        case tree.Literal():
            return unparse(value)
    return f"{step}.({unparse(value)})"


def _first(items: tuple[Item, ...], text: Callable[[Item], str]) -> str:
    """All of a list, or its beginning where it is long."""
    many = len(items) > _SHOWN_ITEMS + 1
    shown = [text(item) for item in (items[:_SHOWN_ITEMS] if many else items)]
    return ", ".join([*shown, f"... {len(items) - _SHOWN_ITEMS} more"] if many else shown)


def is_difference(expr: tree.Expr) -> bool:
    """A difference of two times: what it is compared with reads best as a time."""
    return isinstance(expr, tree.Binary) and expr.op == "-" and is_moment(expr.left) and is_moment(expr.right)


def is_moment(expr: tree.Expr | None) -> bool:
    """Whether an expression is an event's time: `@time`, `a.@time`, `prev(@time, 1h)`, `max(@time)`."""
    match expr:
        case tree.Field("@time"):
            return True
        case tree.OfStep(_, value):
            return is_moment(value)
        case tree.History("prev" | "min" | "max", value) | tree.Aggregate("first" | "last" | "min" | "max", _, value):
            return is_moment(value)
    return False
