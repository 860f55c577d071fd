"""What a service is to do, from its service file: a plan for each stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from samovar.changelog.errors import Refused
from samovar.patterns.compile import compile_rules
from samovar.patterns.schema import Schema
from samovar.patterns.syntax import Rule
from samovar.service.avro_streams import decoding_of
from samovar.service.service_rules import rules_of
from samovar.service.settings_models import ServiceFile, Stream
from samovar.service.stages import Stage, stages_of, topic_of
from samovar.service.user_tasks import task_plans
from samovar.tasks.plan import Forward, InputSpec, OutputTopics, Plan, RuleText


def plan_of(settings: ServiceFile, partitions: int) -> Plan:
    """The main stage's plan."""
    return rule_plans(settings, partitions)[0]


def plans_of(settings: ServiceFile, partitions: int) -> list[Plan]:
    """The plans of all stages: the main one, those of rules that are keyed otherwise, those of the user's tasks."""
    plans = rule_plans(settings, partitions)
    if partitions > 1:
        _refuse_unplaced(settings)
    return [*plans, *task_plans(settings, plans[0], plans[0].inputs)]


def _refuse_unplaced(settings: ServiceFile) -> None:
    """A task's stores are by partition: it cannot read a stream whose keys are in any."""
    for name, task in settings.tasks.items():
        for stream in task.streams:
            if settings.streams[stream].repartition:
                raise Refused(
                    "key-mismatch",
                    f"the task {name} reads the stream `{stream}`, whose keys are not in partitions of their own",
                    "Only rules go through a repartition topic. Let the stream's producers place by murmur2 and remove"
                    " `repartition: true`, or set `partitions: 1` for all streams.",
                )


def rule_plans(settings: ServiceFile, partitions: int) -> list[Plan]:
    """The plans of the stages that run rules. No code of the user's is loaded."""
    main, *others = stages_of(rules_of(settings, partitions).rules, settings.streams, partitions)
    topics = OutputTopics(
        settings.alerts.topic,
        settings.late.topic,
        settings.dead_letters.topic,
        settings.changelog.topic,
        settings.journal.topic,
    )
    inputs = tuple(input_of(name, stream) for name, stream in settings.streams.items())
    forwards = tuple(each for stage in others for each in _forwards(settings, stage, partitions))
    plan = _plan(settings, main.rules, inputs, topics)
    return [
        replace(plan, forwards=forwards),
        *(_stage_plan(settings, stage, plan, partitions) for stage in others),
    ]


def _plan(settings: ServiceFile, rules: Sequence[Rule], inputs: tuple[InputSpec, ...], topics: OutputTopics) -> Plan:
    program = compile_rules(rules)
    texts = _texts(settings, rules, [plan.version for plan in program.rules])
    limits = settings.max_partials, settings.max_events, settings.cache_bytes
    return Plan(settings.service, inputs, program, texts, topics, *limits)


def _stage_plan(settings: ServiceFile, stage: Stage, main: Plan, partitions: int) -> Plan:
    every = [_forwarded(settings, spec, stage, partitions) for spec in main.inputs]
    inputs = tuple(spec for spec in every if spec.stream in stage.fields)
    plan = _plan(settings, stage.rules, inputs, stage_topics(main.topics, stage.name))
    others = tuple(spec for spec in every if spec.stream not in stage.fields)
    return replace(plan, stage=stage.name, others=others)


def stage_topics(topics: OutputTopics, stage: str) -> OutputTopics:
    """Where a further stage writes: a changelog and a journal of its own, and the rest as all do."""
    return replace(topics, changelog=f"{topics.changelog}-{stage}", journal=f"{topics.journal}-{stage}")


def _forwarded(settings: ServiceFile, spec: InputSpec, stage: Stage, partitions: int) -> InputSpec:
    return replace(
        spec,
        topic=topic_of(settings.service, spec.stream, stage.name),
        key=stage.fields.get(spec.stream) or spec.key,
        source_topic=spec.topic,
        source_partitions=partitions,
    )


def _forwards(settings: ServiceFile, stage: Stage, partitions: int) -> list[Forward]:
    return [
        Forward(stage.name, stream, path, topic_of(settings.service, stream, stage.name), partitions, stage.lasting_ms)
        for stream, path in stage.fields.items()
    ]


def input_of(name: str, stream: Stream) -> InputSpec:
    kinds: dict[str, str] = {}
    if stream.fields is not None and stream.type is None:
        kinds = dict(Schema.of({name: stream.fields}).types[name])
    return InputSpec(
        name,
        stream.topic,
        stream.key,
        stream.time,
        stream.type,
        stream.slack_ms,
        stream.idle_ms,
        stream.max_future_skew_ms,
        kinds,
        decoder=decoding_of(stream),
    )


def _texts(settings: ServiceFile, rules: Sequence[Rule], versions: Sequence[str]) -> tuple[RuleText, ...]:
    found = []
    for rule, version in zip(rules, versions, strict=True):
        params = {name: value for name, value in settings.params.items() if name in rule.params}
        lists = {name: value for name, value in settings.lists.items() if name in rule.lists}
        found.append(RuleText(rule.id, version, rule.text, params, lists))
    return tuple(found)
