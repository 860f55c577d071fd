"""/alerts: searched, one with its events and its why, labelled, counted, and live."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query
from fastapi.responses import Response, StreamingResponse
from pydantic import Field

from samovar.changelog.partitioner import key_text
from samovar.common.errors import Refused
from samovar.patterns.engine.compile import compile_rules
from samovar.patterns.syntax.tree import Rule
from samovar.service.alerts import labels
from samovar.service.alerts.index import Alert
from samovar.service.alerts.query import Search, counts, label_of, one, precisions, search, values, versions_of
from samovar.service.http import schemas
from samovar.service.http.broadcaster import Position, Subscription, listen, read_position
from samovar.service.http.masking import shown_text
from samovar.service.http.request import (
    LEAST_MS,
    MOST_MS,
    Body,
    Labelling,
    Reading,
    RequestContext,
    answered,
    event_data,
    json_text,
)
from samovar.service.http.schemas import answers_with
from samovar.service.masking.lineage import Flow
from samovar.service.query.events import Place, StreamEvent, value_at
from samovar.service.query.key_events import events_near
from samovar.service.query.key_lookup import lookup
from samovar.service.query.why import in_order, why_alert

router = APIRouter(prefix="/alerts", tags=["alerts"])

HOUR_MS = 3_600_000
LIVE_TEXTS = 2_000
READ_MOST = 1_000  # events of an alert that are read
AROUND_MS = 60_000  # shown before and after it, or as long as the alert itself is
BEGUN_S = 10.0  # for the first look at the alerts, just after the process began
Ms = Annotated[int, Query(ge=LEAST_MS, le=MOST_MS)]
Word = Annotated[str, Query(max_length=500)]
RuleNames = Annotated[list[str] | None, Query(alias="rule", max_length=50)]
AlertId = Annotated[str, Path(max_length=100)]


# ---------------------------------------------------------------- an alert as JSON


def alert_data(context: RequestContext, alert: Alert, label: str) -> dict[str, Any]:
    """An alert for people: with its rule's title, and what may not be seen hidden."""
    app_state, masks = context.app_state, context.masks
    match, loaded = alert.match, app_state.rule_cache.get()
    rule = loaded.rules.get(alert.rule)
    # Of an alert with very many events only the first are listed, and `events` has their number.
    events = match.get("events")
    listed = sum(len(places) for places in match.get("steps", {}).values())
    own = loaded.of_version(alert.rule, match["version"])
    shown = masks.alert(match, own)
    ref = masks.key_ref(alert.key, own) if match["key"] else ""
    if ref != alert.key:
        app_state.aliases.remember(masks, [alert.key])
    return {
        "id": shown["id"],
        "rule": alert.rule,
        "version": match["version"],
        "title": None if rule is None else rule.title,
        "severity": None if rule is None else rule.severity,
        "key": shown["key"],
        "key_text": ref if masks.is_on else alert.key,
        "key_ref": ref,
        "start": match["start"],
        "end": match["end"],
        "at": match["at"],
        "logged": alert.logged,
        "message": shown.get("message"),
        "emit": shown.get("emit", {}),
        "events": events if isinstance(events, int) else listed,
        "label": label,
        "alarm": match.get("alarm"),  # storm, storm-over: a record about the rule, with no key and no events
        "position": f"{alert.partition}/{alert.offset}",
    }


def found_alert(context: RequestContext, id: str) -> tuple[Alert, str]:
    """An alert and its label, by the id that who asks was shown. Who sees keys may name an alert by its own id."""
    app_state, masks = context.app_state, context.masks
    for each in (masks.real_id(id), id) if app_state.lineage.any else (id,):
        try:
            found, label = one(app_state.index, each)
        except Refused as refused:
            if refused.code != "unknown-alert":
                raise
            continue
        rule = app_state.rule_cache.get().of_version(found.rule, found.match["version"])
        if not masks.is_on or masks.alert_id(found.id, rule) == id:
            return found, label
    return one(app_state.index, "")  # says that there is none


# ---------------------------------------------------------------- search


@router.get("", responses=answers_with(schemas.AlertsPage))
def find(
    context: Reading,
    rule: RuleNames = None,
    key: Word | None = None,
    label: schemas.LabelName | None = None,
    from_ms: Annotated[Ms | None, Query(alias="from")] = None,
    to_ms: Annotated[Ms | None, Query(alias="to")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    after: Annotated[str | None, Query(max_length=200)] = None,
) -> Response:
    """Alerts by rule, key, label and event time, newest first, in pages: `next` goes into `after`."""
    app_state, masks = context.app_state, context.masks
    wanted = None if key is None else lookup(app_state, masks, key)
    text, versions, but = (None, None, ()) if wanted is None else (wanted.text, wanted.versions, wanted.but_versions)
    place = masks.real_place(after) if after is not None and app_state.lineage.any else after
    found = search(
        app_state.index,
        Search(
            rules=rule or (),
            key=text,
            label=label,
            from_ms=from_ms,
            to_ms=to_ms,
            limit=limit,
            after=place,
            versions=versions,
            but_versions=but,
        ),
    )
    alerts = [alert_data(context, alert, name) for alert, name in found.alerts]
    next_ = masks.place(found.next) if found.next is not None and app_state.lineage.any else found.next
    more = {"next": next_, "total": found.total, "total_is_exact": found.is_exact}
    return answered({"alerts": alerts, **more})


@router.get("/precision", responses=answers_with(schemas.Precisions))
def precision(context: Reading) -> Response:
    """By rule: how alerts were labelled, and how precise the rule is by that."""
    found = precisions(context.app_state.index)
    return answered({"rules": [{"rule": rule, **found[rule]} for rule in sorted(found)]})


@router.get("/counts", responses=answers_with(schemas.AlertCounts))
def over_time(
    context: Reading,
    rule: RuleNames = None,
    from_ms: Annotated[Ms | None, Query(alias="from")] = None,
    to_ms: Annotated[Ms | None, Query(alias="to")] = None,
    buckets: Annotated[int, Query(ge=1, le=1_000)] = 60,
) -> Response:
    """How many alerts were raised in each part of a time; without one, of the last hour."""
    end = int(time.time() * 1000) if to_ms is None else to_ms
    start = end - HOUR_MS if from_ms is None else from_ms
    return answered(counts(context.app_state.index, min(start, end), max(start, end), buckets, rule or ()))


@router.get("/values", responses=answers_with(schemas.Spread))
def spread(
    context: Reading,
    rule: Word,
    field: Word,
    from_ms: Annotated[Ms, Query(alias="from")] = LEAST_MS,
    to_ms: Annotated[Ms, Query(alias="to")] = MOST_MS,
    buckets: Annotated[int, Query(ge=1, le=200)] = 20,
) -> Response:
    """How the values of a field that a rule emits are spread."""
    app_state, masks = context.app_state, context.masks
    flow = Flow.CLEAR  # of the field, over all versions of the rule that alerts here are of
    if masks.is_on and field != "duration_ms":
        for version in versions_of(app_state.index, rule):
            known = app_state.rule_cache.get().of_version(rule, version)
            flows = {} if known is None else app_state.lineage.of(known).emit
            flow = max(flow, flows.get(field, Flow.COMPUTED))
    found = values(app_state.index, rule, field, buckets, from_ms, to_ms, lambda value: masks.value(flow, value))
    return answered(found)


# ---------------------------------------------------------------- live


@router.get("/live", response_class=StreamingResponse, responses={200: {"content": {"text/event-stream": {}}}})
async def live(
    context: Reading,
    rule: RuleNames = None,
    key: Word | None = None,
    start: Annotated[str | None, Query(alias="from", max_length=2_000)] = None,
    last_event_id: Annotated[str | None, Header(max_length=2_000)] = None,
) -> StreamingResponse:
    """Alerts as they come, as server-sent events. Going on with `Last-Event-ID` (or `from`) misses nothing."""
    app_state, masks = context.app_state, context.masks
    follower = app_state.follower
    if not follower.position and not await asyncio.to_thread(follower.wait_begun, BEGUN_S):
        hint = "Ask again in a moment; `samovar doctor` says whether the log can be reached."
        raise Refused("log-unavailable", "the alerts cannot be read yet", hint, follower.trouble or "")
    given = last_event_id or start
    position = read_position(given, len(follower.position)) if given else None
    wanted = None if key is None else await asyncio.to_thread(lookup, app_state, masks, key)
    text, versions, but = (None, None, ()) if wanted is None else (wanted.text, wanted.versions, wanted.but_versions)
    kind = tuple(rule or ()), text, versions, but, masks.is_on

    def shown(alert: Alert) -> str:
        """An alert's JSON, the same for all who may see as much."""
        texts, known = app_state.live_texts, (alert.id, masks.is_on)
        if known not in texts:
            texts[known] = json_text(alert_data(context, alert, "open"))
            while len(texts) > LIVE_TEXTS:
                texts.popitem(last=False)
        return texts[known]

    def begin() -> Position:
        return follower.now if position is None else follower.position

    subscription = Subscription(
        start=position,
        rules=rule or (),
        key=text,
        shown=shown,
        kind=kind,
        versions=versions,
        but_versions=but,
        is_allowed=context.is_still_allowed,
    )
    stream = listen(app_state.broadcaster, app_state.index, begin, subscription)
    first = await anext(stream)  # a refusal is a problem, not a stream that ends

    async def chained() -> AsyncIterator[str]:
        yield first
        async for text in stream:
            yield text

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(chained(), media_type="text/event-stream", headers=headers)


# ---------------------------------------------------------------- one alert


@router.get("/{alert}", responses=answers_with(schemas.AlertWhole))
def show(context: Reading, alert: AlertId, around: Annotated[int, Query(ge=0, le=500)] = 100) -> Response:
    """One alert with its events, the key's other events around it, and why it was raised."""
    found, label = found_alert(context, alert)
    own = alert_data(context, found, label)
    known = label_of(context.app_state.index, found.id)
    more = timeline(context, found, around)
    return answered({**own, **more, "labels": [] if known is None else [known]})


def timeline(context: RequestContext, alert: Alert, around: int) -> dict[str, Any]:
    """An alert's events in time: those that it matched, the key's others around them, and what the rule made of each.
    An alert's places name topics, what is shown streams.
    """
    app_state, match = context.app_state, alert.match
    steps: dict[Place, str] = {tuple(place): name for name, places in match["steps"].items() for place in places}
    wanted = list(steps)[:READ_MOST]
    found = app_state.events.at(wanted)
    loaded = app_state.rule_cache.get()
    rule = loaded.of_version(alert.rule, match["version"])
    known = rule or loaded.rules.get(alert.rule)
    others = _others(context, alert, known, list(found.values()), around)
    events = {event.place: event for event in [*found.values(), *others]}
    taken = {event.place: steps[place] for place, event in found.items()}
    program = None if known is None else compile_rules([known])
    shown = []
    for event in in_order(context.settings, events.values()):
        read = {path: value_at(event.event, path) for path in (() if program is None else program.fields)}
        values_read = context.masks.fields({path: value for path, value in read.items() if value is not None})
        shown.append(event_data(context, event) | {"step": taken.get(event.place), "values": values_read})
    streams = {stream.topic: name for name, stream in context.settings.streams.items()}
    for topic, partition, offset in [place for place in wanted if place not in found]:  # the log no longer has them
        gone = {"stream": streams.get(topic, topic), "partition": partition, "offset": offset}
        gone |= dict.fromkeys(("time", "logged", "type", "event"))
        shown.append(gone | {"step": steps[topic, partition, offset], "values": {}})
    why = None
    if rule is not None and "alarm" not in match:  # which has no key and no events that a rule could be run over
        why = why_alert(app_state, context.masks, alert, rule, list(found.values()))
    return {
        "steps": match["steps"],
        "timeline": shown,
        "timeline_complete": len(found) == len(steps),
        "why": why,
        "rule_text": None if rule is None else shown_text(context, rule.text),
        "rule_current": loaded.version(alert.rule) == match["version"],
    }


def _others(
    context: RequestContext, alert: Alert, rule: Rule | None, matched: Sequence[StreamEvent], around: int
) -> list[StreamEvent]:
    """Events of the key between a little before the first and a little after the last that was matched."""
    parts = [key_text(value) for value in alert.match["key"].values()]
    if not around or not parts or parts[0] is None or not matched:
        return []
    fields = [key.name for key in rule.form.by][:1] if rule is not None else []
    span = max(alert.match["end"] - alert.match["start"], AROUND_MS)
    first, last = alert.match["start"] - span, alert.match["at"] + span
    found = events_near(context.app_state.events, parts[0], fields, matched)
    return [event for event in found if event.time is not None and first <= event.time <= last][:around]


class LabelBody(Body):
    """What somebody says of an alert."""

    label: schemas.LabelName
    note: str = Field("", max_length=labels.MAX_NOTE)


@router.put("/{alert}/label", responses=answers_with(schemas.LabelMade))
def put_label(context: Labelling, alert: AlertId, body: LabelBody) -> Response:
    """Say whether an alert was right. The newest label counts."""
    app_state = context.app_state
    found, _ = found_alert(context, alert)
    if "alarm" in found.match:
        hint = "Label the alerts that the rule raised: its precision is made of those."
        raise Refused("alarm-label", "this is an alarm about its rule, and nothing to be right or wrong", hint)
    made = labels.Label(
        alert=found.id,
        rule=found.rule,
        key=found.key,
        label=body.label,
        by=context.name,
        at=int(time.time() * 1000),
        note=body.note,
    )
    detail = {"alert": found.id, "rule": made.rule, "label": body.label}
    context.record("alert labelled", detail)
    labels.put(context.log, context.settings.service, made)
    app_state.index.take([], [made], {})  # seen at once by who wrote it; the topic says it to all
    rule = app_state.rule_cache.get().of_version(found.rule, found.match["version"])
    key = context.masks.key_text(made.key, rule)
    told = {"label": made.label, "by": made.by, "at": made.at, "note": made.note}
    return answered({"alert": alert, "rule": made.rule, "key": key, **told})
