"""From resolved rules to a Program: tables of numbers that the kernel reads, shared expressions written once.

What reads one event only becomes a column, evaluated once a batch and shared between rules. What reads other steps
becomes a small tree that the kernel evaluates for one partial match. The numbers are read back by `Program::read` in
native/match/program.cpp; the two change together.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from samovar.native.opcodes import AGGREGATES, OPS, OPS_BY_WORD
from samovar.patterns.engine import scalars
from samovar.patterns.semantics.versioning import plain, text_of, version_of
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.tree import flatten, step_names, walk

CONST, FIELD, TIME, TYPE, HISTORY, LAST, AGG, LASTEVENT = (
    OPS[name] for name in "CONST FIELD TIME TYPE HISTORY LAST AGG LASTEVENT".split()
)
AND, OR, NOT, NEG, ISNULL, NOTNULL, IN, LIKE, CALL, FOLD = (
    OPS[name] for name in "AND OR NOT NEG ISNULL NOTNULL IN LIKE CALL FOLD".split()
)
# Functions whose op goes to Python for what the kernel does not do itself (time zones, letters beyond ASCII).
WITH_PYTHON = {"hour", "day_of_week", "lower", "upper"}
FORMS = {tree.SequenceForm: 0, tree.AggregateForm: 1, tree.SessionForm: 2, tree.WindowForm: 3}
OVERLAPS = {"latest": 0, "all": 1, "any": 2}
SKIPS = {"past_last": 0, "to_next": 1, "none": 2}
TAGS = {type(None): 0, bool: 1, int: 2, float: 3, str: 4}
OPEN_RUN = 1 << 60
Item = TypeVar("Item")
BRACKETS_MOST = 64


class CompileError(ValueError):
    """A rule is too large for the kernel's tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePlan:
    """What a reader of matches and traces needs to know about a compiled rule."""

    rule: tree.Rule
    version: str
    brackets: tuple[tree.Bracket, ...]
    columns: tuple[tuple[tree.Expr, ...], ...]
    conditions: tuple[tuple[tree.Expr, ...], ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelFunction:
    """A function that the kernel calls, under the name that it has in a rule."""

    name: str
    call: Callable[..., tree.Scalar]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Compiled rules. Immutable; any number of `States` can run on one."""

    rules: tuple[RulePlan, ...]
    fields: tuple[str, ...]
    types: tuple[str, ...]
    words: tuple[int, ...]
    text: bytes
    functions: tuple[KernelFunction, ...] = field(repr=False)
    stores: frozenset[str] = frozenset()  # names under which states are stored: of rules, and of history functions
    histories: Mapping[str, tuple[str, tree.History]] = field(
        default_factory=dict, repr=False
    )  # store: event type, call


def compile_rules(rules: Iterable[tree.Rule], fields: Iterable[str] = ()) -> Program:
    """Compile rules for one engine. Their order is the order of matches that fall on the same event.

    With `fields`, those come first: programs that share them all read the same batches.
    """
    tables = _Tables()
    tables.fields = {path: number for number, path in enumerate(fields)}
    plans = [_compile_rule(tables, rule) for rule in rules]
    words = tables.header()
    words.append(len(plans))
    for _, rule_words in plans:
        words.extend(rule_words)
    return Program(
        rules=tuple(plan for plan, _ in plans),
        fields=tuple(tables.fields),
        types=tuple(tables.types),
        words=tuple(words),
        text=bytes(tables.blob),
        functions=tuple(tables.functions),
        stores=frozenset([*(f"{plan.rule.id}@{plan.version}" for plan, _ in plans), *tables.history_names]),
        histories=dict(tables.history_names),
    )


def state_shape(rule: tree.Rule) -> tuple[object, ...]:
    """What the rows of a rule's states are made by. Rules of one text whose lists differ have states of one shape,
    unless lists became equal, or no longer are, and expressions with them.
    """
    tables = _Tables()
    plan, words = _compile_rule(tables, rule)
    histories = tuple((kind, call.function, call.span_ms) for kind, call in tables.history_names.values())
    return len(words), plan.names, tuple(map(len, plan.columns)), tuple(map(len, plan.conditions)), histories


class _Tables:
    """What the rules of a program share: constants, fields, nodes, keys, histories. Equal things are one."""

    def __init__(self) -> None:
        self.blob = bytearray()
        self.constants: dict[tuple[type, tree.Scalar], int] = {}
        self.constant_words: list[int] = []
        self.sets: dict[tuple[int, ...], int] = {}
        self.patterns: dict[tuple[int, ...], int] = {}
        self.fields: dict[str, int] = {}
        self.types: dict[str, int] = {}
        self.nodes: dict[tuple[int, int, int, tuple[int, ...]], int] = {}
        self.columnar: list[bool] = []
        self.keys: dict[tuple[int, ...], int] = {}
        self.histories: dict[tuple[int, ...], int] = {}
        self.history_names: dict[str, tuple[str, tree.History]] = {}
        self.functions: list[KernelFunction] = []
        self.function_ids: dict[Any, int] = {}

    def constant(self, value: tree.Scalar) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
            value = float(value)
        known = self.constants.get((type(value), value))
        if known is None:
            known = self.constants[(type(value), value)] = len(self.constants)
            payload, size = 0, 0
            if isinstance(value, str):
                data = value.encode("utf-8", "surrogatepass")
                payload, size = len(self.blob), len(data)
                self.blob += data
            elif isinstance(value, float):
                payload = int.from_bytes(struct.pack("<d", value), "little", signed=True)
            elif value is not None:
                payload = int(value)
            self.constant_words += [TAGS[type(value)], payload, size]
        return known

    def node(self, op: int, x: int = 0, y: int = 0, args: Sequence[int] = ()) -> int:
        key = (op, x, y, tuple(args))
        known = self.nodes.get(key)
        if known is None:
            known = self.nodes[key] = len(self.nodes)
            self.columnar.append(op not in (LAST, AGG, LASTEVENT) and all(self.columnar[a] for a in args))
        return known

    def literals(self, lists: dict[tuple[int, ...], int], values: Iterable[tree.Scalar]) -> int:
        """One of the lists of literals, each value in it once."""
        items = tuple(dict.fromkeys(self.constant(value) for value in values if value is not None))
        return lists.setdefault(items, len(lists))

    def type(self, name: str) -> int:
        return -1 if name == "any" else self.types.setdefault(name, len(self.types))

    def function(self, name: str, of: Hashable, make: Callable[[], Callable[..., tree.Scalar]]) -> int:
        """A function that is left to Python; `of` is what else it is made of."""
        known = self.function_ids.get((name, of))
        if known is None:
            known = self.function_ids[name, of] = len(self.functions)
            self.functions.append(KernelFunction(name, make()))
        return known

    def header(self) -> list[int]:
        types = [self.constant(name) for name in self.types]
        words = [len(self.constants), *self.constant_words]
        for lists in (self.sets, self.patterns):
            words.append(len(lists))
            for items in lists:
                words += [len(items), *items]
        words += [len(self.fields), len(self.functions), len(types), *types, len(self.nodes)]
        for (op, x, y, args), columnar in zip(self.nodes, self.columnar, strict=True):
            words += [op, int(columnar), x, y, len(args), *args]
        words.append(len(self.keys))
        for nodes in self.keys:
            words += [len(nodes), *nodes]
        words.append(len(self.histories))
        for history in self.histories:
            words += history
        return words


class _RuleCompiler:
    """One rule's way into the tables: names, captures, aggregates and brackets are the rule's own."""

    def __init__(self, tables: _Tables, rule: tree.Rule, names: Sequence[str]) -> None:
        self.tables = tables
        self.rule = rule
        self.names = {name: n for n, name in enumerate(names)}
        self.sequence = isinstance(rule.form, tree.SequenceForm)
        self.captures: list[list[int]] = [[] for _ in names]
        self.last: list[int] = []
        self.values: list[int] = []
        self.aggregates: list[tuple[int, int, int]] = []
        self.brackets: list[tuple[int, int, list[int], list[int]]] = []
        self.bracket_names: dict[str, int] = {}
        self.sources: list[tuple[tree.Bracket, tuple[tree.Expr, ...], tuple[tree.Expr, ...]]] = []
        self.bracket: tuple[int, int] | None = None  # type and keyspec of the bracket being compiled

    # ------------------------------------------------------------ expressions

    def expression(self, expr: tree.Expr) -> int:
        """Over the event at hand (in a bracket), or over a whole match (in having, emit, message)."""
        reads_event = any(isinstance(part, tree.Field) for part in walk(expr))
        if self.bracket is None and reads_event and _event_only(expr):
            return self.tables.node(LASTEVENT, 0, _place(self.column(expr), self.last))
        return self.plain(expr)

    def plain(self, expr: tree.Expr) -> int:  # noqa: PLR0911 - one return a kind of expression
        node = self.tables.node
        match expr:
            case tree.Literal(value):
                return node(CONST, self.tables.constant(value))
            case tree.Field(path):
                return self.field(path)
            case tree.OfStep(step, value) if not self.sequence:
                return node(AGG, self.aggregate(tree.Aggregate("last", step, value)))
            case tree.OfStep(step, value):
                name = self.names[step]
                return node(LAST, name, _place(self.column(value), self.captures[name]))
            case tree.Aggregate():
                return node(AGG, self.aggregate(expr))
            case tree.History():
                return node(HISTORY, self.history(expr))
            case tree.Unary("not", operand):
                return node(NOT, args=[self.expression(operand)])
            case tree.Unary(_, operand):
                return node(NEG, args=[self.expression(operand)])
            case tree.Binary("and" | "or" as op):
                args = [self.expression(part) for part in flatten(expr, op)]
                return node(AND if op == "and" else OR, args=args)
            case tree.Binary("==" | "!=" as op, left, right) if tree.Literal(None) in (left, right):
                other = left if right == tree.Literal(None) else right
                return node(ISNULL if op == "==" else NOTNULL, args=[self.expression(other)])
            case tree.Binary(op, left, right):
                return node(OPS_BY_WORD[op], args=[self.expression(left), self.expression(right)])
            case tree.In():
                return self.membership(expr)
            case tree.TextMatch():
                return self.text_match(expr)
            case tree.Call(function, args):
                return self.call(function, args)
        raise TypeError(f"not a resolved expression: {expr!r}")

    def field(self, path: str) -> int:
        if path == "@time":
            return self.tables.node(TIME)
        if path == "@type":
            return self.tables.node(TYPE)
        return self.tables.node(FIELD, self.tables.fields.setdefault(path, len(self.tables.fields)))

    def column(self, expr: tree.Expr) -> int:
        """An expression over one event, whatever context it stands in."""
        outer, self.bracket = self.bracket, self.bracket or (-1, -1)
        compiled = self.plain(expr)
        self.bracket = outer
        return compiled

    def aggregate(self, expr: tree.Aggregate) -> int:
        column = None if expr.value is None else self.column(expr.value)
        if self.sequence:
            assert expr.target is not None
            target = self.names[expr.target]
        else:
            target = -1 if expr.target is None else self.bracket_names[expr.target]
        values = self.captures[target] if self.sequence else self.values
        slot = -1 if column is None else _place(column, values)
        return _place((AGGREGATES[expr.function], target, slot), self.aggregates)

    def history(self, expr: tree.History) -> int:
        assert self.bracket is not None
        type_id, keyspec = self.bracket
        value = -1 if expr.value is None else self.column(expr.value)
        where = -1 if expr.where is None else self.column(expr.where)
        identity = text_of([plain(expr), plain(self.by), self.bracket_type])
        store = "history/" + hashlib.sha256(identity.encode()).hexdigest()[:16]
        self.tables.history_names[store] = (self.bracket_type, expr)
        name = self.tables.constant(store)
        entry = (name, AGGREGATES[expr.function], keyspec, type_id, value, where, expr.span_ms)
        return self.tables.histories.setdefault(entry, len(self.tables.histories))

    def membership(self, expr: tree.In) -> int:
        operand = self.expression(expr.operand)
        # A list of literals is one set, however long; what is read from an event or a step is compared one by one.
        literals = [item.value for item in expr.items if isinstance(item, tree.Literal)]
        others = [self.expression(item) for item in expr.items if not isinstance(item, tree.Literal)]
        if expr.ignore_case:
            literals = [scalars.fold(value) for value in literals]
            operand, others = self.folded(operand), [self.folded(item) for item in others]
        among = self.tables.literals(self.tables.sets, literals) if literals or not others else -1
        found = self.tables.node(IN, among, args=[operand, *others])
        return self.tables.node(NOT, args=[found]) if expr.negated else found

    def folded(self, node: int) -> int:
        fold = self.tables.function("fold", (), lambda: scalars.fold)
        return self.tables.node(FOLD, fold, args=[node])

    def text_match(self, expr: tree.TextMatch) -> int:
        operand, patterns = self.expression(expr.operand), expr.patterns
        if expr.kind == "regex":
            make = partial(scalars.regex_search, patterns, expr.ignore_case)
            search = self.tables.function("regex", (patterns, expr.ignore_case), make)
            return self.tables.node(CALL, search, args=[operand])
        if expr.ignore_case:
            operand, patterns = self.folded(operand), tuple(map(scalars.fold_text, patterns))
        return self.tables.node(LIKE, self.tables.literals(self.tables.patterns, patterns), args=[operand])

    def call(self, function: str, args: tuple[tree.Expr, ...]) -> int:
        op = OPS_BY_WORD.get(function, CALL)
        if op != CALL and function not in WITH_PYTHON:
            return self.tables.node(op, args=[self.expression(arg) for arg in args])
        # Of a function in Python the literals behind the first argument are part of the function: they may be many
        # (the networks of `cidr`), and are then no columns, nor looked at for every event.
        literals = [arg.value for arg in args[1:] if isinstance(arg, tree.Literal)]
        if not literals or len(literals) < len(args) - 1:
            known = self.tables.function(function, (), lambda: scalars.FUNCTIONS[function])
            return self.tables.node(op, known, args=[self.expression(arg) for arg in args])
        identity = tuple((type(value), value) for value in literals)
        known = self.tables.function(function, identity, lambda: scalars.with_literals(function, literals))
        return self.tables.node(CALL, known, args=[self.expression(args[0])])

    # ------------------------------------------------------------ brackets

    def add_bracket(self, bracket: tree.Bracket) -> int:
        type_id = self.tables.type(bracket.type)
        keyspec = self.key(bracket.by)
        self.bracket, self.by, self.bracket_type = (type_id, keyspec), bracket.by, bracket.type
        columns, conditions = [], []
        column_sources, condition_sources = [], []
        for conjunct in flatten(bracket.condition, "and"):
            if conjunct == tree.Literal(True):
                continue
            if _event_only(conjunct):
                columns.append(self.plain(conjunct))
                column_sources.append(conjunct)
            else:
                conditions.append(self.plain(conjunct))
                condition_sources.append(conjunct)
        self.bracket = None
        self.brackets.append((type_id, keyspec, columns, conditions))
        self.sources.append((bracket, tuple(column_sources), tuple(condition_sources)))
        if bracket.name is not None:
            self.bracket_names[bracket.name] = len(self.brackets) - 1
        if len(self.brackets) > BRACKETS_MOST:
            raise CompileError(f"rule {self.rule.id}: at most {BRACKETS_MOST} brackets; split the rule in two")
        return len(self.brackets) - 1

    def key(self, by: tuple[tree.Key, ...] | None) -> int:
        if by is None:
            return -1
        nodes = tuple(self.column(key.value) for key in by)
        return self.tables.keys.setdefault(nodes, len(self.tables.keys))

    # ------------------------------------------------------------ the rule's words

    def words(self, version: str, form_words: list[int]) -> list[int]:
        rule, tables = self.rule, self.tables
        emit = [(tables.constant(name), self.expression(expr)) for name, expr in rule.emit]
        message = [
            (0, tables.constant(part)) if isinstance(part, str) else (1, self.expression(part)) for part in rule.message
        ]
        having = -1 if rule.form.having is None else self.expression(rule.form.having)
        suppress = -1 if rule.suppress_ms is None else rule.suppress_ms
        # What is read of the last event stands behind the captures of every step, so their places stay.
        if self.sequence:
            self.captures = [[*captures, *self.last] for captures in self.captures]
        else:
            self.values = [*self.values, *self.last]
        words = [FORMS[type(rule.form)], tables.constant(rule.id), tables.constant(version), suppress]
        words += _listed(tables.constant(key.name) for key in rule.form.by)
        words.append(len(self.brackets))
        for type_id, keyspec, columns, conditions in self.brackets:
            words += [type_id, keyspec, *_listed(columns), *_listed(conditions)]
        words.append(len(self.names))
        for name, captures in zip(self.names, self.captures, strict=True):
            words += [tables.constant(name), *_listed(captures)]
        words += [len(self.last), len(self.aggregates)]
        for entry in self.aggregates:
            words += entry
        words += _listed(self.values)
        words.append(len(emit))
        for pair in emit:
            words += pair
        words.append(len(message))
        for part in message:
            words += part
        return [*words, having, *form_words]


def _compile_rule(tables: _Tables, rule: tree.Rule) -> tuple[RulePlan, list[int]]:
    version = version_of(rule)
    compiler = _RuleCompiler(tables, rule, step_names(rule.form))
    words = compiler.words(version, _form_words(compiler, rule.form))
    brackets, columns, conditions = zip(*compiler.sources, strict=True)
    return RulePlan(
        rule=rule,
        version=version,
        brackets=brackets,
        columns=columns,
        conditions=conditions,
        names=tuple(compiler.names),
    ), words


def _form_words(compiler: _RuleCompiler, form: tree.Form) -> list[int]:
    if isinstance(form, tree.SequenceForm):
        return _sequence_words(compiler, form)
    for bracket in form.brackets:
        compiler.add_bracket(bracket)
    if isinstance(form, tree.AggregateForm):
        return [form.over_ms, _or_minus(form.repeat_ms)]
    if isinstance(form, tree.SessionForm):
        return [form.gap_ms, _or_minus(form.max_ms)]
    return [form.every_ms, form.size_ms]


def _sequence_words(compiler: _RuleCompiler, form: tree.SequenceForm) -> list[int]:
    positive: list[int] = []
    gaps: list[list[int]] = [[]]
    for step in form.steps:
        brackets = [compiler.add_bracket(bracket) for bracket in step.brackets]
        if step.kind is tree.StepKind.ABSENT:
            for bracket in brackets:
                gaps[-1] += [bracket, _or_minus(step.within_ms), _or_minus(step.for_ms)]
            continue
        unordered = step.kind is tree.StepKind.UNORDERED
        most = OPEN_RUN if step.runs_max is None else step.runs_max
        positive += [int(unordered), int(step.optional), int(step.next), step.runs_min, most]
        positive += [_or_minus(step.within_ms), _or_minus(step.after_ms)]
        positive += [*_listed(brackets), *_listed(compiler.names[name] for name, _ in step.readings)]
        gaps.append([])
    until = -1 if form.until is None else compiler.add_bracket(form.until)
    uses_next = any(step.next for step in form.steps)
    # With keys on steps only, an event of a type that has none belongs to no key.
    own_by = not form.by or form.by[0].span < form.steps[0].span
    words = [form.maxspan_ms, OVERLAPS[form.overlap], SKIPS[form.skip]]
    words += [int(uses_next), compiler.key(form.by) if uses_next and own_by else -1, until, len(gaps) - 1, *positive]
    for gap in gaps:
        words += [len(gap) // 3, *gap]
    return words


def _event_only(expr: tree.Expr) -> bool:
    return not any(isinstance(part, (tree.OfStep, tree.Aggregate)) for part in walk(expr))


def _place(item: Item, items: list[Item]) -> int:
    """Where an item stands among others of its kind, to which it is added if it is new."""
    if item not in items:
        items.append(item)
    return items.index(item)


def _listed(items: Iterable[int]) -> list[int]:
    listed = list(items)
    return [len(listed), *listed]


def _or_minus(value: int | None) -> int:
    return -1 if value is None else value
