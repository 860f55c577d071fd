"""What one value of a service file cannot show: that the values fit each other, and what is on the disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from samovar.common.suggest import did_you_mean
from samovar.native.opcodes import AVRO_OPS
from samovar.patterns.engine.avro.program import resolved
from samovar.patterns.engine.avro.schema import AvroSchema, MapType, RecordType, Union, kinds
from samovar.patterns.semantics.schema import TYPES, Schema
from samovar.service.config.models import TOPICS_OF_A_SERVICE, ServiceFile, Stream, TaskSettings, emit_topics
from samovar.tasks.user.loading import file_of

Place: TypeAlias = tuple[str | int, ...]


class SettingFault(NamedTuple):
    """`place` leads to the setting: its key, the key in that, and so on."""

    place: Place
    message: str
    expected: str | None = None
    hint: str | None = None


def faults(settings: ServiceFile) -> Iterator[SettingFault]:
    """All that is wrong, in no order."""
    if not settings.streams:
        yield SettingFault(("streams",), "a service needs a stream", "streams: {purchase: {key: card}}")
    for name, stream in settings.streams.items():
        place = ("streams", name)
        yield from _avro_faults(place, stream)
        yield from _stream_faults(place, name, stream)
    seen: dict[str, tuple[str, ...]] = {}
    for topic_place, topic in topics_by_place(settings).items():
        if topic in seen:
            message = f"the topic `{topic}` is that of `{'.'.join(seen[topic][:-1])}` too"
            yield SettingFault(topic_place, message, hint="each needs a topic of its own")
        seen.setdefault(topic, topic_place)
    partitions = {name: stream.partitions for name, stream in settings.streams.items() if stream.partitions}
    first = next(iter(partitions), "")
    for name, count in partitions.items():
        if count != partitions[first]:
            message = f"`{name}` has {count} partitions and `{first}` has {partitions[first]}"
            hint = "all streams of a service have equally many"
            yield SettingFault(("streams", name, "partitions"), message, hint=hint)
    archive = settings.archive
    longest_ms = max((each.retention_ms for each in settings.streams.values() if each.archive), default=0)
    if archive is not None and archive.keep_ms is not None and archive.keep_ms < longest_ms:
        message = "the archive keeps records for a shorter time than the log does"
        yield SettingFault(("archive", "keep"), message, "more than the longest `retention` of its streams")
    for name, task in settings.tasks.items():
        yield from _task_faults(settings, name, task)
    for path in settings.rules:
        if not path.exists() and not (settings.tasks and path == settings.folder / "rules"):
            expected = "a folder of rule files, a rule file, or a list of them"
            yield SettingFault(("rules",), f"there is no {path}", expected)
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


def _avro_faults(place: Place, stream: Stream) -> Iterator[SettingFault]:
    if stream.format != "avro":
        for name in ("registry", "schemas"):
            if getattr(stream, name) is not None:
                message = f"`{name}` is of Avro, and the format is {stream.format}"
                yield SettingFault((*place, name), message, "format: avro")
        return
    if stream.registry is not None and stream.schemas is not None:
        message = "schemas come from files or from a registry"
        yield SettingFault((*place, "schemas"), message, hint="remove one of the two")
    if stream.avro is None and stream.registry is None and stream.schemas is None:
        expected = "schema: purchase.avsc; or registry: URL or schemas: {1: purchase.avsc}, where messages name theirs"
        yield SettingFault((*place, "format"), "Avro is not read without a schema", expected)
    for number, schema in (stream.schemas or {}).items():
        yield from _event_faults((*place, "schemas", str(number)), schema)
        program = resolved(schema, stream.avro)
        if program.words[program.words[0]] == AVRO_OPS["mismatch"]:
            message = f"it cannot be read as `schema`: {program.faults[-1]}"
            yield SettingFault((*place, "schemas", str(number)), message)
    if stream.avro is None:
        return
    yield from _event_faults((*place, "schema"), stream.avro)
    # Unlike one of JSON, an Avro schema names all fields: what is not in it never comes.
    found = kinds(stream.avro)
    known = None if found is None else Schema.of({"event": found})
    for role, field in (("time", stream.time), ("type", stream.type)):
        if known is not None and field is not None and known.kind(field, ("event",)) is None:
            names = known.fields(("event",))
            message = f"`{stream.avro.name}` has no field `{field}`"
            yield SettingFault((*place, role), message, ", ".join(names), did_you_mean(field, names))


def _event_faults(place: Place, schema: AvroSchema) -> Iterator[SettingFault]:
    if not isinstance(schema.of(schema.root), RecordType | MapType | Union):
        yield SettingFault(place, f"an event is a record, and this is the schema of `{schema.name}`")


def _stream_faults(place: Place, name: str, stream: Stream) -> Iterator[SettingFault]:
    for role in ("time", "type"):
        own = getattr(stream, role)
        if own is not None and any(own == each or own.startswith(f"{each}.") for each in stream.pii):
            hint = "mark the fields that say whom an event is about"
            yield SettingFault((*place, "pii"), f"`{own}` is the stream's `{role}`, which all see", None, hint)
    if stream.fields is None:
        return
    by_type = {name: stream.fields} if stream.type is None else stream.fields
    for event_type, fields in by_type.items():
        inside = (*place, "schema") if stream.type is None else (*place, "schema", event_type)
        if not isinstance(fields, Mapping):
            message = f"with `type: {stream.type}` a schema is by event type, and `{event_type}` has no fields"
            yield SettingFault(inside, message, "schema: {login: {user: string}, logout: {user: string}}")
            continue
        unknown = list(_unknown_types(inside, fields))
        yield from unknown
        schema = None if unknown else Schema.of({event_type: fields})
        if schema is not None and schema.kind(stream.key, (event_type,)) is None:
            known = schema.fields((event_type,))
            message = f"`{event_type}` has no field `{stream.key}`"
            yield SettingFault((*place, "key"), message, ", ".join(known) or None, did_you_mean(stream.key, known))


def _unknown_types(place: Place, fields: Mapping[str, Any]) -> Iterator[SettingFault]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _unknown_types((*place, name), value)
            continue
        try:
            Schema.of({"event": {name: value}})
        except ValueError:
            tip = did_you_mean(str(value), TYPES)
            yield SettingFault((*place, name), f"`{value}` is not a type of a field", ", ".join(TYPES), tip)


def _task_faults(settings: ServiceFile, name: str, task: TaskSettings) -> Iterator[SettingFault]:
    place = ("tasks", name)
    for number, stream in enumerate(task.streams):
        if stream not in settings.streams:
            known, tip = ", ".join(settings.streams) or None, did_you_mean(stream, settings.streams)
            yield SettingFault((*place, "streams", number), f"there is no stream `{stream}`", known, tip)
    for to, emit in task.emits.items():
        if to in settings.streams and emit.topic is not None:
            message = f"`{to}` is a stream, whose topic is given there"
            yield SettingFault((*place, "emits", to, "topic"), message, None, "remove it here")
        if _reaches(settings.tasks, to, name, set()):
            hint = "events would go round for ever: write to another stream"
            yield SettingFault((*place, "emits", to), f"the task {name} reads what it writes to `{to}`", None, hint)
    if task.window_ms == 0:
        yield SettingFault((*place, "window"), "a window needs some time", "window: 1h")
    for store, spec in task.stores.items():
        if spec.ttl_ms == 0:
            yield SettingFault((*place, "stores", store, "ttl"), "a time to live needs some time", "ttl: 30d")
    module = task.source.partition(":")[0]
    near = did_you_mean(f"{module}.py", [path.name for path in settings.folder.glob("*.py")])
    if near and "." not in module and not file_of(module, settings.folder).is_file():
        yield SettingFault((*place, "class"), f"there is no {module}.py next to the service file", None, near)


def _reaches(tasks: Mapping[str, TaskSettings], stream: str, name: str, seen: set[str]) -> bool:
    """Whether events of a stream reach a task, through others or not: a task in a circle would never come to an end."""
    if stream in seen:
        return False
    seen.add(stream)
    readers = [other for other, task in tasks.items() if stream in task.streams]
    return name in readers or any(_reaches(tasks, to, name, seen) for other in readers for to in tasks[other].emits)
