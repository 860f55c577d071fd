"""What questions about keys, streams, letters, views and access are answered with, for the OpenAPI document, as in
http_answers.py.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from samovar.service.http.schemas.alerts import EventShown, MissingTask, RestoreShown, ScannedShown, Why

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


class KeyResolved(BaseModel):
    """What a key is called in addresses."""

    key_ref: str


class KeysPage(BaseModel):
    keys: list[KeyListed]
    more: bool
    missing: list[MissingTask]


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


class SessionsPage(BaseModel):
    rule: str
    sessions: list[SessionShown]
    more: bool
    missing: list[MissingTask]


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


class Samples(BaseModel):
    every_ms: int
    samples: list[SampleShown]


class RuleCounts(BaseModel):
    """What a rule did since the containers started; `seconds` are of its own work."""

    rule: str
    matches: int
    suppressed: int
    live_partials: int
    dropped: int
    seconds: float


class RulesCounted(BaseModel):
    rules: list[RuleCounts]


class TaskRestore(RestoreShown):
    stage: str
    partition: int
    container: int | None


class Restores(BaseModel):
    restores: list[TaskRestore]


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


class SnapshotsShown(BaseModel):
    tasks: list[TaskSnapshots]


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


class StreamsShown(BaseModel):
    streams: list[StreamShown]


class EventsShown(BaseModel):
    events: list[EventShown]


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


class LettersPage(BaseModel):
    letters: list[LetterShown]
    summary: list[LettersOfReason]
    total: int


class RedrivePlan(BaseModel):
    """`to` counts letters by topic, `left_out` by the reason why they stay."""

    letters: int
    to: dict[str, int]
    left_out: dict[str, int]
    died_again: int


class Redriven(BaseModel):
    plan: RedrivePlan
    dry_run: bool
    redriven: int


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


class LatePage(BaseModel):
    events: list[LateShown]
    total: int


# ---------------------------------------------------------------- who asks, who changed what


class AuditEntry(BaseModel):
    at: int
    who: str
    what: str
    detail: dict[str, Any]


class AuditTrail(BaseModel):
    entries: list[AuditEntry]


class Me(BaseModel):
    """Whoever asks without a token that is known has no role, and is not told of the service."""

    access: Literal["open", "tokens"]
    name: str | None
    role: Literal["viewer", "author", "operator"] | None
    may: list[str]
    masked: list[str]
    service: str | None = None
    version: str | None = None


# ---------------------------------------------------------------- views


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
    columns: dict[str, str]
    hidden: list[str] = Field(description="columns that hold something marked, for who may not see it")
    sources: dict[str, dict[str, tuple[int, int]]]
    rules: dict[str, Any]
    kind: str | None


class ViewsShown(BaseModel):
    views: list[ViewShown]


class ViewVersion(BaseModel):
    version: int
    made: int
    rows: int
    kind: str
    base: int | None


class ViewWhole(ViewShown):
    kept: list[ViewVersion]


class ViewRows(BaseModel):
    columns: list[str]
    rows: list[list[Any]]


class ViewRolledBack(BaseModel):
    view: str
    version: int
    rows: int
    made: int
