"""Runs the rules of a task: records in, and out comes what one commit has to write. No log, no clock, no file.

The live task, a rebuild from the source and the tests all use this one, so that a replay gives what the live run gave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from samovar.changelog.formats.record import Position
from samovar.changelog.log import Append, Pair
from samovar.patterns.engine.matcher import MatchHeader, PendingMatches
from samovar.patterns.engine.order import OrderedEvents, release
from samovar.state.store import Change, TaskStore
from samovar.tasks.input.processor import Processor
from samovar.tasks.input.repartition_source import RepartitionSource
from samovar.tasks.input.source import StreamSource
from samovar.tasks.input.startup_checks import rows_of_gone_rules
from samovar.tasks.model.plan import InputSpec, Plan
from samovar.tasks.model.results import Outcome, added
from samovar.tasks.rules.alert_filter import Alert, AlertFilter, ShadowFilter
from samovar.tasks.rules.migration import RuleMigration, rules_facts
from samovar.tasks.rules.rate_limiter import AlertRateLimiter
from samovar.tasks.rules.replay_dedup import ReplayDedupFilter
from samovar.tasks.rules.state_cache import StateCache
from samovar.tasks.rules.timer_index import Index


class RuleProcessor(Processor):
    """One task's rules at work on its inputs, from a position on."""

    def __init__(
        self, plan: Plan, partition: int, store: TaskStore, inputs: Sequence[InputSpec], position: Position | None
    ) -> None:
        make = RepartitionSource if any(spec.is_forwarded for spec in inputs) else StreamSource
        source = make(inputs, plan.fields, partition, plan.tunables)
        self._dedup = ReplayDedupFilter.of(store)
        super().__init__(plan, partition, store, source, position, self._dedup.written_up_to)
        self.state_cache = StateCache(plan, store, [spec.origin for spec in inputs])
        self.shadow_filter = ShadowFilter(plan.rules)
        self.rate_limiter = AlertRateLimiter(plan.storm, store)
        filters: tuple[AlertFilter, ...] = (self.shadow_filter, self.rate_limiter, self._dedup)
        self.filters = [each for each in filters if not each.is_idle]  # none begins to judge later

    def _run(self, ordered: OrderedEvents) -> None:
        found = self.state_cache.run(ordered.released, ordered.watermark, defer_messages=bool(self.filters))
        if not len(found):
            return
        if not self.filters:
            left = self._rendered(found, None)
        else:  # they decide by nothing but headers: only matches that are left get messages
            alerts: Sequence[Alert] = found.headers()
            for each in self.filters:
                alerts = each.left(alerts, self._since)
            rendered = iter(self._rendered(found, [alert.row for alert in alerts if isinstance(alert, MatchHeader)]))
            left = [next(rendered) if isinstance(alert, MatchHeader) else alert.record for alert in alerts]
        self._since.matches += len(left)
        self.alerts += left

    def _rendered(self, found: PendingMatches, rows: Sequence[int] | None) -> list[Pair]:
        matches = found.render(rows)
        self.found_bytes += len(matches.text)
        return list(matches.records())

    def is_due(self, watermark: int) -> bool:
        return self.state_cache.next_deadline() < watermark

    def release_to(self, watermark: int) -> None:
        """Let event time be this, where it is behind: of a fold that ends where another task stands."""
        buffer = self.source.buffer
        buffer.low_watermark = max(buffer.low_watermark, watermark)
        self._run(release(buffer))

    def migrate(self, migration: RuleMigration, inputs: Mapping[str, int]) -> None:
        """The next outcome is the last of these rules: it leaves the state to those that come after."""
        self.plan = migration.plan
        self.source.note_rules(migration.facts(), inputs)
        self.dirty = True

    def _facts(self) -> dict[str, Any]:
        return rules_facts(self.plan)

    def _results(self, position: Position, packed: bytes) -> tuple[list[Append], list[Change], list[Change]]:  # noqa: ARG002
        alerts = [Append(topic=self.plan.topics.alerts, records=self.alerts)] if self.alerts else []
        rows, index = self.state_cache.changes(self.source.buffer.low_watermark)
        if self._dedup in self.filters:
            rows = [*rows, *self._dedup.changes(position)]
            if self._dedup.is_idle:
                self.filters.remove(self._dedup)
        if not self.rate_limiter.is_idle:
            rows = [*rows, *self.rate_limiter.changes()]
        return alerts, rows, index

    def committed(self, outcome: Outcome) -> None:
        self.counts = added(self.counts, outcome.counts)
        self.counts.dropped = self.state_cache.committed()

    @property
    def indexing(self) -> bool:
        return self.state_cache.index.status is Index.BUILDING

    @property
    def waits_for_index(self) -> bool:
        return not self.state_cache.whole and self.state_cache.index.status is not Index.READY

    def index_some(self) -> None:
        self.state_cache.index_some()

    def forget(self) -> None:
        self.state_cache.forget()

    def gone_rows(self) -> list[Change]:
        return rows_of_gone_rules(self.store, self.plan)

    def memory_bytes(self) -> int:
        return self.state_cache.states.memory_bytes()

    def evict(self) -> None:
        self.state_cache.evict()
