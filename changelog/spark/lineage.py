"""Where the columns of a query come from, by the plan that Spark made of it: which columns of which tables each reads.

The plan and not the text is what is looked at: it says what `*`, `group by all`, a common table expression or a lateral
view stand for. What is not understood here has no lineage, and must be taken for anything.

What a query leaves out, groups or joins by is not told: only what values are made of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NO_INPUT = frozenset({"LocalRelation", "OneRowRelation", "Range"})
BY_PLACE = frozenset({"Union", "Intersect", "Except"})
# Nodes whose columns are those of their inputs, and those that their own expressions name.
PASSING = frozenset(
    "Aggregate CTERelationDef Deduplicate Distinct Expand Filter Generate GlobalLimit Join LateralJoin LocalLimit "
    "Offset Project RebalancePartitions Repartition RepartitionByExpression ResolvedHint Sample Sort Subquery "
    "SubqueryAlias Tail Window WithWindowDefinition".split()
)
PARTS = frozenset({"GetStructField", "GetMapValue", "GetArrayItem"})  # take a part of a value as it is
ONE_OF = frozenset({"First", "Last", "AnyValue"})  # take a value of a group as it is
SUBQUERIES = frozenset(
    {"ScalarSubquery", "Exists", "ListQuery", "LateralSubquery", "FunctionTableSubqueryArgumentExpression"}
)


@dataclass(frozen=True)
class ColumnOrigin:
    """What a value is made of: columns as `TABLE.COLUMN`, or `TABLE.COLUMN.PART`. It is `plain` where it is one of
    their values as it is, and not computed from them.
    """

    reads: frozenset[str] = frozenset()
    plain: bool = True


CLEAR = ColumnOrigin()


@dataclass
class _Scope:
    """Origins of columns by Spark's ids for them; None where nobody knows. `outer` is that of a query around."""

    columns: dict[int, ColumnOrigin | None] = field(default_factory=dict)
    outer: _Scope | None = None

    def get(self, id: int) -> ColumnOrigin | None:
        if id in self.columns:
            return self.columns[id]
        return None if self.outer is None else self.outer.get(id)


def lineage_of(frame: DataFrame, tables: Collection[str]) -> dict[str, ColumnOrigin]:
    """By column, its origin in these tables. A column that nobody knows the origin of is left out."""
    plan = frame._jdf.queryExecution().analyzed()
    scope = _Reading(frozenset(tables)).scope(plan, None)
    found: dict[str, ColumnOrigin] = {}
    for attribute in all_of(plan.output()):
        origin = scope.get(_id(attribute))
        if origin is not None:
            found[str(attribute.name())] = origin
    return found


def all_of(sequence: Any) -> Iterator[Any]:
    for place in range(sequence.size()):
        yield sequence.apply(place)


def _id(attribute: Any) -> int:
    return int(attribute.exprId().id())


def kind_of(node: Any) -> str:
    return str(node.getClass().getSimpleName())


class _Reading:
    """A plan on its way to origins."""

    def __init__(self, tables: frozenset[str]) -> None:
        self.tables = tables
        self.shared: dict[int, list[ColumnOrigin | None]] = {}  # common table expressions: origins by place

    def scope(self, node: Any, outer: _Scope | None) -> _Scope:
        """What is known of a node's output."""
        kind = kind_of(node)
        if kind == "View":
            name = str(node.desc().identifier().table())
            outputs = all_of(node.output()) if name in self.tables else ()
            return _Scope({_id(each): ColumnOrigin(frozenset({f"{name}.{each.name()}"})) for each in outputs}, outer)
        if kind == "CTERelationRef":
            shared = self.shared.get(int(node.cteId()), [])
            return _Scope(dict(zip(map(_id, all_of(node.output())), shared, strict=False)), outer)
        if kind in NO_INPUT:
            return _Scope({_id(attribute): CLEAR for attribute in all_of(node.output())}, outer)
        if kind == "WithCTE":
            for each in all_of(node.cteDefs()):
                inner = self.scope(each.child(), outer)
                self.shared[int(each.id())] = [inner.get(_id(out)) for out in all_of(each.child().output())]
            return self.scope(node.plan(), outer)
        children = list(all_of(node.children()))
        scopes = [self.scope(child, outer) for child in children]
        if kind not in BY_PLACE and kind not in PASSING:
            return _Scope({}, outer)
        if kind in BY_PLACE:
            found = _Scope({}, outer)
            ids = [[_id(attribute) for attribute in all_of(child.output())] for child in children]
            for place, attribute in enumerate(all_of(node.output())):
                origins = [scope.get(own[place]) for scope, own in zip(scopes, ids, strict=True)]
                found.columns[_id(attribute)] = _either(origins)
            return found
        known = _Scope({id: origin for scope in scopes for id, origin in scope.columns.items()}, outer)
        return self._computed(node, kind, known)

    def _computed(self, node: Any, kind: str, known: _Scope) -> _Scope:
        """A node's own columns, and those that it passes on."""
        found = _Scope(dict(known.columns), known.outer)
        for expression in all_of(node.expressions()):
            if kind_of(expression) == "Alias":
                found.columns[_id(expression)] = self.origin(expression.child(), known)
        if kind == "Generate":
            made = _whole(self.origin(node.generator(), known))
            found.columns |= {_id(attribute): made for attribute in all_of(node.generatorOutput())}
        if kind == "Expand":
            for place, attribute in enumerate(all_of(node.output())):
                if _id(attribute) not in known.columns:
                    rows = (row.apply(place) for row in all_of(node.projections()))
                    values = [row for row in rows if kind_of(row) != "Literal"]
                    found.columns[_id(attribute)] = _either(self.origin(value, known) for value in values)
        return found

    def origin(self, expression: Any, scope: _Scope) -> ColumnOrigin | None:
        kind = kind_of(expression)
        if kind == "AttributeReference":
            return scope.get(_id(expression))
        if kind == "OuterReference":
            return None if scope.outer is None else self.origin(expression.e(), scope.outer)
        if kind in SUBQUERIES:
            # All that is read in it: whether it finds anything depends on that too.
            origins = [self.origin(child, scope) for child in all_of(expression.children())]
            return _whole(_either([*origins, *self._everything(expression.plan(), scope)]))
        origins = [self.origin(child, scope) for child in all_of(expression.children())]
        if kind == "Alias":
            return origins[0]
        if kind in PARTS and origins[0] is not None and origins[0].plain and not _reads(origins[1:]):
            if kind == "GetStructField":
                name = str(expression.extractFieldName())
            elif kind == "GetMapValue" and kind_of(expression.key()) == "Literal":
                name = str(expression.key().value())
            else:
                return origins[0]
            return replace(origins[0], reads=frozenset(f"{each}.{name}" for each in origins[0].reads))
        if kind in ONE_OF or kind == "AggregateExpression":
            return origins[0] if not _reads(origins[1:]) else _whole(_either(origins))
        if kind == "Count" and all(each is not None and each.plain for each in origins):
            return CLEAR  # how many there are, and not what they are
        return _whole(_either(origins))

    def _everything(self, node: Any, outer: _Scope) -> Iterator[ColumnOrigin | None]:
        if kind_of(node) in ("View", *NO_INPUT):
            return
        children = list(all_of(node.children()))
        scopes = [self.scope(child, outer) for child in children]
        known = _Scope({id: origin for each in scopes for id, origin in each.columns.items()}, outer)
        for expression in all_of(node.expressions()):
            yield self.origin(expression, known)
        for child in children:
            yield from self._everything(child, outer)


def _reads(origins: Iterable[ColumnOrigin | None]) -> bool:
    return any(origin is None or origin.reads for origin in origins)


def _either(origins: Iterable[ColumnOrigin | None]) -> ColumnOrigin | None:
    """A value that is one of several."""
    reads: set[str] = set()
    plain = True
    for origin in origins:
        if origin is None:
            return None
        reads |= origin.reads
        plain = plain and origin.plain
    return ColumnOrigin(frozenset(reads), plain)


def _whole(origin: ColumnOrigin | None) -> ColumnOrigin | None:
    """A value that is computed."""
    return None if origin is None else ColumnOrigin(origin.reads, plain=not origin.reads)
