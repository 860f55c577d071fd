"""A key's state for people: per rule its live partial matches and what they wait for, per history function its events;
of a task of the user's its rows and timers.

As data (`--json`) a key is one object:

    key         the values of the key
    partition
    watermark   event time of the store, ms
    rules       rule, version, partials (step, events, since, waits_for, fires_at, bound), due, alerted, quiet_until
    histories   call, of (the event type), events (time, value)

    unreadable  what of it could not be read, and why; only where there is such

Of a task of the user's, `key` is [the text], and instead of rules and histories there are

    stores      store, key, value (bytes as hex), expires (event time, ms; null: never)
    timers      name, due (event time, ms)

`bound` are the newest events that a partial match holds: as, time, stream, partition, offset and, as far as the input
still has it, the event itself.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samovar.changelog.formats.record import Position, key_prefix, row_parts
from samovar.common.texts import counted
from samovar.patterns.engine.matcher import StateError, States, decode_key, encode_key
from samovar.patterns.explain.key_trace import iso_time, key_candidates
from samovar.patterns.syntax.tree import Scalar, SequenceForm, StepKind
from samovar.patterns.syntax.unparse import unparse
from samovar.service.query.state.rows import UnreadableError, head_of, remembered_events
from samovar.state.stack import ROWS, namespace
from samovar.state.store import PrefixScanStore, Readable
from samovar.state.ttl import UnknownRowVersionError
from samovar.tasks.model.plan import Plan
from samovar.tasks.user.inspect import UserRow, user_row
from samovar.tasks.user.stores import key_bytes
from samovar.tasks.user.timers import OWN, TIMER, time_of

SHOWN_EVENTS = 5
SHOWN_CHARACTERS = 300
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

    def lines(self) -> Iterator[str]:
        """Indented text: a rule or history function each, and what it holds."""
        for rule in self.rules:
            yield f"  {rule['rule']}" + (": a rule that is no more" if rule.get("gone") else "")
            yield from (f"    {line}" for line in _rule_lines(rule))
        for history in self.histories:
            events = history["events"]
            yield f"  {history['call']}" + (f", of {history['of']}" if history["of"] else "")
            if len(events) > SHOWN_EVENTS:
                yield f"    ({len(events) - SHOWN_EVENTS:,} earlier events)"
            for event in events[-SHOWN_EVENTS:]:
                yield f"    {iso_time(event['time'])}  {json.dumps(event['value'], ensure_ascii=False)}"
        yield from (f"  unreadable: {reason}" for reason in self.unreadable)


def _rule_lines(rule: Mapping[str, Any]) -> Iterator[str]:
    for partial in rule.get("partials", ()):
        text = f"{partial['step']}: {counted(partial['events'], 'event')}"
        if "since" in partial:
            text += f" since {iso_time(partial['since'])}"
        if partial.get("waits_for"):
            text += f"; waits for {' or '.join(partial['waits_for'])}"
        if "fires_at" in partial and abs(partial["fires_at"]) < FOREVER:
            text += f"; fires at {iso_time(partial['fires_at'])}"
        yield text
        bound = partial.get("bound", ())[-SHOWN_EVENTS:]
        if bound and partial["events"] > len(bound):
            yield f"  ({partial['events'] - len(bound):,} earlier events)"
        for event in bound:
            place = f"{event['stream']}/{event['partition']}/{event['offset']}"
            shown = f"  {json.dumps(event['event'], ensure_ascii=False)}" if event.get("event") is not None else ""
            yield f"  {event['as']}  {iso_time(event['time'])}  {place}{shown}"
    if not rule.get("partials") and not rule.get("gone"):
        yield "nothing live"
    if "alerted" in rule:
        quiet = f", quiet until {iso_time(rule['quiet_until'])}" if "quiet_until" in rule else ""
        yield f"last alert at {iso_time(rule['alerted'])}{quiet}"
    if "due" in rule:
        yield f"looked at again at {iso_time(rule['due'])}"


# ---------------------------------------------------------------- names


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
        try:
            values = json.loads(text)
        except ValueError:
            return []
        fits = len(values) == len(names) and all(isinstance(value, (str, int, float)) for value in values)
        return [tuple(values)] if fits else []
    found = key_candidates(names, text)
    parts = text.split(",")
    if not found and len(parts) == len(names):
        named = ",".join(f"{name}={part.strip()}" for name, part in zip(names, parts, strict=True))
        found = key_candidates(names, named)
    return found


def key_text(key: Sequence[Scalar]) -> str:
    """A key as people write it.

    >>> key_text(("c1",)), key_text(("c1", 7)), key_text(())
    ('c1', '["c1", 7]', 'all events')
    """
    if len(key) == 1 and isinstance(key[0], str):
        return key[0]
    return json.dumps(list(key), ensure_ascii=False) if key else "all events"


def watermark_text(watermark: int | None) -> str:
    return "none yet" if watermark is None else iso_time(watermark)


def event_time_text(position: Position | None) -> str:
    watermark = None if position is None else position.watermark
    return "no event time yet" if watermark is None else f"event time {iso_time(watermark)}"


def position_data(position: Position | None) -> dict[str, Any]:
    """Where a store stands, for programs: event time, and the next offset of each input."""
    if position is None:
        return {"watermark": None, "inputs": {}}
    return {"watermark": position.watermark, "inputs": {name: each.next for name, each in position.inputs.items()}}


def rule_name(plan: Plan, store: str) -> str:
    """The rule, or the history function, that a store's name stands for."""
    known = plan.program.histories.get(store)
    return store.partition("@")[0] if known is None else f"a history function of {known[0]}"


# ---------------------------------------------------------------- what is held


def find_key(plan: Plan, store: PrefixScanStore, key: bytes, rule: str | None = None) -> KeyState:
    """What a store holds of a key; of one rule, where one is named."""
    (rows,) = store.prefixes([key_prefix(key)])
    return described(plan, key, dict(rows), rule)


def by_store(rows: Iterable[tuple[bytes, bytes]]) -> dict[str, dict[bytes, bytes]]:
    """Rows of one key, by the rule or history function that they are of."""
    found: dict[str, dict[bytes, bytes]] = defaultdict(dict)
    for row, value in rows:
        found[row_parts(row)[1]][row] = value
    return found


def described(plan: Plan, key: bytes, rows: Mapping[bytes, bytes], rule: str | None = None) -> KeyState:
    """Rows of one key (as the store names them), readably."""
    rules, histories, unreadable = [], [], []
    numbers = {f"{each.rule.id}@{each.version}": number for number, each in enumerate(plan.program.rules)}
    for name, own in sorted(by_store(rows.items()).items()):
        id, _, version = name.partition("@")
        try:
            if name.startswith("history/"):
                known = plan.program.histories.get(name)
                of, call = (None, name) if known is None else (known[0], unparse(known[1]))
                events = [{"time": event.time_ms, "value": event.value} for event in remembered_events(own)]
                histories.append({"call": call, "of": of, "events": events})
            elif rule is None or id == rule:
                gone = {"rule": id, "version": version, "gone": True}
                rules.append(_rule_state(plan, numbers[name], key, own) if name in numbers else gone)
        except (StateError, UnreadableError) as error:
            unreadable.append(f"{name}: {str(error).splitlines()[0]}")
    return KeyState(decode_key(key), rules, histories, unreadable)


def _rule_state(plan: Plan, number: int, key: bytes, rows: Mapping[bytes, bytes]) -> dict[str, Any]:
    states = States(plan.program, max_partials=plan.max_partials, max_events=plan.max_events)
    states.load([(row[1:], value) for row, value in rows.items()])
    rule, version = plan.program.rules[number].rule, plan.program.rules[number].version
    head, partials = head_of(rows), states.partials(number, key)
    if isinstance(rule.form, SequenceForm):
        partials = [{"waits_for": _next_steps(rule.form, each), **each} for each in partials]
    found: dict[str, Any] = {"rule": rule.id, "version": version, "partials": partials}
    if head.due_ms is not None and abs(head.due_ms) < FOREVER:
        found["due"] = head.due_ms
    if head.alerted_ms is not None:
        found["alerted"] = head.alerted_ms
        if rule.suppress_ms is not None:
            found["quiet_until"] = head.alerted_ms + rule.suppress_ms
    return found


def _next_steps(form: SequenceForm, partial: Mapping[str, Any]) -> list[str]:
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


# ---------------------------------------------------------------- what a task of the user holds


@dataclass(frozen=True)
class TaskKeyState:
    """What a task's stores have under one key, and the timer of that name."""

    key: tuple[str]
    rows: Sequence[UserRow]
    timer: int | None

    @property
    def is_empty(self) -> bool:
        return not self.rows and self.timer is None

    def data(self) -> dict[str, Any]:
        timers = [] if self.timer is None else [{"name": self.key[0], "due": self.timer}]
        return {"key": list(self.key), "stores": [row.data() for row in self.rows], "timers": timers}

    def lines(self) -> list[str]:
        timer = [] if self.timer is None else [f"  timer: due {iso_time(self.timer)}"]
        return [*(f"  {_row_line(row)}" for row in self.rows), *timer]


def task_rows_of(plan: Plan, key: str) -> list[bytes]:
    """The rows that a task may have under a key: one of each store that the service file names, and the timer last."""
    assert plan.task is not None
    stores = [namespace(ROWS, name) + key_bytes(key) for name in plan.task.stores]
    return [*stores, namespace(ROWS, OWN) + TIMER + key_bytes(key)]


def find_task_key(plan: Plan, store: Readable, key: str) -> TaskKeyState:
    """What a task holds under a key."""
    *names, timer_name = task_rows_of(plan, key)
    rows = [user_row(row, packed) for row in names if (packed := store.get(row)) is not None]
    timer = store.get(timer_name)
    return TaskKeyState((key,), rows, None if timer is None else time_of(timer))


def _row_line(row: UserRow) -> str:
    value = row.value.hex() if isinstance(row.value, bytes) else json.dumps(row.value, ensure_ascii=False)
    shown = value if len(value) <= SHOWN_CHARACTERS else f"{value[:SHOWN_CHARACTERS]}..."
    expires = "" if row.expires is None else f"  (until {iso_time(row.expires)})"
    return f"{row.store}: {shown}{expires}"


def named(row: bytes) -> tuple[str, str]:
    """Of any row of a task: what it belongs to, and its key."""
    size = row[1]
    if size:
        return f"store {row[2 : 2 + size].decode('utf-8', 'replace')}", row[2 + size :].decode("utf-8", "replace")
    return ("timer", row[3:].decode("utf-8", "replace")) if row[2:3] == TIMER else ("window", "")


def task_row_lines(row: bytes, packed: bytes | None) -> list[str]:
    """The value of a task's row, as far as it can be read."""
    if packed is None:
        return ["nothing"]
    if not row[1]:
        return [f"due {iso_time(time_of(packed))}"]
    try:
        return [_row_line(user_row(row, packed))]
    except (UnknownRowVersionError, ValueError) as error:
        return [f"unreadable: {error}", packed.hex()[:SHOWN_CHARACTERS]]
