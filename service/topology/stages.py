"""Which rules need a stage of their own: those that are keyed by what their topics are not keyed by.

All events of a rule's key must come to one partition. They are in one, where the `by` of every step names the field
that the step's topic is keyed by, each at the same place of the list; or where there is only one partition. Otherwise
the streams of the rule go through repartition topics that are keyed by those fields, to a stage of that name:

    by user                       by-user         {service}-{stream}-by-user
    [login ..] by user,
    [payment ..] by account       by-user.account, each stream by its own field
    no `by`: one key over all     by-one-key: all events of those streams in one partition

Rules with the same fields share a stage. A key that is computed has no field to be forwarded by, and is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from samovar.common.errors import Refused
from samovar.patterns.semantics.event_types import keyed_brackets, reads_all
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax.tree import Field, Rule
from samovar.service.config.models import Stream

BY = "by-"
ONE_KEY = "by-one-key"
MOST_NAME = 249  # characters of a topic's name
PLAIN = re.compile(r"[A-Za-z0-9_]+\Z")


@dataclass
class Stage:
    """Rules that are keyed alike. `fields` are by stream, in the service file's order; None is one key over all."""

    name: str
    fields: dict[str, str | None]
    rules: list[Rule] = field(default_factory=list)


def stages_of(rules: Iterable[Rule], streams: Mapping[str, Stream], partitions: int) -> list[Stage]:
    """The main stage, which may have no rule, and the others in the order of their names."""
    main = Stage("", {name: stream.key for name, stream in streams.items()})
    others: dict[str, Stage] = {}
    for rule in rules:
        fields = None if partitions == 1 else fields_of(rule, streams)
        if fields is None:
            main.rules.append(rule)
            continue
        paths = dict.fromkeys(path for path in fields.values() if path is not None)
        name = BY + ".".join(map(_slug, paths)) if paths else ONE_KEY
        stage = others.setdefault(name, Stage(name, {}))
        stage.rules.append(rule)
        for stream, path in fields.items():
            if stage.fields.setdefault(stream, path) != path:
                raise Refused(
                    "stage-clash",
                    f"rule {rule.id} needs the stream {stream} by `{path}` in the stage {name}, where it is by"
                    f" `{stage.fields[stream]}`",
                    "Rename one of the two fields, or set `partitions: 1` for all streams.",
                    rule.path,
                )
    for stage in others.values():
        stage.fields = {name: stage.fields[name] for name in streams if name in stage.fields}
    return [main, *(others[name] for name in sorted(others))]


def stage_of(rule: Rule, streams: Mapping[str, Stream], partitions: int) -> str:
    """The name of the stage that a rule runs in; that of the main one is empty."""
    return next(stage.name for stage in stages_of([rule], streams, partitions) if stage.rules)


def topic_of(service: str, stream: str, stage: str) -> str:
    """The repartition topic of a stream for a stage."""
    name = f"{service}-{stream}-{stage}"
    if len(name) > MOST_NAME:
        raise Refused(
            "topic-name-long",
            f"the repartition topic {name[:60]}... would have a name of {len(name)} characters",
            f"A topic's name has at most {MOST_NAME}: give the service or the stream a shorter one.",
        )
    return name


def fields_of(rule: Rule, streams: Mapping[str, Stream]) -> dict[str, str | None] | None:
    """By stream, the field that its events must be forwarded by; None where all are in their partitions already."""
    places = [_at_place(rule, place, streams) for place in range(len(rule.form.by))]
    plain = [fields for fields in places if fields is not None]
    for fields in plain:
        if all(streams[name].key == path and not streams[name].repartition for name, path in fields.items()):
            return None
    if not rule.form.by:
        return dict.fromkeys(streams_of(rule, streams))
    if plain:
        return {name: plain[0][name] for name in streams if name in plain[0]}
    names = ", ".join(key.name for key in rule.form.by)
    keyed = (f"the topic {streams[name].topic} is keyed by {streams[name].key}" for name in streams_of(rule, streams))
    raise Refused(
        "key-mismatch",
        f"rule {rule.id} is by {names}, and its events cannot be sent on by that",
        "Events are sent on by a plain field, the same in all steps that read one stream: write the key's value into a"
        " field where the event is made; give event types that are keyed apart streams of their own; or set"
        " `partitions: 1` for all streams.",
        f"{rule.path}: {'; '.join(keyed)}",
    )


def placing_of(rule: Rule, streams: Mapping[str, Stream]) -> int | None:
    """The place of a rule's key whose text says in which partition it is; None: all events have one key."""
    places = [_at_place(rule, place, streams) for place in range(len(rule.form.by))]
    for place, fields in enumerate(places):
        if fields is not None and all(
            streams[name].key == path and not streams[name].repartition for name, path in fields.items()
        ):
            return place
    return next((place for place, fields in enumerate(places) if fields is not None), None)


def _at_place(rule: Rule, place: int, streams: Mapping[str, Stream]) -> dict[str, str] | None:
    """The field of each stream at one place of the key; None where it is not a plain field, or not one per stream."""
    found: dict[str, str] = {}
    for bracket in keyed_brackets(rule):
        value = (bracket.by or ())[place].value
        if not isinstance(value, Field):
            return None
        for name in sources_of(bracket.type, streams):
            if _may_have(name, streams[name], value.path) and found.setdefault(name, value.path) != value.path:
                return None
    value = rule.form.by[place].value
    if reads_all(rule) and isinstance(value, Field):
        for name, stream in streams.items():
            if _may_have(name, stream, value.path):
                found.setdefault(name, value.path)
    return found


def streams_of(rule: Rule, streams: Mapping[str, Stream]) -> list[str]:
    """The streams whose events a rule reads."""
    if reads_all(rule):
        return list(streams)
    wanted = {name for bracket in keyed_brackets(rule) for name in sources_of(bracket.type, streams)}
    return [name for name in streams if name in wanted]


def key_paths(rule: Rule, name: str, streams: Mapping[str, Stream]) -> list[set[str] | None]:
    """For each place of a rule's key, the fields of a stream that it is read from; None where it is computed."""
    found: list[set[str] | None] = []
    for place, own in enumerate(rule.form.by):
        values = [
            (bracket.by or ())[place].value
            for bracket in keyed_brackets(rule)
            if name in sources_of(bracket.type, streams)
        ]
        values += [own.value] * reads_all(rule)
        paths = {value.path for value in values if isinstance(value, Field)}
        found.append(paths if len(values) and all(isinstance(value, Field) for value in values) else None)
    return found


def _may_have(name: str, stream: Stream, path: str) -> bool:
    """Whether events of a stream can have a field, as far as its schema tells."""
    if stream.fields is None or path in (stream.key, stream.time, stream.type):
        return True
    schema = Schema.of({name: stream.fields} if stream.type is None else stream.fields)
    return any(schema.kind(path, (event_type,)) is not None for event_type in schema.types)


def _slug(path: str) -> str:
    """A field's name as part of a topic's; what cannot be in one makes way for a hash.

    >>> _slug("user.id"), _slug("account"), _slug("prénom")
    ('user_id', 'account', 'pr_nom-3d79ff')
    """
    plain = path.replace(".", "_")
    if PLAIN.match(plain):
        return plain
    return re.sub(r"[^A-Za-z0-9_]", "_", plain) + "-" + hashlib.sha256(path.encode()).hexdigest()[:6]


def sources_of(event_type: str, streams: Mapping[str, Stream]) -> list[str]:
    """The streams that can hold events of a type."""

    def can_hold(name: str, stream: Stream) -> bool:
        if event_type == "any":
            return True
        if stream.type is None:
            return event_type == name
        return stream.fields is None or event_type in stream.fields

    return [name for name, stream in streams.items() if can_hold(name, stream)]
