"""/keys: what is held of a key, its events, and why a rule did not fire for it. Asked of the node that owns the key."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from samovar.changelog.errors import Refused
from samovar.patterns.compile import compile_rules
from samovar.patterns.follow import key_candidates
from samovar.patterns.syntax import Rule, Session
from samovar.service.alerts_index_query import Search, search
from samovar.service.api_alerts import alert_data, real_key
from samovar.service.http_answers import KeyEvents, KeyShown, answers_with
from samovar.service.http_answers_state import KeysPage, KeyWhy, SessionsPage
from samovar.service.http_asking import Asking, Reading, answered
from samovar.service.http_events import Event
from samovar.service.http_forward import answered_here, gathered
from samovar.service.http_held import held_here, keys_here, masked_held, sessions_here, tasks_of_key
from samovar.service.http_key_events import Marks, Scanned, events_of_key, marks_of
from samovar.service.http_why import decoders_of, story_data, story_of
from samovar.service.http_world import World

router = APIRouter(tags=["keys"])

SHOWN_ALERTS = 20
WHY_EVENTS = 2_000
KeyText = Annotated[str, Path(min_length=1, max_length=1_000)]
RuleName = Annotated[str | None, Query(max_length=200)]
Limit = Annotated[int, Query(ge=1, le=1_000)]
Before = Annotated[str | None, Query(min_length=1, max_length=10_000, description="`scanned.older` of a page before")]


@router.get("/keys", responses=answers_with(KeysPage))
def scan(asking: Reading, rule: RuleName = None, limit: Limit = 100) -> Response:
    """Keys that have state, of one rule or of all, over all nodes."""
    if rule is not None:
        asking.world.shelf.rule(rule)
    found, missing = gathered(asking, "keys", None, lambda tasks: keys_here(asking.world, tasks, rule, limit + 1))
    keys = _masked(asking, found)
    return answered({"keys": keys[:limit], "more": len(keys) > limit, "missing": missing})


@router.get("/sessions", responses=answers_with(SessionsPage))
def sessions(asking: Reading, rule: RuleName = None, limit: Limit = 100) -> Response:
    """Live sessions of a rule, over all nodes; of the first session rule where none is named."""
    name = session_rule(asking.world, rule)
    found, missing = gathered(
        asking, "sessions", None, lambda tasks: sessions_here(asking.world, tasks, name, limit + 1)
    )
    found = _masked_sessions(asking, found)
    found.sort(key=lambda each: each.get("last") or each.get("since") or 0, reverse=True)
    return answered({"rule": name, "sessions": found[:limit], "more": len(found) > limit, "missing": missing})


def session_rule(world: World, name: str | None) -> str:
    if name is not None:
        rule = world.shelf.rule(name)
        if not isinstance(rule.form, Session):
            raise Refused(
                "unknown-rule", f"the rule `{name}` has no sessions", "Name a rule that matches `session by`."
            )
        return name
    rules = world.shelf.get().rules
    found = next((each for each in sorted(rules) if isinstance(rules[each].form, Session)), None)
    if found is None:
        raise Refused("unknown-rule", "no rule has sessions", "A rule that matches `session by ...` makes them.")
    return found


@router.get("/keys/{key}", responses=answers_with(KeyShown))
def show(asking: Reading, key: KeyText, rule: RuleName = None) -> Response:
    """What is held of a key: partial matches and what each waits for, sessions, history; and its newest alerts."""
    world, masks = asking.world, asking.masks
    text = real_key(world, masks, key)
    if rule is not None:
        world.shelf.rule(rule)
    tasks = tasks_of_key(world, text, rule)
    found, missing = gathered(
        asking, f"keys/{quote(text, safe='')}", tasks, lambda own: held_here(world, own, text, rule), rule=rule
    )
    alerts = search(world.index, Search([] if rule is None else [rule], text, limit=SHOWN_ALERTS))
    shown = [alert_data(world, masks, alert, label) for alert, label in alerts.alerts]
    told = {
        "key_text": key if masks.is_on else text,
        "held": _masked(asking, found),
        "alerts": shown,
        "missing": missing,
    }
    return answered(told)


def _masked(asking: Asking, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [masked_held(asking.masks, asking.world, each) for each in found]


def _masked_sessions(asking: Asking, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    masks = asking.masks
    for each in found:
        if any(map(masks.hides, each["key"])):
            each["key_text"] = masks.alias(each["key_text"])
        each["key"] = masks.key(each["key"])
    return found


# ---------------------------------------------------------------- asked by other nodes


@router.get("/held/keys", include_in_schema=False)
def held_keys(asking: Reading, rule: RuleName = None, limit: Limit = 100) -> Response:
    return answered(_masked(asking, answered_here(asking, lambda own: keys_here(asking.world, own, rule, limit + 1))))


@router.get("/held/sessions", include_in_schema=False)
def held_sessions(asking: Reading, rule: RuleName = None, limit: Limit = 100) -> Response:
    name = session_rule(asking.world, rule)
    found = answered_here(asking, lambda own: sessions_here(asking.world, own, name, limit + 1))
    return answered(_masked_sessions(asking, found))


@router.get("/held/keys/{key}", include_in_schema=False)
def held_key(asking: Reading, key: KeyText, rule: RuleName = None) -> Response:
    return answered(_masked(asking, answered_here(asking, lambda own: held_here(asking.world, own, key, rule))))


# ---------------------------------------------------------------- events, and why


@router.get("/keys/{key}/events", responses=answers_with(KeyEvents))
def events(asking: Reading, key: KeyText, limit: Limit = 100, before: Before = None) -> Response:
    """The key's newest events, as far back as a bounded look through its partition goes.

    Where `scanned.older` says that there is more, it is the `before` of the next page.
    """
    world, masks = asking.world, asking.masks
    marks = None if before is None else marks_of(before)
    found, scanned = events_of(world, real_key(world, masks, key), limit, before=marks)
    shown = [event.data() | {"event": masks.event(event.stream, event.event)} for event in found]
    return answered({"events": shown, "scanned": scanned.data()})


@router.get("/keys/{key}/why", responses=answers_with(KeyWhy))
def why(asking: Reading, key: KeyText, rule: Annotated[str, Query(max_length=200)]) -> Response:
    """Why a rule did or did not fire for a key, event by event."""
    world, masks = asking.world, asking.masks
    text = real_key(world, masks, key)
    found = world.shelf.rule(rule)
    newest, scanned = events_of(world, text, WHY_EVENTS, found)
    ordered = sorted(newest, key=lambda event: (event.time or 0, event.stream, event.partition, event.offset))
    names = [part.name for part in found.form.by]
    candidates = key_candidates(names, text) if names else [()]
    if not candidates:
        raise Refused(
            "bad-key", f"this is no key of the rule {rule}", f"Write {','.join(f'{name}=...' for name in names)}."
        )
    decoders, program = decoders_of(world.settings), compile_rules([found])
    stories = (story_of(program, candidate, ordered, decoders) for candidate in candidates)
    story = next((each for each in stories if each.events), None) or story_of(program, candidates[0], ordered, decoders)
    told = story_data(masks, story, ordered)
    return answered({"rule": rule, "key": masks.key(story.key), **told, "scanned": scanned.data()})


def events_of(
    world: World, text: str, limit: int, rule: Rule | None = None, before: Marks | None = None
) -> tuple[list[Event], Scanned]:
    """A key's events. Of a key of several parts, those of its first part."""
    rules = [rule] if rule is not None else list(world.shelf.get().rules.values())
    fields = list(dict.fromkeys(each.form.by[0].name for each in rules if each.form.by))
    first, named = first_part(text, fields)
    return events_of_key(world.events, first, [named] if named else fields, limit, before)


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
