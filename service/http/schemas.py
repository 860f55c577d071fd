"""Answers of the HTTP API, for the OpenAPI document.

Routes do not validate what they answer: tests/service/http/test_schemas.py holds that answers are as is said here.
Times are epoch milliseconds.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, create_model

LabelName = Literal["open", "confirmed", "false_alarm"]
RuleStatus = Literal["live", "shadow", "disabled", "quarantined"]
Place = tuple[str, int, int]
Scalar = str | int | float | bool | None


def answers_with(model: type[BaseModel], *statuses: int) -> dict[int | str, dict[str, Any]]:
    """For a route: its answer is this, with 200 where nothing else is said."""
    return {status: {"model": model} for status in statuses or (200,)}


def fields_of(model: type[BaseModel], source: Any, **others: Any) -> dict[str, Any]:
    """What a model says of an object: its attributes of the same names, and others by their values."""
    return {name: others[name] if name in others else getattr(source, name) for name in model.model_fields}


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


# ---------------------------------------------------------------- status


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
    blocked_by: list[Any] | None
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
    blocked_by: BlockedBy | None
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


# ---------------------------------------------------------------- rules as they are


class RuleShown(BaseModel):
    """A rule of the service. Of one whose text can no longer be read there is only what the rulebook says."""

    rule: str
    title: str | None
    status: RuleStatus
    number: int | None
    author: str | None
    note: str | None
    at: int | None
    version: str | None = None
    severity: str | None = None
    tags: list[str] = []
    form: Literal["sequence", "aggregate", "session", "window"] | None = None
    by: list[str] = []
    types: list[str] = []
    stage: str | None = None
    alerts: int = 0
    precision: float | None = None
    tests: int = 0


class RuleWhole(RuleShown):
    text: str
    params: dict[str, Any]
    lists: dict[str, list[Scalar]]


class RuleEntryShown(RuleChanged):
    """A number of a rule; `took_effect` says for each partition from which offset of each stream on."""

    text: str
    took_effect: dict[str, dict[str, int]] | None


# ---------------------------------------------------------------- a text that is being written


class FindingShown(BaseModel):
    """What is wrong with a text, and where: lines and columns from 1."""

    id: str
    level: Literal["error", "warning", "info"]
    message: str
    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    expected: str | None
    hint: str | None


class CostShown(BaseModel):
    """What one key costs; null in `held_ms` is for ever."""

    typical_bytes: int
    worst_bytes: int
    partials: int
    held_ms: int | None
    overflow_events: int | None


class CheckShown(BaseModel):
    ok: bool
    rule: str | None
    version: str | None
    findings: list[FindingShown]
    cost: CostShown | None


class DifferenceShown(BaseModel):
    """An expected match next to the nearest that was found; null where there is none."""

    expected: Any
    found: Any
    differs: list[str]


class RuleTestShown(BaseModel):
    name: str
    line: int
    passed: bool
    expected: int
    found: int
    differences: list[DifferenceShown]
    why: list[str]


class TestsShown(BaseModel):
    """Where the text has errors it is not `ok`, and no test was run."""

    ok: bool
    passed: int
    failed: int
    findings: list[FindingShown]
    tests: list[RuleTestShown]


class ExplainedSection(BaseModel):
    heading: str
    lines: list[str]


class ExplanationShown(BaseModel):
    """`drawing` is for a terminal, `svg` for a page."""

    rule: str
    title: str | None
    severity: str | None
    version: str
    sections: list[ExplainedSection]
    drawing: str
    cost: CostShown
    svg: str


class TriedEvent(EventShown):
    step: str


class TriedAlert(BaseModel):
    rule: str
    key: dict[str, Any]
    key_text: str
    start: int
    end: int
    at: int
    message: str | None
    emit: dict[str, Any]
    events: int
    timeline: list[TriedEvent]


class KeyCount(BaseModel):
    key_text: str
    key_ref: str
    count: int


class DryRunShown(BaseModel):
    """What a rule would have raised. `complete` where all events of the time were read."""

    events: int
    from_: int | None = Field(alias="from")
    to: int | None
    bad: int
    matches: int
    suppressed: int
    alerts: list[TriedAlert]
    per_key: list[KeyCount]
    seconds: float
    complete: bool


class EstimateShown(BaseModel):
    """Alerts of all keys, and between which numbers they are with 95 % confidence; three times the same where it is
    exact.
    """

    count: int
    low: int
    high: int


class DayEstimated(EstimateShown):
    day: str


class PreviewShown(BaseModel):
    """What a rule finds from one event time to another, from a `share` of the keys; 1 is all of them.

    `complete` where that is all there is; `sampled` where it is from a sample, of which `behind` records lack.
    `alerts` are those of the keys looked at. `sampling` is how far a sample is that is being made now, a share of 1.
    """

    rule: str
    version: str
    from_: int | None = Field(alias="from")
    to: int | None
    share: float
    complete: bool
    sampled: bool
    behind: int
    keys: int
    events: int
    alerts: int
    keys_with_alerts: int
    found: EstimateShown
    days: list[DayEstimated]
    seconds: float
    sampling: float | None


class FunctionShown(BaseModel):
    """`optional` is how many of the last arguments may be left out, `rest` the type of any further ones."""

    name: str
    args: list[str]
    optional: int
    rest: str | None
    result: str | None
    example: str


class Completions(BaseModel):
    """What can stand in a rule. A type without a schema has null for its fields."""

    types: dict[str, dict[str, Any] | None]
    functions: list[FunctionShown]
    aggregates: list[str]
    history: list[str]
    keywords: list[str]
    params: dict[str, Any]
    lists: list[str]


# ---------------------------------------------------------------- lists


class ListChangeShown(BaseModel):
    """`add` and `remove` are the first of what was put on it and taken from it, `items` how many it had then."""

    change: int
    at: int
    author: str
    note: str
    added: int
    removed: int
    items: int
    add: list[Scalar]
    remove: list[Scalar]


class ListShown(BaseModel):
    name: str = Field(alias="list")
    items: list[Scalar]
    hidden: bool
    kind: Literal["text", "number"]
    rules: list[str]
    changes: list[ListChangeShown]
    changes_total: int


class RuleMoved(BaseModel):
    """What a change of a list does to a rule's state, in a word and in a sentence."""

    rule: str
    state: str
    told: str


class ListPlanned(BaseModel):
    name: str = Field(alias="list")
    change: int
    added: int
    removed: int
    items: int
    rules: list[RuleMoved]


class ListChanged(BaseModel):
    """`items` is how many it has now."""

    name: str = Field(alias="list")
    items: int


# ---------------------------------------------------------------- jobs


class JobShown(BaseModel):
    """`progress` is a share of 1. `result` is there when it is done, `problem` when it failed."""

    job: str
    what: Literal["backtest", "sample", "view"]
    by: str
    state: Literal["running", "done", "failed", "cancelled"]
    progress: float
    left_s: float | None
    rate: float | None
    result: dict[str, Any] | None
    problem: dict[str, Any] | None


# ---------------------------------------------------------------- keys and sessions


class KeyListed(BaseModel):
    """A key that has state: of these rules, or in these stores of a task. `container` is the slot that owns it."""

    stage: str
    partition: int
    key: list[Any]
    key_text: str
    key_ref: str
    rules: list[str]
    rows: int
    bytes: int | None
    container: int | None
    due: int | None = None


class SessionShown(BaseModel):
    """A live session. `closes` is when it ends, if nothing more comes."""

    key: dict[str, Any]
    key_text: str
    key_ref: str
    stage: str
    partition: int
    events: int
    since: int | None
    last: int | None
    closes: int | None
    container: int | None


class KeyWhy(Why):
    rule: str
    key: dict[str, Any]
    scanned: ScannedShown


class ValueCount(BaseModel):
    value: str
    count: int


class Bucket(BaseModel):
    from_: float = Field(alias="from")
    to: float
    count: int


class Spread(BaseModel):
    """How the values of a field are spread: texts by how often, numbers in parts of equal width."""

    rule: str
    field: str
    count: int
    texts: list[ValueCount]
    min: float | None
    max: float | None
    mean: float | None
    p50: float | None
    p95: float | None
    buckets: list[Bucket]


# ---------------------------------------------------------------- how it is doing


class SampleShown(BaseModel):
    time: int
    events_per_s: float
    alerts_per_s: float
    late_per_s: float
    dead_per_s: float
    lag: int
    behind_s: float
    watermark_age_s: float | None


class RuleCounts(BaseModel):
    """What a rule did since the containers started; `seconds` are of its own work."""

    rule: str
    matches: int
    suppressed: int
    live_partials: int
    dropped: int
    seconds: float


class TaskRestore(RestoreShown):
    stage: str
    partition: int
    container: int | None


class SnapshotShown(BaseModel):
    """`offset` is where it stands in the changelog."""

    number: int
    created: int
    watermark: int | None
    offset: int
    bytes: int


class TaskSnapshots(BaseModel):
    stage: str
    partition: int
    snapshots: list[SnapshotShown]


# ---------------------------------------------------------------- streams, letters, late events


class StreamShown(BaseModel):
    stream: str
    topic: str
    format: str
    key: str | None
    time: str | None
    type: str | None
    fields: dict[str, Any] | None
    pii: list[str]
    partitions: int | None


class OriginShown(BaseModel):
    """Where a record was read."""

    topic: str
    partition: int
    offset: int


class LetterShown(BaseModel):
    """A dead letter. Bytes that are not text are in `key_base64` and `value_base64`; `cut_bytes` is how large it was,
    where not all of it is here.
    """

    letter: str = Field(description="PARTITION/OFFSET, as redrive takes it")
    time: int | None
    reason: str
    message: str
    stream: str
    from_: OriginShown | None = Field(alias="from")
    key: str | None = None
    key_base64: str | None = None
    value: Any = None
    value_base64: str | None = None
    attempts: int
    redriven: bool
    cut_bytes: int | None


class LettersOfReason(BaseModel):
    reason: str
    stream: str
    letters: int
    redriven: int


class RedrivePlan(BaseModel):
    """`to` counts letters by topic, `left_out` by the reason why they stay."""

    letters: int
    to: dict[str, int]
    left_out: dict[str, int]
    died_again: int


class LateShown(BaseModel):
    """An event that came behind event time, by `late_ms`."""

    partition: int
    offset: int
    time: int | None
    stream: str
    late_ms: int | None
    from_: OriginShown | None = Field(alias="from")
    key: str | None = None
    key_base64: str | None = None
    value: Any = None
    value_base64: str | None = None


# ---------------------------------------------------------------- who asks, who changed what


class AuditEntry(BaseModel):
    at: int
    who: str
    what: str
    detail: dict[str, Any]


class Me(BaseModel):
    """A request without a known token has no role, and sees nothing of the service."""

    access: Literal["open", "tokens"]
    name: str | None
    role: Literal["viewer", "author", "operator"] | None
    may: list[str]
    masked: list[str]
    service: str | None = None
    version: str | None = None


# ---------------------------------------------------------------- views


class ViewSnapshot(BaseModel):
    """A version that can still be read; `table` is that of the open table that holds it."""

    version: int
    made_ms: int
    kind: str
    rows: int
    table: int | None


class ViewShown(BaseModel):
    """A view and the version of it that readers see; null where none was made. `changed`: its file says more since."""

    view: str
    title: str
    refresh: str
    key: list[str]
    partitioning: list[str]
    table: str
    sql: str
    version: int | None
    versions: list[int]
    rows: int | None
    made: int | None
    changed: bool
    lag: int | None = Field(description="records that came to its sources since; null where the log cannot be reached")
    behind_s: float | None = Field(description="how long ago the first of them came")
    format: str = Field(description="`parquet`, or `delta` for an open table")
    snapshots: list[ViewSnapshot]
    columns: dict[str, str]
    hidden: list[str] = Field(description="columns that hold something marked, for who may not see it")
    sources: dict[str, dict[str, tuple[int, int]]]
    rules: dict[str, Any]
    kind: str | None


class ViewVersion(BaseModel):
    version: int
    made: int
    rows: int
    kind: str
    base: int | None


class ServedRowShown(BaseModel):
    """A row of a served view. `live`: with all that came up to `offsets`; else the version's, for the `reason`."""

    view: str
    key: dict[str, Any]
    row: dict[str, Any]
    version: int
    made: int
    offsets: dict[str, int]
    records_since: int | None
    live: bool
    reason: str | None


class ViewWhole(ViewShown):
    kept: list[ViewVersion]


# ---------------------------------------------------------------- small answers

Precisions = create_model("Precisions", rules=list[Precision])
KeyEvents = create_model("KeyEvents", events=list[EventShown], scanned=ScannedShown)
Live = create_model("Live", live=bool)
ReadyShown = create_model("ReadyShown", ready=bool, why=str | None)
CaughtUp = create_model("CaughtUp", caught_up=bool, lag=int | None, behind_s=float | None)
RulesShown = create_model("RulesShown", rules=list[RuleShown], problems=list[str])
RuleHistory = create_model("RuleHistory", entries=list[RuleEntryShown])
ListsShown = create_model("ListsShown", lists=dict[str, list[Scalar]])
KeysPage = create_model("KeysPage", keys=list[KeyListed], more=bool, missing=list[MissingTask])
Samples = create_model("Samples", every_ms=int, samples=list[SampleShown])
RulesCounted = create_model("RulesCounted", rules=list[RuleCounts])
Restores = create_model("Restores", restores=list[TaskRestore])
SnapshotsShown = create_model("SnapshotsShown", tasks=list[TaskSnapshots])
StreamsShown = create_model("StreamsShown", streams=list[StreamShown])
EventsShown = create_model("EventsShown", events=list[EventShown])
Redriven = create_model("Redriven", plan=RedrivePlan, dry_run=bool, redriven=int)
LatePage = create_model("LatePage", events=list[LateShown], total=int)
AuditTrail = create_model("AuditTrail", entries=list[AuditEntry])
ViewsShown = create_model("ViewsShown", views=list[ViewShown], problems=list[str])
ViewRows = create_model("ViewRows", columns=list[str], rows=list[list[Any]])
RuleDiff = create_model("RuleDiff", __doc__="Lines as of `diff -u`; empty where there is no difference.", diff=str)
JobBegun = create_model("JobBegun", __doc__="GET /jobs/JOB tells of it.", job=str)
KeyResolved = create_model("KeyResolved", __doc__="What a key is called in addresses.", key_ref=str)
SessionsPage = create_model("SessionsPage", rule=str, sessions=list[SessionShown], more=bool, missing=list[MissingTask])
LettersPage = create_model("LettersPage", letters=list[LetterShown], summary=list[LettersOfReason], total=int)
ViewRolledBack = create_model("ViewRolledBack", view=str, version=int, rows=int, made=int)
