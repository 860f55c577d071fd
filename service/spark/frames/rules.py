"""What alerts do not carry themselves: severity, tags, form and types of the rule version that found them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from samovar.changelog.batches import objects
from samovar.changelog.log import Int64s, Records
from samovar.common.errors import Refused
from samovar.common.wire import from_wire
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax.functions import BOOLEAN, FUNCTIONS, LIST, NUMBER
from samovar.patterns.syntax.tree import (
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
    SessionForm,
    TextMatch,
    Unary,
)
from samovar.service.topology.ruleset import schema_of
from samovar.service.topology.stores import StateLocation
from samovar.tasks.model.plan import PublishedRule
from samovar.tasks.replay.rebuild import journal_of

TIME = pa.timestamp("us", "UTC")
TEXT, LONG, INT, DOUBLE, FLAG, BYTES = pa.string(), pa.int64(), pa.int32(), pa.float64(), pa.bool_(), pa.binary()
LAST_MS = 253_402_300_799_999  # the end of the year 9999: later stands for never
PLACE = [pa.field("_partition", INT), pa.field("_offset", LONG), pa.field("_time", TIME), pa.field("_key", TEXT)]

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
    return own | ({"count": "bigint"} if isinstance(rule.form, SessionForm) else {})


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


def times_of(ms: Int64s) -> pa.Array:
    """Times that are all there."""
    return pa.array(np.asarray(ms, np.int64) * 1000, LONG).cast(TIME)


def times(values: Sequence[int | None]) -> pa.Array:
    return pa.array([time_us(value) for value in values], LONG).cast(TIME)


def time_us(value: int | None) -> int | None:
    """Microseconds of a time in ms; None where it is not a time that a calendar has."""
    return None if value is None or abs(value) > LAST_MS else value * 1000


def text_of(data: bytes | None) -> str | None:
    """As people read it. What is not text is shown with its bytes replaced."""
    return None if data is None else data.decode("utf-8", "replace")


def json_of(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


def keys_of(records: Records) -> list[bytes | None]:
    """The keys one by one, None for the missing."""
    missing = np.fromiter((records.key(int(row)) is None for row in np.flatnonzero(_empty(records))), np.bool_)
    keyless = np.zeros(len(records), np.bool_)
    keyless[np.flatnonzero(_empty(records))] = missing
    return objects(records.keys, keyless)


def _empty(records: Records) -> Any:
    return records.keys.starts == records.keys.ends


def places(records: Records, keys: Sequence[bytes | None]) -> list[pa.Array]:
    """The columns of PLACE."""
    return [
        pa.array(np.full(len(records), records.partition, np.int32)),
        pa.array(np.asarray(records.offsets)),
        times_of(records.times),
        pa.array([text_of(key) for key in keys], TEXT),
    ]


@dataclass(frozen=True)
class KnownVersion:
    """Of a rule's version, by its text. `emit` has the fields that it emits and their types."""

    rule: str
    severity: str | None
    tags: tuple[str, ...]
    is_session: bool
    emit: Mapping[str, str]


def known_rules(site: StateLocation) -> Mapping[str, KnownVersion]:
    """All versions that ran, as the journals have them, and today's."""
    schema = schema_of(site.settings.streams)
    texts: dict[str, PublishedRule] = {}
    for here in site.stages():
        texts |= {text.version: text for text in here.plan.rules}
        for text in _journaled(here):
            texts.setdefault(text.version, text)
    return {version: found for version, text in texts.items() if (found := _known(text, schema)) is not None}


def _journaled(site: StateLocation) -> list[PublishedRule]:
    """Of partition 0: all partitions have the same rules."""
    if site.plan.task is not None or not site.log.topics([site.plan.topics.journal]):
        return []
    try:
        entries = journal_of(site.log, site.plan, 0)
    except Refused:
        return []  # its beginning is gone: today's rules are what is known
    return [
        from_wire(PublishedRule, facts) for entry in entries if entry.kind == "rules" for facts in entry.facts["rules"]
    ]


def _known(text: PublishedRule, schema: Schema | None) -> KnownVersion | None:
    rule: Rule | None = load_text(text.text, f"<{text.id}>", params=text.params, lists=text.lists).rule
    if rule is None:
        return None
    return KnownVersion(
        rule.id, rule.severity, tuple(rule.tags), isinstance(rule.form, SessionForm), emit_of(rule, schema)
    )


def emits_of(known: Mapping[str, KnownVersion]) -> dict[str, dict[str, str]]:
    """By rule: the fields of `emit` and their types, of all its versions."""
    rules = {each.rule: [other.emit for other in known.values() if other.rule == each.rule] for each in known.values()}
    return {rule: merged(versions) for rule, versions in rules.items()}
