"""What questions about alerts, keys and the service are answered with, for the OpenAPI document.

Answers are not looked at a second time: tests/service/http/test_schemas.py holds that they are as is said here, and in
http_answers_rules.py and http_answers_state.py. Times are epoch milliseconds.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

LabelName = Literal["open", "confirmed", "false_alarm"]
Place = tuple[str, int, int]


def answers_with(model: type[BaseModel], *statuses: int) -> dict[int | str, dict[str, Any]]:
    """For a route: its answer is this, with 200 where nothing else is said."""
    return {status: {"model": model} for status in statuses or (200,)}


# ---------------------------------------------------------------- alerts


class AlertShown(BaseModel):
    """An alert. `position` is its partition and offset in the alerts topic; `alarm` is null but of records about a rule
    that passed its alert rate. `key_ref` is the key for use in addresses: a pseudonym where it holds something marked.
    """

    id: str
    rule: str
    version: str
    title: str | None
    severity: str | None
    key: dict[str, Any]
    key_text: str
    key_ref: str
    start: int
    end: int
    at: int
    logged: int
    message: str | None
    emit: dict[str, Any]
    events: int
    label: LabelName
    alarm: str | None
    position: str


class AlertsPage(BaseModel):
    """`next` goes into `after`, for the page after this one."""

    alerts: list[AlertShown]
    next: str | None
    total: int
    total_is_exact: bool


class EventShown(BaseModel):
    """A record of a stream; `event` is what it holds, null where the log no longer has it."""

    stream: str
    partition: int
    offset: int
    time: int | None
    logged: int | None
    type: str | None
    event: Any


class TimelineEvent(EventShown):
    """`step` is what it filled, null of the key's other events; `values` are the fields that the rule reads."""

    step: str | None
    values: dict[str, Any]


class WhyEvent(BaseModel):
    """What an event did, in sentences."""

    stream: str
    partition: int
    offset: int
    time: int
    type: str
    fields: dict[str, Any]
    told: list[str]


class Why(BaseModel):
    """A rule over a key's events, once more."""

    matches: int
    events: list[WhyEvent]
    conclusion: list[str]


class AlertWhy(Why):
    """The same up to an alert. `id` is the alert's own: the run found it again; null where it did not, and then
    `conclusion` says what it lacked.
    """

    id: str | None


class LabelShown(BaseModel):
    label: LabelName
    by: str
    at: int
    note: str


class AlertWhole(AlertShown):
    """An alert with its events, those around them, and why it was raised. `steps` name places in topics."""

    steps: dict[str, list[Place]]
    timeline: list[TimelineEvent]
    timeline_complete: bool
    why: AlertWhy | None
    rule_text: str | None
    rule_current: bool
    labels: list[LabelShown]


class LabelMade(LabelShown):
    alert: str
    rule: str
    key: str


class Precision(BaseModel):
    """How a rule's alerts were labelled; `precision` is the confirmed of those that were judged."""

    rule: str
    alerts: int
    open: int
    confirmed: int
    false_alarm: int
    precision: float | None


class Precisions(BaseModel):
    rules: list[Precision]


class AlertCounts(BaseModel):
    """Alerts over time; all lists have as many parts as were asked for."""

    from_: int = Field(alias="from")
    to: int
    bucket_ms: int
    total: list[int]
    rules: dict[str, list[int]]


# ---------------------------------------------------------------- keys


class MissingTask(BaseModel):
    """A task whose owner did not answer."""

    stage: str
    partition: int
    why: str


class KeyShown(BaseModel):
    """What is held of a key: in each task of `held`, the state of rules, history functions or a task's stores."""

    key_text: str
    held: list[dict[str, Any]]
    alerts: list[AlertShown]
    missing: list[MissingTask]


class ScannedShown(BaseModel):
    """What was looked through; `complete` where that is all that the log keeps, else `older` goes into `before`."""

    records: int
    since: int | None
    complete: bool
    older: str | None


class KeyEvents(BaseModel):
    events: list[EventShown]
    scanned: ScannedShown


# ---------------------------------------------------------------- status


class Live(BaseModel):
    live: bool


class ReadyShown(BaseModel):
    ready: bool
    why: str | None


class CaughtUp(BaseModel):
    caught_up: bool
    lag: int | None
    behind_s: float | None


class ContainerShown(BaseModel):
    """Of one that never told of itself there are only the first two."""

    slot: int
    state: Literal["running", "silent", "gone", "joining"]
    host: str | None = None
    pid: int | None = None
    since: int | None = None
    version: str | None = None
    address: str | None = None
    told: int | None = None
    tasks: int | None = None


class InputShown(BaseModel):
    stream: str
    topic: str
    partition: int
    committed: int | None
    end: int
    lag: int
    behind_s: float


class RestoreShown(BaseModel):
    done: int
    todo: int
    per_s: int | None
    left_s: float | None


class TaskShown(BaseModel):
    stage: str
    partition: int
    container: int | None
    life: str
    watermark: int | None
    held_by: list[Any] | None
    lag: int
    behind_s: float
    inputs: list[InputShown]
    restore: RestoreShown | None
    state_bytes: int | None


class BlockedBy(BaseModel):
    """The task whose event time is the least, and the input that it waits for."""

    stage: str
    partition: int
    input: list[Any] | None


class StatusShown(BaseModel):
    service: str
    time: int
    running: bool
    caught_up: bool
    containers: list[ContainerShown]
    tasks: list[TaskShown]
    rules: list[dict[str, Any]]
    rules_refused: str | None
    grown: list[dict[str, Any]]
    lag: int
    behind_s: float
    watermark: int | None
    watermark_age_s: float | None
    held_by: BlockedBy | None
    counts: dict[str, int]
    rates: dict[str, float]
    log: Literal["kafka", "embedded"]
    trouble: str | None


# ---------------------------------------------------------------- changes, and events in


class ColdStart(BaseModel):
    shadow_ms: int
    warm_from_ms: int | None
    text: str


class RulePlanned(BaseModel):
    """What becomes of a rule. `states` is how many keys have one on this node; at least, where they are not `whole`."""

    name: str
    number: int
    version: str
    status: str
    diff: str
    state: Literal["new", "kept", "moved", "drained", "dropped"]
    states: int | None
    states_whole: bool
    cold_start: ColdStart


class StagesPlanned(BaseModel):
    new: list[str]
    gone: list[str]


class ChangePlanned(BaseModel):
    change: int
    act: str
    findings: list[dict[str, Any]]
    rules: list[RulePlanned]
    lists: dict[str, dict[str, Any]]
    stages: StagesPlanned
    seeds: list[str]
    unchanged: list[str]
    backtest: dict[str, Any] | None


class PlannedChange(BaseModel):
    """`digest`, given to `publish`, makes sure that what was shown is what happens."""

    plan: ChangePlanned
    digest: str


class RuleChanged(BaseModel):
    """The entry that a change made in the rule's history."""

    rule: str
    number: int
    version: str
    status: str
    author: str
    note: str
    at: int
    change: int
    act: str


class EventsWritten(BaseModel):
    """Events that are durable now."""

    written: int
    bad: list[dict[str, Any]]
