"""What history functions remember: `seen`, `count(D)`, `avg(f, D)`, `prev(f, D)` and the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from samovar.patterns.syntax.tree import Bracket, History, walk
from tests.oracle.aggregates import aggregate
from tests.oracle.events import Event
from tests.oracle.expressions import Scope, evaluate, holds
from tests.oracle.keys import KeyValue, accepts_type, key_of
from tests.oracle.values import Value, compare


@dataclass
class Memory:
    """The earlier events that the history functions of one rule may read.

    A function reads the earlier events of the same key and type, whatever the rule made of them: neither a match nor
    `until` empties a memory. Each function holds at most `max_events` of a key.
    """

    brackets: Iterable[Bracket]
    max_events: int
    held: dict[tuple[int, int, KeyValue, str], list[Event]] = field(default_factory=lambda: defaultdict(list))
    dropped_events: int = 0

    def __post_init__(self) -> None:
        asked = [(bracket, function) for bracket in self.brackets for function in functions_of(bracket)]
        self.asked = {(id(bracket), id(function)): (bracket, function) for bracket, function in asked}

    def add(self, event: Event) -> None:
        """Called when all of the rule's work on the event is done, so that an event is never earlier than itself."""
        for (place, which), (bracket, function) in self.asked.items():
            key = key_of(bracket.by, event)
            if key is None or not accepts_type(bracket, event.type):
                continue
            if function.where is not None and not holds(function.where, Scope(event)):
                continue
            if not counts(function, event):
                continue
            memory = self.held[place, which, key, event.type]
            if function.function == "prev":
                memory.clear()
            memory.append(event)
            memory[:] = [old for old in memory if event.time - old.time <= function.span_ms]
            self.dropped_events += cut_oldest(memory, self.max_events)

    def reader(self, bracket: Bracket, event: Event) -> Callable[[History], Value]:
        """How a bracket's condition reads the past of an event."""
        key = key_of(bracket.by, event)
        assert key is not None, "an event without a key fits no bracket"

        def read(function: History) -> Value:
            memory = self.held[id(bracket), id(function), key, event.type]
            earlier = [old for old in memory if event.time - old.time <= function.span_ms]
            return answer(function, event, earlier)

        return read


def functions_of(bracket: Bracket) -> Iterable[History]:
    return (expr for expr in walk(bracket.condition) if isinstance(expr, History))


def counts(function: History, event: Event) -> bool:
    """An event whose value is null is nothing to a function of values, and takes no place among the events held.

    `prev` reads the event before, whatever its value is.
    """
    if function.value is None or function.function == "prev":
        return True
    return evaluate(function.value, Scope(event)) is not None


def answer(function: History, event: Event, earlier: list[Event]) -> Value:
    """`seen`: an earlier event had the same value, and null is never seen. `prev`: its value. Else as named."""
    if function.value is None:
        return len(earlier)
    if function.function == "prev":
        return evaluate(function.value, Scope(earlier[-1])) if earlier else None
    values = [evaluate(function.value, Scope(old)) for old in earlier]
    if function.function == "seen":
        now = evaluate(function.value, Scope(event))
        return any(compare("==", now, value) for value in values)
    return aggregate(function.function, values)


def cut_oldest(events: list[Event], limit: int) -> int:
    """Keep the newest; say how many went."""
    extra = max(0, len(events) - limit)
    del events[:extra]
    return extra


def bracket_fits(bracket: Bracket, event: Event, key: KeyValue, memory: Memory, scope: Scope | None = None) -> bool:
    """An event fits a bracket by its type, by its key under the bracket's own `by`, and by the condition."""
    if not accepts_type(bracket, event.type) or key_of(bracket.by, event) != key:
        return False
    named = scope.named if scope is not None else {}
    events = scope.events if scope is not None else ()
    return holds(bracket.condition, Scope(event, named, events, memory.reader(bracket, event)))
