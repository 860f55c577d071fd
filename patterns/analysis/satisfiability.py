"""Whether a condition can be true at all: the reasoning behind the lint.

A condition is a tree of `and`, `or` and `not` over tests of terms with constants (`amount < 2`, `country in ("US")`).
Which tests a value passes depends only on where it lies between the constants that the condition names, so it is
enough to try one value for each such place: null, every constant, one between each two, another text, and so on.
Every term that is not understood may be anything. The values tried are therefore always enough: "cannot be true" is
a proof, "can be true" is not. A condition with more than MAX_TRIES combinations is let pass, and so is everything
once the effort allowed for a rule is spent: a rule file may come from anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from math import prod
from typing import TypeAlias

from samovar.patterns.analysis.domains import Scope, allowed
from samovar.patterns.analysis.terms import (
    Among,
    Compare,
    IsNull,
    IsTrue,
    SomeText,
    Test,
    TextTest,
    Value,
    folded,
    text_test,
)
from samovar.patterns.syntax.tree import LONG_LIST, Binary, Expr, In, Literal, Scalar, Unary, flatten

MAX_TRIES = 4_000
MAX_TEXT_TESTS = 8

_FLIPPED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_RELATIONS = {"==": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}

Pair: TypeAlias = "tuple[Expr, Expr]"  # two terms that are compared with each other
Term: TypeAlias = "Expr | Pair"


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


def satisfiable(conditions: Iterable[Expr], scope: Scope) -> bool:
    """Whether all the conditions can be true of one event at once; True also where that is not known."""
    trees = [tree for condition in conditions for tree in _conjuncts(_tree(folded(condition)))]
    return all(_possible(group, scope) for group in _groups(trees))


def implies(given: Sequence[Expr], condition: Expr, scope: Scope) -> bool:
    """Whether the condition surely holds where all the given ones hold."""
    return not satisfiable((*given, Unary("not", condition)), scope)


# ---------------------------------------------------------------- from an expression to tests


def _tree(expr: Expr) -> Tree:
    match expr:
        case Literal(value):
            return Node("true" if value is True else "false")
        case Binary("and" | "or" as op):
            return Node(op, tuple(_tree(part) for part in flatten(expr, op)))
        case Unary("not", operand):
            return Node("not", (_tree(operand),))
        case Binary("==" | "!=" | "<" | "<=" | ">" | ">=" as op, left, right):
            return _comparison(op, left, right)
        case In() if isinstance(expr.items, tuple):
            return _membership(expr, expr.items)
    texts = text_test(expr)
    return Atom(*texts) if texts else Atom(expr, IsTrue())


def _comparison(op: str, left: Expr, right: Expr) -> Tree:
    if isinstance(left, Literal):
        left, right, op = right, left, _FLIPPED[op]
    if isinstance(right, Literal) and right.value is None:
        null = Atom(left, IsNull())
        return null if op == "==" else Node("not", (null,)) if op == "!=" else Node("false")
    if isinstance(left, Literal) and isinstance(right, Literal):
        return Node("true" if Compare(op, right.value).passes(left.value) else "false")
    if isinstance(right, Literal):
        ordered_text = op not in ("==", "!=") and isinstance(right.value, str)
        return Atom(left, TextTest("order", (op, str(right.value))) if ordered_text else Compare(op, right.value))
    if repr(right) < repr(left):
        left, right, op = right, left, _FLIPPED[op]
    return Atom((left, right), _RELATIONS[op])


def _membership(expr: In, items: tuple[Expr, ...]) -> Tree:
    values = () if len(items) > LONG_LIST else tuple(item.value for item in items if isinstance(item, Literal))
    if len(values) < len(items):
        found: Tree = Atom(expr if not expr.negated else In(expr.operand, items, False, expr.ignore_case), IsTrue())
    elif expr.ignore_case:
        found = Atom(expr.operand, TextTest("in~", tuple(str(value) for value in values)))
    elif isinstance(expr.operand, Literal):
        found = Node("true" if Among(values).passes(expr.operand.value) else "false")
    else:
        found = Atom(expr.operand, Among(values))
    return Node("not", (found,)) if expr.negated else found


def _conjuncts(tree: Tree) -> Iterator[Tree]:
    if isinstance(tree, Node) and tree.op == "and":
        for part in tree.parts:
            yield from _conjuncts(part)
    else:
        yield tree


def _atoms(tree: Tree) -> Iterator[Atom]:
    if isinstance(tree, Atom):
        yield tree
    else:
        for part in tree.parts:
            yield from _atoms(part)


# ---------------------------------------------------------------- trying values


@dataclass
class _Group:
    """Conjuncts that share terms, and so cannot be looked at one by one."""

    trees: list[Tree] = field(default_factory=list)
    terms: set[Term] = field(default_factory=set)


def _groups(trees: Iterable[Tree]) -> list[list[Tree]]:
    groups: list[_Group] = []
    for tree in trees:
        terms = {atom.term for atom in _atoms(tree)}
        joined = _Group([tree], terms)
        apart = []
        for group in groups:
            if group.terms & terms:
                joined.trees = group.trees + joined.trees
                joined.terms = group.terms | joined.terms
            else:
                apart.append(group)
        groups = [*apart, joined]
    return [group.trees for group in groups]


def _possible(trees: list[Tree], scope: Scope) -> bool:
    tests: dict[Term, set[Test]] = {}
    for tree in trees:
        for atom in _atoms(tree):
            known = tests.setdefault(atom.term, set())
            if not isinstance(atom.test, str):
                known.add(atom.test)
    if any(sum(isinstance(test, TextTest) for test in known) > MAX_TEXT_TESTS for known in tests.values()):
        return True
    values = [list(islice(_values(term, tests[term], scope), MAX_TRIES + 1)) for term in tests]
    tries = prod(map(len, values))
    if tries > MAX_TRIES or not scope.effort.spend(tries + len(tests)):
        return True
    terms = list(tests)
    return any(_all_hold(trees, dict(zip(terms, chosen, strict=True))) for chosen in product(*values))


def _all_hold(trees: list[Tree], tried: Tries) -> bool:
    return all(_holds(tree, tried) for tree in trees)


def _holds(tree: Tree, tried: Tries) -> bool:
    if isinstance(tree, Node):
        if tree.op == "and":
            return all(_holds(part, tried) for part in tree.parts)
        if tree.op == "or":
            return any(_holds(part, tried) for part in tree.parts)
        return not _holds(tree.parts[0], tried) if tree.op == "not" else tree.op == "true"
    value = tried[tree.term]
    if isinstance(tree.test, str):
        # The value of a pair is how its two stand: <, = or >; `other` where the types differ, empty where one is null.
        return (value == "other" and tree.test == "<>") or (value in ("<", "=", ">") and str(value) in tree.test)
    return tree.test.passes(value)


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
        yield from domain.numbers(sorted({value for value in constants if _is_number(value)}, key=float))
    if domain.kind in ("any", "text"):
        yield from _texts([value for value in constants if isinstance(value, str)], tests)
    if domain.kind == "any":
        yield SomeText(frozenset(), text=False)


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _texts(constants: list[str], tests: set[Test]) -> Iterator[Value]:
    """Every text that is named, and other texts in every combination of the patterns that they may fit."""
    yield from dict.fromkeys(constants)
    patterns = [test for test in tests if isinstance(test, TextTest)]
    for chosen in product((False, True), repeat=len(patterns)):
        fitting = [test for test, fits in zip(patterns, chosen, strict=True) if fits]
        if not _clash(fitting):
            yield SomeText(frozenset(fitting))


def _clash(tests: list[TextTest]) -> bool:
    """Whether two patterns ask for different beginnings."""
    starts = [start for test in tests if (start := test.prefix()) is not None]
    return any(not (one.startswith(two) or two.startswith(one)) for one in starts for two in starts)
