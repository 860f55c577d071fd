"""`overlap=all` and `overlap=any`: every event that satisfies the first step starts a run of its own."""

from __future__ import annotations

from dataclasses import replace

from samovar.patterns.syntax.tree import Overlap, Skip
from tests.oracle.events import Event
from tests.oracle.partial import Partial, age, is_complete, reaches_end, step_by_step, within_maxspan
from tests.oracle.sequence import SequenceOfKey


class RunsOfKey(SequenceOfKey):
    def fire(self, due: list[Partial]) -> list[Partial]:
        """The earliest deadline first; at one deadline, as with several matches on one event."""
        earliest = min(partial.at for partial in due)
        now = [partial for partial in due if partial.at == earliest]
        self.partials = [partial for partial in self.partials if partial not in now]
        return self.skip(now)

    def expire(self, now: int) -> None:
        self.partials = [run for run in self.partials if run.waits or within_maxspan(self.plan, run, now)]

    def use(self, event: Event) -> list[Partial]:
        runs, done = [], []
        for run in [*self.partials, *self.may_start_run(event)]:
            kept, completed = self.continued(run, event)
            runs += kept
            done += completed
        self.partials = runs
        matches = self.skip(done)
        self.keep_newest()
        return matches

    def may_start_run(self, event: Event) -> list[Partial]:
        """The run that has taken nothing yet stands for the one that the event may start."""
        return [Partial()] if self.may_start(event) else []

    # ------------------------------------------------------------ one run, one event

    def continued(self, run: Partial, event: Event) -> tuple[list[Partial], list[Partial]]:
        """What becomes of a run: the runs that go on, and those that are completed."""
        left = self.passed_over(run, event) if run.taken else None
        same = [left] if left is not None else []
        if run.waits:
            return same, []
        ways = self.ways(run, event)
        if self.form.overlap is Overlap.ALL:
            if not ways:
                return same, []
            same, ways = [], [self.preferred(ways)]
        done = [way for way in ways if self.makes_match(way)]
        going_on = [self.settled(way) for way in ways if not self.makes_match(way)]
        return same + going_on, done

    def ways(self, run: Partial, event: Event) -> list[Partial]:
        """All ways to take the event, the preferred first. What `having` refuses does not complete, so it is no way."""
        ways = [*self.forward(run, event)]
        if run.taken:
            ways += self.further(run, event)
        if self.form.overlap is Overlap.ALL:
            ways = [self.with_way_back(run, way) for way in ways] + self.as_if_skipped(run, event)
        return [way for way in ways if not reaches_end(self.plan, way) or self.completes(way)]

    def preferred(self, ways: list[Partial]) -> Partial:
        """A match that can complete completes; else an optional step that can be taken is taken.

        A run takes events in until the next step's event comes.
        """
        return next((way for way in ways if self.makes_match(way)), ways[0])

    def makes_match(self, way: Partial) -> bool:
        return reaches_end(self.plan, way) and not self.has_last_negation(way)

    def settled(self, way: Partial) -> Partial:
        return self.waiting(way) if reaches_end(self.plan, way) else way

    # ------------------------------------------------------------ `?` with runs, overlap=all

    def with_way_back(self, run: Partial, way: Partial) -> Partial:
        """Remember the run as it was before an optional repeated step, for as long as that has fewer than N."""
        if is_complete(self.plan, way) or not self.plan.steps[way.step].optional:
            return way
        return replace(way, before=run.before if run.step == way.step else run if run.taken else None)

    def as_if_skipped(self, run: Partial, event: Event) -> list[Partial]:
        """`?` with runs that has fewer than N when the next step comes counts as skipped."""
        if run.before is None:
            return []
        return [self.with_way_back(run.before, way) for way in self.forward(run.before, event) if way.step > run.step]

    # ------------------------------------------------------------ several matches at once

    def skip(self, done: list[Partial]) -> list[Partial]:
        """Which of the matches made at once are kept, and which runs go."""
        return self.first_matches(self.skipped(done))

    def first_matches(self, ranked: list[Partial]) -> list[Partial]:
        """At most max_matches at once: the first in order are kept."""
        self.dropped.matches += max(0, len(ranked) - self.limits.max_matches)
        return ranked[: self.limits.max_matches]

    def skipped(self, done: list[Partial]) -> list[Partial]:
        ranked = sorted(done, key=lambda run: (run.first.place, step_by_step(self.plan, run)))
        match self.form.skip:
            case Skip.PAST_LAST:
                # The earliest start wins; every partial goes, and the event that completed it is not used again.
                if ranked:
                    self.partials = []
                return ranked[:1]
            case Skip.TO_NEXT:
                # Of several with one first event the one whose events come first; partials with that first event go.
                winners = {run.first: run for run in reversed(ranked)}
                self.partials = [run for run in self.partials if run.first not in winners]
                return [run for run in ranked if winners[run.first] is run]
        return ranked

    def keep_newest(self) -> None:
        """At most max_partials: the oldest start goes; of equal starts the least advanced, then the older one."""
        extra = len(self.partials) - self.limits.max_partials
        if extra > 0:
            ranked = sorted(self.partials, key=lambda run: (run.first.place, run.step, len(run.taken), age(run)))
            gone = ranked[:extra]
            self.partials = [run for run in self.partials if not any(run is other for other in gone)]
            self.dropped.partials += extra
