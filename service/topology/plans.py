"""What a service is to do, from its service file: a plan for each stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from samovar.changelog.formats.rules_topic import DISABLED, DRAIN, SHADOW
from samovar.patterns.engine.compile import compile_rules
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.semantics.versioning import cold_ms
from samovar.patterns.syntax.tree import Rule
from samovar.service.config.models import ServiceFile, Storm, Stream
from samovar.service.topology.encoding import decoding_of
from samovar.service.topology.rule_registry import RuleRegistry, book_of
from samovar.service.topology.ruleset import lists_of, rules_of
from samovar.service.topology.stages import Stage, stages_of, topic_of
from samovar.service.topology.user_tasks import forwarded, placed_streams, task_forwards, task_plans
from samovar.tasks.model.plan import (
    ActivationPolicy,
    Forward,
    InputSpec,
    Limits,
    OutputTopics,
    Plan,
    PublishedRule,
    RulesetChange,
)
from samovar.tasks.rules.rate_limiter import EVERY


def plan_of(settings: ServiceFile, partitions: int) -> Plan:
    """The main stage's plan."""
    return rule_plans(settings, partitions)[0]


def plans_of(settings: ServiceFile, partitions: int) -> list[Plan]:
    """The plans of all stages: the main one, those of rules that are keyed otherwise, those of the user's tasks."""
    plans = rule_plans(settings, partitions)
    return [*plans, *task_plans(settings, plans[0], partitions)]


def rule_plans(settings: ServiceFile, partitions: int) -> list[Plan]:
    """The plans of the stages that run rules; the main one also forwards what tasks read. No code of the user's is
    loaded.
    """
    main, *others = stages_of(rules_of(settings, partitions).rules, settings.streams, partitions)
    topics = OutputTopics(
        settings.alerts.topic,
        settings.late.topic,
        settings.dead_letters.topic,
        settings.changelog.topic,
        settings.journal.topic,
    )
    inputs = tuple(input_of(name, stream, partitions) for name, stream in settings.streams.items())
    forwards = tuple(each for stage in others for each in _forwards(settings, stage, partitions))
    plan = _plan(settings, main.rules, inputs, topics)
    placed = placed_streams(settings, partitions)
    return [
        replace(
            plan,
            forwards=(*forwards, *task_forwards(settings, partitions)),
            placed=placed,
            rules=(*plan.rules, *_quarantined(settings)),
        ),
        *(_stage_plan(settings, stage, plan, partitions) for stage in others),
    ]


def _plan(settings: ServiceFile, rules: Sequence[Rule], inputs: tuple[InputSpec, ...], topics: OutputTopics) -> Plan:
    program = compile_rules(rules)
    texts = _texts(settings, rules, [plan.version for plan in program.rules])
    limits = settings.max_partials, settings.max_events, settings.max_matches, settings.tunables
    plan = Plan(settings.service, inputs, program, texts, topics, *limits, storm=_storm(settings.storm))
    published = book_of(settings)
    return plan if published is None else replace(plan, book=_book(published, rules))


def _quarantined(settings: ServiceFile) -> tuple[PublishedRule, ...]:
    """Rules that were taken out: the main stage tells of them, wherever they were at work."""
    published = book_of(settings)
    entries = () if published is None else published.quarantined
    return tuple(
        PublishedRule(each.name, each.version, each.text, number=each.number, quarantined=each.note) for each in entries
    )


def _storm(storm: Storm | None) -> Limits:
    if storm is None:
        return {}
    own = {rule: (limit.alerts, limit.per_ms) for rule, limit in storm.rules.items()}
    return {EVERY: (storm.alerts, storm.per_ms), **own}


def _book(book: RuleRegistry, rules: Sequence[Rule]) -> RulesetChange:
    entries = {entry.name: entry for entry in book.entries}
    coming = {
        rule.id: ActivationPolicy(entries[rule.id].state == DRAIN, cold_ms(rule), entries[rule.id].warm_from_ms)
        for rule in rules
    }
    drained = {entry.name for entry in book.entries if entry.status == DISABLED and entry.state == DRAIN}
    return RulesetChange(book.change, coming, frozenset(drained))


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
    keyed = replace(spec, key=stage.fields.get(spec.stream) or spec.key)
    return forwarded(keyed, topic_of(settings.service, spec.stream, stage.name), partitions)


def _forwards(settings: ServiceFile, stage: Stage, partitions: int) -> list[Forward]:
    return [
        Forward(stage.name, stream, path, topic_of(settings.service, stream, stage.name), partitions, stage.lasting_ms)
        for stream, path in stage.fields.items()
    ]


def input_of(name: str, stream: Stream, partitions: int = 1) -> InputSpec:
    """A stream as tasks read it. Of several partitions, records must be in that of their key, unless the file says
    something else.
    """
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
        placed_in=partitions if partitions > 1 and stream.repartition is None else 0,
        types=_types(name, stream),
    )


def _types(name: str, stream: Stream) -> frozenset[str] | None:
    if stream.type is None:
        return frozenset({name})
    return None if stream.fields is None else frozenset(stream.fields)


def _texts(settings: ServiceFile, rules: Sequence[Rule], versions: Sequence[str]) -> tuple[PublishedRule, ...]:
    found, every, published = [], lists_of(settings), book_of(settings)
    for rule, version in zip(rules, versions, strict=True):
        params = {name: value for name, value in settings.params.items() if name in rule.params}
        lists = {name: _listed(value) for name, value in every.items() if name in rule.lists}
        entry = None if published is None else published.entry(rule.id)
        text = PublishedRule(rule.id, version, rule.text, params, lists)
        is_shadow = entry is not None and entry.status == SHADOW
        found.append(text if entry is None else replace(text, number=entry.number, shadow=is_shadow))
    return tuple(found)


def _listed(items: object) -> object:
    """As the journal gives it back."""
    return list(items) if isinstance(items, tuple) else items
