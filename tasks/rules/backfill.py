"""The history of a rule that is new: the inputs folded from an earlier offset on, before it may alert.

What comes out are the rows of its states as they would be if it had run since then, up to where the task stands; what
it would have alerted about in the past is not raised. The journal says from which offsets on, so a replay folds the
same: records between two offsets, judged by nothing but themselves and by where the task stood.

A live fold has the budget that a live step has. A rule that goes over it comes in quarantined and with no history, as
the journal says; a replay folds only those that stayed within it, and has no budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from samovar.changelog.cursors import PartitionCursor, expired_if_gone, in_pieces, refuse_gap
from samovar.changelog.formats.record import row_parts
from samovar.changelog.log import Log, TopicPartition
from samovar.common.errors import Refused
from samovar.patterns.engine.matcher import NEVER, UNLIMITED, BatchTooLarge, StepBudget
from samovar.patterns.engine.order import NO_TIME
from samovar.state.memory import MemoryStore
from samovar.state.store import Change
from samovar.tasks.input.source import StreamSource, unknown_yet
from samovar.tasks.model.plan import InputSpec, Plan
from samovar.tasks.model.results import SettledRecords
from samovar.tasks.rules.migration import RuleMigration, with_rules
from samovar.tasks.rules.processor import RuleProcessor

ALL_SETTLED = SettledRecords(NEVER, frozenset())  # whatever is put aside was put aside when the task took it
EXPIRED = (
    "Give the topic a longer retention, or the service an `archive`. Rebuild from a snapshot that was taken after the"
    " rule came."
)


def warm_offsets(
    log: Log, plan: Plan, partition: int, rules: Sequence[str], earliest: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Where the fold begins: at the first records of each stream that were logged since the earliest time asked for.
    Not before `earliest`, where a repartition has put keys into other partitions.
    """
    assert plan.ruleset_change is not None
    times = [plan.ruleset_change.policies[rule].warm_from_ms for rule in rules]
    since_ms = min(each for each in times if each is not None)
    places = {spec.stream: TopicPartition(spec.topic, partition) for spec in plan.inputs}
    begins = {at: bounds.begin for at, bounds in log.bounds(list(places.values())).items()}
    floor = earliest or {}
    return {stream: max(log.offset_at(at, since_ms), begins[at], floor.get(stream, 0)) for stream, at in places.items()}


def warm_rows(
    log: Log,
    switch: RuleMigration,
    partition: int,
    here: RuleProcessor,
    specs: Sequence[InputSpec],
    budget: StepBudget = UNLIMITED,
) -> list[Change]:
    """Rows of the states that new rules begin with, but for states that `here`, the rules before, have already."""
    if not switch.warm:
        return []
    # In shadow: what they find in the past is told to nobody.
    texts = [replace(rule, alerts_from_ms=None, shadow=True) for rule in switch.plan.rules if rule.id in switch.warm]
    plan = replace(
        with_rules(switch.plan, [text for text in texts if not text.drains]), forwards=(), ruleset_change=None
    )
    # Where a batch finds more than is held at once, the fold begins again with smaller ones, down to one record; what
    # that finds is held.
    fold = _Fold(log, plan, partition, specs, budget, None)
    while True:
        try:
            fold.run(switch.warm_from or {}, here.source)
            break
        except BatchTooLarge:
            piece_rows = fold.rows // 2 if fold.rows > 1 else fold.piece_rows
            budget = budget if fold.rows > 1 else replace(budget, step_bytes=NEVER)
            fold = _Fold(log, plan, partition, specs, budget, piece_rows)
    processor = fold.processor
    wanted = plan.program.stores - here.state_cache.plan.program.stores
    rows, _ = processor.state_cache.changes(processor.source.watermark)
    return [(row, value) for row, value in rows if value is not None and row_parts(row)[1] in wanted]


class _Fold:
    """One fold on its way."""

    def __init__(
        self,
        log: Log,
        plan: Plan,
        partition: int,
        specs: Sequence[InputSpec],
        budget: StepBudget,
        piece_rows: int | None,
    ) -> None:
        self.log, self.partition = log, partition
        self.processor = RuleProcessor(plan, partition, MemoryStore(), specs, None)
        self.processor.source.replays = True  # it notes nothing
        self.processor.state_cache.limit(budget)
        self.piece_rows = piece_rows
        self.rows = 0  # that the step at hand takes

    def run(self, start: Mapping[str, int], here: StreamSource) -> None:
        """Fold all records up to where the task stands, of the stream that is behind in event time first."""
        source, ends = self.processor.source, here.nexts()
        cursors: dict[str, PartitionCursor] = {}
        try:
            for stream, each in source.sources.items():
                if stream in here.sources:
                    each.next = start.get(stream, here.sources[stream].next)
                    each.decoder.hide(unknown_yet(here.sources[stream].unknown))
                    cursors[stream] = self._cursor(TopicPartition(each.spec.topic, self.partition), each.next)
            left = set(cursors)
            while left:
                stream = min(sorted(left), key=source.max_event_time)
                with expired_if_gone(EXPIRED):
                    records = cursors[stream].next_records(ends[stream])
                if records is None:
                    left.discard(stream)
                    continue
                for piece in in_pieces(records, self.piece_rows or len(records)):
                    self.rows = len(piece)
                    self.processor.feed(piece, ALL_SETTLED)
                self.rows = 0
        finally:
            for cursor in cursors.values():
                cursor.close()
        if here.watermark > NO_TIME:  # what was released there is folded here, what waits there is left to it
            self.processor.release_to(here.watermark)

    def _cursor(self, at: TopicPartition, start: int) -> PartitionCursor:
        """A replay must find what the live run folded."""
        begin = self.log.bounds([at])[at].begin
        if start < begin:
            refuse_gap(self.log, at, start)
            raise Refused(
                "input-expired",
                f"{at} begins at {begin:,}, and the history of a rule was folded from {start:,} on",
                EXPIRED,
            )
        return PartitionCursor(self.log, at, start)
