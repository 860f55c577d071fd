"""The tasks of a service file as the stages that run them: class, streams, stores, and where they write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from samovar.patterns.avro_write import Encoder
from samovar.patterns.compile import compile_rules
from samovar.service.avro_streams import writing_of
from samovar.service.settings_models import ServiceFile, Stream
from samovar.service.settings_tasks_check import emit_topics
from samovar.tasks.plan import InputSpec, Plan
from samovar.tasks.user_loading import load_class, version_of
from samovar.tasks.user_spec import Emit, StoreSpec, TaskSpec


def task_plans(settings: ServiceFile, main: Plan, inputs: Sequence[InputSpec]) -> list[Plan]:
    """A plan for each task of the service file. `inputs` are all streams, as the main stage reads them."""
    by_name = {spec.stream: spec for spec in inputs}
    return [_plan(settings, name, main, by_name) for name in settings.tasks]


def _plan(settings: ServiceFile, name: str, main: Plan, inputs: Mapping[str, InputSpec]) -> Plan:
    topics = replace(main.topics, changelog=f"{main.topics.changelog}-{name}", journal=f"{main.topics.journal}-{name}")
    streams = tuple(inputs[stream] for stream in settings.tasks[name].streams)
    spec = spec_of(settings, name)
    return replace(
        main, inputs=streams, program=compile_rules([]), rules=(), topics=topics, stage=name, forwards=(), task=spec
    )


def spec_of(settings: ServiceFile, name: str) -> TaskSpec:
    """A task as its objects are made; its class is loaded here."""
    task = settings.tasks[name]
    stores = {store: StoreSpec(each.ttl_ms) for store, each in task.stores.items()}
    ttls = sorted((store, each.ttl_ms) for store, each in stores.items())
    return TaskSpec(
        name,
        load_class(task.source, settings.folder),
        task.source,
        version_of(task.source, settings.folder, ttls, task.window_ms, sorted(task.params.items(), key=repr)),
        _emits(settings, name),
        stores,
        task.window_ms,
        task.params,
    )


def _emits(settings: ServiceFile, name: str) -> dict[str, Emit]:
    own = emit_topics(settings)[name]
    emits = {to: Emit(topic) for to, topic in own.items()}
    for to in settings.tasks[name].emits:
        if to not in own:
            stream = settings.streams[to]
            encode = None if stream.format == "json" else AvroEmit(stream).encode
            emits[to] = Emit(stream.topic, stream.key, stream.time, encode)
    return emits


class AvroEmit:
    """What a task writes to a stream in Avro. Its schema is looked up with the first record, maybe in a registry."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._encoder: Encoder | None = None

    def encode(self, data: bytes) -> bytes:
        if self._encoder is None:
            writing = writing_of(self.stream)
            self._encoder = Encoder(writing.schema, writing.number)
        return self._encoder.encode(data)
