"""A stream's fields change under rules at work: which fields, which rules read them, and which could not run any more.

    {"ok": bool, "fields": [{"type", "field", "before", "now"}], "rules": [{"rule", "ok", "reads": [...], "errors"}]}

`before` are the types that the last change of the rules topic was published with, null for a new field; `now` those of
the service file, null for one that is gone. Where nothing was published, only the rules are looked at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from samovar.changelog.log import Log
from samovar.patterns.engine.compile import compile_rules
from samovar.patterns.rulefile.loading import load_given, rendered
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax.findings import Finding
from samovar.service.config.models import ServiceFile
from samovar.service.rules.publishing import fields_of, seeds_of
from samovar.service.topology.rule_registry import load_registry, with_registry
from samovar.service.topology.ruleset import lists_of, schema_of


@dataclass(frozen=True)
class FieldChange:
    """One field of one event type."""

    type: str
    field: str
    before: str | None
    now: str | None


@dataclass(frozen=True)
class RuleVerdict:
    """Whether a rule can run with the fields of now, and which of the changed ones it reads."""

    rule: str
    text: str
    reads: tuple[str, ...]
    errors: tuple[Finding, ...]


@dataclass(frozen=True)
class SchemaPlan:
    fields: tuple[FieldChange, ...]
    rules: tuple[RuleVerdict, ...]

    @property
    def ok(self) -> bool:
        return not any(rule.errors for rule in self.rules)

    def as_json(self) -> str:
        rules = [
            {
                "rule": each.rule,
                "ok": not each.errors,
                "reads": each.reads,
                "errors": [finding.message for finding in each.errors],
            }
            for each in self.rules
        ]
        document = {"ok": self.ok, "fields": [asdict(each) for each in self.fields], "rules": rules}
        return json.dumps(document, indent=2, ensure_ascii=False)

    def as_text(self) -> str:
        lines = [] if self.fields else ["the fields of all streams are as they were"]
        for each in self.fields:
            if each.before is None:
                did = f"is new ({each.now})"
            else:
                did = "is gone" if each.now is None else f"was {each.before}, is {each.now}"
            lines.append(f"{each.type}.{each.field} {did}")
        for rule in self.rules:
            reads = f", reads {', '.join(rule.reads)}" if rule.reads else ""
            lines.append(f"rule {rule.rule}: {'cannot run' if rule.errors else 'can run'}{reads}")
            if rule.errors:
                lines.append(rendered(rule.errors, {rule.rule: rule.text}))
        return "\n".join(lines)


def plan_schema(settings: ServiceFile, log: Log) -> SchemaPlan:
    """Compares the service file's fields with those of the last change, and tries every rule with them."""
    registry = load_registry(settings, log)
    changes: list[FieldChange] = []
    texts = {record.name: record.text for record in (registry.live if registry.change else seeds_of(settings))}
    if registry.change:
        before, now = _types(settings, registry.changes[-1].fields), _types(settings, fields_of(settings))
        for name in sorted({*before, *now}):
            old, new = before.get(name, {}), now.get(name, {})
            for path in sorted({*old, *new}):
                if old.get(path) != new.get(path):
                    changes.append(FieldChange(name, path, old.get(path), new.get(path)))
    changed = {each.field for each in changes}
    lists, schema = lists_of(with_registry(settings, registry)), schema_of(settings.streams)
    verdicts = []
    for name, text in texts.items():
        loaded = load_given(text, name, settings.params, lists, schema)
        errors = tuple(finding for finding in loaded.findings if finding.level == "error")
        plain = load_given(text, name, settings.params, lists).rule
        reads = () if plain is None else tuple(sorted(changed & set(compile_rules([plain]).fields)))
        verdicts.append(RuleVerdict(name, text, reads, errors))
    return SchemaPlan(tuple(changes), tuple(verdicts))


def _types(settings: ServiceFile, fields: Mapping[str, Any]) -> dict[str, Mapping[str, str]]:
    found: dict[str, Mapping[str, str]] = {}
    for name, each in fields.items():
        stream = settings.streams.get(name)
        has_types = stream is not None and stream.type is not None
        found |= Schema.of(each if has_types else {name: each}).types
    return found
