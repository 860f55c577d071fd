"""A sequence, for one key: time, `until`, negations and the moves that an event allows.

How many partial matches are kept, and which go when one completes, is in latest.py and runs.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from samovar.patterns.syntax.tree import Bracket, SequenceForm, Step, StepKind
from tests.oracle.events import Event
from tests.oracle.expressions import Scope, holds
from tests.oracle.history import Memory, bracket_fits
from tests.oracle.keys import KeyValue
from tests.oracle.partial import Absence, Partial, Plan, Taken, has_room, is_complete, plan_of, reaches_end


@dataclass(frozen=True)
class Limits:
    max_partials: int
    max_events: int
    max_matches: int


@dataclass
class Dropped:
    """What was dropped for lack of room: counted, never silent."""

    partials: int = 0
    events: int = 0
    matches: int = 0


class SequenceOfKey(ABC):
    """The state of one rule and key."""

    def __init__(self, form: SequenceForm, key: KeyValue, memory: Memory, limits: Limits, dropped: Dropped) -> None:
        self.form = form
        self.plan: Plan = plan_of(form)
        self.key = key
        self.memory = memory
        self.limits = limits
        self.dropped = dropped
        self.partials: list[Partial] = []
        self.order: dict[Event, int] = {}
        self.unwanted: list[tuple[Step, Event]] = []

    # ------------------------------------------------------------ time and events

    def pass_time(self, now: float) -> list[Partial]:
        """Absences fire when event time passes their deadline, in the order of the deadlines."""
        fired = []
        while due := [partial for partial in self.partials if partial.waits and partial.at < now]:
            fired += self.fire(due)
        return fired

    def take(self, event: Event) -> list[Partial]:
        """The matches that an event completes."""
        # Every event of the key counts for `next`, whatever its type.
        self.order[event] = len(self.order)
        self.expire(event.time)
        # `until` is tested first, and its event is not used further.
        if self.form.until is not None and self.fits(self.form.until, event, Partial()):
            self.partials = []
            return []
        # Where one event is both x and a step, it kills first.
        self.partials = [left for partial in self.partials if (left := self.after_negations(partial, event))]
        matches = self.use(event)
        # Only events before step 1 count for a first negation, so the event is noted last; a match does not forget it.
        for negation in self.plan.gaps[0]:
            if self.any_fits(negation, event, Partial()):
                self.unwanted.append((negation, event))
        return matches

    @abstractmethod
    def fire(self, due: list[Partial]) -> list[Partial]: ...

    @abstractmethod
    def use(self, event: Event) -> list[Partial]: ...

    @abstractmethod
    def expire(self, now: int) -> None: ...

    # ------------------------------------------------------------ conditions

    def fits(self, bracket: Bracket, event: Event, partial: Partial) -> bool:
        scope = Scope(event, partial.named, partial.events)
        return bracket_fits(bracket, event, self.key, self.memory, scope)

    def any_fits(self, step: Step, event: Event, partial: Partial) -> bool:
        """`[..] or [..]`: either."""
        return any(self.fits(bracket, event, partial) for bracket in step.brackets)

    def completes(self, partial: Partial) -> bool:
        """A match completes only if `having` holds. A plain field there is the last event's."""
        if not reaches_end(self.plan, partial):
            return False
        scope = Scope(partial.last, partial.named, partial.events)
        return self.form.having is None or holds(self.form.having, scope)

    def may_start(self, event: Event) -> bool:
        """First negation: no x in the D before the match's first event."""
        return not any(event.time - x.time <= (negation.for_ms or 0) for negation, x in self.unwanted)

    def may_begin(self, step: Step, partial: Partial, event: Event) -> bool:
        """`next`, `within` and `after` count from the last event taken, and bind the first event of a step."""
        if not partial.taken:
            return True
        passed = event.time - partial.last.time
        if step.next and self.order[event] != self.order[partial.last] + 1:
            return False
        if step.within_ms is not None and passed > step.within_ms:
            return False
        return step.after_ms is None or passed >= step.after_ms

    # ------------------------------------------------------------ negations

    def after_negations(self, partial: Partial, event: Event) -> Partial | None:
        """What an event leaves of a partial: it may kill it, or cut it off from what lies behind an optional step."""
        if partial.waits:
            return None if self.breaks_absence(partial, event) else partial
        if partial.before is not None:
            partial = replace(partial, before=self.after_negations(partial.before, event))
        # Before a run has its N, and a group all its members, a negation behind it does nothing.
        if not is_complete(self.plan, partial):
            return partial
        targets = self.plan.targets(partial.step)
        cut_off = {target for target in targets if self.is_between(partial, target, event)}
        blocked = partial.blocked | cut_off
        return None if blocked >= set(targets) else replace(partial, blocked=blocked)

    def is_between(self, partial: Partial, target: int, event: Event) -> bool:
        return any(self.any_fits(x, event, partial) for x in self.plan.negations(partial.step, target))

    def passed_over(self, partial: Partial, event: Event) -> Partial | None:
        """What is left of a partial that has not taken an event: `next` wants strictly the next event of the key."""
        if partial.before is not None:
            partial = replace(partial, before=self.passed_over(partial.before, event))
        if partial.waits or partial.last is event or not is_complete(self.plan, partial):
            return partial
        targets = self.plan.targets(partial.step)
        strict = {target for target in targets if target != self.plan.end and self.plan.steps[target].next}
        if not strict:
            return partial
        # A run that can take in another event may still be followed by the next one.
        hopeless = strict | partial.blocked >= set(targets) and not has_room(self.plan, partial)
        return None if hopeless and not partial.only_a_bag else replace(partial, missed=True)

    def breaks_absence(self, partial: Partial, event: Event) -> bool:
        """Each of several last negations kills, up to its own deadline."""
        return any(
            event.time <= absence.deadline and self.any_fits(absence.negation, event, partial)
            for absence in partial.waits
        )

    def waiting(self, partial: Partial) -> Partial:
        """Only last negations are left: wait until first + maxspan or last + within, whichever is earlier."""
        longest = partial.first.time + self.form.maxspan_ms
        absences = [
            Absence(x, longest if x.within_ms is None else min(longest, partial.last.time + x.within_ms))
            for x in self.plan.negations(partial.step, self.plan.end)
        ]
        return replace(partial, waits=tuple(absences), blocked=frozenset(), before=None)

    def has_last_negation(self, partial: Partial) -> bool:
        return bool(self.plan.negations(partial.step, self.plan.end))

    # ------------------------------------------------------------ moves

    def begin(self, target: int, partial: Partial, event: Event) -> Iterator[Partial]:
        """The partial with the event as the first one of a step; of a group, once for each member that it fits."""
        if self.may_begin(self.plan.steps[target], partial, event):
            yield from self.with_event(target, partial, event)

    def forward(self, partial: Partial, event: Event) -> Iterator[Partial]:
        """All ways to go on to a later step, the nearest first."""
        if not is_complete(self.plan, partial):
            return
        for target in self.plan.targets(partial.step):
            if target != self.plan.end and target not in partial.blocked:
                yield from self.begin(target, partial, event)

    def further(self, partial: Partial, event: Event) -> Iterator[Partial]:
        """All ways to take the event into the step at hand."""
        if has_room(self.plan, partial):
            yield from self.with_event(partial.step, partial, event)

    def with_event(self, target: int, partial: Partial, event: Event) -> Iterator[Partial]:
        """An event that is taken makes negations count again, from it on."""
        for name in self.names_that_fit(target, partial, event):
            taken = (*partial.taken, Taken(target, name, event))
            held = self.bounded(target, taken)
            before = partial.dropped if target == partial.step else 0
            yield Partial(held, partial.bag, dropped=before + len(taken) - len(held))

    def names_that_fit(self, target: int, partial: Partial, event: Event) -> Iterator[str]:
        """Members of a group cannot read each other; the others read what was taken so far, their own step included."""
        step = self.plan.steps[target]
        if step.kind is not StepKind.UNORDERED:
            if self.any_fits(step, event, partial):
                yield str(step.name)
            return
        filled = {taken.name for taken in partial.of_step(target)}
        for member in step.brackets:
            if member.name not in filled and self.fits(member, event, partial):
                yield str(member.name)

    def bounded(self, step: int, taken: tuple[Taken, ...]) -> tuple[Taken, ...]:
        """A repeated step holds at most max_events, but no fewer than it needs; the oldest go."""
        needed = self.plan.steps[step]
        if needed.kind is StepKind.UNORDERED:
            return taken
        own = [item for item in taken if item.step == step]
        gone = own[: max(0, len(own) - max(self.limits.max_events, needed.runs_min))]
        self.dropped.events += len(gone)
        return tuple(item for item in taken if item not in gone)


def first_of(ways: Iterable[Partial]) -> Partial | None:
    return next(iter(ways), None)
