"""What is tested in a condition, and which values a term can have: the small parts under satisfy.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil, floor, fmod, isfinite
from operator import eq, ge, gt, le, lt, ne
from typing import Any, TypeAlias

from samovar.patterns.functions import AGGREGATES, ANY, FUNCTIONS, HISTORY, NUMBER, TEXT
from samovar.patterns.scalars import regex_search
from samovar.patterns.schema import Schema
from samovar.patterns.syntax import (
    Aggregate,
    Binary,
    Call,
    Expr,
    Field,
    History,
    In,
    Literal,
    OfStep,
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
            fold = str.casefold if kind == "like~" else str
            return any(_like(fold(pattern), fold(text)) for pattern in patterns)
        case "regex" | "regex~":
            return regex_search(patterns, kind == "regex~")(text) is True
        case "in~":
            return text.casefold() in {pattern.casefold() for pattern in patterns}
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


# ---------------------------------------------------------------- which values a term can have


@dataclass
class Effort:
    """How many combinations of values may still be tried for a rule."""

    left: int = 200_000

    def spend(self, tries: int) -> bool:
        self.left -= tries
        return self.left >= 0


@dataclass(frozen=True)
class Scope:
    """What is known where a condition stands.

    `types`: the event types of the event at hand. `present`: what cannot be null there. `steps`: the types of each
    readable step. `counts`: how many events a step or bracket (None: all of them) can have. `span_ms`: how far apart
    two events of a match can be.
    """

    types: tuple[str, ...] = ("any",)
    schema: Schema | None = None
    present: frozenset[Expr] = frozenset()
    steps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    counts: Mapping[str | None, tuple[int, int | None]] = field(default_factory=dict)
    span_ms: int | None = None
    effort: Effort = field(default_factory=Effort, compare=False)

    def ordered(self, left: Expr, right: Expr) -> bool:
        """Whether two terms are the time of the event at hand, and the time of an event taken before it."""
        return left == Field("@time") and self.is_earlier(right)

    def is_earlier(self, expr: Expr) -> bool:
        return isinstance(expr, OfStep) and expr.value == Field("@time") and expr in self.present


@dataclass(frozen=True)
class Domain:
    kind: str = ANY
    nullable: bool = True
    least: float | None = None
    most: float | None = None
    whole: bool = False
    only: tuple[Scalar, ...] | None = None

    def numbers(self, constants: list[Any]) -> Iterator[int | float]:
        """A number for each place around the constants that is allowed."""
        bounds = [bound for bound in (self.least, self.most) if bound is not None]
        marks = sorted({*constants, *bounds}) or [0]
        yield from dict.fromkeys(value for value in self._around(marks) if self._allows(value))

    def _around(self, marks: list[Any]) -> Iterator[Any]:
        for mark in (marks[0] - 1, *marks, marks[-1] + 1):
            yield mark
            if self.whole:
                yield from (floor(mark) - 1, floor(mark), ceil(mark), ceil(mark) + 1)
        for low, high in pairwise(marks):
            middle = (low + high) / 2
            if low < middle < high:
                yield middle

    def _allows(self, value: float) -> bool:
        if self.whole and value != floor(value):
            return False
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


_COUNTED = Domain(NUMBER, nullable=False, least=0, whole=True)
_CALLS = {
    "hour": Domain(NUMBER, least=0, most=23, whole=True),
    "day_of_week": Domain(NUMBER, least=1, most=7, whole=True),
    "length": Domain(NUMBER, least=0, whole=True),
    "index_of": Domain(NUMBER, least=0, whole=True),
    "abs": Domain(NUMBER, least=0),
    "distance_km": Domain(NUMBER, least=0, most=20_016),
    "floor": Domain(NUMBER, whole=True),
    "ceil": Domain(NUMBER, whole=True),
}


def allowed(term: Expr, scope: Scope) -> Domain:
    """The values that a term can have."""
    domain = _domain(term, scope)
    return replace(domain, nullable=False) if term in scope.present else domain


def _domain(term: Expr, scope: Scope) -> Domain:
    match term:
        case Field():
            return _field(term, scope)
        case OfStep(step, Field(path)) if path not in ("@time", "@type"):
            return Domain(_schema_kind(path, scope.steps.get(step, ("any",)), scope.schema))
        case OfStep(_, value):
            return replace(_domain(value, Scope()), nullable=True)
        case Aggregate():
            return _aggregate(term, scope)
        case History():
            return _history(term)
        case Binary("-", Field("@time"), right):
            return _since(right, scope)
        case Binary() | Unary():
            return Domain(NUMBER)
        case Call(function):
            return _CALLS.get(function, Domain(FUNCTIONS[function].result or ANY))
    return Domain("boolean" if isinstance(term, In | TextMatch) else ANY)


def _field(term: Field, scope: Scope) -> Domain:
    if term.path == "@time":
        return Domain(NUMBER, nullable=False)
    if term.path == "@type":
        return Domain(TEXT, nullable=False, only=None if "any" in scope.types else scope.types)
    return Domain(_schema_kind(term.path, scope.types, scope.schema))


def _history(term: History) -> Domain:
    if term.function == "seen":
        return Domain("boolean", nullable=False)
    if term.function in ("count", "distinct"):
        return _COUNTED
    return Domain(HISTORY[term.function] or (NUMBER if term.value == Field("@time") else ANY))


def _schema_kind(path: str, types: tuple[str, ...], schema: Schema | None) -> str:
    return ANY if schema is None else schema.kind(path, types) or ANY


def _aggregate(term: Aggregate, scope: Scope) -> Domain:
    if term.function == "count":
        least, most = scope.counts.get(term.target, (0, None))
        return replace(_COUNTED, least=least, most=most)
    if term.function == "distinct":
        return replace(_COUNTED, most=scope.counts.get(term.target, (0, None))[1])
    return Domain(AGGREGATES[term.function] or ANY, nullable=term.function != "sum")


def _since(earlier: Expr, scope: Scope) -> Domain:
    """The time since an earlier event: never below zero, and bounded by how far the rule looks back."""
    if isinstance(earlier, History) and earlier.function == "prev" and earlier.value == Field("@time"):
        return Domain(NUMBER, least=0, most=earlier.span_ms, whole=True)
    if scope.is_earlier(earlier):
        return Domain(NUMBER, nullable=False, least=0, most=scope.span_ms, whole=True)
    return Domain(NUMBER)


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
