"""The way of marked fields through a rule: which parts of its output hold one, and whether it compares one.

A value is *clear* where nothing marked is in it, *own* where it is a marked field as the event has it, and *computed*
where anything else was done with one. Own values can be shown as pseudonyms. Computed ones cannot: `substring(card, 0,
1)` has ten values, and the pseudonyms of ten values are soon known.

Counting, grouping and comparing own values with each other or with null tells no more than pseudonyms do, and stays
clear: what comes of it would be the same if all marked values were replaced by others. Everything else that a condition
does with a marked field (`==` with a value, `<`, `like`, `in`, a function) compares it, and tells something about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import zip_longest
from typing import TypeAlias

from samovar.patterns.semantics.event_types import brackets_of
from samovar.patterns.syntax.tree import (
    Aggregate,
    Binary,
    Call,
    Expr,
    Field,
    History,
    In,
    Key,
    Literal,
    OfStep,
    Rule,
    Scalar,
    TextMatch,
    children,
    walk,
)

IsMarked: TypeAlias = Callable[[str], bool]  # of a field's dotted path
COUNTING = frozenset({"count", "distinct", "seen"})  # tell how many values there are, never which
TAKING = frozenset({"first", "last", "values", "prev"})  # give values as they are
TELLING = 5  # characters of a value that a rule names


class Flow(IntEnum):
    """What is in a value, the more the later."""

    CLEAR = 0
    OWN = 1
    COMPUTED = 2


def flow_of(expression: Expr, is_marked: IsMarked) -> Flow:
    """What is in an expression's value."""
    return _flows_in(expression, is_marked)[id(expression)]


def _flows_in(expression: Expr, is_marked: IsMarked) -> dict[int, Flow]:
    """Of an expression and all inside it, by identity. Not recursive, so depth cannot overflow the stack."""
    found: dict[int, Flow] = {}
    for part in reversed(list(walk(expression))):  # what is inside comes before what it is inside of
        found[id(part)] = _flow(part, [found[id(inner)] for inner in children(part)], is_marked)
    return found


def _flow(part: Expr, inner: Sequence[Flow], is_marked: IsMarked) -> Flow:
    most = max(inner, default=Flow.CLEAR)
    computed = Flow.CLEAR if most is Flow.CLEAR else Flow.COMPUTED
    match part:
        case Field(path):
            return Flow.OWN if is_marked(path) else Flow.CLEAR
        case OfStep():
            return most
        case Aggregate(function) | History(function):
            condition = part.where if isinstance(part, History) else None
            if condition is not None and inner[-1] is not Flow.CLEAR:
                return Flow.COMPUTED
            if most is Flow.OWN and function in COUNTING:
                return Flow.CLEAR
            return most if function in TAKING else computed
        case Binary("==" | "!=", left, right) if most is Flow.OWN:
            among_own = min(inner) is Flow.OWN or Literal(None) in (left, right)
            return Flow.CLEAR if among_own else Flow.COMPUTED
    return computed


# ---------------------------------------------------------------- a rule


@dataclass(frozen=True, kw_only=True)
class RuleFlows:
    """What is in each part of a rule's output. `message` has texts, and of each expression what is in it and, where it
    is an own value of the key, the key's name.
    """

    key: Mapping[str, Flow]
    emit: Mapping[str, Flow]
    message: tuple[str | tuple[Flow, str | None], ...]
    quotes: frozenset[Scalar]  # values that it names as those of marked fields
    looks_up: bool  # a marked field in a list, be it empty

    @property
    def has_clear_key(self) -> bool:
        return all(flow is Flow.CLEAR for flow in self.key.values())


def flows_of(rule: Rule, is_marked: IsMarked) -> RuleFlows:
    key = {part.name: Flow.CLEAR for part in rule.form.by}
    for parts in keys_of(rule):
        for name, part in zip(key, parts, strict=False):
            key[name] = max(key[name], flow_of(part.value, is_marked))
    fields = {part.value.path: part.name for part in rule.form.by if isinstance(part.value, Field)}
    message: list[str | tuple[Flow, str | None]] = []
    for said in rule.message:
        if isinstance(said, str):
            message.append(said)
        else:
            inner = said.value if isinstance(said, OfStep) else said
            name_of_key = fields.get(inner.path) if isinstance(inner, Field) else None
            message.append((flow_of(said, is_marked), name_of_key))
    emit = {name: flow_of(value, is_marked) for name, value in rule.emit}
    parts_of_all = (part for each in expressions_of(rule) for part in walk(each))
    looked_up = (part.operand for part in parts_of_all if isinstance(part, In))
    looks_up = any(flow_of(operand, is_marked) is not Flow.CLEAR for operand in looked_up)
    return RuleFlows(key=key, emit=emit, message=tuple(message), quotes=quoted(rule, is_marked), looks_up=looks_up)


def keys_of(rule: Rule) -> Iterator[tuple[Key, ...]]:
    yield rule.form.by
    yield from (bracket.by for bracket in brackets_of(rule) if bracket.by)


def compared(rule: Rule, is_marked: IsMarked) -> list[str]:
    """The marked fields that a rule compares, or makes a key of by a function: what it finds tells about them. Steps
    that are keyed by different fields are joined where these are equal, so a key of a marked field and of one that is
    not, or of a constant, compares the two.
    """
    tested = [bracket.condition for bracket in brackets_of(rule)]
    tested += [] if rule.form.having is None else [rule.form.having]
    found = [each for each in tested if flow_of(each, is_marked) is not Flow.CLEAR]
    keys = (part.value for parts in keys_of(rule) for part in parts)
    found += [each for each in keys if flow_of(each, is_marked) is Flow.COMPUTED]
    for parts in zip_longest(*keys_of(rule)):
        joined = [part.value for part in parts if part is not None]
        flows = {flow_of(each, is_marked) for each in joined}
        found += joined if Flow.CLEAR in flows and len(flows) > 1 else []
    fields = {part.path for each in found for part in walk(each) if isinstance(part, Field)}
    return sorted(filter(is_marked, fields))


def expressions_of(rule: Rule) -> Iterator[Expr]:
    """All that a rule computes."""
    yield from (bracket.condition for bracket in brackets_of(rule))
    yield from () if rule.form.having is None else (rule.form.having,)
    yield from (part.value for parts in keys_of(rule) for part in parts)
    yield from (value for _, value in rule.emit)
    yield from (part for part in rule.message if not isinstance(part, str))


def quoted(rule: Rule, is_marked: IsMarked) -> frozenset[Scalar]:
    """Values that a rule names as those of marked fields: `card == "4929"`, `card in $watched`, and parts of such that
    are long enough to tell something: `starts_with(card, "49291")`.
    """
    found: set[Scalar] = set()
    for each in expressions_of(rule):
        flows = _flows_in(each, is_marked)
        for part in walk(each):
            if flows[id(part)] is Flow.CLEAR or (isinstance(part, Binary) and part.op in ("and", "or")):
                continue
            match part:
                case In(_, items) if isinstance(items, tuple):
                    found.update(item.value for item in items if isinstance(item, Literal))
                case Binary("==" | "!=", left, right):
                    found.update(side.value for side in (left, right) if isinstance(side, Literal))
            if isinstance(part, Binary | In | TextMatch | Call):
                named = [inner.value for inner in walk(part) if isinstance(inner, Literal)]
                named += part.patterns if isinstance(part, TextMatch) else ()
                found.update(value for value in named if len(str(value)) >= TELLING)
    return frozenset(value for value in found if value is not None and not isinstance(value, bool))
