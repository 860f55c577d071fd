"""What a service is to do, from its service file: a plan for each stage.

The main stage reads all streams. Further ones run rules that are keyed otherwise, and the user's tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from samovar.changelog.formats.rules_topic import DISABLED, DRAIN, SHADOW
from samovar.patterns.engine.avro.write import Encoder
from samovar.patterns.engine.compile import compile_rules
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.semantics.versioning import cold_ms, lasting_ms
from samovar.patterns.syntax.tree import Rule
from samovar.service.config.models import ServiceFile, Stream, TaskSettings, emit_topics
from samovar.service.topology.encoding import decoding_of, encoder_of
from samovar.service.topology.rule_registry import registry_of
from samovar.service.topology.ruleset import lists_of, rules_of
from samovar.service.topology.stages import stages_of, topic_of
from samovar.tasks.model.plan import (
    ActivationPolicy,
    Emit,
    Forward,
    InputSpec,
    OutputTopics,
    Plan,
    PublishedRule,
    RulesetChange,
    StoreSpec,
    TaskSpec,
)
from samovar.tasks.rules.rate_limiter import EVERY
from samovar.tasks.user.loading import load_class, version_of

FOR_TASKS = "for-tasks"  # in the names of repartition topics that all tasks share
HOLDS_MS = 60_000  # for which an idle partition holds event time back, by a second at most; then by nothing


def plan_of(settings: ServiceFile, partitions: int) -> Plan:
    """The main stage's plan."""
    return rule_plans(settings, partitions)[0]


def plans_of(settings: ServiceFile, partitions: int) -> list[Plan]:
    """The plans of all stages: the main one, those of rules that are keyed otherwise, those of the user's tasks."""
    plans = rule_plans(settings, partitions)
    return [*plans, *(_task_plan(settings, name, plans[0], partitions) for name in settings.tasks)]


def rule_plans(settings: ServiceFile, partitions: int) -> list[Plan]:
    """The plans of the stages that run rules; the main one also forwards what tasks read. Loads no user code."""
    main, *others = stages_of(rules_of(settings, partitions).rules, settings.streams, partitions)
    topics = OutputTopics(
        alerts=settings.alerts.topic,
        late=settings.late.topic,
        dead_letters=settings.dead_letters.topic,
        changelog=settings.changelog.topic,
        journal=settings.journal.topic,
    )
    inputs = tuple(input_of(name, stream, partitions) for name, stream in settings.streams.items())
    plan = _rule_plan(settings, main.rules, inputs, topics)
    plans, forwards = [], []
    for stage in others:
        sent_on = []
        for spec in inputs:
            topic = topic_of(settings.service, spec.stream, stage.name)
            keyed = replace(spec, key=stage.fields.get(spec.stream) or spec.key)
            sent_on.append(_repartitioned_input(keyed, topic, partitions))
        own = tuple(spec for spec in sent_on if spec.stream in stage.fields)
        rest = tuple(spec for spec in sent_on if spec.stream not in stage.fields)
        stage_plan = _rule_plan(settings, stage.rules, own, _stage_topics(topics, stage.name))
        plans.append(replace(stage_plan, stage=stage.name, others=rest))
        longest_ms = max(map(lasting_ms, stage.rules))
        for stream, path in stage.fields.items():
            topic = topic_of(settings.service, stream, stage.name)
            forwards.append(
                Forward(
                    stage=stage.name,
                    stream=stream,
                    field=path,
                    topic=topic,
                    partitions=partitions,
                    lasting_ms=longest_ms,
                )
            )
    published = registry_of(settings)
    # The main stage tells of the rules that were taken out, wherever they were at work.
    quarantined = [
        PublishedRule(id=each.name, version=each.version, text=each.text, number=each.number, quarantined=each.note)
        for each in (() if published is None else published.quarantined)
    ]
    direct = [task for task in settings.tasks.values() if not _is_forwarded(settings, task, partitions)]
    main_plan = replace(
        plan,
        forwards=(*forwards, *task_forwards(settings, partitions)),
        placed=frozenset(stream for task in direct for stream in task.streams),
        rules=(*plan.rules, *quarantined),
    )
    return [main_plan, *plans]


def _stage_topics(topics: OutputTopics, stage: str) -> OutputTopics:
    """Where a further stage writes: a changelog and a journal of its own, and the rest as all do."""
    return replace(topics, changelog=f"{topics.changelog}-{stage}", journal=f"{topics.journal}-{stage}")


def _repartitioned_input(spec: InputSpec, topic: str, partitions: int) -> InputSpec:
    """A stream as it is read from a repartition topic."""
    return replace(spec, topic=topic, source_topic=spec.topic, source_partitions=partitions, placed_in=0)


def _rule_plan(
    settings: ServiceFile, rules: Sequence[Rule], inputs: tuple[InputSpec, ...], topics: OutputTopics
) -> Plan:
    program = compile_rules(rules)
    lists, published = lists_of(settings), registry_of(settings)
    texts = []
    for rule, compiled in zip(rules, program.rules, strict=True):
        own_params = {name: value for name, value in settings.params.items() if name in rule.params}
        # Lists as the journal gives them back.
        own_lists = {
            name: list(items) if isinstance(items, tuple) else items
            for name, items in lists.items()
            if name in rule.lists
        }
        text = PublishedRule(id=rule.id, version=compiled.version, text=rule.text, params=own_params, lists=own_lists)
        entry = None if published is None else published.entry(rule.id)
        texts.append(text if entry is None else replace(text, number=entry.number, shadow=entry.status == SHADOW))
    storm = {}
    if settings.storm is not None:
        limits = {EVERY: settings.storm, **settings.storm.rules}
        storm = {rule: (limit.alerts, limit.per_ms) for rule, limit in limits.items()}
    plan = Plan(
        service=settings.service,
        inputs=inputs,
        program=program,
        rules=tuple(texts),
        topics=topics,
        max_partials=settings.max_partials,
        max_events=settings.max_events,
        max_matches=settings.max_matches,
        tunables=settings.tunables,
        storm=storm,
    )
    if published is None:
        return plan
    entries = {entry.name: entry for entry in published.entries}
    policies = {
        rule.id: ActivationPolicy(entries[rule.id].state == DRAIN, cold_ms(rule), entries[rule.id].warm_from_ms)
        for rule in rules
    }
    drained = {entry.name for entry in published.entries if entry.status == DISABLED and entry.state == DRAIN}
    return replace(plan, ruleset_change=RulesetChange(published.change, policies, frozenset(drained)))


def input_of(name: str, stream: Stream, partitions: int = 1) -> InputSpec:
    """A stream as tasks read it. Records must be in the partition of their key, unless the file says otherwise."""
    kinds: dict[str, str] = {}
    types = None if stream.fields is None else frozenset(stream.fields)
    if stream.type is None:
        types = frozenset({name})
        kinds = {} if stream.fields is None else dict(Schema.of({name: stream.fields}).types[name])
    return InputSpec(
        stream=name,
        topic=stream.topic,
        key=stream.key,
        time_field=stream.time,
        type_field=stream.type,
        slack_ms=stream.slack_ms,
        idle_ms=stream.idle_ms,
        max_future_skew_ms=stream.max_future_skew_ms,
        kinds=kinds,
        decoder=decoding_of(stream),
        placed_in=partitions if partitions > 1 and stream.repartition is None else 0,
        types=types,
    )


def _task_plan(settings: ServiceFile, name: str, main: Plan, partitions: int) -> Plan:
    inputs, task = {spec.stream: spec for spec in main.inputs}, settings.tasks[name]
    streams = [inputs[stream] for stream in task.streams]
    if _is_forwarded(settings, task, partitions):
        streams = [
            _repartitioned_input(spec, topic_of(settings.service, spec.stream, FOR_TASKS), partitions)
            for spec in streams
        ]
    return replace(
        main,
        inputs=tuple(streams),
        topics=_stage_topics(main.topics, name),
        stage=name,
        task=spec_of(settings, name, partitions),
        # Published rules are none of its business.
        program=compile_rules([]),
        rules=(),
        forwards=(),
        ruleset_change=None,
        storm={},
    )


def _is_forwarded(settings: ServiceFile, task: TaskSettings, partitions: int) -> bool:
    """Whether a task's streams come through repartition topics: all of them, so that events of one key meet."""
    return partitions > 1 and any(settings.streams[stream].repartition for stream in task.streams)


def task_forwards(settings: ServiceFile, partitions: int) -> list[Forward]:
    """Streams that the main stage sends on for tasks, each once, by its own key."""
    tasks = [task for task in settings.tasks.values() if _is_forwarded(settings, task, partitions)]
    wanted = {stream for task in tasks for stream in task.streams}
    return [
        Forward(
            stage=FOR_TASKS,
            stream=name,
            field=stream.key,
            topic=topic_of(settings.service, name, FOR_TASKS),
            partitions=partitions,
            lasting_ms=HOLDS_MS,
            endless=True,
        )
        for name, stream in settings.streams.items()
        if name in wanted
    ]


def spec_of(settings: ServiceFile, name: str, partitions: int | None = None) -> TaskSpec:
    """A task as its objects are made; its class is loaded here."""
    task, topics = settings.tasks[name], emit_topics(settings)[name]
    emits = {to: Emit(topic=topic) for to, topic in topics.items()}
    for to in task.emits:
        if to not in topics:
            stream = settings.streams[to]
            encode = None if stream.format == "json" else AvroEmit(stream).encode
            emits[to] = Emit(topic=stream.topic, key=stream.key, time=stream.time, encode=encode, among=partitions)
    stores = {store: StoreSpec(each.ttl_ms) for store, each in task.stores.items()}
    ttls = sorted((store, each.ttl_ms) for store, each in stores.items())
    return TaskSpec(
        name=name,
        make=load_class(task.source, settings.folder),
        source=task.source,
        version=version_of(task.source, settings.folder, ttls, task.window_ms, sorted(task.params.items(), key=repr)),
        emits=emits,
        stores=stores,
        window_ms=task.window_ms,
        params=task.params,
    )


class AvroEmit:
    """What a task writes to a stream in Avro. Its schema is looked up with the first record, maybe in a registry."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    @cached_property
    def _encoder(self) -> Encoder:
        encoder = encoder_of(self.stream)
        assert encoder is not None  # it is not JSON
        return encoder

    def encode(self, data: bytes) -> bytes:
        return self._encoder.encode(data)
