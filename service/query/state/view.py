"""A key's state for people: per rule its live partial matches and what they wait for, per history function its events.

As data (`--json`) a key is one object:

    key         the values of the key
    partition
    watermark   event time of the store, ms
    rules       rule, version, partials (step, events, since, waits_for, fires_at, bound), due, alerted, quiet_until
    histories   call, of (the event type), events (time, value)

`bound` are the newest events that a partial match holds: as, time, stream, partition, offset and, as far as the input
still has it, the event itself.

    unreadable  what of it could not be read, and why; only where there is such
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samovar.changelog.formats.record import key_prefix, row_parts
from samovar.patterns.engine.compile import RulePlan
from samovar.patterns.engine.matcher import StateError, States, decode_key, encode_key
from samovar.patterns.explain.key_trace import iso_time, key_candidates
from samovar.patterns.syntax.tree import Scalar, SequenceForm, StepKind
from samovar.patterns.syntax.unparse import unparse
from samovar.service.query.state.rows import UnreadableError, head_of, history_of
from samovar.state.store import PrefixScanStore
from samovar.tasks.model.plan import Plan

SHOWN_EVENTS = 5
FOREVER = 1 << 61  # event times beyond it stand for never


@dataclass(frozen=True)
class KeyState:
    """All that a store holds of one key."""

    key: tuple[Scalar, ...]
    rules: Sequence[Mapping[str, Any]]
    histories: Sequence[Mapping[str, Any]]
    unreadable: Sequence[str]

    @property
    def is_empty(self) -> bool:
        return not (self.rules or self.histories or self.unreadable)

    def data(self) -> dict[str, Any]:
        found = {"key": list(self.key), "rules": list(self.rules), "histories": list(self.histories)}
        return found | ({"unreadable": list(self.unreadable)} if self.unreadable else {})


# ---------------------------------------------------------------- which key


def resolve_key(plan: Plan, text: str, rule: str | None) -> dict[bytes, tuple[Scalar, ...]]:
    """The keys that a text may mean, over all rules: `c1`, `card=c1,user=7`, `c1,7` or `["c1", 7]`."""
    found: dict[bytes, tuple[Scalar, ...]] = {}
    for each in plan.program.rules:
        if rule is not None and each.rule.id != rule:
            continue
        names = [key.name for key in each.rule.form.by]
        if names or rule is not None:
            found |= {encode_key(key): key for key in _readings(names, text)}
    return found


def _readings(names: Sequence[str], text: str) -> list[tuple[Scalar, ...]]:
    if not names:
        return [()]
    if text.startswith("["):
        return _json_key(names, text)
    found = key_candidates(names, text)
    parts = text.split(",")
    if not found and len(parts) == len(names):
        named = ",".join(f"{name}={part.strip()}" for name, part in zip(names, parts, strict=True))
        found = key_candidates(names, named)
    return found


def _json_key(names: Sequence[str], text: str) -> list[tuple[Scalar, ...]]:
    try:
        values = json.loads(text)
    except ValueError:
        return []
    fits = len(values) == len(names) and all(isinstance(value, (str, int, float)) for value in values)
    return [tuple(values)] if fits else []


def key_text(key: Sequence[Scalar]) -> str:
    """A key as people write it.

    >>> key_text(("c1",)), key_text(("c1", 7)), key_text(())
    ('c1', '["c1", 7]', 'all events')
    """
    if len(key) == 1 and isinstance(key[0], str):
        return key[0]
    return json.dumps(list(key), ensure_ascii=False) if key else "all events"


# ---------------------------------------------------------------- what is held


def find_key(plan: Plan, store: PrefixScanStore, key: bytes, rule: str | None = None) -> KeyState:
    """What a store holds of a key; of one rule, where one is named."""
    (rows,) = store.prefixes([key_prefix(key)])
    return described(plan, key, dict(rows), rule)


def described(plan: Plan, key: bytes, rows: Mapping[bytes, bytes], rule: str | None = None) -> KeyState:
    """Rows of one key (as the store names them), readably."""
    by_store: dict[str, dict[bytes, bytes]] = defaultdict(dict)
    for row, value in rows.items():
        by_store[row_parts(row)[1]][row] = value
    rules, histories, unreadable = [], [], []
    numbers = {f"{each.rule.id}@{each.version}": number for number, each in enumerate(plan.program.rules)}
    for name, own in sorted(by_store.items()):
        if rule is not None and name.partition("@")[0] != rule and not name.startswith("history/"):
            continue
        try:
            if name in numbers:
                rules.append(_rule_state(plan, numbers[name], key, own))
            elif name.startswith("history/"):
                histories.append(_history_state(plan, name, own))
            else:
                rules.append({"rule": name.partition("@")[0], "version": name.partition("@")[2], "gone": True})
        except (StateError, UnreadableError) as error:
            unreadable.append(f"{name}: {str(error).splitlines()[0]}")
    return KeyState(decode_key(key), rules, histories, unreadable)


def _rule_state(plan: Plan, number: int, key: bytes, rows: Mapping[bytes, bytes]) -> dict[str, Any]:
    states = States(plan.program, max_partials=plan.max_partials, max_events=plan.max_events)
    states.load([(row[1:], value) for row, value in rows.items()])
    rule = plan.program.rules[number]
    head = head_of(rows)
    found: dict[str, Any] = {"rule": rule.rule.id, "version": rule.version, "partials": states.partials(number, key)}
    if isinstance(rule.rule.form, SequenceForm):
        found["partials"] = [{"waits_for": _after(rule.rule.form, each), **each} for each in found["partials"]]
    if head.due_ms is not None and abs(head.due_ms) < FOREVER:
        found["due"] = head.due_ms
    if head.alerted_ms is not None:
        found |= {"alerted": head.alerted_ms} | _quiet(rule, head.alerted_ms)
    return found


def _after(form: SequenceForm, partial: Mapping[str, Any]) -> list[str]:
    """The steps that a repeated first one waits for: the kernel tells it of all others."""
    taking = [step for step in form.steps if step.kind is not StepKind.ABSENT]
    place = next((place for place, step in enumerate(taking) if step.name == partial["step"]), len(taking))
    if place < len(taking) and partial["events"] < taking[place].runs_min:
        return [str(taking[place].name)]
    names = []
    for step in taking[place + 1 :]:
        names.append(str(step.name))
        if not step.optional:
            break
    return names


def _quiet(rule: RulePlan, alerted_ms: int) -> dict[str, int]:
    suppress_ms = rule.rule.suppress_ms
    return {} if suppress_ms is None else {"quiet_until": alerted_ms + suppress_ms}


def _history_state(plan: Plan, name: str, rows: Mapping[bytes, bytes]) -> dict[str, Any]:
    kept = history_of(rows)
    events = [{"time": event.time_ms, "value": event.value} for event in kept]
    known = plan.program.histories.get(name)
    call = name if known is None else unparse(known[1])
    return {"call": call, "of": None if known is None else known[0], "events": events}


# ---------------------------------------------------------------- as text


def text_of(state: KeyState) -> list[str]:
    """Indented lines: a rule or history function each, and what it holds."""
    lines: list[str] = []
    for rule in state.rules:
        lines += [f"  {rule['rule']}" + (": a rule that is no more" if rule.get("gone") else "")]
        lines += [f"    {line}" for line in _rule_lines(rule)]
    for history in state.histories:
        lines += [f"  {history['call']}" + (f", of {history['of']}" if history["of"] else "")]
        lines += [f"    {line}" for line in _history_lines(history["events"])]
    return lines + [f"  unreadable: {reason}" for reason in state.unreadable]


def _rule_lines(rule: Mapping[str, Any]) -> Iterable[str]:
    for partial in rule.get("partials", ()):
        yield partial_text(partial)
        yield from (f"  {line}" for line in _bound_lines(partial))
    if not rule.get("partials") and not rule.get("gone"):
        yield "nothing live"
    if "alerted" in rule:
        quiet = f", quiet until {iso_time(rule['quiet_until'])}" if "quiet_until" in rule else ""
        yield f"last alert at {iso_time(rule['alerted'])}{quiet}"
    if "due" in rule:
        yield f"looked at again at {iso_time(rule['due'])}"


def partial_text(partial: Mapping[str, Any]) -> str:
    events = partial["events"]
    text = f"{partial['step']}: {events:,} event{'s' * (events != 1)}"
    if "since" in partial:
        text += f" since {iso_time(partial['since'])}"
    if partial.get("waits_for"):
        text += f"; waits for {' or '.join(partial['waits_for'])}"
    if "fires_at" in partial and abs(partial["fires_at"]) < FOREVER:
        text += f"; fires at {iso_time(partial['fires_at'])}"
    return text


def _bound_lines(partial: Mapping[str, Any]) -> Iterable[str]:
    bound = partial.get("bound", ())
    if partial["events"] > min(len(bound), SHOWN_EVENTS) and bound:
        yield f"({partial['events'] - min(len(bound), SHOWN_EVENTS):,} earlier events)"
    for event in bound[-SHOWN_EVENTS:]:
        place = f"{event['stream']}/{event['partition']}/{event['offset']}"
        shown = f"  {json.dumps(event['event'], ensure_ascii=False)}" if event.get("event") is not None else ""
        yield f"{event['as']}  {iso_time(event['time'])}  {place}{shown}"


def _history_lines(events: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    if len(events) > SHOWN_EVENTS:
        yield f"({len(events) - SHOWN_EVENTS:,} earlier events)"
    for event in events[-SHOWN_EVENTS:]:
        yield f"{iso_time(event['time'])}  {json.dumps(event['value'], ensure_ascii=False)}"
