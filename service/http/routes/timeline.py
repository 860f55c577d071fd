"""An alert's events in time: those that it matched, the key's others around them, and what the rule made of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samovar.changelog.partitioner import key_text
from samovar.patterns.engine.compile import compile_rules
from samovar.patterns.syntax.tree import Rule
from samovar.service.alerts.index import Alert
from samovar.service.http.masking.rules import shown_text
from samovar.service.http.state import AppState
from samovar.service.masking.fields import Masks
from samovar.service.query.events import Place, StreamEvent, value_at
from samovar.service.query.key_events import events_near
from samovar.service.query.why import in_order, why_alert

READ_MOST = 1_000  # events of an alert that are read
AROUND_MS = 60_000  # shown before and after it, or as long as the alert itself is


def timeline(app_state: AppState, masks: Masks, alert: Alert, around: int) -> dict[str, Any]:
    """What `GET /alerts/{id}` says next to the alert itself. An alert's places name topics, what is shown streams."""
    match = alert.match
    steps: dict[Place, str] = {tuple(place): name for name, places in match["steps"].items() for place in places}
    wanted = list(steps)[:READ_MOST]
    found = app_state.events.at(wanted)
    loaded = app_state.rule_cache.get()
    rule = loaded.of_version(alert.rule, match["version"])
    known = rule or loaded.rules.get(alert.rule)
    others = _others(app_state, alert, known, list(found.values()), around)
    events = {event.place: event for event in [*found.values(), *others]}
    taken = {event.place: steps[place] for place, event in found.items()}
    ordered, program = in_order(app_state.settings, events.values()), None if known is None else compile_rules([known])
    fields = () if program is None else program.fields
    shown = [_shown(masks, event, taken.get(event.place), fields) for event in ordered]
    streams = {stream.topic: name for name, stream in app_state.settings.streams.items()}
    shown += [_gone(streams.get(place[0], place[0]), place, steps[place]) for place in wanted if place not in found]
    return {
        "steps": match["steps"],
        "timeline": shown,
        "timeline_complete": len(found) == len(steps),
        # An alarm has no key and no events: there is nothing that a rule could be run over.
        "why": None
        if rule is None or program is None or "alarm" in match
        else why_alert(app_state, masks, alert, rule, list(found.values())),
        "rule_text": None if rule is None else shown_text(app_state, masks, rule.text),
        "rule_current": loaded.version(alert.rule) == match["version"],
    }


def _others(
    app_state: AppState, alert: Alert, rule: Rule | None, matched: Sequence[StreamEvent], around: int
) -> list[StreamEvent]:
    """Events of the key between a little before the first and a little after the last that was matched."""
    parts = [key_text(value) for value in alert.match["key"].values()]
    if not around or not parts or parts[0] is None or not matched:
        return []
    fields = [key.name for key in rule.form.by][:1] if rule is not None else []
    span = max(alert.match["end"] - alert.match["start"], AROUND_MS)
    first, last = alert.match["start"] - span, alert.match["at"] + span
    found = events_near(app_state.events, parts[0], fields, matched)
    return [event for event in found if event.time is not None and first <= event.time <= last][:around]


def _shown(masks: Masks, event: StreamEvent, step: str | None, fields: Sequence[str]) -> dict[str, Any]:
    values = {path: value for path in fields if (value := value_at(event.event, path)) is not None}
    told = event.data() | {"step": step, "values": masks.fields(values)}
    return told | {"event": masks.event(event.stream, event.event)}


def _gone(stream: str, place: Place, step: str) -> dict[str, Any]:
    """An event that the log no longer has."""
    _, partition, offset = place
    told = {"stream": stream, "partition": partition, "offset": offset, "time": None, "logged": None, "type": None}
    return told | {"step": step, "event": None, "values": {}}
