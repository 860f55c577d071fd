"""The types of what rules emit, so that a frame or a view reads `emit.spent` as a number. By all versions of a rule
that ran: where two of them disagree, the field is text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from samovar.patterns.functions import BOOLEAN, FUNCTIONS, LIST, NUMBER, TEXT
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
    Rule,
    Session,
    TextMatch,
    Unary,
)

SQL = {NUMBER: "double", TEXT: "string", BOOLEAN: "boolean", LIST: "array<string>"}
OF_SCHEMA = {"string": "string", "double": "double", "long": "bigint", "boolean": "boolean"}
OF_AGGREGATE = {
    "count": "bigint", "distinct": "bigint", "sum": "double", "avg": "double", "stddev": "double",
    "values": "array<string>", "seen": "boolean",
}  # fmt: skip
COMPARING = {"not", "and", "or", "==", "!=", "<", "<=", ">", ">="}


def emit_of(rule: Rule, schema: Schema | None) -> dict[str, str]:
    """What one version of a rule emits: its fields and their types."""
    own = {name: type_of(value, schema) for name, value in rule.emit}
    return own | ({"count": "bigint"} if isinstance(rule.form, Session) else {})


def merged(versions: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The fields of all versions of a rule.

    >>> merged([{"spent": "double"}, {"spent": "double", "n": "bigint"}, {"n": "string"}])
    {'spent': 'double', 'n': 'string'}
    """
    types: dict[str, str] = {}
    for own in versions:
        for name, kind in own.items():
            types[name] = kind if types.get(name, kind) == kind else "string"
    return types


def type_of(value: Expr, schema: Schema | None) -> str:
    """The SQL type of an expression; text where it is not known before an event is at hand."""
    match value:
        case Field():
            return "bigint" if value.path == "@time" else _of_field(value.path, schema)
        case OfStep():
            return type_of(value.value, schema)
        case Aggregate() | History():
            known = OF_AGGREGATE.get(value.function)
            return known or ("string" if value.value is None else type_of(value.value, schema))
        case Call():
            function = FUNCTIONS.get(value.function)
            return SQL.get(function.result or "", "string") if function else "string"
        case _:
            return _of_operator(value)


def _of_operator(value: Expr) -> str:
    match value:
        case In() | TextMatch() | Literal(value=bool()):
            return "boolean"
        case Unary() | Binary():
            return "boolean" if value.op in COMPARING else "double"
        case Literal(value=int() | float()):
            return "double"
        case _:
            return "string"


def _of_field(path: str, schema: Schema | None) -> str:
    """By the schemas of all event types that have it, where they agree."""
    kinds: Mapping[str, str] = {} if schema is None else schema.fields(["any"])
    return OF_SCHEMA.get(kinds.get(path, ""), "string")
