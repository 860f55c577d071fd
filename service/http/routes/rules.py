"""/rules: listed, checked, tested, explained, tried on recent traffic, planned, published, disabled, enabled, rolled
back, backtested; what an editor completes with; jobs.

A plan has a digest: anyone who publishes with it publishes what was shown, or is told that it changed on the way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response
from pydantic import Field

from samovar.common.errors import Refused
from samovar.patterns.analysis.cost import cost
from samovar.patterns.analysis.lint.linter import lint
from samovar.patterns.engine.compile import CompileError, compile_rules
from samovar.patterns.explain.draw.picture import draw_svg
from samovar.patterns.rule_tests import run_tests
from samovar.patterns.rulefile.loading import load_given
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.semantics.event_types import brackets_of
from samovar.patterns.semantics.versioning import version_of
from samovar.patterns.syntax import functions
from samovar.patterns.syntax.findings import Finding, has_errors, to_json
from samovar.patterns.syntax.tree import Rule
from samovar.service.alerts.query import precisions
from samovar.service.backtest.masking import masked_backtest
from samovar.service.backtest.run import backtest
from samovar.service.http import masking, schemas
from samovar.service.http.dry_run import try_rule
from samovar.service.http.jobs import Job, OnProgress
from samovar.service.http.problems import RefusedWithErrors
from samovar.service.http.request import (
    LEAST_MS,
    MOST_MS,
    Authoring,
    Body,
    NotedBody,
    Reading,
    RequestContext,
    answered,
    is_connected,
)
from samovar.service.http.schemas import answers_with, fields_of
from samovar.service.http.state import AppState
from samovar.service.masking.fields import HIDDEN, not_compared
from samovar.service.rules import publishing
from samovar.service.rules.change_plan import ChangePlan
from samovar.service.rules.explain import document
from samovar.service.rules.testing import json_of_result
from samovar.service.topology.rule_registry import RuleEntry, load_registry
from samovar.service.topology.ruleset import lists_of, schema_of
from samovar.service.topology.stages import sources_of

router = APIRouter(tags=["rules"])

MAX_TEXT = 200_000
Ms = Annotated[int, Field(ge=LEAST_MS, le=MOST_MS)]
RuleName = Annotated[str, Path(max_length=200)]
JobNumber = Annotated[str, Path(max_length=64)]
Number = Annotated[int, Query(ge=1, le=1_000_000)]
KEYWORDS = (
    "sequence aggregate session window by with as where having over every maxspan gap max runs within after next until "
    "any and or not in like true false null let emit message suppress params lists tests rule title severity tags match"
).split()


class RuleTextBody(Body):
    text: str = Field(max_length=MAX_TEXT)


class DryRunBody(RuleTextBody):
    minutes: float = Field(10, gt=0, le=7 * 24 * 60)
    max_events: int = Field(200_000, ge=1, le=1_000_000)


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


# ---------------------------------------------------------------- the rules of the service


@router.get("/rules", responses=answers_with(schemas.RulesShown))
def rules(context: Reading) -> Response:
    """All rules with their versions, and how precise they are by their labels."""
    app_state = context.app_state
    loaded = app_state.rule_cache.get()
    judged = precisions(app_state.index)
    off = (
        []
        if loaded.registry is None
        else [each.name for each in loaded.registry.entries if each.name not in loaded.rules]
    )
    found = [rule_data(app_state, name, judged.get(name, {})) for name in sorted([*loaded.rules, *off])]
    problem = HIDDEN if loaded.problem is not None and context.masks.is_on else loaded.problem  # it quotes rules
    return answered({"rules": found, "problems": [] if problem is None else [problem]})


def rule_data(app_state: AppState, name: str, judged: Mapping[str, Any]) -> dict[str, Any]:
    """A rule, with what the rulebook says of it. One that stands in a file only is live."""
    loaded = app_state.rule_cache.get()
    entry, rule = loaded.entry(name), loaded.rules.get(name)
    published: dict[str, Any] = {"status": "live", "number": None, "author": None, "note": None, "at": None}
    if entry is not None:
        published = {"status": entry.status, "number": entry.number, "version": entry.version}
        published |= {"author": entry.author, "note": entry.note, "at": entry.at_ms}
        rule = rule or load_text(entry.text).rule  # disabled: its text is still there
    if rule is None:
        return {"rule": name, "title": None, **published}
    return {
        "rule": name,
        "title": rule.title,
        "severity": rule.severity,
        "tags": list(rule.tags),
        "version": loaded.version(name),
        "form": type(rule.form).__name__.removesuffix("Form").lower(),
        "by": [key.name for key in rule.form.by],
        "types": sorted({bracket.type for bracket in brackets_of(rule)}),
        "stage": loaded.stages.get(name),
        **published,
        "alerts": judged.get("alerts", 0),
        "precision": judged.get("precision"),
        "tests": len(rule.tests),
    }


@router.get("/rules/{rule}", responses=answers_with(schemas.RuleWhole))
def rule(context: Reading, rule: RuleName) -> Response:
    """One rule with its text."""
    app_state = context.app_state
    loaded = app_state.rule_cache.get()
    entry = loaded.entry(rule)
    found = load_text(entry.text).rule if rule not in loaded.rules and entry is not None else None
    found = found or app_state.rule_cache.rule(rule)
    lists = {}
    for name, items in found.lists.items():
        is_hidden = masking.hides_list(context, name)
        lists[name] = [masking.shown_item(context, name, item) if is_hidden else item for item in items]
    own = rule_data(app_state, rule, precisions(app_state.index).get(rule, {}))
    text, params = masking.shown_text(context, found.text), masking.shown_params(context, found.params)
    return answered(own | {"text": text, "params": params, "lists": lists})


@router.get(
    "/rules/{rule}/svg",
    response_class=Response,
    responses={200: {"content": {"image/svg+xml": {"schema": {"type": "string"}}}}},
)
def svg(context: Reading, rule: RuleName) -> Response:
    """A rule's automaton, drawn."""
    masks = context.masks
    found = context.app_state.rule_cache.rule(rule)
    if masks.is_on:  # as its text has it, with no list from elsewhere
        found = load_text(found.text, params=found.params).rule or found
    if masking.hides_text(context, found.text):
        fields = sorted({each.rpartition(".")[2] for each in masks.hidden})
        raise not_compared(fields, "the drawing of a rule that names values of it")
    return Response(draw_svg(found), media_type="image/svg+xml")


# ---------------------------------------------------------------- a text that is being written


def checked(context: RequestContext, text: str, *, with_hidden: bool = False) -> tuple[Rule | None, list[Finding]]:
    """A rule as the service would load it: with its schema, and parameters and lists as far as they may be seen."""
    site = context.app_state.rule_cache.get().site
    settings = context.settings if site is None else site.settings
    schema, streams = schema_of(settings.streams), context.settings.streams
    lists, params = dict(lists_of(settings)), dict(settings.params)
    if not with_hidden:
        lists, hidden = masking.given_lists(context, lists), masking.hidden_params(context, params)
        params = {name: value for name, value in params.items() if name not in hidden}
    loaded = load_given(text, "<rule>", params, lists, schema)
    rule, found = loaded.rule, list(loaded.findings)
    if rule is None:
        return None, found
    for bracket in brackets_of(rule):
        if not sources_of(bracket.type, streams):
            what, hint = f"no stream has events of type `{bracket.type}`", f"streams are {', '.join(streams)}"
            found.append(
                Finding(
                    id="unknown-type",
                    level="error",
                    message=what,
                    path=rule.path,
                    span=bracket.span,
                    expected=None,
                    hint=hint,
                )
            )
    try:
        compile_rules([rule])
    except CompileError as fault:
        found.append(Finding(id="too-large", level="error", message=str(fault), path=rule.path, span=rule.form.span))
    if not has_errors(found):
        found += lint(rule, schema)
    found.sort(key=lambda finding: (finding.span, finding.id))
    return None if has_errors(found) else rule, found


def refuse_bad(context: RequestContext, text: str) -> Rule:
    found, findings = checked(context, text)
    if found is None:
        hint = "POST /api/v1/rules/check shows them, with their places."
        more = {"findings": [to_json(finding) for finding in findings]}
        raise RefusedWithErrors(code="rule-errors", what="the rule has errors", hint=hint, more=more)
    return found


def rule_to_run(context: RequestContext, text: str) -> Rule:
    """A rule with all its lists, to be run over events; what is wrong with it is told as far as it may be seen."""
    masking.refuse_hidden(context, refuse_bad(context, text))
    found, _ = checked(context, text, with_hidden=True)
    if found is None:
        raise Refused("rule-errors", "the rule has errors with the lists as they are", "An operator can see them.")
    context.masks.refuse_comparing(found, "what the rule finds")
    return found


@router.post("/rules/check", responses=answers_with(schemas.CheckShown))
def check(context: Reading, body: RuleTextBody) -> Response:
    """Every error of a rule's text and every finding of the lint, and what the rule costs."""
    found, findings = checked(context, body.text)
    return answered(
        {
            "ok": found is not None,
            "rule": None if found is None else found.id,
            "version": None if found is None else version_of(found),
            "findings": [to_json(finding) for finding in findings],
            "cost": None if found is None else asdict(cost(found)),
        }
    )


@router.post("/rules/test", responses=answers_with(schemas.TestsShown))
def test(context: Authoring, body: RuleTextBody) -> Response:
    """Run the tests inside a rule's text."""
    found, findings = checked(context, body.text)
    results = [] if found is None else list(run_tests(found))
    passed = sum(each.passed for each in results)
    shown = [to_json(finding) for finding in findings]
    told = {"passed": passed, "failed": len(results) - passed, "findings": shown}
    return answered(told | {"ok": found is not None, "tests": [json_of_result(each) for each in results]})


@router.post("/rules/explain", responses=answers_with(schemas.ExplanationShown))
def explain(context: Reading, body: RuleTextBody) -> Response:
    """A rule in plain English, drawn, and what it costs."""
    found = refuse_bad(context, body.text)
    return answered(document(found) | {"svg": draw_svg(found)})


@router.post("/rules/try", responses=answers_with(schemas.DryRunShown))
def try_it(context: Authoring, body: DryRunBody) -> Response:
    """Run a rule over recent events, and show what it would have raised. Nothing is published."""
    found = rule_to_run(context, body.text)
    return answered(try_rule(context.app_state, context.masks, found, body.minutes, body.max_events))


# ---------------------------------------------------------------- completion


@router.get("/completions", responses=answers_with(schemas.Completions))
def completions(context: Reading) -> Response:
    """What can stand in a rule: fields by event type, functions, parameters and lists."""
    settings = context.settings
    schema = schema_of(settings.streams)
    own = [fields_of(schemas.FunctionShown, each) for each in functions.FUNCTIONS.values()]
    return answered(
        {
            "types": dict.fromkeys(settings.streams) if schema is None else schema.types,
            "functions": own,
            "aggregates": list(functions.AGGREGATES),
            "history": list(functions.HISTORY),
            "keywords": KEYWORDS,
            "params": masking.shown_params(context, settings.params),
            "lists": list(settings.lists),
        }
    )


# ---------------------------------------------------------------- changes


@router.post("/rules/plan", responses=answers_with(schemas.PlannedChange))
def plan(context: Authoring, body: PublishBody) -> Response:
    """What publishing a rule would do: findings, the difference, what becomes of partial matches, the cold start."""
    found = _plan_change(context, body)
    return answered({"plan": _shown_plan(context, body.text, found), "digest": digest_of(found)})


@router.post("/rules/publish", responses=answers_with(schemas.RuleChanged))
def publish(context: Authoring, body: PublishBody) -> Response:
    """Publish a rule. Containers take it between two batches, without a restart."""
    found = _plan_change(context, body)
    if body.digest is not None and body.digest != digest_of(found):
        hint = "Nothing was written. Look at the plan again: POST /api/v1/rules/plan."
        raise Refused("change-overtaken", "this would no longer do what its plan said", hint)
    return _apply_change(context, publishing.publish, found, context.name, body.note)


def _plan_change(context: RequestContext, body: PublishBody) -> ChangePlan:
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
        before |= (
            {} if loaded.registry is None else {each.name: each.text for each in loaded.registry.entries if each.text}
        )
        for each in told["rules"]:
            if each["name"] in before and masking.hides_text(context, before[each["name"]]):
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


def _apply_change(context: RequestContext, change: Callable[..., RuleEntry], *given: Any, **options: Any) -> Response:
    """Makes a change, and has the rules loaded again: who changed one may ask for it at once."""
    entry = change(context.settings, context.log, *given, **options)
    context.app_state.rule_cache.look_again()
    return answered(entry_data(entry))


@router.post("/rules/{rule}/disable", responses=answers_with(schemas.RuleChanged))
def disable(context: Authoring, rule: RuleName, body: DisableBody) -> Response:
    """A rule runs no more, until it is enabled."""
    return _apply_change(context, publishing.disable, rule, context.name, body.note, drain=body.drain)


@router.post("/rules/{rule}/enable", responses=answers_with(schemas.RuleChanged))
def enable(context: Authoring, rule: RuleName, body: EnableBody) -> Response:
    """A rule that was disabled or in shadow runs, and may alert."""
    return _apply_change(context, publishing.enable, rule, context.name, body.note, shadow=body.shadow)


@router.post("/rules/{rule}/rollback", responses=answers_with(schemas.RuleChanged))
def rollback(context: Authoring, rule: RuleName, body: RollingBack) -> Response:
    """An earlier text again, as a new number; without `to`, the one before."""
    return _apply_change(context, publishing.rollback, rule, context.name, body.note, body.to)


# ---------------------------------------------------------------- what was


@router.get("/rules/{rule}/history", responses=answers_with(schemas.RuleHistory))
def history(context: Reading, rule: RuleName) -> Response:
    """All numbers of a rule, the newest first, and where each took effect."""
    registry = load_registry(context.settings, context.log)
    found = publishing.seeded(context.settings, registry).history(rule)
    if not found:
        context.app_state.rule_cache.rule(rule)  # says what is near
        raise Refused("unknown-rule", "this rule has no history", "GET /api/v1/rules lists all rules.")
    entries = []
    for each in reversed(found):
        effect = registry.took_effect(rule, each.number) if registry.change else None
        text = masking.shown_text(context, each.text)
        entries.append({**entry_data(each), "text": text, "took_effect": effect})
    return answered({"entries": entries})


@router.get("/rules/{rule}/diff", responses=answers_with(schemas.RuleDiff))
def diff(context: Reading, rule: RuleName, a: Number, b: Number) -> Response:
    """Two numbers of a rule, line by line."""
    found = publishing.diff(context.settings, context.log, rule, a, b)
    texts = (publishing.text_of(context.settings, context.log, rule, number) for number in (a, b))
    is_hidden = context.masks.is_on and any(masking.hides_text(context, text) for text in texts)
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


@router.post("/rules/preview", responses=answers_with(schemas.PreviewShown))
def show_preview(context: Authoring, body: RuleTextBody) -> Response:
    """What a rule would find, within seconds: exact for some keys, estimated for all. Who asks again takes the place of
    what was asked before.
    """
    rule = rule_to_run(context, body.text)
    found = context.app_state.previews.run(context.name, rule, lambda: is_connected(context.request))
    return answered(found.to_json() | {"sampling": context.app_state.previews.sampling(context.name, rule, found)})


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
