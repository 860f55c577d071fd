"""/rules: planned, published, disabled, enabled, rolled back, backtested; jobs.

A plan has a digest: anyone who publishes with it publishes what was shown, or is told that it changed on the way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response
from pydantic import Field

from samovar.common.errors import Refused
from samovar.patterns.syntax.findings import to_json
from samovar.service.backtest.masking import masked_backtest
from samovar.service.backtest.run import backtest
from samovar.service.http import schemas
from samovar.service.http.jobs import Job, OnProgress
from samovar.service.http.masking import hides_text, shown_text
from samovar.service.http.request import LEAST_MS, MOST_MS, Authoring, NotedBody, Reading, RequestContext, answered
from samovar.service.http.routes.rules import RuleName, RuleTextBody, checked, rule_to_run
from samovar.service.http.schemas import answers_with
from samovar.service.masking.fields import HIDDEN
from samovar.service.rules import publishing
from samovar.service.rules.change_plan import ChangePlan
from samovar.service.rules.publishing import seeded
from samovar.service.topology.rule_registry import RuleEntry, read_rulebook

router = APIRouter(tags=["rules"])

Ms = Annotated[int, Field(ge=LEAST_MS, le=MOST_MS)]
JobNumber = Annotated[str, Path(max_length=64)]
Number = Annotated[int, Query(ge=1, le=1_000_000)]


class PublishBody(RuleTextBody, NotedBody):
    """A rule to plan or to publish. `digest` is that of the plan which was looked at."""

    shadow: bool = False
    warm_from: Ms | None = None
    drain: bool = False
    digest: str | None = Field(None, max_length=100)


class DisableBody(NotedBody):
    drain: bool = False


class EnableBody(NotedBody):
    shadow: bool = False


class RollingBack(NotedBody):
    to: int | None = Field(None, ge=1, le=1_000_000)


class BacktestBody(RuleTextBody):
    """A rule and a stretch of event time; without an end, up to now."""

    from_ms: Ms | None = Field(None, alias="from")
    to_ms: Ms | None = Field(None, alias="to")


# ---------------------------------------------------------------- changes


@router.post("/rules/plan", responses=answers_with(schemas.PlannedChange))
def plan(context: Authoring, body: PublishBody) -> Response:
    """What publishing a rule would do: findings, the difference, what becomes of partial matches, the cold start."""
    found = _planned(context, body)
    return answered({"plan": _shown_plan(context, body.text, found), "digest": digest_of(found)})


@router.post("/rules/publish", responses=answers_with(schemas.RuleChanged))
def publish(context: Authoring, body: PublishBody) -> Response:
    """Publish a rule. Containers take it between two batches, without a restart."""
    found = _planned(context, body)
    if body.digest is not None and body.digest != digest_of(found):
        hint = "Nothing was written. Look at the plan again: POST /api/v1/rules/plan."
        raise Refused("change-overtaken", "this would no longer do what its plan said", hint)
    return _changed(context, publishing.publish, found, context.name, body.note)


def _planned(context: RequestContext, body: PublishBody) -> ChangePlan:
    rule_to_run(context, body.text)
    return publishing.plan_publish(
        context.settings, context.log, body.text, shadow=body.shadow, warm_from_ms=body.warm_from, drain=body.drain
    )


def _shown_plan(context: RequestContext, text: str, plan: ChangePlan) -> dict[str, Any]:
    """A plan without what may not be seen: the text of before, and what is found with lists that are hidden."""
    told, masks = plan.to_json(), context.masks
    if masks.is_on:
        loaded = context.app_state.rule_cache.get()
        told["findings"] = [to_json(each) for each in checked(context, text)[1]]
        before = {name: rule.text for name, rule in loaded.rules.items()}
        before |= {} if loaded.book is None else {each.name: each.text for each in loaded.book.entries if each.text}
        for each in told["rules"]:
            if each["name"] in before and hides_text(context, before[each["name"]]):
                each["diff"] = HIDDEN
    return told


def digest_of(plan: ChangePlan) -> str:
    """Of what a plan does; how many states this machine has may change from one look to the next."""
    told = plan.to_json()
    told["rules"] = [{**each, "states": None, "states_whole": None} for each in told["rules"]]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:32]


def entry_data(entry: RuleEntry) -> dict[str, Any]:
    told = entry.to_json()
    return {"rule": told.pop("name"), "at": told.pop("at_ms"), **told}


def _changed(context: RequestContext, change: Callable[..., RuleEntry], *given: Any, **options: Any) -> Response:
    """Makes a change, and has the rules looked at again: whoever changed one may ask for it at once."""
    entry = change(context.settings, context.log, *given, **options)
    context.app_state.rule_cache.look_again()
    return answered(entry_data(entry))


@router.post("/rules/{rule}/disable", responses=answers_with(schemas.RuleChanged))
def disable(context: Authoring, rule: RuleName, body: DisableBody) -> Response:
    """A rule runs no more, until it is enabled."""
    return _changed(context, publishing.disable, rule, context.name, body.note, drain=body.drain)


@router.post("/rules/{rule}/enable", responses=answers_with(schemas.RuleChanged))
def enable(context: Authoring, rule: RuleName, body: EnableBody) -> Response:
    """A rule that was disabled or in shadow runs, and may alert."""
    return _changed(context, publishing.enable, rule, context.name, body.note, shadow=body.shadow)


@router.post("/rules/{rule}/rollback", responses=answers_with(schemas.RuleChanged))
def rollback(context: Authoring, rule: RuleName, body: RollingBack) -> Response:
    """An earlier text again, as a new number; without `to`, the one before."""
    return _changed(context, publishing.rollback, rule, context.name, body.note, body.to)


# ---------------------------------------------------------------- what was


@router.get("/rules/{rule}/history", responses=answers_with(schemas.RuleHistory))
def history(context: Reading, rule: RuleName) -> Response:
    """All numbers of a rule, the newest first, and where each took effect."""
    book = read_rulebook(context.settings, context.log)
    found = seeded(context.settings, book).history(rule)
    if not found:
        context.app_state.rule_cache.rule(rule)  # says what is near
        raise Refused("unknown-rule", "this rule has no history", "GET /api/v1/rules lists all rules.")
    entries = []
    for each in reversed(found):
        effect = book.took_effect(rule, each.number) if book.change else None
        text = shown_text(context, each.text)
        entries.append({**entry_data(each), "text": text, "took_effect": effect})
    return answered({"entries": entries})


@router.get("/rules/{rule}/diff", responses=answers_with(schemas.RuleDiff))
def diff(context: Reading, rule: RuleName, a: Number, b: Number) -> Response:
    """Two numbers of a rule, line by line."""
    found = publishing.diff(context.settings, context.log, rule, a, b)
    texts = (publishing.text_of(context.settings, context.log, rule, number) for number in (a, b))
    is_hidden = context.masks.is_on and any(hides_text(context, text) for text in texts)
    return answered({"diff": HIDDEN if is_hidden else found})


# ---------------------------------------------------------------- backtests, and jobs


@router.post("/rules/backtest", status_code=202, responses=answers_with(schemas.JobBegun, 202))
def begin_backtest(context: Authoring, body: BacktestBody) -> Response:
    """Run a rule over history, as a job: GET /jobs/JOB tells how far it is, and then what it found."""
    rule = rule_to_run(context, body.text)  # a rule and never its text: that could be taken for a path

    def work(on_progress: OnProgress) -> Any:
        def progress(done: int, total: int) -> None:
            on_progress(done / total if total else 0.0, None)

        found = backtest(context.settings, context.log, [rule], body.from_ms, body.to_ms, progress)
        return masked_backtest(context.masks, found).to_json()

    job = context.app_state.jobs.start("backtest", context.name, work)
    return answered({"job": job.number}, 202)


@router.get("/jobs/{job}", responses=answers_with(schemas.JobShown))
def job(context: Reading, job: JobNumber) -> Response:
    """How far a job is, and its result."""
    return answered(_own_job(context, job, "A job is seen").data())


@router.delete("/jobs/{job}", responses=answers_with(schemas.JobShown))
def cancel(context: Authoring, job: JobNumber) -> Response:
    """Cancel a job: one's own, or as an operator anybody's."""
    found = _own_job(context, job, "It is cancelled")
    found.cancelled.set()
    return answered(found.data())


def _own_job(context: RequestContext, number: str, done: str) -> Job:
    found = context.app_state.jobs.get(number)
    if found.by != context.name and not context.who.may("operate"):
        raise Refused("unknown-job", "there is no such job", f"{done} by anyone who began it, and by operators.")
    return found
