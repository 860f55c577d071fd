"""What questions about rules, lists and jobs are answered with, for the OpenAPI document, as in http_answers.py."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from samovar.service.http.schemas.alerts import EventShown, RuleChanged

RuleStatus = Literal["live", "shadow", "disabled", "quarantined"]
Scalar = str | int | float | bool | None


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


class RulesShown(BaseModel):
    rules: list[RuleShown]
    problems: list[str]


class RuleWhole(RuleShown):
    text: str
    params: dict[str, Any]
    lists: dict[str, list[Scalar]]


class RuleEntryShown(RuleChanged):
    """A number of a rule; `took_effect` says for each partition from which offset of each stream on."""

    text: str
    took_effect: dict[str, dict[str, int]] | None


class RuleHistory(BaseModel):
    entries: list[RuleEntryShown]


class RuleDiff(BaseModel):
    """Lines as of `diff -u`; empty where there is no difference."""

    diff: str


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


class ListsShown(BaseModel):
    lists: dict[str, list[Scalar]]


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


class JobBegun(BaseModel):
    """GET /jobs/JOB tells of it."""

    job: str


class JobShown(BaseModel):
    """`progress` is a share of 1. `result` is there when it is done, `problem` when it failed."""

    job: str
    what: Literal["backtest", "view"]
    by: str
    state: Literal["running", "done", "failed", "cancelled"]
    progress: float
    left_s: float | None
    rate: float | None
    result: dict[str, Any] | None
    problem: dict[str, Any] | None
