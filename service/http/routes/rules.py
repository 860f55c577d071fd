"""/rules: listed, checked, tested, explained, tried on recent traffic; and what an editor completes with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path
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
from samovar.service.http import masking, schemas
from samovar.service.http.dry_run import try_rule
from samovar.service.http.problems import RefusedWithErrors
from samovar.service.http.request import Authoring, Body, Reading, RequestContext, answered
from samovar.service.http.schemas import answers_with, fields_of
from samovar.service.http.state import AppState
from samovar.service.masking.fields import HIDDEN, not_compared
from samovar.service.rules.explain import document
from samovar.service.rules.testing import json_of_result
from samovar.service.topology.ruleset import lists_of, schema_of
from samovar.service.topology.stages import sources_of

router = APIRouter(tags=["rules"])

MAX_TEXT = 200_000
RuleName = Annotated[str, Path(max_length=200)]
KEYWORDS = (
    "sequence aggregate session window by with as where having over every maxspan gap max runs within after next until "
    "any and or not in like true false null let emit message suppress params lists tests rule title severity tags match"
).split()


class RuleTextBody(Body):
    text: str = Field(max_length=MAX_TEXT)


class DryRunBody(RuleTextBody):
    minutes: float = Field(10, gt=0, le=7 * 24 * 60)
    max_events: int = Field(200_000, ge=1, le=1_000_000)


# ---------------------------------------------------------------- the rules of the service


@router.get("/rules", responses=answers_with(schemas.RulesShown))
def rules(context: Reading) -> Response:
    """All rules with their versions, and how precise they are by their labels."""
    app_state = context.app_state
    loaded = app_state.rule_cache.get()
    judged = precisions(app_state.index)
    off = [] if loaded.book is None else [each.name for each in loaded.book.entries if each.name not in loaded.rules]
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
            found.append(Finding("unknown-type", "error", what, rule.path, bracket.span, None, hint))
    try:
        compile_rules([rule])
    except CompileError as fault:
        found.append(Finding("too-large", "error", str(fault), rule.path, rule.form.span))
    if not has_errors(found):
        found += lint(rule, schema)
    found.sort(key=lambda finding: (finding.span, finding.id))
    return None if has_errors(found) else rule, found


def refuse_bad(context: RequestContext, text: str) -> Rule:
    found, findings = checked(context, text)
    if found is None:
        hint = "POST /api/v1/rules/check shows them, with their places."
        more = {"findings": [to_json(finding) for finding in findings]}
        raise RefusedWithErrors("rule-errors", "the rule has errors", hint, more=more)
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
