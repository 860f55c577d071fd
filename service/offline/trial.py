"""What a test gives samovar.testing, as a plan for one task; and what it gets back, as plain data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import ValidationError

from samovar.changelog.formats.dead_letters import PREFIX
from samovar.patterns.engine.compile import compile_rules
from samovar.patterns.rulefile.loading import SettingError, load_given, load_set, rendered
from samovar.patterns.syntax.constants import duration_ms
from samovar.patterns.syntax.tree import Rule
from samovar.service.config.loading import load_service
from samovar.service.config.models import Stream
from samovar.service.topology.plans import input_of, plans_of
from samovar.tasks.model.plan import MAIN, Emit, InputSpec, OutputTopics, Plan, PublishedRule, StoreSpec, TaskSpec
from samovar.tasks.model.user_task import Task
from samovar.tasks.replay.harness import WrittenRecord

Time: TypeAlias = int | str  # ms, or `10s`
Streams: TypeAlias = Mapping[str, Mapping[str, Any]]  # as in a service file: {"purchase": {"key": "card"}}

NAME = "test"
TOPICS = OutputTopics(
    alerts="alerts", late="late", dead_letters="dead-letters", changelog="changelog", journal="journal"
)


class BadTestError(ValueError):
    """What a test gave the driver is not what it takes."""


# ---------------------------------------------------------------- what a test gives


def plan_of_rules(
    rules: str | Path | Sequence[str | Path], streams: Streams, params: Mapping[str, Any], lists: Mapping[str, Any]
) -> Plan:
    """Rules: texts of rules, rule files, folders of them. A text has more than one line."""
    given = [rules] if isinstance(rules, str | Path) else list(rules)
    texts = [each for each in given if isinstance(each, str) and "\n" in each]
    loaded: list[Rule] = []
    for text in texts:
        one = load_given(text, "<rule>", params, lists)
        if one.rule is None:
            raise BadTestError(rendered(one.findings, {"<rule>": text}))
        loaded.append(one.rule)
    paths = [each for each in given if each not in texts]
    if paths:
        try:
            found = load_set(paths, params=params, lists=lists)
        except SettingError as error:
            raise BadTestError(str(error)) from error
        if found.errors:
            raise BadTestError(rendered(found.errors))
        loaded += found.rules
    program = compile_rules(loaded)
    published = tuple(
        PublishedRule(id=each.rule.id, version=each.version, text=each.rule.text) for each in program.rules
    )
    return Plan(service=NAME, inputs=_inputs(streams), program=program, rules=published, topics=TOPICS)


def plan_of_task(
    task: Callable[[], Task],
    streams: Streams,
    emits: Iterable[str],
    stores: Mapping[str, Time | None] | Iterable[str],
    window: Time | None,
    params: Mapping[str, Any],
) -> Plan:
    ttls = dict(stores) if isinstance(stores, Mapping) else dict.fromkeys(stores)
    spec = TaskSpec(
        name=NAME,
        make=task,
        source=getattr(task, "__name__", NAME),
        version=NAME,
        emits={name: Emit(topic=f"emitted-{name}") for name in emits},
        stores={name: StoreSpec(None if ttl is None else ms_of(ttl)) for name, ttl in ttls.items()},
        window_ms=None if window is None else ms_of(window),
        params=params,
        alone=True,
    )
    return Plan(
        service=NAME, inputs=_inputs(streams), program=compile_rules([]), rules=(), topics=TOPICS, stage=NAME, task=spec
    )


def plan_of_service(config: str | Path, task: str | None) -> Plan:
    """The main stage of a service, which with one partition has all rules; or one of its tasks."""
    settings = load_service(config, lenient=True)
    found = {plan.stage: plan for plan in plans_of(settings, 1)}
    plan = found.get(MAIN if task is None else task)
    if plan is None:
        raise BadTestError(f"the service has no task `{task}`; there are: {', '.join(settings.tasks) or 'none'}")
    return plan if plan.task is None else replace(plan, task=replace(plan.task, alone=True))


def _inputs(streams: Streams) -> tuple[InputSpec, ...]:
    inputs = []
    for name, settings in streams.items():
        try:
            inputs.append(input_of(name, Stream.model_validate({"topic": name, **settings})))
        except ValidationError as error:
            raise BadTestError(f"the stream `{name}`: {error}") from error
    return tuple(inputs)


def ms_of(time: Time) -> int:
    found = duration_ms(time) if isinstance(time, str) else time
    if found is None:
        raise BadTestError(f"`{time}` is not a time: write 500ms, 30s, 10m, 8h or 7d, or a number of ms")
    return found


# ---------------------------------------------------------------- what it gets back


@dataclass(frozen=True)
class EmittedRecord:
    """A record that a task emitted. `value` is what JSON says, or bytes that are none."""

    key: str | None
    value: Any


@dataclass(frozen=True)
class TrialLetter:
    """A dead letter or a late event: the record's value, and why it is there."""

    value: bytes | None
    reason: str  # NOT_JSON, TASK_FAILED, ...; of a late event `late`
    message: str
    headers: Mapping[str, bytes]


def emitted_of(written: WrittenRecord) -> EmittedRecord:
    key = None if written.key is None else written.key.decode("utf-8", "replace")
    try:
        return EmittedRecord(key, None if written.value is None else json.loads(written.value))
    except ValueError:
        return EmittedRecord(key, written.value)


def letter_of(written: WrittenRecord) -> TrialLetter:
    headers = dict(written.headers)
    reason = headers.get(PREFIX + "exception", b"late").decode()
    late_ms = headers.get("samovar.late.ms", b"").decode()
    message = headers[PREFIX + "message"].decode() if PREFIX + "message" in headers else f"late by {late_ms} ms"
    return TrialLetter(written.value, reason, message, headers)
