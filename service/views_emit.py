"""The types of what rules emit, so that a view reads `emit.spent` as a number. By all versions of a rule that ran:
where two of them disagree, the field is text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from samovar.changelog.errors import Refused
from samovar.changelog.log import Log
from samovar.patterns.functions import BOOLEAN, FUNCTIONS, LIST, NUMBER, TEXT
from samovar.patterns.rulefile import load_text
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
from samovar.service.plans import rule_plans
from samovar.service.service_rules import has_rules, schema_of
from samovar.service.settings_models import ServiceFile
from samovar.service.topics import partitions_of
from samovar.tasks.plan import Plan, RuleText
from samovar.tasks.rebuild import journal_of

SQL = {NUMBER: "double", TEXT: "string", BOOLEAN: "boolean", LIST: "array<string>"}
OF_SCHEMA = {"string": "string", "double": "double", "long": "bigint", "boolean": "boolean"}
OF_AGGREGATE = {
    "count": "bigint", "distinct": "bigint", "sum": "double", "avg": "double", "stddev": "double",
    "values": "array<string>", "seen": "boolean",
}  # fmt: skip
COMPARING = {"not", "and", "or", "==", "!=", "<", "<=", ">", ">="}


def emit_types(settings: ServiceFile, log: Log) -> dict[str, dict[str, str]]:
    """By rule: the fields of `emit` and their types."""
    schema = schema_of(settings.streams)
    found: dict[str, dict[str, str]] = {}
    for rule in _versions(settings, log):
        types = found.setdefault(rule.id, {})
        own = {name: type_of(value, schema) for name, value in rule.emit}
        if isinstance(rule.form, Session):
            own["count"] = "bigint"
        for name, kind in own.items():
            types[name] = kind if types.get(name, kind) == kind else "string"
    return found


def _versions(settings: ServiceFile, log: Log) -> Iterator[Rule]:
    """Today's rules, and those of the journals."""
    if not has_rules(settings):
        return
    topics = log.topics([stream.topic for stream in settings.streams.values()])
    texts: dict[str, RuleText] = {}
    for plan in rule_plans(settings, partitions_of(settings, topics)):
        texts |= {text.version: text for text in (*_journaled(log, plan), *plan.rules)}
    for text in texts.values():
        rule = load_text(text.text, f"<{text.id}>", params=text.params, lists=text.lists).rule
        if rule is not None:
            yield rule


def _journaled(log: Log, plan: Plan) -> list[RuleText]:
    if not log.topics([plan.topics.journal]):
        return []
    try:
        entries = journal_of(log, plan, 0)  # all partitions have the same rules
    except Refused:
        return []  # its beginning is gone: today's rules are what is known
    return [RuleText(**facts) for entry in entries if entry.kind == "rules" for facts in entry.facts["rules"]]


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
