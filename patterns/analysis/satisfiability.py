"""Whether a condition can be true at all: the reasoning behind the lint.

A condition is a tree of `and`, `or` and `not` over tests of terms with constants (`amount < 2`, `country in ("US")`).
Which tests a value passes depends only on where it lies between the constants that the condition names, so it is
enough to try one value for each such place: null, every constant, one between each two, another text, and so on.
Every term that is not understood may be anything. The values tried are therefore always enough: "cannot be true" is
a proof, "can be true" is not. A condition with more than MAX_TRIES combinations is let pass, and so is everything
once the effort allowed for a rule is spent: a rule file may come from anybody.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise, product
from math import ceil, floor, fmod, inf, isfinite, prod
from operator import eq, ge, gt, le, lt, ne
from typing import Any, TypeAlias

from samovar.patterns.engine.scalars import fold_text, regex_search
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.functions import AGGREGATES, ANY, FUNCTIONS, HISTORY, NUMBER, TEXT
from samovar.patterns.syntax.tree import flatten

MAX_TRIES = 4_000
MAX_TEXT_TESTS = 8
_FLIPPED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_RELATIONS = {"==": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


@dataclass
class Effort:
    """How many combinations of values may still be tried for a rule."""

    left: int = 200_000

    def spend(self, tries: int) -> bool:
        self.left -= tries
        return self.left >= 0


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
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


_COUNTED = Domain(kind=NUMBER, nullable=False, least=0, whole=True)
_CALLS = {
    "hour": Domain(kind=NUMBER, least=0, most=23, whole=True),
    "day_of_week": Domain(kind=NUMBER, least=1, most=7, whole=True),
    "length": Domain(kind=NUMBER, least=0, whole=True),
    "index_of": Domain(kind=NUMBER, least=0, whole=True),
    "abs": Domain(kind=NUMBER, least=0),
    "distance_km": Domain(kind=NUMBER, least=0, most=20_016),
    "floor": Domain(kind=NUMBER, whole=True),
    "ceil": Domain(kind=NUMBER, whole=True),
}


def allowed(term: tree.Expr, scope: Scope) -> Domain:
    """The values that a term can have."""
    domain = _domain(term, scope)
    return replace(domain, nullable=False) if term in scope.present else domain


def _domain(term: tree.Expr, scope: Scope) -> Domain:  # noqa: PLR0911 - one return per kind of term
    match term:
        case tree.Field("@time"):
            return Domain(kind=NUMBER, nullable=False)
        case tree.Field("@type"):
            return Domain(kind=TEXT, nullable=False, only=None if "any" in scope.types else scope.types)
        case tree.Field(path):
            return Domain(kind=_schema_kind(path, scope.types, scope.schema))
        case tree.OfStep(step, tree.Field(path)) if path not in ("@time", "@type"):
            return Domain(kind=_schema_kind(path, scope.steps.get(step, ("any",)), scope.schema))
        case tree.OfStep(_, value):
            return replace(_domain(value, Scope()), nullable=True)
        case tree.Aggregate():
            return _aggregate(term, scope)
        case tree.History():
            if term.function == "seen":
                return Domain(kind="boolean", nullable=False)
            if term.function in ("count", "distinct"):
                return _COUNTED
            return Domain(kind=HISTORY[term.function] or (NUMBER if term.value == tree.Field("@time") else ANY))
        case tree.Binary("-", tree.Field("@time"), right):
            return _since(right, scope)
        case tree.Binary() | tree.Unary():
            return Domain(kind=NUMBER)
        case tree.Call(function):
            return _CALLS.get(function, Domain(kind=FUNCTIONS[function].result or ANY))
    return Domain(kind="boolean" if isinstance(term, tree.In | tree.TextMatch) else ANY)


def _schema_kind(path: str, types: tuple[str, ...], schema: Schema | None) -> str:
    return ANY if schema is None else schema.kind(path, types) or ANY


def _aggregate(term: tree.Aggregate, scope: Scope) -> Domain:
    if term.function == "count":
        least, most = scope.counts.get(term.target, (0, None))
        return replace(_COUNTED, least=least, most=most)
    if term.function == "distinct":
        return replace(_COUNTED, most=scope.counts.get(term.target, (0, None))[1])
    return Domain(kind=AGGREGATES[term.function] or ANY, nullable=term.function != "sum")


def _since(earlier: tree.Expr, scope: Scope) -> Domain:
    """The time since an earlier event: never below zero, and bounded by how far the rule looks back."""
    if isinstance(earlier, tree.History) and earlier.function == "prev" and earlier.value == tree.Field("@time"):
        return Domain(kind=NUMBER, least=0, most=earlier.span_ms, whole=True)
    if scope.is_earlier(earlier):
        return Domain(kind=NUMBER, nullable=False, least=0, most=scope.span_ms, whole=True)
    return Domain(kind=NUMBER)


# ---------------------------------------------------------------- what a condition tests


@dataclass(frozen=True)
class SomeText:
    """A text that no constant is equal to, and that fits these patterns; with text=False a list or an object."""

    fits: frozenset[TextTest]
    text: bool = True


Value: TypeAlias = tree.Scalar | SomeText


@dataclass(frozen=True)
class Compare:
    op: str
    constant: tree.Scalar

    def passes(self, value: Value) -> bool:
        if value is None or self.constant is None:
            return False
        if isinstance(value, SomeText) or _kind(value) != _kind(self.constant):
            return self.op == "!="
        return _OPERATORS[self.op](value, self.constant)

    def constants(self) -> Iterable[tree.Scalar]:
        return (self.constant,)


@dataclass(frozen=True)
class Among:
    values: tuple[tree.Scalar, ...]

    def passes(self, value: Value) -> bool:
        return any(Compare("==", item).passes(value) for item in self.values)

    def constants(self) -> Iterable[tree.Scalar]:
        return self.values


@dataclass(frozen=True)
class IsNull:
    def passes(self, value: Value) -> bool:
        return value is None

    def constants(self) -> Iterable[tree.Scalar]:
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

    def constants(self) -> Iterable[tree.Scalar]:
        return ()

    def prefix(self) -> str | None:
        """How every text that fits begins, where that is one beginning."""
        if len(self.patterns) != 1:
            return None
        if self.kind == "starts_with":
            return self.patterns[0]
        return re.split(r"[*?]", self.patterns[0])[0] if self.kind == "like" else None


Test: TypeAlias = Compare | Among | IsNull | TextTest
_IS_TRUE = Compare("==", True)


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


def _kind(value: tree.Scalar) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "text" if isinstance(value, str) else "number"


Pair: TypeAlias = "tuple[tree.Expr, tree.Expr]"  # two terms that are compared with each other
Term: TypeAlias = "tree.Expr | Pair"


@dataclass(frozen=True)
class Atom:
    term: Term
    test: Test | str  # a str is a relation between the two of a Pair


@dataclass(frozen=True)
class Node:
    op: str  # and, or, not, true, false
    parts: tuple[Tree, ...] = ()


Tree: TypeAlias = "Atom | Node"
Tries: TypeAlias = Mapping[Term, Value | str]


def satisfiable(conditions: Iterable[tree.Expr], scope: Scope) -> bool:
    """Whether all the conditions can be true of one event at once; True also where that is not known."""
    trees = [node for condition in conditions for node in _conjuncts(_tree(folded(condition)))]
    return all(_possible(group, scope) for group in _groups(trees))


def implies(given: Sequence[tree.Expr], condition: tree.Expr, scope: Scope) -> bool:
    """Whether the condition surely holds where all the given ones hold."""
    return not satisfiable((*given, tree.Unary("not", condition)), scope)


# ---------------------------------------------------------------- from an expression to tests


def _tree(expr: tree.Expr) -> Tree:
    match expr:
        case tree.Literal(value):
            return Node("true" if value is True else "false")
        case tree.Binary("and" | "or" as op):
            return Node(op, tuple(_tree(part) for part in flatten(expr, op)))
        case tree.Unary("not", operand):
            return Node("not", (_tree(operand),))
        case tree.Binary("==" | "!=" | "<" | "<=" | ">" | ">=" as op, left, right):
            return _comparison(op, left, right)
        case tree.In():
            return _membership(expr)
        case tree.TextMatch(kind, operand, patterns, ignore_case):
            return Atom(operand, TextTest(kind + "~" * ignore_case, patterns))
        case tree.Call("starts_with" | "ends_with" | "contains" as kind, (operand, tree.Literal(str() as text))):
            return Atom(operand, TextTest(kind, (text,)))
    return Atom(expr, _IS_TRUE)


def _comparison(op: str, left: tree.Expr, right: tree.Expr) -> Tree:
    if isinstance(left, tree.Literal):
        left, right, op = right, left, _FLIPPED[op]
    if isinstance(right, tree.Literal) and right.value is None:
        null = Atom(left, IsNull())
        return null if op == "==" else Node("not", (null,)) if op == "!=" else Node("false")
    if isinstance(left, tree.Literal) and isinstance(right, tree.Literal):
        return Node("true" if Compare(op, right.value).passes(left.value) else "false")
    if isinstance(right, tree.Literal):
        ordered_text = op not in ("==", "!=") and isinstance(right.value, str)
        return Atom(left, TextTest("order", (op, str(right.value))) if ordered_text else Compare(op, right.value))
    if repr(right) < repr(left):
        left, right, op = right, left, _FLIPPED[op]
    return Atom((left, right), _RELATIONS[op])


def _membership(expr: tree.In) -> Tree:
    items = expr.items
    values = (
        () if len(items) > tree.LONG_LIST else tuple(item.value for item in items if isinstance(item, tree.Literal))
    )
    if len(values) < len(items):
        found: Tree = Atom(
            expr if not expr.negated else tree.In(expr.operand, items, False, expr.ignore_case), _IS_TRUE
        )
    elif expr.ignore_case:
        found = Atom(expr.operand, TextTest("in~", tuple(str(value) for value in values)))
    elif isinstance(expr.operand, tree.Literal):
        found = Node("true" if Among(values).passes(expr.operand.value) else "false")
    else:
        found = Atom(expr.operand, Among(values))
    return Node("not", (found,)) if expr.negated else found


def _conjuncts(node: Tree) -> Iterator[Tree]:
    if isinstance(node, Node) and node.op == "and":
        for part in node.parts:
            yield from _conjuncts(part)
    else:
        yield node


def _atoms(node: Tree) -> Iterator[Atom]:
    if isinstance(node, Atom):
        yield node
    else:
        for part in node.parts:
            yield from _atoms(part)


# ---------------------------------------------------------------- trying values


def _groups(trees: Iterable[Tree]) -> list[list[Tree]]:
    """Conjuncts that share terms, and so cannot be looked at one by one."""
    groups: list[tuple[list[Tree], set[Term]]] = []
    for node in trees:
        joined, terms = [node], {atom.term for atom in _atoms(node)}
        own, apart = set(terms), []
        for others, known in groups:
            if known & own:
                joined, terms = others + joined, known | terms
            else:
                apart.append((others, known))
        groups = [*apart, (joined, terms)]
    return [trees for trees, _ in groups]


def _possible(trees: list[Tree], scope: Scope) -> bool:
    tests: dict[Term, set[Test]] = {}
    for node in trees:
        for atom in _atoms(node):
            known = tests.setdefault(atom.term, set())
            if not isinstance(atom.test, str):
                known.add(atom.test)
    if any(sum(isinstance(test, TextTest) for test in known) > MAX_TEXT_TESTS for known in tests.values()):
        return True
    values = [list(islice(_values(term, tests[term], scope), MAX_TRIES + 1)) for term in tests]
    tries = prod(map(len, values))
    if tries > MAX_TRIES or not scope.effort.spend(tries + len(tests)):
        return True
    for chosen in product(*values):
        tried = dict(zip(tests, chosen, strict=True))
        if all(_holds(node, tried) for node in trees):
            return True
    return False


def _holds(node: Tree, tried: Tries) -> bool:
    if isinstance(node, Node):
        if node.op == "and":
            return all(_holds(part, tried) for part in node.parts)
        if node.op == "or":
            return any(_holds(part, tried) for part in node.parts)
        return not _holds(node.parts[0], tried) if node.op == "not" else node.op == "true"
    value = tried[node.term]
    if isinstance(node.test, str):
        # The value of a pair is how its two stand: <, = or >; `other` where the types differ, empty where one is null.
        return (value == "other" and node.test == "<>") or (value in ("<", "=", ">") and str(value) in node.test)
    return node.test.passes(value)


def _values(term: Term, tests: set[Test], scope: Scope) -> Iterator[Value | str]:
    if isinstance(term, tuple):
        yield from ("<", "=", ">", "other", "") if not scope.ordered(*term) else (">", "=")
        return
    domain = allowed(term, scope)
    if domain.nullable:
        yield None
    if domain.only is not None:
        yield from domain.only
        return
    constants = [value for test in tests for value in test.constants()]
    if domain.kind in ("any", "boolean"):
        yield from (True, False)
    if domain.kind in ("any", "number"):
        numbers = {value for value in constants if isinstance(value, int | float) and not isinstance(value, bool)}
        yield from domain.numbers(sorted(numbers, key=float))
    if domain.kind in ("any", "text"):
        yield from _texts([value for value in constants if isinstance(value, str)], tests)
    if domain.kind == "any":
        yield SomeText(frozenset(), text=False)


def _texts(constants: list[str], tests: set[Test]) -> Iterator[Value]:
    """Every text that is named, and other texts in every combination of the patterns that they may fit."""
    yield from dict.fromkeys(constants)
    patterns = [test for test in tests if isinstance(test, TextTest)]
    for chosen in product((False, True), repeat=len(patterns)):
        fitting = [test for test, fits in zip(patterns, chosen, strict=True) if fits]
        starts = [start for test in fitting if (start := test.prefix()) is not None]
        # Unless two patterns ask for different beginnings.
        if all(one.startswith(two) or two.startswith(one) for one in starts for two in starts):
            yield SomeText(frozenset(fitting))


# ---------------------------------------------------------------- arithmetic with constants


def folded(expr: tree.Expr) -> tree.Expr:
    """The expression with arithmetic between constants done."""
    match expr:
        case tree.Binary(op, left, right):
            left, right = folded(left), folded(right)
            if op in "+-*/%" and isinstance(left, tree.Literal) and isinstance(right, tree.Literal):
                return tree.Literal(_arithmetic(op, left.value, right.value), expr.span)
            return replace(expr, left=left, right=right)
        case tree.Unary("-", operand):
            operand = folded(operand)
            if isinstance(operand, tree.Literal):
                return tree.Literal(_arithmetic("-", 0, operand.value), expr.span)
            return replace(expr, operand=operand)
        case tree.Unary("not", operand):
            return replace(expr, operand=folded(operand))
        case tree.In(operand, tree.LongList()):
            return replace(expr, operand=folded(operand))
        case tree.In(operand, tuple() as items):
            return replace(expr, operand=folded(operand), items=tuple(folded(item) for item in items))
    return expr


def _arithmetic(op: str, left: tree.Scalar, right: tree.Scalar) -> tree.Scalar:
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        return None
    if isinstance(left, bool) or isinstance(right, bool) or (op in "/%" and right == 0):
        return None
    try:
        result = {"+": left + right, "-": left - right, "*": left * right}.get(op)
        if result is None:
            result = left / right if op == "/" else fmod(left, right)
    except OverflowError:
        return None
    return result if isfinite(result) else None
