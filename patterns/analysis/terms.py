"""What a condition tests: comparisons with constants, patterns, null; and arithmetic between constants."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import fmod, isfinite
from operator import eq, ge, gt, le, lt, ne
from typing import Any, TypeAlias

from samovar.patterns.engine.scalars import fold_text, regex_search
from samovar.patterns.syntax.tree import (
    Binary,
    Call,
    Expr,
    In,
    Literal,
    LongList,
    Scalar,
    TextMatch,
    Unary,
)

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


# ---------------------------------------------------------------- values and tests


@dataclass(frozen=True)
class SomeText:
    """A text that no constant is equal to, and that fits these patterns; with text=False a list or an object."""

    fits: frozenset[TextTest]
    text: bool = True


Value: TypeAlias = Scalar | SomeText


@dataclass(frozen=True)
class Compare:
    op: str
    constant: Scalar

    def passes(self, value: Value) -> bool:
        if value is None or self.constant is None:
            return False
        if isinstance(value, SomeText) or _kind(value) != _kind(self.constant):
            return self.op == "!="
        return _OPERATORS[self.op](value, self.constant)

    def constants(self) -> Iterable[Scalar]:
        return (self.constant,)


@dataclass(frozen=True)
class Among:
    values: tuple[Scalar, ...]

    def passes(self, value: Value) -> bool:
        return any(Compare("==", item).passes(value) for item in self.values)

    def constants(self) -> Iterable[Scalar]:
        return self.values


@dataclass(frozen=True)
class IsNull:
    def passes(self, value: Value) -> bool:
        return value is None

    def constants(self) -> Iterable[Scalar]:
        return ()


@dataclass(frozen=True)
class IsTrue:
    def passes(self, value: Value) -> bool:
        return value is True

    def constants(self) -> Iterable[Scalar]:
        return ()


@dataclass(frozen=True)
class TextTest:
    """A pattern: like, like~, regex, regex~, in~, starts_with, ends_with, contains, order (a sign and a text)."""

    kind: str
    patterns: tuple[str, ...]

    def passes(self, value: Value) -> bool:
        if isinstance(value, SomeText):
            return self in value.fits
        return isinstance(value, str) and _fits(self.kind, self.patterns, value)

    def constants(self) -> Iterable[Scalar]:
        return ()

    def prefix(self) -> str | None:
        """How every text that fits begins, where that is one beginning."""
        if len(self.patterns) != 1:
            return None
        if self.kind == "starts_with":
            return self.patterns[0]
        return re.split(r"[*?]", self.patterns[0])[0] if self.kind == "like" else None


Test: TypeAlias = Compare | Among | IsNull | IsTrue | TextTest


def text_test(expr: Expr) -> tuple[Expr, TextTest] | None:
    """The term and the pattern of a test on text; None where the expression is none."""
    match expr:
        case TextMatch(kind, operand, patterns, ignore_case):
            return operand, TextTest(kind + "~" * ignore_case, patterns)
        case Call("starts_with" | "ends_with" | "contains" as kind, (operand, Literal(str() as text))):
            return operand, TextTest(kind, (text,))
    return None


def _fits(kind: str, patterns: tuple[str, ...], text: str) -> bool:
    match kind:
        case "like" | "like~":
            fold = fold_text if kind == "like~" else str
            return any(_like(fold(pattern), fold(text)) for pattern in patterns)
        case "regex" | "regex~":
            return regex_search(patterns, kind == "regex~")(text) is True
        case "in~":
            return fold_text(text) in set(map(fold_text, patterns))
        case "starts_with":
            return text.startswith(patterns)
        case "ends_with":
            return text.endswith(patterns)
        case "order":
            return _OPERATORS[patterns[0]](text, patterns[1])
    return any(pattern in text for pattern in patterns)


def _like(pattern: str, text: str) -> bool:
    """Whole text, `*` any run of characters, `?` one: two places and the last star to go back to."""
    at = place = 0
    star, taken = -1, 0
    while place < len(text):
        if at < len(pattern) and pattern[at] == "*":
            star, taken, at = at, place, at + 1
        elif at < len(pattern) and pattern[at] in ("?", text[place]):
            at, place = at + 1, place + 1
        elif star >= 0:
            taken += 1
            at, place = star + 1, taken
        else:
            return False
    return not pattern[at:].strip("*")


def _kind(value: Scalar) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "text" if isinstance(value, str) else "number"


# ---------------------------------------------------------------- arithmetic with constants


def folded(expr: Expr) -> Expr:
    """The expression with arithmetic between constants done."""
    match expr:
        case Binary(op, left, right):
            left, right = folded(left), folded(right)
            constant = op in "+-*/%" and isinstance(left, Literal) and isinstance(right, Literal)
            if constant and isinstance(left, Literal) and isinstance(right, Literal):
                return Literal(_arithmetic(op, left.value, right.value), expr.span)
            return replace(expr, left=left, right=right)
        case Unary("-", operand):
            operand = folded(operand)
            if isinstance(operand, Literal):
                return Literal(_arithmetic("-", 0, operand.value), expr.span)
            return replace(expr, operand=operand)
        case Unary("not", operand):
            return replace(expr, operand=folded(operand))
        case In(operand, LongList()):
            return replace(expr, operand=folded(operand))
        case In(operand, tuple() as items):
            return replace(expr, operand=folded(operand), items=tuple(folded(item) for item in items))
    return expr


def _arithmetic(op: str, left: Scalar, right: Scalar) -> Scalar:
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    if not numbers or isinstance(left, bool) or isinstance(right, bool):
        return None
    assert isinstance(left, int | float)
    assert isinstance(right, int | float)
    if op in "/%" and right == 0:
        return None
    try:
        result = {"+": left + right, "-": left - right, "*": left * right}.get(op)
        if result is None:
            result = left / right if op == "/" else fmod(left, right)
    except OverflowError:
        return None
    return result if isfinite(result) else None
