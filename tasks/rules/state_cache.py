"""Which part of a task's state is in memory. The store holds all of it; memory holds what was touched lately.

`StateCache` is the source of truth for the rules' states between two commits. What a step changes is only in memory
until the commit stands; an aborted commit throws the whole of it away, so memory never holds what a store must not.

A timer is raised when event time passes it, wherever its state is: either all states are in memory, or the index of
deadlines is ready. There is no third way.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from samovar.changelog.formats.record import ROW, key_prefix, unreadable_rows
from samovar.native.kernel import Batch
from samovar.patterns.engine.matcher import (
    UNLIMITED,
    KeyShare,
    PendingMatches,
    StateError,
    States,
    StepBudget,
    find_matches,
)
from samovar.state.store import Change, TaskStore
from samovar.tasks.model.plan import Plan
from samovar.tasks.rules.timer_index import ROWS_END, Index, TimerIndex


class StateCache:
    """States of all rules of one task, over its store."""

    def __init__(self, plan: Plan, store: TaskStore, topics: Sequence[str], share: KeyShare | None = None) -> None:
        """With a share, only its keys are worked on."""
        self.plan = plan
        self.share = share
        self.topics = topics  # of the inputs, by their numbers
        self.store = store
        self.is_forgotten = False
        self.budget = UNLIMITED
        self.dropped_before = 0  # by limits, in states that are gone
        self.states = self._fresh()
        self.index = TimerIndex(store)
        # A small store is loaded at once; of a larger one, keys come when they are needed.
        most = plan.tunables.whole_states
        self.whole = self.index.status is Index.NONE and store.rows_about() <= 2 * most
        rows = list(islice(store.range(ROW, ROWS_END), most + 1)) if self.whole else []
        if self.whole and len(rows) <= most:
            self._load(rows)
        else:
            self.whole = False
            self.index.begin()

    def _fresh(self) -> States:
        plan = self.plan
        states = States(
            plan.program,
            max_partials=plan.max_partials,
            max_events=plan.max_events,
            max_matches=plan.max_matches,
            topics=self.topics,
            tunables=plan.tunables,
        )
        numbers = {(each.rule.id, each.version): number for number, each in enumerate(plan.program.rules)}
        for rule in plan.rules:
            if (rule.id, rule.version) in numbers and rule.may_be_muted:
                states.mute(
                    numbers[rule.id, rule.version],
                    shadow=rule.shadow,
                    before_at_ms=rule.alerts_from_ms,
                    after_start_ms=rule.began_by_ms,
                )
        if self.share is not None:
            states.only(self.share)
        states.limit(self.budget)
        return states

    def limit(self, budget: StepBudget) -> None:
        """What a step may take: of a live task. A replay does what the live one did, whatever it takes."""
        self.budget = budget
        self.states.limit(budget)

    def run(self, released: Batch, watermark: int, *, defer_messages: bool = False) -> PendingMatches:
        """Take released events through the rules; then let event time pass."""
        if not self.whole:
            self.finish_index()
            self._load_keys(self.states.uncached_keys(released))
            self._load_keys(self.states.unknown_keys(self.index.due(watermark)))
        return find_matches(self.states, released, watermark, defer_messages=defer_messages)

    def next_deadline(self) -> int:
        """Event time at which something may happen with no event."""
        if self.whole:
            return self.states.next_deadline()
        self.finish_index()
        return min(self.states.next_deadline(), self.index.first_deadline)

    def _load_keys(self, keys: Sequence[bytes]) -> None:
        if keys:
            found = self.store.prefixes([key_prefix(key) for key in keys])
            self._load([row for rows in found for row in rows])

    def _load(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        try:
            self.states.load([(key[1:], value) for key, value in rows])
        except StateError:
            raise unreadable_rows(value for _, value in rows) from None

    def index_some(self) -> None:
        """Go on a little with the index of deadlines."""
        self.index.build_some(self.plan.tunables.index_rows, self.states.deadlines_of)

    def finish_index(self) -> None:
        """All of it that is missing."""
        if self.index.status is not Index.READY:
            self.index.build(self.plan.tunables.index_rows, self.states.deadlines_of)

    def spill_to(self, store: TaskStore) -> None:
        """Have an empty store from here on, where nothing was committed to the one before."""
        self.store, self.index = store, TimerIndex(store)

    def changes(self, watermark: int) -> tuple[list[Change], list[Change]]:
        """Rows that changed, which are logged; and changes of the index of deadlines, which are not."""
        rows = [(ROW + key, value) for key, value in self.states.changed_rows()]
        if self.is_forgotten:
            there = {row for row, _ in rows}
            rows = [(row, None) for row, _ in self.store.range(ROW, ROWS_END) if row not in there] + rows
        if self.index.status is Index.NONE:
            return rows, []
        return rows, self.index.changes(self.states.deadlines(), watermark)

    def committed(self) -> int:
        """What `changes` gave is in the store now; how much went because of a limit since the task began."""
        self.is_forgotten = False
        if self.index.status is not Index.NONE:
            self.index.committed()
        if self.states.live() > self.plan.tunables.whole_states:
            self.index.begin()
        return self.dropped_before + self.states.dropped()

    def forget(self) -> None:
        """All states are gone from here on. Their rows go with the next commit, and until then none of them is read."""
        self.dropped_before += self.states.dropped()
        self.states = self._fresh()
        self.whole = self.is_forgotten = True

    def evict(self) -> None:
        """Hold nothing in memory; the store has it all. Between two commits only."""
        self.finish_index()
        self.dropped_before += self.states.dropped()
        self.states = self._fresh()
        self.whole = False
