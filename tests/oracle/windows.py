"""The forms that count: aggregate, session and window, each for one key."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from samovar.patterns.syntax.tree import AggregateForm, Expr, SessionForm, WindowForm
from tests.oracle.events import Event
from tests.oracle.expressions import Scope, holds


@dataclass
class Gathered:
    """Events taken, each once, and by the names of the brackets they entered."""

    events: list[Event] = field(default_factory=list)
    named: dict[str, list[Event]] = field(default_factory=dict)

    def add(self, event: Event, names: list[str]) -> None:
        """An event enters every bracket that it fits."""
        self.events.append(event)
        for name in names:
            self.named.setdefault(name, []).append(event)

    def keep(self, kept: list[Event]) -> None:
        lines = {event.line for event in kept}
        self.events = [event for event in self.events if event.line in lines]
        self.named = {name: [event for event in events if event.line in lines] for name, events in self.named.items()}

    def copy(self) -> Gathered:
        return Gathered(list(self.events), {name: list(events) for name, events in self.named.items()})

    def scope(self) -> Scope:
        return Scope(self.events[-1] if self.events else None, self.named, self.events)

    def satisfies(self, having: Expr | None) -> bool:
        return having is None or holds(having, self.scope())


@dataclass(frozen=True)
class Record:
    """A match of one of these forms."""

    gathered: Gathered
    start: int
    end: int
    at: int


class FormOfKey(ABC):
    dropped_events = 0

    @abstractmethod
    def take(self, event: Event, names: list[str]) -> list[Record]:
        """Called only with events that fit a bracket: the others neither count nor move anything."""

    def pass_time(self, now: float) -> list[Record]:
        return []


class AggregateOfKey(FormOfKey):
    """Fires when `having` turns true."""

    def __init__(self, form: AggregateForm, max_events: int) -> None:
        self.form = form
        self.max_events = max_events
        self.window = Gathered()
        self.armed = True
        self.alerted: int | None = None

    def take(self, event: Event, names: list[str]) -> list[Record]:
        # Before each event the window is trimmed, and the rule re-arms if `having` is false.
        self.window.keep([old for old in self.window.events if event.time - old.time <= self.form.over_ms])
        if not self.window.satisfies(self.form.having):
            self.armed = True
        # Then the event is added and tested.
        self.window.add(event, names)
        self.cut_oldest()
        if not self.window.satisfies(self.form.having) or not (self.armed or self.may_repeat(event)):
            return []
        self.armed, self.alerted = False, event.time
        return [Record(self.window.copy(), self.window.events[0].time, event.time, event.time)]

    def may_repeat(self, event: Event) -> bool:
        """`repeat=D` alerts again, at most every D, while `having` goes on holding."""
        repeat = self.form.repeat_ms
        return repeat is not None and self.alerted is not None and event.time - self.alerted >= repeat

    def cut_oldest(self) -> None:
        extra = max(0, len(self.window.events) - self.max_events)
        if extra:
            self.dropped_events += extra
            self.window.keep(self.window.events[extra:])


class SessionOfKey(FormOfKey):
    """Emits once, when event time passes last + gap or start + max; the next event opens a new one."""

    def __init__(self, form: SessionForm) -> None:
        self.form = form
        self.open = Gathered()

    @property
    def deadline(self) -> float:
        """An event at the deadline still belongs."""
        longest = math.inf if self.form.max_ms is None else self.open.events[0].time + self.form.max_ms
        return min(self.open.events[-1].time + self.form.gap_ms, longest)

    def pass_time(self, now: float) -> list[Record]:
        if not self.open.events or self.deadline >= now:
            return []
        closed, at = self.open, int(self.deadline)
        self.open = Gathered()
        if not closed.satisfies(self.form.having):
            return []
        return [Record(closed, closed.events[0].time, closed.events[-1].time, at)]

    def take(self, event: Event, names: list[str]) -> list[Record]:
        self.open.add(event, names)
        return []


class WindowOfKey(FormOfKey):
    """Emits once a window, when event time passes its end. Empty windows emit nothing."""

    def __init__(self, form: WindowForm) -> None:
        self.form = form
        self.open: dict[int, Gathered] = {}

    def take(self, event: Event, names: list[str]) -> list[Record]:
        """The event belongs to every window [k * every, k * every + size) that its time is in."""
        start = event.time // self.form.every_ms * self.form.every_ms
        while event.time < start + self.form.size_ms:
            self.open.setdefault(start, Gathered()).add(event, names)
            start -= self.form.every_ms
        return []

    def pass_time(self, now: float) -> list[Record]:
        over = sorted(start for start in self.open if start + self.form.size_ms < now)
        records = []
        for start in over:
            gathered, end = self.open.pop(start), start + self.form.size_ms
            if gathered.satisfies(self.form.having):
                records.append(Record(gathered, start, end, end))
        return records


def of_key(form: AggregateForm | SessionForm | WindowForm, max_events: int) -> FormOfKey:
    if isinstance(form, AggregateForm):
        return AggregateOfKey(form, max_events)
    return SessionOfKey(form) if isinstance(form, SessionForm) else WindowOfKey(form)
