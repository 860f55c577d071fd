"""The tasks of a service file as the stages that run them: class, streams, stores, and where they write."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from samovar.patterns.engine.avro.write import Encoder
from samovar.patterns.engine.compile import compile_rules
from samovar.service.config.models import ServiceFile, Stream, TaskSettings, emit_topics
from samovar.service.topology.encoding import writing_of
from samovar.service.topology.stages import topic_of
from samovar.tasks.model.plan import Forward, InputSpec, Plan
from samovar.tasks.model.user_spec import Emit, StoreSpec, TaskSpec
from samovar.tasks.user.loading import load_class, version_of

FOR_TASKS = "for-tasks"  # in the names of repartition topics that all tasks share
HOLDS_MS = 60_000  # for which an idle partition holds event time back, by a second at most; then by nothing


def task_plans(settings: ServiceFile, main: Plan, partitions: int) -> list[Plan]:
    """A plan for each task of the service file, next to the main stage, which reads all streams."""
    return [_plan(settings, name, main, partitions) for name in settings.tasks]


def _plan(settings: ServiceFile, name: str, main: Plan, partitions: int) -> Plan:
    topics = replace(main.topics, changelog=f"{main.topics.changelog}-{name}", journal=f"{main.topics.journal}-{name}")
    inputs, task = {spec.stream: spec for spec in main.inputs}, settings.tasks[name]
    streams = tuple(inputs[stream] for stream in task.streams)
    if _is_forwarded(settings, task, partitions):
        topic = partial(topic_of, settings.service, stage=FOR_TASKS)
        streams = tuple(forwarded(each, topic(each.stream), partitions) for each in streams)
    spec = spec_of(settings, name, partitions)
    # Published rules are none of its business.
    own = replace(main, inputs=streams, program=compile_rules([]), rules=(), forwards=(), book=None, storm={})
    return replace(own, topics=topics, stage=name, task=spec)


# ---------------------------------------------------------------- streams whose keys are in any partition


def _is_forwarded(settings: ServiceFile, task: TaskSettings, partitions: int) -> bool:
    """Whether a task's streams come through repartition topics: all of them, so that events of one key meet."""
    return partitions > 1 and any(settings.streams[stream].repartition for stream in task.streams)


def task_forwards(settings: ServiceFile, partitions: int) -> list[Forward]:
    """Streams that the main stage sends on for tasks, each once, by its own key."""
    tasks = [task for task in settings.tasks.values() if _is_forwarded(settings, task, partitions)]
    wanted = {stream for task in tasks for stream in task.streams}
    return [
        Forward(
            FOR_TASKS, name, stream.key, topic_of(settings.service, name, FOR_TASKS), partitions, HOLDS_MS, endless=True
        )
        for name, stream in settings.streams.items()
        if name in wanted
    ]


def placed_streams(settings: ServiceFile, partitions: int) -> frozenset[str]:
    """Streams that tasks read as they are keyed."""
    tasks = [task for task in settings.tasks.values() if not _is_forwarded(settings, task, partitions)]
    return frozenset(name for task in tasks for name in task.streams)


def forwarded(spec: InputSpec, topic: str, partitions: int) -> InputSpec:
    """A stream as it is read from a repartition topic."""
    return replace(spec, topic=topic, source_topic=spec.topic, source_partitions=partitions, placed_in=0)


# ---------------------------------------------------------------- the tasks themselves


def spec_of(settings: ServiceFile, name: str, partitions: int | None = None) -> TaskSpec:
    """A task as its objects are made; its class is loaded here."""
    task = settings.tasks[name]
    stores = {store: StoreSpec(each.ttl_ms) for store, each in task.stores.items()}
    ttls = sorted((store, each.ttl_ms) for store, each in stores.items())
    return TaskSpec(
        name,
        load_class(task.source, settings.folder),
        task.source,
        version_of(task.source, settings.folder, ttls, task.window_ms, sorted(task.params.items(), key=repr)),
        _emits(settings, name, partitions),
        stores,
        task.window_ms,
        task.params,
    )


def _emits(settings: ServiceFile, name: str, partitions: int | None) -> dict[str, Emit]:
    own = emit_topics(settings)[name]
    emits = {to: Emit(topic) for to, topic in own.items()}
    for to in settings.tasks[name].emits:
        if to not in own:
            stream = settings.streams[to]
            encode = None if stream.format == "json" else AvroEmit(stream).encode
            emits[to] = Emit(stream.topic, stream.key, stream.time, encode, partitions)
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
