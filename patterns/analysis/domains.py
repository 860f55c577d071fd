"""Which values a term of a condition can have, by what is known where the condition stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil, floor, inf
from typing import Any

from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.functions import AGGREGATES, ANY, FUNCTIONS, HISTORY, NUMBER, TEXT


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
    present: frozenset[tree.Expr] = frozenset()
    steps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    counts: Mapping[str | None, tuple[int, int | None]] = field(default_factory=dict)
    span_ms: int | None = None
    effort: Effort = field(default_factory=Effort, compare=False)

    def ordered(self, left: tree.Expr, right: tree.Expr) -> bool:
        """Whether two terms are the time of the event at hand, and the time of an event taken before it."""
        return left == tree.Field("@time") and self.is_earlier(right)

    def is_earlier(self, expr: tree.Expr) -> bool:
        return isinstance(expr, tree.OfStep) and expr.value == tree.Field("@time") and expr in self.present


@dataclass(frozen=True)
class Domain:
    kind: str = ANY
    nullable: bool = True
    least: float | None = None
    most: float | None = None
    whole: bool = False
    only: tuple[tree.Scalar, ...] | None = None

    def numbers(self, constants: list[Any]) -> Iterator[int | float]:
        """A number for each place around the constants that is allowed."""
        bounds = [bound for bound in (self.least, self.most) if bound is not None]
        marks = sorted({*constants, *bounds}) or [0]
        least = -inf if self.least is None else self.least
        most = inf if self.most is None else self.most
        whole = (value for value in self._around(marks) if not self.whole or value == floor(value))
        yield from dict.fromkeys(value for value in whole if least <= value <= most)

    def _around(self, marks: list[Any]) -> Iterator[Any]:
        for mark in (marks[0] - 1, *marks, marks[-1] + 1):
            yield mark
            if self.whole:
                yield from (floor(mark) - 1, floor(mark), ceil(mark), ceil(mark) + 1)
        for low, high in pairwise(marks):
            middle = (low + high) / 2
            if low < middle < high:
                yield middle


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


def allowed(term: tree.Expr, scope: Scope) -> Domain:
    """The values that a term can have."""
    domain = _domain(term, scope)
    return replace(domain, nullable=False) if term in scope.present else domain


def _domain(term: tree.Expr, scope: Scope) -> Domain:  # noqa: PLR0911 - one return per kind of term
    match term:
        case tree.Field("@time"):
            return Domain(NUMBER, nullable=False)
        case tree.Field("@type"):
            return Domain(TEXT, nullable=False, only=None if "any" in scope.types else scope.types)
        case tree.Field(path):
            return Domain(_schema_kind(path, scope.types, scope.schema))
        case tree.OfStep(step, tree.Field(path)) if path not in ("@time", "@type"):
            return Domain(_schema_kind(path, scope.steps.get(step, ("any",)), scope.schema))
        case tree.OfStep(_, value):
            return replace(_domain(value, Scope()), nullable=True)
        case tree.Aggregate():
            return _aggregate(term, scope)
        case tree.History():
            if term.function == "seen":
                return Domain("boolean", nullable=False)
            if term.function in ("count", "distinct"):
                return _COUNTED
            return Domain(HISTORY[term.function] or (NUMBER if term.value == tree.Field("@time") else ANY))
        case tree.Binary("-", tree.Field("@time"), right):
            return _since(right, scope)
        case tree.Binary() | tree.Unary():
            return Domain(NUMBER)
        case tree.Call(function):
            return _CALLS.get(function, Domain(FUNCTIONS[function].result or ANY))
    return Domain("boolean" if isinstance(term, tree.In | tree.TextMatch) else ANY)


def _schema_kind(path: str, types: tuple[str, ...], schema: Schema | None) -> str:
    return ANY if schema is None else schema.kind(path, types) or ANY


def _aggregate(term: tree.Aggregate, scope: Scope) -> Domain:
    if term.function == "count":
        least, most = scope.counts.get(term.target, (0, None))
        return replace(_COUNTED, least=least, most=most)
    if term.function == "distinct":
        return replace(_COUNTED, most=scope.counts.get(term.target, (0, None))[1])
    return Domain(AGGREGATES[term.function] or ANY, nullable=term.function != "sum")


def _since(earlier: tree.Expr, scope: Scope) -> Domain:
    """The time since an earlier event: never below zero, and bounded by how far the rule looks back."""
    if isinstance(earlier, tree.History) and earlier.function == "prev" and earlier.value == tree.Field("@time"):
        return Domain(NUMBER, least=0, most=earlier.span_ms, whole=True)
    if scope.is_earlier(earlier):
        return Domain(NUMBER, nullable=False, least=0, most=scope.span_ms, whole=True)
    return Domain(NUMBER)
