"""/keys: what is held of a key, its events, and why a rule did not fire for it. Asked of the node that owns the key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response
from pydantic import Field

from samovar.common.errors import Refused
from samovar.patterns.engine.compile import compile_rules
from samovar.patterns.engine.order import NO_TIME
from samovar.patterns.explain.key_trace import key_candidates
from samovar.patterns.syntax.tree import Rule, SessionForm
from samovar.service.alerts.query import search
from samovar.service.http import schemas
from samovar.service.http.forwarding import answer_locally, ask_owners
from samovar.service.http.request import Body, Reading, RequestContext, answered, event_data
from samovar.service.http.routes.alerts import alert_data
from samovar.service.http.schemas import answers_with
from samovar.service.http.state import AppState
from samovar.service.query import local_state
from samovar.service.query.events import StreamEvent
from samovar.service.query.key_events import Marks, ScanProgress, events_of_key, marks_of
from samovar.service.query.key_lookup import KeyLookup, lookup, marked_keys
from samovar.service.query.local_state import SCANNED_KEYS, Task
from samovar.service.query.why import decoders_of, events_taken, in_order, limits_of, span_text, trace_data, trace_key

router = APIRouter(tags=["keys"])

SHOWN_ALERTS = 20
WHY_EVENTS = 2_000
KeyText = Annotated[str, Path(min_length=1, max_length=1_000)]
RuleName = Annotated[str | None, Query(max_length=200)]
Limit = Annotated[int, Query(ge=1, le=1_000)]
Before = Annotated[str | None, Query(min_length=1, max_length=10_000, description="`scanned.older` of a page before")]


class KeyAsked(Body):
    """A key as somebody writes it."""

    key: str = Field(min_length=1, max_length=1_000)


@router.post("/keys/resolve", responses=answers_with(schemas.KeyResolved))
def resolve(context: Reading, body: KeyAsked) -> Response:
    """What a key is called in addresses: where keys hold something marked, its pseudonym."""
    app_state, masks = context.app_state, context.masks
    found = lookup(app_state, masks, body.key.strip())
    has_marked = marked_keys(app_state)
    if found.marked is False and has_marked:
        # What is not there may be a value that nobody is to see, and goes into no address.
        is_there = search(app_state.index, found.search([], 1)).alerts or events_of(app_state, found, 1)[0]
        if not is_there:
            hint = "Ask somebody with the role operator, who sees these keys. Others find them by pseudonyms."
            raise Refused("pii-comparison", "no key of this name is known, but for such as are marked pii", hint)
    if masks.is_on or found.asked != found.text or not has_marked:
        return answered({"key_ref": found.asked})
    app_state.aliases.remember(masks, [found.text])
    return answered({"key_ref": masks.pseudonym(found.text)})


@router.get("/keys", responses=answers_with(schemas.KeysPage))
def scan(context: Reading, rule: RuleName = None, limit: Limit = 100) -> Response:
    """Keys that have state, of one rule or of all, over all nodes."""
    if rule is not None:
        context.app_state.rule_cache.rule(rule)
    found, missing = ask_owners(context, "keys", None, lambda tasks: _keys(context, tasks, rule, limit))
    keys = _mask_states(context, found)
    if context.masks.is_on:
        keys.sort(key=lambda each: str(each["key_text"]))
    return answered({"keys": keys[:limit], "more": len(keys) > limit, "missing": missing})


def _keys(context: RequestContext, tasks: Sequence[Task], rule: str | None, limit: int) -> list[dict[str, Any]]:
    """Stores have keys in their order: who may not see them gets some of all, and not the first of that order."""
    return local_state.keys_here(context.app_state, tasks, rule, SCANNED_KEYS if context.masks.is_on else limit + 1)


@router.get("/sessions", responses=answers_with(schemas.SessionsPage))
def sessions(context: Reading, rule: RuleName = None, limit: Limit = 100) -> Response:
    """Live sessions of a rule, over all nodes; of the first session rule where none is named."""
    name = session_rule(context.app_state, rule)
    found, missing = ask_owners(context, "sessions", None, lambda tasks: _sessions(context, tasks, name, limit))
    found = _masked_sessions(context, found, name)
    if context.masks.is_on:
        found.sort(key=lambda each: str(each["key_text"]))
    found.sort(key=lambda each: each.get("last") or each.get("since") or 0, reverse=True)
    return answered({"rule": name, "sessions": found[:limit], "more": len(found) > limit, "missing": missing})


def _sessions(context: RequestContext, tasks: Sequence[Task], rule: str, limit: int) -> list[dict[str, Any]]:
    masks = context.masks
    return local_state.sessions_here(
        context.app_state, tasks, rule, limit + 1, masks.pseudonym if masks.is_on else None
    )


def session_rule(app_state: AppState, name: str | None) -> str:
    if name is not None:
        if not isinstance(app_state.rule_cache.rule(name).form, SessionForm):
            hint = "Name a rule that matches `session by`."
            raise Refused("unknown-rule", f"the rule `{name}` has no sessions", hint)
        return name
    rules = app_state.rule_cache.get().rules
    found = next((each for each in sorted(rules) if isinstance(rules[each].form, SessionForm)), None)
    if found is None:
        raise Refused("unknown-rule", "no rule has sessions", "A rule that matches `session by ...` makes them.")
    return found


@router.get("/keys/{key}", responses=answers_with(schemas.KeyShown))
def show(context: Reading, key: KeyText, rule: RuleName = None) -> Response:
    """What is held of a key: partial matches and what each waits for, sessions, history; and its newest alerts."""
    app_state, masks = context.app_state, context.masks
    if rule is not None:
        app_state.rule_cache.rule(rule)
    wanted = lookup(app_state, masks, key, rule)
    tasks = local_state.tasks_of_key(app_state, wanted.text, rule, key) if wanted.is_known else None
    path = f"keys/{quote(key, safe='')}"
    found, missing = ask_owners(context, path, tasks, lambda own: _local_states(context, own, wanted, rule), rule=rule)
    alerts = search(app_state.index, wanted.search([] if rule is None else [rule], SHOWN_ALERTS)).alerts
    told = {
        "key_text": wanted.asked if masks.is_on else wanted.text,
        "held": _mask_states(context, found),
        "alerts": [alert_data(context, alert, label) for alert, label in alerts],
        "missing": missing,
    }
    return answered(told)


def _local_states(
    context: RequestContext, tasks: Sequence[Task], wanted: KeyLookup, rule: str | None
) -> list[dict[str, Any]]:
    """What this node holds, as far as it may be compared. Which fields a history or a store is keyed by is not told:
    they may be marked.
    """
    found = local_state.local_state_of(context.app_state, tasks, wanted.text, rule)
    if wanted.marked is None:
        return found
    bounded = []
    for held in found:
        own = [each for each in held.get("rules", ()) if wanted.is_for(each["rule"])]
        kept = wanted.marked or wanted.no_key_is_marked
        parts = [name for name in ("histories", "stores", "timers") if name in held]
        others: dict[str, Any] = {name: held[name] if kept else [] for name in parts}
        if own or any(others.values()):
            bounded.append({**held, "rules": own, **others})
    return bounded


def _mask_states(context: RequestContext, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [local_state.masked_held(context.masks, context.app_state, each) for each in found]


def _masked_sessions(context: RequestContext, found: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    app_state, masks = context.app_state, context.masks
    rule = app_state.rule_cache.rule(name)
    for each in found:
        each["key_ref"] = masks.key_ref(each["key_text"], rule)
        if each["key_ref"] != each["key_text"]:
            app_state.aliases.remember(masks, [each["key_text"]])
        each["key_text"] = masks.key_text(each["key_text"], rule)
        each["key"] = masks.key(each["key"], rule)
    return found


# ---------------------------------------------------------------- asked by other nodes


@router.get("/held/keys", include_in_schema=False)
def held_keys(context: Reading, rule: RuleName = None, limit: Limit = 100) -> Response:
    return answered(_mask_states(context, answer_locally(context, lambda own: _keys(context, own, rule, limit))))


@router.get("/held/sessions", include_in_schema=False)
def held_sessions(context: Reading, rule: RuleName = None, limit: Limit = 100) -> Response:
    name = session_rule(context.app_state, rule)
    found = answer_locally(context, lambda own: _sessions(context, own, name, limit))
    return answered(_masked_sessions(context, found, name))


@router.get("/held/keys/{key}", include_in_schema=False)
def held_key(context: Reading, key: KeyText, rule: RuleName = None) -> Response:
    wanted = lookup(context.app_state, context.masks, key, rule)
    return answered(
        _mask_states(context, answer_locally(context, lambda own: _local_states(context, own, wanted, rule)))
    )


# ---------------------------------------------------------------- events, and why


@router.get("/keys/{key}/events", responses=answers_with(schemas.KeyEvents))
def events(context: Reading, key: KeyText, limit: Limit = 100, before: Before = None) -> Response:
    """The key's newest events, as far back as a bounded look through its partition goes.

    Where `scanned.older` says that there is more, it is the `before` of the next page.
    """
    app_state = context.app_state
    marks = None if before is None else marks_of(before)
    found, scanned = events_of(app_state, lookup(app_state, context.masks, key), limit, before=marks)
    shown = [event_data(context, event) for event in found]
    return answered({"events": shown, "scanned": scanned.data()})


@router.get("/keys/{key}/why", responses=answers_with(schemas.KeyWhy))
def why(context: Reading, key: KeyText, rule: Annotated[str, Query(max_length=200)]) -> Response:
    """Why a rule did or did not fire for a key, event by event."""
    app_state, masks = context.app_state, context.masks
    found = app_state.rule_cache.rule(rule)
    wanted = lookup(app_state, masks, key, rule)
    if not wanted.is_for(rule):
        hint = "A pseudonym stands for a key that is marked."
        raise Refused("bad-key", f"this is not a key of the rule {rule}", hint)
    newest, scanned = events_of(app_state, wanted, WHY_EVENTS, found)
    ordered = in_order(context.settings, events_taken(app_state, found, newest))
    names = [part.name for part in found.form.by]
    candidates = key_candidates(names, wanted.text) if names else [()]
    if not candidates:
        hint = f"Write {','.join(f'{name}=...' for name in names)}."
        raise Refused("bad-key", f"this is not a key of the rule {rule}", hint)
    decoders, program = decoders_of(context.settings), compile_rules([found])
    # How far event time has come in the tasks that may hold the key: timers before it have fired.
    tasks = set(local_state.tasks_of_key(app_state, wanted.text, rule, wanted.asked))
    known = [each.watermark for each in app_state.watch.latest.status.tasks if (each.stage, each.partition) in tasks]
    until_ms = min((each for each in known if each is not None), default=NO_TIME)
    options = limits_of(context.settings) | {"until_ms": until_ms}
    stories = [trace_key(program, candidate, ordered, decoders, **options) for candidate in candidates]
    story = next((each for each in stories if each.events), stories[0])
    told = trace_data(masks, story, ordered.__getitem__)
    if scanned.older:
        told["conclusion"].append(f"What is older was not looked through; the rule reads {span_text(found)} back.")
    return answered({"rule": rule, "key": masks.key(story.key, found), **told, "scanned": scanned.data()})


def events_of(
    app_state: AppState, wanted: KeyLookup, limit: int, rule: Rule | None = None, before: Marks | None = None
) -> tuple[list[StreamEvent], ScanProgress]:
    """A key's events. Of a key of several parts, those of its first part."""
    known = app_state.rule_cache.get().rules
    rules = [rule] if rule is not None else [known[name] for name in known if wanted.is_for(name)]
    fields = list(dict.fromkeys(each.form.by[0].name for each in rules if each.form.by))
    first, named = first_part(wanted.text, fields)

    def hides(stream: str, path: str) -> bool:
        return app_state.lineage.is_marked_in(stream, path) is not wanted.marked

    by = [named] if named else fields
    return events_of_key(app_state.events, first, by, limit, before, None if wanted.marked is None else hides)


def first_part(text: str, fields: list[str]) -> tuple[str, str | None]:
    """The text by which a key's events are placed, and its field where that is told.

    >>> first_part("c1", ["card"]), first_part("card=c1,user=7", ["card"]), first_part('["c1", 7]', ["card"])
    (('c1', None), ('c1', 'card'), ('c1', None))
    """
    if text.startswith("["):
        try:
            values: Any = json.loads(text)
        except (ValueError, RecursionError):
            return text, None
        if isinstance(values, list) and values and isinstance(values[0], str | int | float):
            return str(values[0]), None
    for field in fields:
        if text.startswith(f"{field}="):
            return text[len(field) + 1 :].split(",", maxsplit=1)[0], field
    return text, None
