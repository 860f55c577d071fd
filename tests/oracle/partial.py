"""Partial matches of a sequence, and what may come next in one. Nothing here knows of `overlap` and `skip`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from samovar.patterns.syntax.tree import SequenceForm, Step, StepKind
from tests.oracle.events import Event

Place: TypeAlias = tuple[float, float]
AFTER_ALL: Place = (math.inf, math.inf)


@dataclass(frozen=True)
class Plan:
    """A sequence cut into its positive steps and the gaps between them.

    `gaps[i]` holds the negations right before step i; the last gap is behind the last step. `end` is the place behind
    the last step.
    """

    steps: tuple[Step, ...]
    gaps: tuple[tuple[Step, ...], ...]
    maxspan_ms: int

    @property
    def end(self) -> int:
        return len(self.steps)

    def targets(self, step: int) -> list[int]:
        """What may come after a step (-1: after nothing): the next one and, where that is optional, those behind it."""
        reachable = []
        for target in range(step + 1, self.end + 1):
            reachable.append(target)
            if target == self.end or not self.steps[target].optional:
                break
        return reachable

    def negations(self, step: int, target: int) -> list[Step]:
        """A negation counts between the last event taken and the next one taken, whatever was skipped."""
        return [negation for gap in self.gaps[step + 1 : target + 1] for negation in gap]


def plan_of(form: SequenceForm) -> Plan:
    steps: list[Step] = []
    gaps: list[list[Step]] = [[]]
    for step in form.steps:
        if step.kind is StepKind.ABSENT:
            gaps[-1].append(step)
        else:
            steps.append(step)
            gaps.append([])
    return Plan(tuple(steps), tuple(tuple(gap) for gap in gaps), form.maxspan_ms)


@dataclass(frozen=True)
class Taken:
    """An event in a partial match: the number of its step, and the name it can be read by."""

    step: int
    name: str
    event: Event


@dataclass(frozen=True)
class Absence:
    """A last negation that a partial match waits for, up to its own deadline."""

    negation: Step
    deadline: int


@dataclass(frozen=True)
class Partial:
    """Events taken so far, in order.

    bag: the first step is a bag (only overlap=latest has them).
    blocked: the targets that a negation has cut off since the last event.
    missed: a step that must be strictly next can no longer be reached, since another event came.
    before: the same run before it entered an optional repeated step that does not have its N yet (only overlap=all).
    waits: the last negations, once nothing else is left.
    dropped: events of the last step that max_events let go of; they count as taken.
    """

    taken: tuple[Taken, ...] = ()
    bag: bool = False
    blocked: frozenset[int] = frozenset()
    missed: bool = False
    before: Partial | None = None
    waits: tuple[Absence, ...] = ()
    dropped: int = 0

    @property
    def step(self) -> int:
        return self.taken[-1].step if self.taken else -1

    @property
    def first(self) -> Event:
        return self.taken[0].event

    @property
    def last(self) -> Event:
        return self.taken[-1].event

    @property
    def events(self) -> list[Event]:
        return [taken.event for taken in self.taken]

    @property
    def named(self) -> dict[str, list[Event]]:
        named: dict[str, list[Event]] = {}
        for taken in self.taken:
            named.setdefault(taken.name, []).append(taken.event)
        return named

    @property
    def at(self) -> int:
        """An absence is detected at its deadline, the latest of several; any other match at its last event."""
        return max(absence.deadline for absence in self.waits) if self.waits else self.last.time

    def of_step(self, step: int) -> list[Taken]:
        return [taken for taken in self.taken if taken.step == step]

    @property
    def only_a_bag(self) -> bool:
        return self.bag and self.taken[0].step == self.step


def is_complete(plan: Plan, partial: Partial) -> bool:
    """Whether the last step has what it needs: N events of a run, every member of an unordered group."""
    if not partial.taken:
        return True
    step, got = plan.steps[partial.step], len(partial.of_step(partial.step))
    return got == len(step.brackets) if step.kind is StepKind.UNORDERED else got >= step.runs_min


def has_room(plan: Plan, partial: Partial) -> bool:
    step, got = plan.steps[partial.step], len(partial.of_step(partial.step))
    if step.kind is StepKind.UNORDERED:
        return got < len(step.brackets)
    return step.runs_max is None or got + partial.dropped < step.runs_max


def reaches_end(plan: Plan, partial: Partial) -> bool:
    """Nothing is left that a match needs. Where only last negations follow, no more is taken in."""
    return is_complete(plan, partial) and plan.end in plan.targets(partial.step)


def start_of(plan: Plan, partial: Partial) -> Place:
    """The place of the first event. With a bag: of its N-th newest, the oldest that it cannot do without."""
    if not partial.bag:
        return partial.first.place
    bag = partial.of_step(partial.taken[0].step)
    needed = plan.steps[bag[0].step].runs_min
    return bag[max(0, len(bag) - needed)].event.place


def steps_taken(partial: Partial) -> int:
    return len({taken.step for taken in partial.taken})


def age(partial: Partial) -> tuple[list[Place], list[int]]:
    """Sorts the older of two partials first: the one whose events came earlier, then the first-written member."""
    return [event.place for event in partial.events], [taken.step for taken in partial.taken]


def step_by_step(plan: Plan, partial: Partial) -> tuple[tuple[Place, ...], ...]:
    """Sorts the partial first whose events come first in the order, step by step; of a tie, the longer one."""
    named = partial.named
    return tuple((*(event.place for event in named.get(name, ())), AFTER_ALL) for name in names_of(plan))


def names_of(plan: Plan) -> Iterator[str]:
    """The names of steps as written, members of a group for themselves."""
    for step in plan.steps:
        if step.kind is StepKind.UNORDERED:
            yield from (str(member.name) for member in step.brackets)
        else:
            yield str(step.name)


def within_maxspan(plan: Plan, partial: Partial, now: int) -> Partial | None:
    """What is left of a partial as time passes.

    A span includes its end. Of a bag the oldest fall out, also at later steps; once a step has followed, the partial
    ends when the bag has no more N.
    """
    oldest = now - plan.maxspan_ms
    if not partial.bag:
        return partial if partial.first.time >= oldest else None
    bag_step = partial.taken[0].step
    left = tuple(taken for taken in partial.taken if taken.step != bag_step or taken.event.time >= oldest)
    in_bag = sum(taken.step == bag_step for taken in left)
    enough = 1 if partial.only_a_bag else plan.steps[bag_step].runs_min
    if in_bag < enough:
        return None
    return partial if len(left) == len(partial.taken) else replace(partial, taken=left)
