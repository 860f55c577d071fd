"""The rules of a service, checked against its streams: known types and fields, and keys that can meet in one partition
(samovar.service.topology.stages).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.patterns.rulefile.loading import RuleSet, SettingError, load_given, load_set, rendered
from samovar.patterns.semantics.event_types import brackets_of
from samovar.patterns.semantics.schema import Schema
from samovar.service.config.models import ServiceFile, Stream
from samovar.service.topology.rule_registry import registry_of
from samovar.service.topology.stages import sources_of, stages_of

DEFAULT_PARTITIONS = 4


@dataclass
class BadRules(Refused):
    """Rules with errors; as text, all of them with their lines and carets."""

    def __str__(self) -> str:
        return f"{self.detail}\n{self.code}: {self.what}\n  {self.hint}"


def rules_of(settings: ServiceFile, partitions: int | None = None) -> RuleSet:
    """The rules, without errors; their findings are at most warnings. `partitions` is what the topics really have.

    A service with tasks of its own need have no rules. Once rules were published, those are the ones.
    """
    if registry_of(settings) is not None:
        rules = _published_rules(settings)
    elif settings.tasks and not any(path.exists() for path in settings.rules):
        return RuleSet((), ())
    else:
        schema = schema_of(settings.streams)
        try:
            rules = load_set(settings.rules, params=settings.params, lists=settings.lists, schema=schema)
        except SettingError as error:
            raise Refused("rule-settings", str(error), f"fix it in {settings.path}") from error
        if rules.errors:
            what, hint = f"the rules have {_count(rules)}", "`samovar rules check` shows them too"
            raise BadRules("rule-errors", what, hint, rendered(rules.errors))
    check_types(rules, settings.streams)
    stages_of(rules.rules, settings.streams, partitions or wanted_partitions(settings))
    return rules


def _published_rules(settings: ServiceFile) -> RuleSet:
    """The rules of the rulebook, without errors."""
    registry = registry_of(settings)
    assert registry is not None
    texts = {f"{entry.name} (number {entry.number})": entry.text for entry in registry.live}
    schema, lists = schema_of(settings.streams), lists_of(settings)
    loaded = [load_given(text, path, settings.params, lists, schema) for path, text in texts.items()]
    findings = tuple(finding for one in loaded for finding in one.findings)
    rules = RuleSet(tuple(one.rule for one in loaded if one.rule is not None), findings)
    if rules.errors:
        what = f"the published rules have {_count(rules)} with this service file"
        shown = rendered(rules.errors, texts)
        if all(load_given(text, path, settings.params, lists).rule is not None for path, text in texts.items()):
            hint = "`samovar rules plan` shows them all. Put the fields back, or publish rules without them first."
            raise BadRules("schema-breaks-rules", what, hint, shown)
        hint = "Fix the service file, or what was published: `samovar rules plan`, `samovar rules rollback`."
        raise BadRules("rule-errors", what, hint, shown)
    return rules


def _count(rules: RuleSet) -> str:
    return "an error" if len(rules.errors) == 1 else f"{len(rules.errors)} errors"


def lists_of(settings: ServiceFile) -> dict[str, object]:
    """The lists of the service file, and those that were changed since."""
    published = registry_of(settings)
    return {**settings.lists, **({} if published is None else published.lists)}


def has_rules(settings: ServiceFile) -> bool:
    """Whether there is a rule file at all. A folder may be empty yet, and its service be planned."""
    if registry_of(settings) is not None:
        return True
    kinds = ("*.yml", "*.yaml")
    return any(path.is_file() or any(next(path.rglob(kind), None) for kind in kinds) for path in settings.rules)


def wanted_partitions(settings: ServiceFile) -> int:
    """How many partitions the service file asks for."""
    given = (stream.partitions for stream in settings.streams.values())
    return next((count for count in given if count), DEFAULT_PARTITIONS)


def schema_of(streams: Mapping[str, Stream]) -> Schema | None:
    """The fields of all event types; None where a stream does not say what its events hold."""
    types: dict[str, Mapping[str, str]] = {}
    for name, stream in streams.items():
        if stream.fields is None:
            return None
        own = Schema.of({name: stream.fields} if stream.type is None else stream.fields)
        for event_type, fields in own.types.items():
            # What every event has need not be named.
            fixed = {stream.time: "any"} | ({} if stream.type is None else {stream.type: "string"})
            both = Schema({"here": fixed | dict(fields), "before": types.get(event_type, {})})
            types[event_type] = both.fields(("here", "before"))
    return Schema(types)


def check_types(rules: RuleSet, streams: Mapping[str, Stream]) -> None:
    """Refuse a rule that waits for events which no stream has."""
    for rule in rules.rules:
        for bracket in brackets_of(rule):
            if not sources_of(bracket.type, streams):
                raise Refused(
                    "unknown-type",
                    f"no stream has events of type `{bracket.type}`",
                    did_you_mean(bracket.type, streams) or f"streams are {', '.join(streams)}",
                    f"{rule.path}:{bracket.span.line}:{bracket.span.column}: rule {rule.id}",
                )
