"""The rules of a service, checked against its streams: known types and fields, and keys that meet in one partition.

All events of a rule's key must be in one partition. They are, where the `by` of every step names the field that the
step's topic is keyed by, each at the same place of the list; or where there is only one partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from samovar.changelog.errors import Refused
from samovar.patterns.loading import RuleSet, SettingError, load_set, rendered
from samovar.patterns.nearest import did_you_mean
from samovar.patterns.schema import Schema
from samovar.patterns.syntax import Bracket, Field, Literal, Rule, Sequence
from samovar.service.settings_models import ServiceFile, Stream

DEFAULT_PARTITIONS = 4


@dataclass
class BadRules(Refused):
    """Rules with errors; as text, all of them with their lines and carets."""

    def __str__(self) -> str:
        return f"{self.detail}\n{self.code}: {self.what}\n  {self.hint}"


def rules_of(settings: ServiceFile, partitions: int | None = None) -> RuleSet:
    """The rules, without errors; their findings are at most warnings. `partitions` is what the topics really have."""
    try:
        rules = load_set(
            settings.rules, params=settings.params, lists=settings.lists, schema=schema_of(settings.streams)
        )
    except SettingError as error:
        raise Refused("rule-settings", str(error), f"mend it in {settings.path}") from error
    if rules.errors:
        count = "an error" if len(rules.errors) == 1 else f"{len(rules.errors)} errors"
        shown = rendered(rules.errors)
        raise BadRules("rule-errors", f"the rules have {count}", "`samovar rules check` shows them too", shown)
    check_types(rules, settings.streams)
    if (partitions or wanted_partitions(settings)) > 1:
        for rule in rules.rules:
            check_keys(rule, settings.streams)
    return rules


def wanted_partitions(settings: ServiceFile) -> int:
    """How many partitions the service file asks for."""
    given = (stream.partitions for stream in settings.streams.values())
    return next((count for count in given if count), DEFAULT_PARTITIONS)


# ---------------------------------------------------------------- types and fields


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


def sources_of(event_type: str, streams: Mapping[str, Stream]) -> list[str]:
    """The streams that can hold events of a type."""
    return [name for name, stream in streams.items() if _can_hold(event_type, name, stream)]


def _can_hold(event_type: str, name: str, stream: Stream) -> bool:
    if event_type == "any":
        return True
    if stream.type is None:
        return event_type == name
    return stream.fields is None or event_type in stream.fields


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


# ---------------------------------------------------------------- keys


def check_keys(rule: Rule, streams: Mapping[str, Stream]) -> None:
    """Refuse a rule whose keys could lie in several partitions."""
    keyed = [bracket for bracket in brackets_of(rule) if not _belongs_to_no_key(bracket)]
    places = range(len(rule.form.by))
    if any(all(_is_keyed_by(bracket, place, streams) for bracket in keyed) for place in places):
        return
    if not rule.form.by:
        what, hint = f"rule {rule.id} has one key over all events", "give it a `by`"
    else:
        names = ", ".join(key.name for key in rule.form.by)
        what, hint = f"rule {rule.id} is keyed by {names}, its topics are not", _key_hint(rule, streams)
    detail = "; ".join(dict.fromkeys(_keys_of_topics(keyed, streams)))
    raise Refused("key-mismatch", what, f"{hint}, or set `partitions: 1` for all streams", f"{rule.path}: {detail}")


def brackets_of(rule: Rule) -> list[Bracket]:
    form = rule.form
    if not isinstance(form, Sequence):
        return list(form.brackets)
    steps = [bracket for step in form.steps for bracket in step.brackets]
    return steps if form.until is None else [*steps, form.until]


def _belongs_to_no_key(bracket: Bracket) -> bool:
    by = bracket.by or ()
    return bool(by) and all(isinstance(key.value, Literal) and key.value.value is None for key in by)


def _is_keyed_by(bracket: Bracket, place: int, streams: Mapping[str, Stream]) -> bool:
    value = (bracket.by or ())[place].value
    names = sources_of(bracket.type, streams)
    return isinstance(value, Field) and all(streams[name].key == value.path for name in names)


def _keys_of_topics(brackets: list[Bracket], streams: Mapping[str, Stream]) -> Iterator[str]:
    for bracket in brackets:
        for name in sources_of(bracket.type, streams):
            yield f"the topic {streams[name].topic} is keyed by {streams[name].key}"


def _key_hint(rule: Rule, streams: Mapping[str, Stream]) -> str:
    """What to key each topic by: the first entry of `by` that is a plain field in all steps."""
    keyed = [bracket for bracket in brackets_of(rule) if not _belongs_to_no_key(bracket)]
    for place in range(len(rule.form.by)):
        values = [(bracket, (bracket.by or ())[place].value) for bracket in keyed]
        if all(isinstance(value, Field) for _, value in values):
            wanted = {
                streams[name].topic: value.path
                for bracket, value in values
                if isinstance(value, Field)
                for name in sources_of(bracket.type, streams)
            }
            return "; ".join(f"key the topic {topic} by {field}" for topic, field in wanted.items())
    return "write the key's value into a field of the event, and key the topic by it"
