"""Which views can be completed by what came since, and how: aggregates of one table by the view's key.

    select KEY..., AGGREGATES and what is computed of them from ONE table [where ...] group by KEY...

Aggregates are count, sum, avg, min, max, max_by, min_by, count_if, bool_or and bool_and, each with `filter` or without:
what they hold of older rows and of newer ones can be put together. Spark keeps, next to each row, the states of its
aggregates (`splice` adds them to the query); here newer rows are added to such states. Expressions over rows are those
whose result is known to be Spark's: for all others, `live_query` raises NotLive with the reason.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, NamedTuple, TypeAlias

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

STATE = "_samovar_state_"  # columns of states begin so
Row: TypeAlias = Mapping[str, Any]
Evaluate: TypeAlias = Callable[[Any], Any]
# Spark's types by what they are called here; other columns can only be asked whether they are null.
KINDS = {"bigint": "int", "int": "int", "double": "double", "string": "text", "boolean": "flag", "date": "date"}
KINDS |= {"timestamp": "time"}
NUMBERS = frozenset({"int", "double", "decimal"})
UNITS = ("microsecond", "millisecond", "second", "minute", "hour", "day", "month", "year")
CLAUSES = {"from_", "where", "group", "expressions", "order", "hint"}
COMPARE: dict[type[exp.Expression], Callable[[Any, Any], bool]] = {
    exp.EQ: operator.eq, exp.NEQ: operator.ne, exp.LT: operator.lt, exp.LTE: operator.le, exp.GT: operator.gt,
    exp.GTE: operator.ge,
}  # fmt: skip
ARITHMETIC: dict[type[exp.Expression], Callable[[Any, Any], Any]] = {
    exp.Add: operator.add, exp.Sub: operator.sub, exp.Mul: operator.mul, exp.Div: operator.truediv,
}  # fmt: skip
AGGREGATES = (
    exp.Count, exp.Sum, exp.Avg, exp.Min, exp.Max, exp.ArgMax, exp.ArgMin, exp.CountIf, exp.LogicalOr, exp.LogicalAnd
)  # fmt: skip
STATE_OF: dict[type[exp.Expression], str] = {
    exp.Sum: "sum", exp.Min: "min", exp.Max: "max", exp.LogicalOr: "max", exp.LogicalAnd: "min", exp.ArgMax: "max_by",
    exp.ArgMin: "min_by",
}  # fmt: skip


class NotLive(Exception):
    """The reason for which a view cannot be completed."""


class TypedExpression(NamedTuple):
    """What an expression gives: its kind, and the value for a row (or for the key and the states of a group)."""

    kind: str
    of: Evaluate


@dataclass(frozen=True, kw_only=True)
class AggregateState:
    """What an aggregate holds of a group's rows: the value of `sql`; of max_by and min_by, also of `order_sql`."""

    how: str  # count, sum, min, max, max_by or min_by
    sql: str
    value: Evaluate
    order: Evaluate | None = None
    order_sql: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.sql,) if self.order_sql is None else (self.sql, self.order_sql)

    def add(self, held: Any, row: Row) -> Any:
        value = self.value(row)
        if self.order is not None:
            order = self.order(row)
            return held if order is None else self.joined(held, (order, value))
        if self.how == "count":
            return (held or 0) + (value is not None)
        return self.joined(held, value)

    def joined(self, one: Any, other: Any) -> Any:
        """Of two sets of rows together; `other` are the newer ones."""
        if one is None or other is None:
            return other if one is None else one
        if self.how in ("count", "sum"):
            return one + other
        if self.order is not None:
            first, then = _rank(one[0]), _rank(other[0])
            return other if (then >= first if self.how == "max_by" else then <= first) else one
        return (max if self.how == "max" else min)(one, other, key=_rank)


@dataclass(frozen=True, kw_only=True)
class LiveQuery:
    """How the rows of a table become those of a view. `outputs` are over the key's values and then the states'."""

    table: str
    columns: frozenset[str]  # of the table, that are read
    where: Evaluate | None
    key: Mapping[str, TypedExpression]
    plain_key: Mapping[str, str]  # columns of the key that are columns of the table as they are
    states: tuple[AggregateState, ...]
    outputs: Mapping[str, TypedExpression]

    def add(self, held: list[Any] | None, row: Row) -> list[Any]:
        """The states of a group with one more row."""
        before = held or [None] * len(self.states)
        return [state.add(each, row) for state, each in zip(self.states, before, strict=True)]

    def key_of(self, row: Row) -> tuple[Any, ...] | None:
        """The group that a row belongs to; None where the view leaves it out."""
        if self.where is not None and self.where(row) is not True:
            return None
        return tuple(each.of(row) for each in self.key.values())

    def joined(self, one: Sequence[Any], other: Sequence[Any]) -> list[Any]:
        return [state.joined(a, b) for state, a, b in zip(self.states, one, other, strict=True)]

    def unpacked(self, values: Sequence[Any]) -> list[Any]:
        """The states that Spark kept, from their columns."""
        rest, found = iter(values), list[Any]()
        for state in self.states:
            value = next(rest)
            if state.order is not None:
                order = next(rest)
                value = None if order is None else (order, value)
            found.append(value)
        return found

    def row(self, key: Sequence[Any], states: Sequence[Any]) -> dict[str, Any]:
        at = (*key, *states)
        return {name: each.of(at) for name, each in self.outputs.items()}


def state_columns(query: LiveQuery) -> dict[str, str]:
    """The columns that a version keeps of the states, and their SQL."""
    texts = [text for state in query.states for text in state.columns]
    return {f"{STATE}{number}": text for number, text in enumerate(texts)}


def splice(sql: str, query: LiveQuery) -> str:
    """The query with the states behind its own columns; all else as it was written."""
    depth = 0
    for token in sqlglot.tokenize(sql, dialect="spark"):
        depth += (token.token_type.name == "L_PAREN") - (token.token_type.name == "R_PAREN")
        if token.token_type.name == "FROM" and not depth:
            added = "".join(f", {text} as {name}" for name, text in state_columns(query).items())
            return f"{sql[: token.start].rstrip()}\n{added} {sql[token.start :]}"
    raise NotLive("it reads no table")


def live_query(sql: str, key: Sequence[str], tables: Mapping[str, Mapping[str, str]]) -> LiveQuery:
    """How a view's query is completed. `tables` have the columns of those whose rows are only ever added."""
    try:
        query = sqlglot.parse_one(sql, dialect="spark")
    except (SqlglotError, ValueError) as error:
        raise NotLive("its SQL is not understood") from error
    if not isinstance(query, exp.Select):
        raise NotLive(f"it is a {type(query).__name__.lower()}, not one select")
    for clause, given in query.args.items():
        if given and clause not in CLAUSES:
            raise NotLive(f"it has `{clause.rstrip('_')}`")
    if query.find(exp.Window) or any(each is not query for each in query.find_all(exp.Query)):
        raise NotLive("it has a query or a window in it")
    source = query.args.get("from_")
    table = None if source is None else source.this
    if not isinstance(table, exp.Table) or any(
        given and arg not in ("this", "alias") for arg, given in table.args.items()
    ):
        raise NotLive("it does not read one table")
    names = {name.lower(): name for name in tables}
    if table.name.lower() not in names:
        raise NotLive(f"rows of `{table.name}` are not only added")
    name = names[table.name.lower()]
    return _Reader(name, table.alias_or_name, tables[name]).read(query, key)


class _Reader:
    """A query on its way."""

    def __init__(self, table: str, alias: str, columns: Mapping[str, str]) -> None:
        self.table, self.alias, self.types = table, alias.lower(), columns
        self.read_columns: set[str] = set()
        self.key: dict[str, TypedExpression] = {}
        self.groups: dict[str, int] = {}  # by their SQL, the place in the key
        self.states: list[AggregateState] = []
        self.columns_are_rows = True

    def read(self, query: exp.Select, key: Sequence[str]) -> LiveQuery:
        items = {each.output_name: each.unalias() for each in query.expressions}
        unnamed = [each for each in query.expressions if not each.output_name or each.is_star]
        if unnamed or len(items) < len(query.expressions):
            what = f"`{unnamed[0].sql('spark')}` has no name" if unnamed else "two columns have one name"
            raise NotLive(f"{what}: write `... as NAME`")
        groups = self._groups(query.args.get("group"), items)
        plain: dict[str, str] = {}
        by_name = {name: each for name in key for own, each in items.items() if own == name and each in groups}
        for group in groups:
            if group not in by_name.values():
                raise NotLive(f"it groups by `{group.sql('spark')}`, which is not in the view's `key`")
        for name, group in by_name.items():
            self.key[name] = self.typed(group)
            if self.key[name].kind not in KINDS.values():
                raise NotLive(f"`{name}` is of a type that is not computed here")
            if isinstance(group, exp.Column):
                plain[name] = self._path(group)[0]
        missing = [each for each in key if each not in self.key]
        if missing:
            raise NotLive(f"`{missing[0]}` of the view's `key` is not grouped by")
        where = query.args.get("where")
        condition = None if where is None else self.flag(where.this).of
        self.groups = {group.sql("spark"): place for place, group in enumerate(by_name.values())}
        self.columns_are_rows = False
        outputs = {name: self.typed(each) for name, each in items.items()}
        return LiveQuery(
            table=self.table,
            columns=frozenset(self.read_columns),
            where=condition,
            key=self.key,
            plain_key=plain,
            states=tuple(self.states),
            outputs=outputs,
        )

    def _groups(self, group: exp.Expression | None, items: Mapping[str, exp.Expression]) -> list[exp.Expression]:
        if group is None:
            raise NotLive("it does not group by the view's `key`")
        if group.args.get("all"):
            return [each for each in items.values() if not each.find(*AGGREGATES)]
        if any(given and arg != "expressions" for arg, given in group.args.items()):
            raise NotLive(f"it has `{group.sql('spark').strip()}`")
        found, places = list[exp.Expression](), list(items.values())
        for each in group.expressions:
            if isinstance(each, exp.Literal) and not each.is_string:
                found.append(places[int(each.name) - 1])
            elif isinstance(each, exp.Column) and self._column(each) is None and each.name in items:
                found.append(items[each.name])  # by a name of its own
            else:
                found.append(each)
        return found

    # ------------------------------------------------------------ expressions

    def typed(self, node: exp.Expression) -> TypedExpression:
        if isinstance(node, exp.Paren):
            return self.typed(node.this)
        if not self.columns_are_rows:
            found = self._of_group(node)
            if found is not None:
                return found
        elif isinstance(node, exp.Column):
            path, kind = self._path(node)
            names = path.split("\0")
            self.read_columns.add(names[0])
            return TypedExpression(
                kind, operator.itemgetter(path) if len(names) == 1 else lambda row: _part(row, names)
            )
        found = self._expression(node)
        if found is None:
            raise NotLive(f"`{node.sql('spark')}` is not computed here")
        return found

    def _path(self, column: exp.Column) -> tuple[str, str]:
        found = self._column(column)
        if found is None:
            raise NotLive(f"`{column.sql('spark')}` is not a column of {self.table}")
        return found

    def _column(self, column: exp.Column) -> tuple[str, str] | None:
        """A column, or a field of one (with \\0 between them), and its kind."""
        names = [each.name for each in column.parts]
        if len(names) > 1 and names[0].lower() in (self.alias, self.table.lower()):
            names = names[1:]
        known = {name.lower(): name for name in self.types}
        whole = known.get("\0".join(names).lower())
        return None if whole is None else (whole, KINDS.get(self.types[whole], "other"))

    def _of_group(self, node: exp.Expression) -> TypedExpression | None:
        """A value of the key, or an aggregate."""
        place = self.groups.get(node.sql("spark"))
        if place is not None:
            return TypedExpression(list(self.key.values())[place].kind, operator.itemgetter(place))
        condition = None
        if isinstance(node, exp.Filter):
            node, condition = node.this, node.expression.this
        if isinstance(node, AGGREGATES):
            self.columns_are_rows = True
            try:
                return self._aggregate(node, condition)
            finally:
                self.columns_are_rows = False
        if isinstance(node, exp.AggFunc | exp.Column):
            raise NotLive(f"`{node.sql('spark')}` cannot be completed by new rows alone")
        return None

    def _aggregate(self, node: exp.Expression, condition: exp.Expression | None) -> TypedExpression:
        if node.find(exp.Distinct):
            raise NotLive(f"`{node.sql('spark')}` must know all older values to count a new one")
        text = node.sql("spark")
        if isinstance(node, exp.Count):
            given = [node.this, *node.expressions]
            if len(given) > 1:
                raise NotLive(f"`{text}` is not computed here")
            value = TypedExpression("int", lambda _: 1) if isinstance(node.this, exp.Star) else self.typed(node.this)
            return self._state("int", "count", text, value.of, condition)
        if isinstance(node, exp.CountIf):
            flag = self.flag(node.this).of
            return self._state("int", "count", text, lambda row: 1 if flag(row) is True else None, condition)
        value = self.typed(node.this)
        if value.kind == "other" or (isinstance(node, exp.Sum | exp.Avg) and value.kind not in ("int", "double")):
            raise NotLive(f"`{text}` is not computed here: it is of `{node.this.sql('spark')}`")
        if isinstance(node, exp.Avg):
            argument = node.this.sql("spark")
            total = self._state("double", "sum", f"sum({argument})", value.of, condition)
            count = self._state("int", "count", f"count({argument})", value.of, condition)
            return TypedExpression("double", lambda at: None if total.of(at) is None else total.of(at) / count.of(at))
        order, order_sql = None, None
        if isinstance(node, exp.ArgMax | exp.ArgMin):
            ordered = self.typed(node.expression)
            if ordered.kind == "other" or node.args.get("count"):
                raise NotLive(f"`{text}` is not computed here")
            how = "max" if isinstance(node, exp.ArgMax) else "min"
            order, order_sql = ordered.of, f"{how}({node.expression.sql('spark')})"
        return self._state(value.kind, STATE_OF[type(node)], text, value.of, condition, order, order_sql)

    def _state(
        self, kind: str, how: str, text: str, value: Evaluate, condition: exp.Expression | None,
        order: Evaluate | None = None, order_sql: str | None = None,
    ) -> TypedExpression:  # fmt: skip
        """The place of an aggregate's state. Those that are asked for twice are held once."""
        if condition is not None:
            holds, only = self.flag(condition).of, f" filter (where {condition.sql('spark')})"
            text, order_sql = text + only, None if order_sql is None else order_sql + only
            value, order = _where(holds, value), None if order is None else _where(holds, order)
        there = [each.sql for each in self.states]
        place = there.index(text) if text in there else len(there)
        if place == len(there):
            self.states.append(AggregateState(how=how, sql=text, value=value, order=order, order_sql=order_sql))
        place += len(self.key)
        if order is not None:
            return TypedExpression(kind, lambda at: None if at[place] is None else at[place][1])
        return TypedExpression(kind, (lambda at: at[place] or 0) if how == "count" else operator.itemgetter(place))

    def flag(self, node: exp.Expression) -> TypedExpression:
        found = self.typed(node)
        if found.kind not in ("flag", "null"):
            raise NotLive(f"`{node.sql('spark')}` is not a condition")
        return found

    def _expression(self, node: exp.Expression) -> TypedExpression | None:  # noqa: PLR0911, PLR0912 - one case per form
        if isinstance(node, exp.Literal):
            return _literal(node)
        if isinstance(node, exp.Null | exp.Boolean):
            value = node.this if isinstance(node, exp.Boolean) else None
            return TypedExpression("null" if value is None else "flag", lambda _: value)
        if isinstance(node, exp.And | exp.Or):
            one, other = self.flag(node.this).of, self.flag(node.expression).of
            ends = isinstance(node, exp.Or)
            return TypedExpression("flag", lambda row: _and_or(one(row), lambda: other(row), ends))
        if isinstance(node, exp.Not):
            flag = self.flag(node.this).of
            return TypedExpression("flag", lambda row: None if (value := flag(row)) is None else not value)
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            tested = self.typed(node.this).of
            return TypedExpression("flag", lambda row: tested(row) is None)
        if type(node) in COMPARE:
            return self._compared(node.this, node.expression, COMPARE[type(node)])
        if isinstance(node, exp.Between) and not node.args.get("symmetric"):
            low = self._compared(node.this, node.args["low"], operator.ge).of
            high = self._compared(node.this, node.args["high"], operator.le).of
            return TypedExpression("flag", lambda row: _and_or(low(row), lambda: high(row), False))
        if isinstance(node, exp.In) and node.expressions and not node.args.get("query"):
            each = [self._compared(node.this, item, operator.eq).of for item in node.expressions]
            return TypedExpression("flag", lambda row: _any(test(row) for test in each))
        if type(node) in ARITHMETIC:
            return self._arithmetic(node)
        if isinstance(node, exp.Neg):
            value = self.typed(node.this)
            return TypedExpression(value.kind, _null_or(operator.neg, value.of)) if value.kind in NUMBERS else None
        if isinstance(node, exp.Case) and node.this is None:
            ifs = [(self.flag(each.this).of, each.args["true"]) for each in node.args["ifs"]]
            return self._chosen([flag for flag, _ in ifs], [value for _, value in ifs], node.args.get("default"))
        if isinstance(node, exp.If):
            return self._chosen([self.flag(node.this).of], [node.args["true"]], node.args.get("false"))
        if isinstance(node, exp.Coalesce):
            kind, values = self._alike([node.this, *node.expressions])
            return TypedExpression(
                kind, lambda row: next((value for of in values if (value := of(row)) is not None), None)
            )
        if isinstance(node, exp.Round):
            return self._rounded(node)
        if isinstance(node, exp.TimestampTrunc):
            return self._truncated(node)
        if isinstance(node, exp.TsOrDsToDate) or (isinstance(node, exp.Cast) and node.to.is_type("date")):
            value = self.typed(node.this)
            if value.kind == "time" and not node.args.get("format"):
                return TypedExpression("date", _null_or(datetime.date, value.of))
            return value if value.kind == "date" else None
        return None

    def _compared(
        self, left: exp.Expression, right: exp.Expression, how: Callable[[Any, Any], bool]
    ) -> TypedExpression:
        one, other = self.typed(left), self.typed(right)
        one, other = _as_time(one, other.kind, left), _as_time(other, one.kind, right)
        kinds = {"number" if each.kind in NUMBERS else each.kind for each in (one, other)} - {"null"}
        if len(kinds) > 1 or "other" in kinds:
            raise NotLive(f"`{left.sql('spark')}` and `{right.sql('spark')}` are of different types")

        def compared(row: Any) -> bool | None:
            a, b = one.of(row), other.of(row)
            return None if a is None or b is None else how(_rank(a), _rank(b))

        return TypedExpression("flag", compared)

    def _arithmetic(self, node: exp.Expression) -> TypedExpression | None:
        one, other = self.typed(node.this), self.typed(node.expression)
        kinds, how = {one.kind, other.kind}, ARITHMETIC[type(node)]
        if not kinds <= NUMBERS or ("decimal" in kinds and "double" not in kinds):
            return None  # Spark computes these in decimals of its own precision
        is_float = "double" in kinds or how is operator.truediv

        def computed(row: Any) -> Any:
            a, b = one.of(row), other.of(row)
            if a is None or b is None:
                return None
            return how(float(a), float(b)) if is_float else how(a, b)

        return TypedExpression("double" if is_float else "int", computed)

    def _alike(self, nodes: Sequence[exp.Expression]) -> tuple[str, list[Evaluate]]:
        found = [self.typed(node) for node in nodes]
        kinds = {each.kind for each in found} - {"null"}
        if kinds == {"decimal"} or (len(kinds) > 1 and not (kinds <= NUMBERS and "double" in kinds)):
            raise NotLive(f"`{nodes[0].sql('spark')}` and what it is compared with are of different types")
        if len(kinds) > 1:
            return "double", [_null_or(float, each.of) for each in found]
        return next(iter(kinds), "null"), [each.of for each in found]

    def _chosen(
        self, flags: Sequence[Evaluate], values: Sequence[exp.Expression], default: exp.Expression | None
    ) -> TypedExpression:
        kind, of = self._alike([*values, default or exp.Null()])

        def chosen(row: Any) -> Any:
            return next((value(row) for flag, value in zip(flags, of, strict=False) if flag(row) is True), None)

        last = of[-1]
        return TypedExpression(kind, lambda row: chosen(row) if any(flag(row) is True for flag in flags) else last(row))

    def _rounded(self, node: exp.Round) -> TypedExpression | None:
        value, digits = self.typed(node.this), node.args.get("decimals")
        if value.kind not in ("int", "double") or (digits is not None and not digits.is_int):
            return None
        places = 0 if digits is None else int(digits.to_py())
        return TypedExpression(value.kind, lambda row: _round(value.of(row), places))

    def _truncated(self, node: exp.TimestampTrunc) -> TypedExpression | None:
        value, unit = self.typed(node.this), str(node.text("unit")).lower()
        if value.kind != "time" or unit not in UNITS[2:]:
            return None
        smaller = UNITS[: UNITS.index(unit)]
        zero = {name: int(name in ("day", "month")) for name in smaller if name != "millisecond"}
        return TypedExpression("time", _null_or(lambda time: time.replace(**zero), value.of))


# ---------------------------------------------------------------- values, as Spark takes them


def _rank(value: Any) -> Any:
    """For comparing: NaN is equal to itself and above all other numbers."""
    return (value != value, 0 if value != value else value) if isinstance(value, float | int) else value  # noqa: PLR0124


def _part(row: Row, names: Sequence[str]) -> Any:
    value: Any = row
    for name in names:
        value = None if value is None else value[name]
    return value


def _where(holds: Evaluate, value: Evaluate) -> Evaluate:
    return lambda row: value(row) if holds(row) is True else None


def _null_or(how: Callable[[Any], Any], of: Evaluate) -> Evaluate:
    return lambda row: None if (value := of(row)) is None else how(value)


def _and_or(one: bool | None, other: Callable[[], bool | None], ends: bool) -> bool | None:
    """Three values: `ends` decides alone."""
    if one is ends:
        return ends
    second = other()
    return ends if second is ends else None if one is None or second is None else not ends


def _any(tests: Iterable[bool | None]) -> bool | None:
    found = list(tests)
    return True if True in found else None if None in found else False


def _round(value: Any, places: int) -> Any:
    if value is None or not math.isfinite(value):
        return value
    rounded = Decimal(repr(value)).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    return type(value)(rounded)


def _literal(node: exp.Literal) -> TypedExpression:
    value: Any = node.name
    if node.is_string:
        return TypedExpression("text", lambda _: value)
    kind = "int" if value.isdecimal() else "double" if "e" in value.lower() else "decimal"
    number = int(value) if kind == "int" else float(value)
    return TypedExpression(kind, lambda _: number)


def _as_time(one: TypedExpression, other: str, node: exp.Expression) -> TypedExpression:
    """A text that is compared with a date or a time is one itself."""
    if not (one.kind == "text" and other in ("date", "time") and isinstance(node, exp.Literal)):
        return one
    try:
        value: Any = date.fromisoformat(node.name) if other == "date" else datetime.fromisoformat(node.name)
    except ValueError:
        raise NotLive(f"`{node.name}` is not read as a {other} here") from None
    if isinstance(value, datetime) and value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return TypedExpression(other, lambda _: value)
