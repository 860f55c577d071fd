"""What alerts do not carry themselves: severity, tags, form and types of the rule version that found them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from samovar.changelog.formats.journal import EntryKind
from samovar.common.errors import Refused
from samovar.common.wire import from_wire
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.functions import BOOLEAN, FUNCTIONS, LIST, NUMBER
from samovar.service.config.models import ServiceFile
from samovar.service.topology.logs import opened
from samovar.service.topology.ruleset import schema_of
from samovar.service.topology.stores import StateLocation, site_of
from samovar.tasks.model.plan import PublishedRule
from samovar.tasks.replay.rebuild import journal_of

LAST_MS = 253_402_300_799_999  # the end of the year 9999: later stands for never

SQL = {NUMBER: "double", BOOLEAN: "boolean", LIST: "array<string>"}
OF_SCHEMA = {"string": "string", "double": "double", "long": "bigint", "boolean": "boolean"}
OF_AGGREGATE = {
    "count": "bigint", "distinct": "bigint", "sum": "double", "avg": "double", "stddev": "double",
    "values": "array<string>", "seen": "boolean",
}  # fmt: skip
COMPARING = {"not", "and", "or", "==", "!=", "<", "<=", ">", ">="}


@dataclass(frozen=True, kw_only=True)
class KnownVersion:
    """A rule's version, by its text. `emit` has the fields that it emits and their SQL types."""

    rule: str
    severity: str | None
    tags: tuple[str, ...]
    is_session: bool
    emit: Mapping[str, str]


@dataclass
class VersionCatalog:
    """Versions by name. One that was published since is looked for when its first alert is met."""

    settings: ServiceFile
    known: Mapping[str, KnownVersion]
    unknown: set[str] = field(default_factory=set)

    def get(self, version: str) -> KnownVersion | None:
        if version not in self.known and version not in self.unknown:
            with opened(self.settings) as log:
                self.known = {**known_rules(site_of(self.settings, log)), **self.known}
            self.unknown.add(version)
        return self.known.get(version)


def published_texts(site: StateLocation) -> tuple[dict[str, PublishedRule], bool]:
    """The texts of all versions that ran, as the journals have them, and today's; and whether these are all."""
    texts: dict[str, PublishedRule] = {}
    is_whole = True
    for here in site.stages():
        texts |= {text.version: text for text in here.plan.rules}
        if here.plan.task is not None or not here.log.topics([here.plan.topics.journal]):
            continue
        try:
            entries = journal_of(here.log, here.plan, 0)  # all partitions have the same rules
        except Refused:
            is_whole = False
            continue  # its beginning is gone: today's rules are what is known
        for facts in (facts for entry in entries if entry.kind == EntryKind.RULES for facts in entry.facts["rules"]):
            text = from_wire(PublishedRule, facts)
            texts.setdefault(text.version, text)
    return texts, is_whole


def parsed_rule(text: PublishedRule) -> tree.Rule | None:
    return load_text(text.text, f"<{text.id}>", params=text.params, lists=text.lists).rule


def known_rules(site: StateLocation) -> Mapping[str, KnownVersion]:
    """All versions that ran, and today's."""
    schema = schema_of(site.settings.streams)
    known: dict[str, KnownVersion] = {}
    for version, text in published_texts(site)[0].items():
        rule = parsed_rule(text)
        if rule is not None:
            is_session = isinstance(rule.form, tree.SessionForm)
            emit = {name: type_of(value, schema) for name, value in rule.emit}
            emit |= {"count": "bigint"} if is_session else {}
            known[version] = KnownVersion(
                rule=rule.id, severity=rule.severity, tags=tuple(rule.tags), is_session=is_session, emit=emit
            )
    return known


def emits_of(known: Mapping[str, KnownVersion]) -> dict[str, dict[str, str]]:
    """By rule, the fields of `emit` and their types over all its versions; text where those differ."""
    emits: dict[str, dict[str, str]] = {}
    for version in known.values():
        types = emits.setdefault(version.rule, {})
        for name, kind in version.emit.items():
            types[name] = kind if types.get(name, kind) == kind else "string"
    return emits


def type_of(value: tree.Expr, schema: Schema | None) -> str:
    """The SQL type of an expression; text where it is not known before an event is at hand."""
    match value:
        case tree.Field(path="@time"):
            return "bigint"
        case tree.Field():  # by the schemas of all event types that have it, where they agree
            kinds: Mapping[str, str] = {} if schema is None else schema.fields(["any"])
            return OF_SCHEMA.get(kinds.get(value.path, ""), "string")
        case tree.OfStep():
            return type_of(value.value, schema)
        case tree.Aggregate() | tree.History():
            known = OF_AGGREGATE.get(value.function)
            return known or ("string" if value.value is None else type_of(value.value, schema))
        case tree.Call():
            function = FUNCTIONS.get(value.function)
            return SQL.get(function.result or "", "string") if function else "string"
        case tree.In() | tree.TextMatch() | tree.Literal(value=bool()):
            return "boolean"
        case tree.Unary() | tree.Binary():
            return "boolean" if value.op in COMPARING else "double"
        case tree.Literal(value=int() | float()):
            return "double"
        case _:
            return "string"


def time_us(value: int | None) -> int | None:
    """Microseconds of a time in ms; None where it is not a time that a calendar has."""
    return None if value is None or abs(value) > LAST_MS else value * 1000


def json_of(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)
