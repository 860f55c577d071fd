"""Rules over events: order, keys, timers, records, suppression."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from samovar.patterns.syntax import tree
from samovar.patterns.syntax.tree import Bracket, Expr, Overlap, Rule
from tests.oracle.events import Event, in_order, read_events
from tests.oracle.expressions import Scope, evaluate
from tests.oracle.history import Memory, bracket_fits
from tests.oracle.keys import KeyValue, accepts_type, key_names, keys_of
from tests.oracle.latest import LatestOfKey
from tests.oracle.partial import AFTER_ALL, Partial, Place, names_of, plan_of, step_by_step
from tests.oracle.runs import RunsOfKey
from tests.oracle.sequence import Dropped, Limits, SequenceOfKey
from tests.oracle.values import show
from tests.oracle.windows import FormOfKey, Record, of_key

MAX_LISTED = 1000  # of a session or a window
MAX_TEXT = 8192  # bytes of a message, and of a text in `emit`


@dataclass
class Result:
    matches: list[dict[str, Any]] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    dropped_partials: int = 0
    dropped_events: int = 0
    dropped_matches: int = 0
    no_key: int = 0


@dataclass(frozen=True)
class Found:
    """A match with what it is sorted by: when, the line of its last event, its rule, its events step by step."""

    rule: int
    key: KeyValue
    at: int
    last: int
    events: tuple[Place, ...]
    by_step: tuple[tuple[Place, ...], ...]
    record: dict[str, Any]
    by_timer: bool = False

    @property
    def order(self) -> tuple[object, ...]:
        return self.at, self.last, self.rule, self.events, self.by_step

    @property
    def coming(self) -> tuple[object, ...]:
        """At one time, on one event or by timers, the one with the earliest start is the first alert: in a group that
        need not be what is listed first.
        """
        completed_by = -1 if self.by_timer else self.last
        return self.at, completed_by, self.rule, min(self.events), self.events, self.by_step


def run(
    rules: Sequence[Rule],
    events: Sequence[Mapping[str, Any] | None],
    *,
    type_field: str = "type",
    time_field: str = "ts",
    slack_ms: int | None = None,
    flush: bool = True,
    max_partials: int = 1000,
    max_events: int = 10_000,
    max_matches: int = 1000,
    show_suppressed: bool = False,
) -> Result:
    """What the rules find in the events; coordinates are indexes into `events`."""
    result = Result()
    ordered, result.late = in_order(read_events(events, type_field, time_field), slack_ms)
    # At the end of input event time goes to infinity; without flush it ends at the largest time.
    end = math.inf if flush else max((event.time for event in ordered), default=-math.inf)
    limits = Limits(max_partials, max_events, max_matches)
    found: list[Found] = []
    for number, rule in enumerate(rules):
        runner = runner_of(number, rule, limits)
        found += sorted(runner.run(ordered, end), key=lambda match: match.order)
        result.dropped_partials += runner.dropped.partials
        result.dropped_events += runner.dropped.events
        result.dropped_matches += runner.dropped.matches
        result.no_key += runner.no_key
    kept = suppressed([rule.suppress_ms for rule in rules], sorted(found, key=lambda match: match.order))
    result.matches = [record for record in kept if show_suppressed or "suppressed" not in record]
    return result


def suppressed(spans: list[int | None], found: list[Found]) -> list[dict[str, Any]]:
    """Mark the matches that come while t - t0 <= D of the last alert of that key."""
    alerted: dict[tuple[int, KeyValue], int] = {}
    quiet: set[int] = set()
    for match in sorted(found, key=lambda match: match.coming):
        span, last = spans[match.rule], alerted.get((match.rule, match.key))
        if span is not None and last is not None and match.at - last <= span:
            quiet.add(id(match))
        else:
            alerted[match.rule, match.key] = match.at
    return [{**match.record, "suppressed": True} if id(match) in quiet else match.record for match in found]


# ---------------------------------------------------------------- one rule


class RuleRunner(ABC):
    """What all forms share: the memory of history functions, the names of the key, and records."""

    def __init__(self, number: int, rule: Rule, brackets: list[Bracket], limits: Limits) -> None:
        self.number = number
        self.rule = rule
        self.brackets = brackets
        self.limits = limits
        self.dropped = Dropped()
        self.no_key = 0
        self.memory = Memory(brackets, limits.max_events)
        self.names = key_names(rule.form.by, brackets[0])
        gathers = isinstance(rule.form, tree.SessionForm | tree.WindowForm)
        self.most_listed = MAX_LISTED if gathers else sys.maxsize  # the others hold max_events at the most

    def run(self, events: list[Event], end: float) -> list[Found]:
        found = []
        for event in events:
            found += self.take(event)
            self.memory.add(event)
        found += self.finish(end)
        self.dropped.events += self.memory.dropped_events
        return found

    @abstractmethod
    def take(self, event: Event) -> list[Found]: ...

    @abstractmethod
    def finish(self, end: float) -> list[Found]: ...

    def record(
        self, key: KeyValue, span: tuple[int, int, int], steps: dict[str, list[Event]], scope: Scope
    ) -> dict[str, Any]:
        start, end, at = span
        made: dict[str, Any] = {
            "rule": self.rule.id,
            "key": {name: value for name, (_, value) in zip(self.names, key, strict=True)},
            "start": start,
            "end": end,
            "at": at,
            # Steps that were skipped are left out.
            "steps": {name: self.listed(events) for name, events in steps.items() if events},
            "emit": {name: cut_value(evaluate(expr, scope)) for name, expr in self.rule.emit},
        }
        if self.rule.message:
            made["message"] = cut("".join(message_part(part, scope) for part in self.rule.message))
        total = {name: len(events) for name, events in steps.items() if len(events) > self.most_listed}
        return {**made, "total": total} if total else made

    def listed(self, events: list[Event]) -> list[int]:
        return [event.line for event in events[-self.most_listed :]]

    def found(self, key: KeyValue, record: dict[str, Any], events: list[Event], by_step: tuple[Any, ...]) -> Found:
        in_steps = tuple(place for step in by_step for place in step if place != AFTER_ALL)
        last = max(events, key=lambda event: event.place).line
        form = self.rule.form
        by_timer = isinstance(form, tree.SequenceForm) and form.steps[-1].kind is tree.StepKind.ABSENT
        return Found(self.number, key, record["at"], last, (*in_steps, AFTER_ALL), by_step, record, by_timer)


def cut(text: str) -> str:
    """At most 8 kB; what is longer ends with an ellipsis, and no character is divided."""
    data = text.encode()
    return text if len(data) <= MAX_TEXT else data[: MAX_TEXT - len("…".encode())].decode(errors="ignore") + "…"


def cut_value(value: Any) -> Any:
    if isinstance(value, list):
        return [cut_value(each) for each in value]
    return cut(value) if isinstance(value, str) else value


def message_part(part: str | Expr, scope: Scope) -> str:
    return part if isinstance(part, str) else show(evaluate(part, scope))


class SequenceRunner(RuleRunner):
    def __init__(self, number: int, rule: Rule, form: tree.SequenceForm, limits: Limits) -> None:
        brackets = [bracket for step in form.steps for bracket in step.brackets]
        super().__init__(number, rule, brackets + ([form.until] if form.until else []), limits)
        self.form = form
        self.plan = plan_of(form)
        self.states: dict[KeyValue, SequenceOfKey] = {}

    def take(self, event: Event) -> list[Found]:
        keys, has_none = keys_of(self.form.by, self.brackets, event)
        self.no_key += has_none
        found = []
        for key in keys:
            state = self.states.get(key) or self.new_state(key)
            # Timers fire before any later event of the key is looked at.
            found += [self.match(key, partial) for partial in state.pass_time(event.time)]
            found += [self.match(key, partial) for partial in state.take(event)]
        return found

    def new_state(self, key: KeyValue) -> SequenceOfKey:
        kind = LatestOfKey if self.form.overlap is Overlap.LATEST else RunsOfKey
        self.states[key] = kind(self.form, key, self.memory, self.limits, self.dropped)
        return self.states[key]

    def finish(self, end: float) -> list[Found]:
        return [self.match(key, partial) for key, state in self.states.items() for partial in state.pass_time(end)]

    def match(self, key: KeyValue, partial: Partial) -> Found:
        """`start` is the oldest event listed; a plain field in `emit` is the last event's."""
        named = partial.named
        steps = {name: named.get(name, []) for name in names_of(self.plan)}
        scope = Scope(partial.last, named, partial.events)
        record = self.record(key, (partial.first.time, partial.last.time, partial.at), steps, scope)
        return self.found(key, record, partial.events, step_by_step(self.plan, partial))


class GatheringRunner(RuleRunner):
    """aggregate, session and window."""

    def __init__(
        self, number: int, rule: Rule, form: tree.AggregateForm | tree.SessionForm | tree.WindowForm, limits: Limits
    ) -> None:
        super().__init__(number, rule, list(form.brackets), limits)
        self.form = form
        self.states: dict[KeyValue, FormOfKey] = {}

    def take(self, event: Event) -> list[Found]:
        taking = [bracket for bracket in self.brackets if accepts_type(bracket, event.type)]
        if not taking:
            return []
        keys, has_none = keys_of(self.form.by, self.brackets, event)
        self.no_key += has_none
        found = []
        for key in keys:
            entered = [bracket for bracket in taking if bracket_fits(bracket, event, key, self.memory)]
            if not entered:
                continue
            state = self.states.setdefault(key, of_key(self.form, self.limits.max_events))
            names = list(dict.fromkeys(bracket.name for bracket in entered if bracket.name is not None))
            found += [self.match(key, record) for record in state.pass_time(event.time)]
            found += [self.match(key, record) for record in state.take(event, names)]
        return found

    def finish(self, end: float) -> list[Found]:
        self.dropped.events += sum(state.dropped_events for state in self.states.values())
        return [self.match(key, record) for key, state in self.states.items() for record in state.pass_time(end)]

    def match(self, key: KeyValue, made: Record) -> Found:
        events = made.gathered.events
        record = self.record(key, (made.start, made.end, made.at), {"events": events}, made.gathered.scope())
        if isinstance(self.form, tree.SessionForm):
            # A session's count is always there.
            record["emit"] = {"count": len(events), **record["emit"]}
        return self.found(key, record, events, (tuple(event.place for event in events),))


def runner_of(number: int, rule: Rule, limits: Limits) -> RuleRunner:
    if isinstance(rule.form, tree.SequenceForm):
        return SequenceRunner(number, rule, rule.form, limits)
    return GatheringRunner(number, rule, rule.form, limits)
