"""The syntax tree of a rule: frozen data, with positions, and nothing else.

The parser makes the *raw* tree; the checker turns it into the *resolved* tree, which is what the compiler, the
explainer and the oracle read. Both are made of the classes below. What differs:

* raw only: `Name` (a dotted name whose meaning is not known yet); `$limit` and `$risky` are their values already;
* resolved only: `Field`, `OfStep`, `Aggregate` and `History`. `let` definitions are inlined, parameters have become
  literals, lists have become tuples of literals, and every duration is a whole number of milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, TypeAlias

Scalar: TypeAlias = None | bool | int | float | str


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Where something stands in its file. Lines and columns count from 1, columns in characters."""

    line: int
    column: int
    end_line: int
    end_column: int


NOWHERE = Span(0, 0, 0, 0)


# ---------------------------------------------------------------- expressions


@dataclass(frozen=True, slots=True)
class Literal:
    value: Scalar
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Name:
    """Raw: `amount`, `process.name`, `probe.amount`, `@time`, `probe.@time`, `?field`, a backticked name."""

    path: str
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Field:
    """A value of the event at hand. `@time` (epoch ms) and `@type` are fields too.

    A dotted path reads the nested value first, then a flat field of that very name.
    """

    path: str
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class OfStep:
    """`probe.amount`: an expression over one event (`value` holds only Fields), read from the last event of a step.

    `step` is the step's name, given or `stepN`; for a member of an unordered group it is the member's name.
    """

    step: str
    value: Expr
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """`count(probe)`, `sum(probe.amount)` in a sequence; `count()`, `sum(x)`, `count(cart)` in the other forms.

    function: count sum avg min max stddev distinct first last values. `target` is a step or bracket name, or None for
    all events taken. `value` is an expression over one event; None only for `count`.
    """

    function: str
    target: str | None
    value: Expr | None
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class History:
    """`seen(device, 90d where ok == true)`, `avg(amount, 30d)`, `count(1h)`, `prev(@time, 1h)`.

    function: seen count sum avg min max distinct prev. `value` and `where` are expressions over one event.
    """

    function: str
    value: Expr | None
    span_ms: int
    where: Expr | None
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Unary:
    """op: `not` or `-`."""

    op: str
    operand: Expr
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Binary:
    """op: `and or == != < <= > >= + - * / %`. `span` covers the whole; `op_span` the operator."""

    op: str
    left: Expr
    right: Expr
    span: Span = field(default=NOWHERE, compare=False)
    op_span: Span = field(default=NOWHERE, compare=False)


LONG_LIST = 60  # values; one that has more is a LongList


class LongList(tuple["Literal", ...]):
    """The literals of a list that is too long to be looked at one by one: hashed once, and no part of `walk`.

    A rule has each one once, so that equal ones are one object.
    """

    def __hash__(self) -> int:
        known: int | None = self.__dict__.get("hash")
        if known is None:
            known = self.__dict__["hash"] = super().__hash__()
        return known

    def __eq__(self, other: object) -> bool:
        return self is other or super().__eq__(other)


@dataclass(frozen=True, slots=True)
class In:
    """`x in (1, 2)`, `x not in $risky`, `x in~ ("a")`."""

    operand: Expr
    items: tuple[Expr, ...]
    negated: bool
    ignore_case: bool
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class TextMatch:
    """kind: `like` (whole text, `*` and `?`) or `regex` (search). True when any pattern fits. `:` is like~."""

    kind: str
    operand: Expr
    patterns: tuple[str, ...]
    ignore_case: bool
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Call:
    """A function of values. Resolved: `function` is the snake_case name of `functions.FUNCTIONS`.

    Raw: also what will become an Aggregate or a History; `where` is then the condition inside the call.
    """

    function: str
    args: tuple[Expr, ...]
    where: Expr | None = None
    span: Span = field(default=NOWHERE, compare=False)


Expr: TypeAlias = "Literal | Name | Field | OfStep | Aggregate | History | Unary | Binary | In | TextMatch | Call"


# ---------------------------------------------------------------- forms of match


class Overlap(StrEnum):
    LATEST = "latest"
    ALL = "all"
    ANY = "any"


class Skip(StrEnum):
    PAST_LAST = "past_last"
    TO_NEXT = "to_next"
    NONE = "none"


class StepKind(StrEnum):
    TAKE = "take"
    ABSENT = "absent"
    UNORDERED = "unordered"


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of `by`: the name that a match shows, and the expression over one event that gives its value."""

    name: str
    value: Expr
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """`[TYPE where COND] as NAME by FIELD`. `type` is an event type or `any`.

    In the resolved tree `by` is never None: it is the bracket's own list or else the form's, so `()` means one key
    for all. `name` is None for an unnamed bracket (of a step: the step has the name).
    """

    type: str
    condition: Expr
    name: str | None
    by: tuple[Key, ...] | None
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a sequence.

    kind TAKE: `brackets` are the alternatives (`or`). ABSENT: one bracket, or alternatives. UNORDERED: the members,
    each with a name. Resolved: `name` is the given name or `stepN`, N counting positive steps from 1, a group as one
    (an ABSENT step has no name). `runs_max` None means open. A plain step has runs 1..1.
    """

    kind: StepKind
    brackets: tuple[Bracket, ...]
    name: str | None = None
    optional: bool = False
    next: bool = False
    runs_min: int = 1
    runs_max: int | None = 1
    within_ms: int | None = None
    after_ms: int | None = None
    for_ms: int | None = None
    span: Span = field(default=NOWHERE, compare=False)

    @property
    def repeated(self) -> bool:
        return self.runs_min != 1 or self.runs_max != 1

    @property
    def readings(self) -> list[tuple[str, tuple[Bracket, ...]]]:
        """The names under which the step is read, and the brackets behind each."""
        if self.kind is StepKind.UNORDERED:
            return [(member.name, (member,)) for member in self.brackets if member.name]
        return [(self.name, self.brackets)] if self.name else []

    @property
    def runs_text(self) -> str:
        """`3`, `3 or more` or `3 to 5`."""
        if self.runs_max is None:
            return f"{self.runs_min} or more"
        return str(self.runs_min) if self.runs_min == self.runs_max else f"{self.runs_min} to {self.runs_max}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceForm:
    by: tuple[Key, ...]
    maxspan_ms: int
    overlap: Overlap
    skip: Skip
    steps: tuple[Step, ...]
    until: Bracket | None
    having: Expr | None
    span: Span = field(default=NOWHERE, compare=False)

    @property
    def taken(self) -> list[Step]:
        """The steps that take events: all but the absences."""
        return [step for step in self.steps if step.kind is not StepKind.ABSENT]

    @property
    def takes_one_event(self) -> bool:
        """Whether a single event is all that a match takes."""
        taken = self.taken
        return len(taken) == 1 and not taken[0].repeated and taken[0].kind is StepKind.TAKE


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateForm:
    by: tuple[Key, ...]
    over_ms: int
    repeat_ms: int | None
    brackets: tuple[Bracket, ...]
    having: Expr
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionForm:
    by: tuple[Key, ...]
    gap_ms: int
    max_ms: int | None
    brackets: tuple[Bracket, ...]
    having: Expr | None
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowForm:
    """Windows are [k * every, k * every + size) from the epoch."""

    by: tuple[Key, ...]
    every_ms: int
    size_ms: int
    brackets: tuple[Bracket, ...]
    having: Expr | None
    span: Span = field(default=NOWHERE, compare=False)


Form: TypeAlias = SequenceForm | AggregateForm | SessionForm | WindowForm


# ---------------------------------------------------------------- the rule file


@dataclass(frozen=True, slots=True)
class TestEvent:
    """An event of a rule's test: `+5s purchase {card: c1}`. `offset_ms` counts from the test's first moment."""

    offset_ms: int
    type: str
    fields: Mapping[str, Any]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedMatch:
    """What a test expects of one match; what is None is not compared. `at_ms` counts as in TestEvent."""

    key: Mapping[str, Scalar] | None
    at_ms: int | None
    start_ms: int | None
    end_ms: int | None
    steps: Mapping[str, tuple[int, ...]] | None
    emit: Mapping[str, Any] | None
    message: str | None
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class RuleTest:
    name: str
    events: tuple[TestEvent, ...]
    expect: tuple[ExpectedMatch, ...]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule file. `message` is a tuple of text and expressions, in order. Resolved trees only after the check."""

    id: str
    title: str
    severity: str
    tags: tuple[str, ...]
    form: Form
    emit: tuple[tuple[str, Expr], ...]
    message: tuple[str | Expr, ...]
    suppress_ms: int | None
    params: Mapping[str, Scalar]
    lists: Mapping[str, tuple[Scalar, ...]]
    tests: tuple[RuleTest, ...]
    path: str
    text: str
    match_text: str
    lets: Mapping[str, Expr]

    @property
    def shown(self) -> list[Expr]:
        """The expressions that a match shows: those of `emit` and `message`."""
        return [expr for _, expr in self.emit] + [part for part in self.message if not isinstance(part, str)]


def children(node: Expr) -> Iterator[Expr]:
    """The expressions directly inside an expression, left to right; not the literals of a long list."""
    for name in _INSIDE[type(node)]:
        value = getattr(node, name)
        if isinstance(value, LongList):
            continue
        for child in value if isinstance(value, tuple) else (value,):
            if type(child) in _INSIDE:
                yield child


def walk(node: Expr) -> Iterator[Expr]:
    """An expression and all inside it, depth first. Not recursive, so depth cannot overflow the stack."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(reversed(list(children(top))))


def rewrite(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """The expression with each part for which `change` gives another one replaced; inside those it does not look."""
    changed = change(expr)
    if changed is not None:
        return changed
    parts: dict[str, Any] = {}
    for item in fields(expr):
        value = getattr(expr, item.name)
        if isinstance(value, EXPRESSIONS):
            parts[item.name] = rewrite(value, change)
        elif isinstance(value, LongList):
            continue
        elif isinstance(value, tuple) and any(isinstance(each, EXPRESSIONS) for each in value):
            parts[item.name] = tuple(rewrite(each, change) for each in value)
    return replace(expr, **parts) if parts else expr


def flatten(expr: Expr, op: str) -> list[Expr]:
    """The parts of a chain of `and` or `or`, left to right."""
    parts: list[Expr] = []
    stack = [expr]
    while stack:
        top = stack.pop()
        if isinstance(top, Binary) and top.op == op:
            stack += [top.right, top.left]
        else:
            parts.append(top)
    return parts


def step_names(form: Form) -> list[str]:
    """The names under which a match lists its events, in order."""
    if not isinstance(form, SequenceForm):
        return ["events"]
    return [name for step in form.steps for name, _ in step.readings]


EXPRESSIONS = (Literal, Name, Field, OfStep, Aggregate, History, Unary, Binary, In, TextMatch, Call)
# Fields of each in which others may stand; `compare` leaves out positions.
_INSIDE: dict[type, tuple[str, ...]] = {
    kind: tuple(item.name for item in fields(kind) if item.compare) for kind in EXPRESSIONS
}
