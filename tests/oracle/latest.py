"""`overlap=latest`: for each position of the sequence one partial match, the one with the newest start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from samovar.patterns.syntax.tree import StepKind
from tests.oracle.events import Event
from tests.oracle.partial import (
    Partial,
    Taken,
    age,
    is_complete,
    reaches_end,
    start_of,
    step_by_step,
    steps_taken,
    within_maxspan,
)
from tests.oracle.sequence import SequenceOfKey, first_of


@dataclass(frozen=True)
class Position:
    """Step and count, up to the N of a run; in a group, step and the members filled.

    A partial that a negation or `next` has cut off from a later step waits for fewer steps: another position.
    """

    step: int
    progress: int | frozenset[str]
    blocked: frozenset[int]
    missed: bool


class LatestOfKey(SequenceOfKey):
    def fire(self, due: list[Partial]) -> list[Partial]:
        """There is one waiting partial at most. As with every match, all partials of the key go."""
        self.partials = []
        return due

    def expire(self, now: int) -> None:
        """A waiting partial ends by its timer only, and its bag is fixed."""
        kept = (partial if partial.waits else within_maxspan(self.plan, partial, now) for partial in self.partials)
        self.partials = [partial for partial in kept if partial is not None]

    def use(self, event: Event) -> list[Partial]:
        # A partial that advances is copied, not consumed: `stay` goes on next to what has arrived.
        stay = [self.taking_in(partial, event) for partial in self.partials]
        arrived = [new for partial in self.partials for new in self.advanced(partial, event)]
        bags, starts = self.started(event)
        stay = [partial for partial in stay if not partial.only_a_bag or partial.step not in bags]
        done = [new for new in (*arrived, *starts, *bags.values()) if self.completes(new)]
        if winner := self.completed(done):
            self.partials = []
            return [winner]
        stay += self.new_waiting(done)
        # What only has to wait for an absence but found the place taken is dropped; so is what `having` refused.
        arrived = [new for new in (*arrived, *starts) if not reaches_end(self.plan, new)]
        left = [partial for old in stay if (partial := self.passed_over(old, event))]
        self.partials = self.placed([*left, *bags.values()], arrived, event)
        return []

    # ------------------------------------------------------------ moves

    def taking_in(self, partial: Partial, event: Event) -> Partial:
        """A run that has its N takes further events in, where it is."""
        if partial.waits or partial.only_a_bag or not is_complete(self.plan, partial):
            return partial
        return first_of(self.further(partial, event)) or partial

    def advanced(self, partial: Partial, event: Event) -> list[Partial]:
        """An event that fits an optional step and a later one goes both ways. In a group it fills the first open."""
        if partial.waits:
            return []
        if is_complete(self.plan, partial):
            return one_a_step(self.forward(partial, event))
        if partial.only_a_bag:
            return []
        return one_a_step(self.further(partial, event))

    def started(self, event: Event) -> tuple[dict[int, Partial], list[Partial]]:
        """A run starts at the first step that is not optional or at any optional step before it.

        A repeated first step is a bag. Gives the bags that took the event in, by step, and new partials.
        """
        bags: dict[int, Partial] = {}
        starts: list[Partial] = []
        if not self.may_start(event):
            return bags, starts
        for target in self.plan.targets(-1):
            if target == self.plan.end:
                continue
            if target == 0 and self.plan.steps[0].repeated:
                bag = self.bag_with(target, event)
                bags |= {} if bag is None else {target: bag}
            else:
                starts += one_a_step(self.begin(target, Partial(), event))
        return bags, starts

    def bag_with(self, target: int, event: Event) -> Partial | None:
        """The bag of a step with one more event in it; with an upper bound it keeps its newest."""
        old = next((bag for bag in self.partials if bag.only_a_bag and bag.step == target and not bag.waits), Partial())
        new = first_of(self.with_event(target, old, event))
        if new is None:
            return None
        most = self.plan.steps[target].runs_max
        kept: tuple[Taken, ...] = new.taken if most is None else new.taken[-most:]
        return Partial(kept, bag=True)

    # ------------------------------------------------------------ completion

    def completed(self, done: list[Partial]) -> Partial | None:
        """Of those that complete on one event the earliest start; of equal starts the one with more steps taken."""
        made = [partial for partial in done if not self.has_last_negation(partial)]
        return min(made, key=self.completion_order, default=None)

    def completion_order(self, partial: Partial) -> tuple[object, ...]:
        return start_of(self.plan, partial), -steps_taken(partial), step_by_step(self.plan, partial)

    def new_waiting(self, done: list[Partial]) -> list[Partial]:
        """A waiting partial is not replaced by newer ones until it fires or dies; its bag's start is then fixed."""
        if any(partial.waits for partial in self.partials):
            return []
        chosen = self.newest([partial for partial in done if self.has_last_negation(partial)])
        return [replace(self.waiting(partial), bag=False) for partial in chosen]

    # ------------------------------------------------------------ positions

    def position(self, partial: Partial) -> Position:
        own = partial.of_step(partial.step)
        step = self.plan.steps[partial.step]
        if step.kind is StepKind.UNORDERED:
            filled = frozenset(taken.name for taken in own)
            return Position(partial.step, filled, partial.blocked, partial.missed)
        return Position(partial.step, min(len(own), step.runs_min), partial.blocked, partial.missed)

    def placed(self, stay: list[Partial], arrived: list[Partial], event: Event) -> list[Partial]:
        """One partial a position, and next to them the one that waits."""
        waiting = [partial for partial in stay if partial.waits]
        held: dict[Position, Partial] = {}
        for partial in sorted((partial for partial in stay if not partial.waits), key=age):
            self.put(held, partial, event)
        groups: dict[Position, list[Partial]] = {}
        for partial in arrived:
            groups.setdefault(self.position(partial), []).append(partial)
        for group in groups.values():
            for partial in self.newest(group):
                self.put(held, partial, event)
        return [*held.values(), *waiting]

    def newest(self, group: list[Partial]) -> list[Partial]:
        """Of those that reach a position on one event the newest start; of equals more steps taken; then the older."""
        if not group:
            return []
        newest = max(start_of(self.plan, partial) for partial in group)
        equal = [partial for partial in group if start_of(self.plan, partial) == newest]
        return [min(equal, key=lambda partial: (-steps_taken(partial), age(partial)))]

    def put(self, held: dict[Position, Partial], new: Partial, event: Event) -> None:
        """The newest start wins. Between equal starts the older stays; where the next step has `within`, the newer
        replaces it, unless the older has itself just taken the event in.
        """
        place = self.position(new)
        old = held.get(place)
        if old is not None:
            old_start, new_start = start_of(self.plan, old), start_of(self.plan, new)
            is_newer = new_start == old_start and self.next_has_within(new) and old.last is not event
            if new_start < old_start or (new_start == old_start and not is_newer):
                return
        held[place] = new

    def next_has_within(self, partial: Partial) -> bool:
        """Any step that may come next has it. Inside a run or a group the next event is of the same step: none has."""
        if not is_complete(self.plan, partial):
            return False
        targets = [target for target in self.plan.targets(partial.step) if target != self.plan.end]
        return any(self.plan.steps[target].within_ms is not None for target in targets)


def one_a_step(ways: Iterable[Partial]) -> list[Partial]:
    """An event fills the first open member of a group as written."""
    return list({way.step: way for way in reversed(list(ways))}.values())
