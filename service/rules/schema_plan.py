"""A stream's fields change under rules at work: which fields, which rules read them, and which could not run any more.

    {"ok": bool, "fields": [{"type", "field", "before", "now"}], "rules": [{"rule", "ok", "reads": [...], "errors"}]}

`before` are the types that the last change of the rules topic was published with, null for a new field; `now` those of
the service file, null for one that is gone. Where nothing was published, only the rules are looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from samovar.changelog.log import Log
from samovar.patterns.engine.compile import compile_rules
from samovar.patterns.rulefile.loading import load_given, rendered
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax.findings import Finding
from samovar.service.config.models import ServiceFile
from samovar.service.rules.publishing import fields_of, seeds_of
from samovar.service.topology.rule_registry import RuleRegistry, read_rulebook, with_book
from samovar.service.topology.ruleset import lists_of, schema_of


@dataclass(frozen=True)
class FieldChange:
    """One field of one event type."""

    type: str
    field: str
    before: str | None
    now: str | None

    @property
    def text(self) -> str:
        if self.before is None:
            return f"{self.type}.{self.field} is new ({self.now})"
        return f"{self.type}.{self.field} " + ("is gone" if self.now is None else f"was {self.before}, is {self.now}")


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

    def to_json(self) -> dict[str, Any]:
        rules = [
            {
                "rule": each.rule,
                "ok": not each.errors,
                "reads": list(each.reads),
                "errors": [finding.message for finding in each.errors],
            }
            for each in self.rules
        ]
        return {"ok": self.ok, "fields": [asdict(each) for each in self.fields], "rules": rules}

    def as_json(self) -> str:
        return json.dumps(self.to_json(), indent=2, ensure_ascii=False)

    def as_text(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield from (each.text for each in self.fields)
        if not self.fields:
            yield "the fields of all streams are as they were"
        for rule in self.rules:
            reads = f", reads {', '.join(rule.reads)}" if rule.reads else ""
            yield f"rule {rule.rule}: {'cannot run' if rule.errors else 'can run'}{reads}"
            if rule.errors:
                yield rendered(rule.errors, {rule.rule: rule.text})


def plan_schema(settings: ServiceFile, log: Log) -> SchemaPlan:
    """Compare the service file's fields with those of the last change, and try every rule with them."""
    book = read_rulebook(settings, log)
    changes = tuple(_changes(settings, book))
    texts = {entry.name: entry.text for entry in book.live} if book.change else _of_files(settings)
    changed = {each.field for each in changes}
    rules = tuple(_verdict(settings, book, name, text, changed) for name, text in texts.items())
    return SchemaPlan(changes, rules)


def _of_files(settings: ServiceFile) -> dict[str, str]:
    return {rule.name: rule.text for rule in seeds_of(settings)}


def _changes(settings: ServiceFile, book: RuleRegistry) -> Iterator[FieldChange]:
    if not book.change:
        return
    before, now = _types(settings, book.changes[-1].fields), _types(settings, fields_of(settings))
    for event_type in sorted({*before, *now}):
        old, new = before.get(event_type, {}), now.get(event_type, {})
        for path in sorted({*old, *new}):
            if old.get(path) != new.get(path):
                yield FieldChange(event_type, path, old.get(path), new.get(path))


def _types(settings: ServiceFile, fields: Mapping[str, Any]) -> dict[str, Mapping[str, str]]:
    found: dict[str, Mapping[str, str]] = {}
    for name, each in fields.items():
        stream = settings.streams.get(name)
        has_types = stream is not None and stream.type is not None
        found |= Schema.of(each if has_types else {name: each}).types
    return found


def _verdict(settings: ServiceFile, book: RuleRegistry, name: str, text: str, changed: set[str]) -> RuleVerdict:
    lists = lists_of(with_book(settings, book))
    loaded = load_given(text, name, settings.params, lists, schema_of(settings.streams))
    errors = tuple(finding for finding in loaded.findings if finding.level == "error")
    plain = load_given(text, name, settings.params, lists)
    reads = () if plain.rule is None else tuple(sorted(changed & set(compile_rules([plain.rule]).fields)))
    return RuleVerdict(name, text, reads, errors)
