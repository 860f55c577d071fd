"""What one value of a service file cannot show: that the values fit each other, and what is on the disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from samovar.common.suggest import did_you_mean
from samovar.patterns.semantics.schema import TYPES, Schema
from samovar.service.config.avro_checks import avro_faults
from samovar.service.config.models import TOPICS_OF_A_SERVICE, ServiceFile, Stream
from samovar.service.config.task_checks import emit_topics, task_faults


class SettingFault(NamedTuple):
    """`place` leads to the setting: its key, the key in that, and so on."""

    place: tuple[str | int, ...]
    message: str
    expected: str | None = None
    hint: str | None = None


def faults(settings: ServiceFile) -> Iterator[SettingFault]:
    """All that is wrong, in no order."""
    if not settings.streams:
        yield SettingFault(("streams",), "a service needs a stream", "streams: {purchase: {key: card}}")
    for name, stream in settings.streams.items():
        yield from _stream_faults(name, stream)
    yield from _shared_topics(settings)
    yield from _partitions(settings)
    for found in task_faults(settings):
        yield SettingFault(*found)
    for path in settings.rules:
        if not path.exists() and not (settings.tasks and path == settings.folder / "rules"):
            yield SettingFault(
                ("rules",), f"there is no {path}", "a folder of rule files, a rule file, or a list of them"
            )
    if settings.log.embedded is not None and settings.replication != 1:
        yield SettingFault(("replication",), "the embedded log has no replicas", "replication: 1")


def topics_by_place(settings: ServiceFile) -> dict[tuple[str, ...], str]:
    """Every topic that the file names or leads to, by the setting that does."""
    topics: dict[tuple[str, ...], str] = {}
    topics |= {("streams", name, "topic"): stream.topic for name, stream in settings.streams.items()}
    topics |= {(key, "topic"): getattr(settings, key).topic for key in TOPICS_OF_A_SERVICE}
    for task, own in emit_topics(settings).items():
        topics |= {("tasks", task, "emits", name): topic for name, topic in own.items()}
    return topics


def _shared_topics(settings: ServiceFile) -> Iterator[SettingFault]:
    seen: dict[str, tuple[str, ...]] = {}
    for place, topic in topics_by_place(settings).items():
        if topic in seen:
            other = ".".join(seen[topic][:-1])
            yield SettingFault(
                place, f"the topic `{topic}` is that of `{other}` too", hint="each needs a topic of its own"
            )
        seen.setdefault(topic, place)


def _partitions(settings: ServiceFile) -> Iterator[SettingFault]:
    given = {name: stream.partitions for name, stream in settings.streams.items() if stream.partitions}
    first = next(iter(given), "")
    for name, count in given.items():
        if count != given[first]:
            message = f"`{name}` has {count} partitions and `{first}` has {given[first]}"
            yield SettingFault(
                ("streams", name, "partitions"), message, hint="all streams of a service have equally many"
            )


# ---------------------------------------------------------------- schemas


def _stream_faults(name: str, stream: Stream) -> Iterator[SettingFault]:
    for found in avro_faults(stream):
        yield SettingFault(("streams", name, *found.place), found.message, found.expected, found.hint)
    for role in ("time", "type"):
        own = getattr(stream, role)
        if own is not None and any(own == each or own.startswith(f"{each}.") for each in stream.pii):
            hint = "mark the fields that say whom an event is about"
            yield SettingFault(("streams", name, "pii"), f"`{own}` is the stream's `{role}`, which all see", None, hint)
    if stream.fields is None:
        return
    place = ("streams", name, "schema")
    if stream.type is None:
        yield from _schema_faults(place, stream.fields, name, stream)
        return
    for event_type, fields in stream.fields.items():
        if isinstance(fields, Mapping):
            yield from _schema_faults((*place, event_type), fields, event_type, stream)
        else:
            yield SettingFault(
                (*place, event_type),
                f"with `type: {stream.type}` a schema is by event type, and `{event_type}` has no fields",
                "schema: {login: {user: string}, logout: {user: string}}",
            )


def _schema_faults(
    place: tuple[str, ...], fields: Mapping[str, Any], event_type: str, stream: Stream
) -> Iterator[SettingFault]:
    unknown = list(_unknown_types(place, fields))
    yield from unknown
    if unknown:
        return
    schema = Schema.of({event_type: fields})
    for role in ("key",):
        field = getattr(stream, role)
        if schema.kind(field, (event_type,)) is None:
            known = schema.fields((event_type,))
            tip = did_you_mean(field, known)
            yield SettingFault(
                ("streams", place[1], role), f"`{event_type}` has no field `{field}`", ", ".join(known) or None, tip
            )


def _unknown_types(place: tuple[str, ...], fields: Mapping[str, Any]) -> Iterator[SettingFault]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _unknown_types((*place, name), value)
            continue
        try:
            Schema.of({"event": {name: value}})
        except ValueError:
            tip = did_you_mean(str(value), TYPES)
            yield SettingFault((*place, name), f"`{value}` is not a type of a field", ", ".join(TYPES), tip)
