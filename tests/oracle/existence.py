"""The sentence of existence, by brute force: all combinations of events are tried, none is ever thrown away.

Under overlap=latest, without conditions across steps, a match ends at event e if and only if one exists that ends at e
since the last match of that key. Not covered: conditions across steps, `after`, a negation right after a repeated step,
and members of an unordered group that one event can fill both; nor last negations, which are never replaced.
"""

from __future__ import annotations

from dataclasses import dataclass

from samovar.patterns.syntax.tree import Bracket, SequenceForm, Step, StepKind
from tests.oracle.events import Event
from tests.oracle.expressions import Scope, holds
from tests.oracle.partial import Plan, plan_of


@dataclass(frozen=True)
class State:
    """A combination, as far as it matters for what may come: where it began, its last event, what its step has."""

    began: int
    first: int
    last: int
    step: int
    got: frozenset[int]


@dataclass
class Search:
    """All combinations of the events of one key, one event after the other."""

    form: SequenceForm
    events: list[Event]

    def __post_init__(self) -> None:
        self.plan: Plan = plan_of(self.form)

    def ends(self) -> list[int]:
        """The lines at which a match ends, each one counted since the last."""
        ends: list[int] = []
        states: set[State] = set()
        for at, event in enumerate(self.events):
            if self.form.until is not None and fits(self.form.until, event):
                states = set()
                continue
            new = {state for old in states for state in self.after(old, at)} | self.started(at)
            if any(self.ends_match(state) for state in new):
                ends.append(event.line)
                states = set()
            else:
                states |= new
        return ends

    def started(self, at: int) -> set[State]:
        if self.too_soon(at):
            return set()
        targets = [target for target in self.plan.targets(-1) if target < self.plan.end]
        return {
            State(target, at, at, target, got) for target in targets for got in self.first_of(target, self.events[at])
        }

    def too_soon(self, at: int) -> bool:
        """First negation: x in the D before an event that starts a match, or that enters a bag."""
        now = self.events[at].time
        return any(
            now - x.time <= (negation.for_ms or 0) and any_fits(negation, x) and not self.is_until(x)
            for negation in self.plan.gaps[0]
            for x in self.events[:at]
        )

    def is_until(self, event: Event) -> bool:
        return self.form.until is not None and fits(self.form.until, event)

    def after(self, state: State, at: int) -> set[State]:
        event = self.events[at]
        if event.time - self.events[state.first].time > self.form.maxspan_ms:
            return set()
        found: set[State] = set()
        in_a_bag = state.step == state.began and self.plan.steps[state.step].repeated
        if not in_a_bag or not self.too_soon(at):
            found = {State(state.began, state.first, at, state.step, got) for got in self.more_of(state, event)}
        if self.is_complete(state):
            for target in self.plan.targets(state.step):
                if target < self.plan.end and self.may_go(state, target, at):
                    found |= {State(state.began, state.first, at, target, got) for got in self.first_of(target, event)}
        return found

    def may_go(self, state: State, target: int, at: int) -> bool:
        step, event = self.plan.steps[target], self.events[at]
        if step.next and at != state.last + 1:
            return False
        if step.within_ms is not None and event.time - self.events[state.last].time > step.within_ms:
            return False
        between = self.events[state.last + 1 : at + 1]
        negations = self.plan.negations(state.step, target)
        return not any(any_fits(negation, x) for negation in negations for x in between)

    # ------------------------------------------------------------ what a step has: members filled, or a count in a set

    def first_of(self, target: int, event: Event) -> list[frozenset[int]]:
        return self.taking(self.plan.steps[target], frozenset(), event)

    def more_of(self, state: State, event: Event) -> list[frozenset[int]]:
        return self.taking(self.plan.steps[state.step], state.got, event)

    def taking(self, step: Step, got: frozenset[int], event: Event) -> list[frozenset[int]]:
        if step.kind is StepKind.UNORDERED:
            members = enumerate(step.brackets)
            return [got | {number} for number, member in members if number not in got and fits(member, event)]
        if (step.runs_max is not None and len(got) >= step.runs_max) or not any_fits(step, event):
            return []
        enough = len(got) >= step.runs_min and step.runs_max is None
        return [got if enough else got | {len(got)}]

    def is_complete(self, state: State) -> bool:
        step = self.plan.steps[state.step]
        return len(state.got) >= (len(step.brackets) if step.kind is StepKind.UNORDERED else step.runs_min)

    def ends_match(self, state: State) -> bool:
        return self.is_complete(state) and self.plan.end in self.plan.targets(state.step)


def fits(bracket: Bracket, event: Event) -> bool:
    return bracket.type in ("any", event.type) and holds(bracket.condition, Scope(event))


def any_fits(step: Step, event: Event) -> bool:
    return any(fits(bracket, event) for bracket in step.brackets)
