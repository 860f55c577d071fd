"""State from its source: the input and the journal folded again, with the functions that the live tasks use.

    rebuilt = rebuild(log, plan, partition, store, until=position)

The journal says where event time passed with no event and where the rules changed; between its entries the order in
which inputs are read makes no difference. What comes out is equal to the live state at the same offsets (P2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import takewhile

from samovar.changelog.cursors import PartitionCursor, expired_if_gone, in_pieces, read_all, refuse_gap
from samovar.changelog.formats.journal import EntryKind, JournalEntry, effective_entries, unpack_entry
from samovar.changelog.formats.record import INDEXED, Position, deadline_rows
from samovar.changelog.log import Log, Pair, Records, TopicPartition
from samovar.common.errors import Refused
from samovar.patterns.engine.replay import may_burst
from samovar.patterns.explain.key_trace import iso_time
from samovar.state.store import TaskStore
from samovar.tasks.input.source import numbered
from samovar.tasks.input.startup_checks import recover_waiting
from samovar.tasks.model.plan import Plan
from samovar.tasks.processors import make_processor
from samovar.tasks.rules.backfill import warm_rows
from samovar.tasks.rules.migration import RuleMigration, migrated_rows, plan_of_facts, standing_rows
from samovar.tasks.rules.processor import RuleProcessor

EXPIRED = (
    "The input no longer holds what the state was made from: it cannot be rebuilt from its source, nor verified against"
    " it, before that. With `archive` in the service file records are copied before retention takes them."
)


@dataclass(frozen=True)
class RebuildResult:
    """What a rebuild ended with. The rows are in its store."""

    position: Position
    plan: Plan
    events: int
    alerts: int


@dataclass(frozen=True)
class ReplayEnd:
    """Where to end: at these offsets of the streams."""

    inputs: Mapping[str, int]
    journal: int | None = None  # entries; None: all whose offsets are reached


def rebuild(
    log: Log,
    plan: Plan,
    partition: int,
    store: TaskStore,
    until: ReplayEnd,
    on_alerts: Callable[[Sequence[Pair]], None] = lambda _: None,
    on_progress: Callable[[int], None] = lambda _: None,
    start: Position | None = None,
) -> RebuildResult:
    """Fold input and journal up to `until` into a store: an empty one, or one that holds the state of `start`."""
    with closing(SourceReplay(log, plan, partition, store, until, on_progress, start, on_alerts)) as replay:
        replay.run(until)
    return replay.rebuilt()


def journal_of(log: Log, plan: Plan, partition: int) -> list[JournalEntry]:
    """All entries of a task; refused where the beginning is gone."""
    at = TopicPartition(plan.topics.journal, partition)
    entries = entries_of(log, at)
    if entries and entries[0].number != 1:
        raise Refused(
            "journal-cut",
            f"the journal {at} begins with entry {entries[0].number}",
            "It must never lose records: a rebuild is possible only from a snapshot, or not at all.",
        )
    return entries


def refuse_repartitioned(entries: Sequence[JournalEntry], start: Position | None, partition: int) -> None:
    """Refuse to fold anything from before the last repartition: its input is in other partitions, its journal gone."""
    fact = entries[0].facts.get("repartitioned") if entries else None
    if fact is not None and not begins_after_repartition(entries, start):
        raise Refused(
            "state-repartitioned",
            f"the service was repartitioned from {fact['from']} to {fact['to']} partitions at"
            f" {iso_time(fact['at_ms'])}: the state of partition {partition} cannot be folded from before that",
            "Its changelog has all of it: `samovar restore`. What came since then is folded from a snapshot that was"
            " taken since.",
        )


def begins_after_repartition(entries: Sequence[JournalEntry], start: Position | None) -> bool:
    """Whether a stored state is not from before the repartition with which the journal begins, if it begins so."""
    fact = entries[0].facts.get("repartitioned") if entries else None
    known = None if start is None or start.repartitioned is None else start.repartitioned.at_ms
    return known == (None if fact is None else fact["at_ms"])


def entries_of(log: Log, at: TopicPartition) -> list[JournalEntry]:
    """All that a partition of a journal holds."""
    values = [value for records in read_all(log, at) for _, value in records.pairs()]
    return [unpack_entry(value) for value in values if value is not None]


def plan_at(plan: Plan, entry: JournalEntry) -> Plan:
    """The plan with the rules that a journal entry tells. Of a user's task there is only the code of today."""
    if plan.task is not None:
        return plan
    return plan_of_facts(plan, entry.facts, entry.inputs)


class SourceReplay:
    """A rebuild on its way."""

    def __init__(
        self,
        log: Log,
        plan: Plan,
        partition: int,
        store: TaskStore,
        until: ReplayEnd,
        on_progress: Callable[[int], None],
        start: Position | None = None,
        on_alerts: Callable[[Sequence[Pair]], None] = lambda _: None,
    ) -> None:
        """Refuses offsets that the inputs do not reach: a replay would wait for them for ever."""
        for spec in plan.inputs:
            at = TopicPartition(spec.topic, partition)
            end, wanted = log.bounds([at])[at].end, until.inputs.get(spec.stream, 0)
            if wanted > end:
                raise Refused(
                    "input-truncated",
                    f"{at} ends at {end:,}, and the state stands for it up to {wanted:,}",
                    "The input lost records that were processed: put them back. Without them nothing can be rebuilt.",
                )
        self.journal = journal_of(log, plan, partition)
        entries = effective_entries(self.journal, until.journal)
        self.standing = {entry.number for entry in entries}  # entries that no rewind has voided
        # What was forwarded stands in its topics: a replay forwards nothing.
        self.log, self.plan, self.partition, self.store = log, replace(plan, forwards=()), partition, store
        self.on_alerts, self.on_progress = on_alerts, on_progress
        self.events = self.alerts = self._uncommitted = 0
        self.cursors: dict[str, PartitionCursor] = {}
        if start is None and (not entries or entries[0].kind != EntryKind.RULES):
            raise Refused(
                "journal-empty",
                f"the journal of partition {self.partition} is empty, so that nobody knows which rules ran",
                "If the service never ran, there is nothing to rebuild.",
            )
        refuse_repartitioned(self.journal, start, partition)
        # With a start, all up to its position is done; else the first entry says which rules began, and where.
        done = [entry for entry in entries if entry.number <= (entries[0].number if start is None else start.journal)]
        self.entries = list(entries[len(done) :])
        rules = [entry for entry in done if entry.kind == EntryKind.RULES][-1]
        known = {spec.stream for spec in (*self.plan.inputs, *self.plan.others)}
        nexts = {stream: offset for stream, offset in rules.inputs.items() if stream in known}
        self.today, self.plan = self.plan, plan_at(self.plan, replace(rules, inputs=nexts) if start is None else rules)
        specs = numbered(start, self.plan.inputs)
        self.processor = make_processor(self.plan, self.partition, self.store, specs, start)
        self.processor.source.replay()
        if start is None:
            self.processor.source.journaled = rules.number
            self.store.write(standing_rows(self.plan, self.store))
        else:
            for stream, stored in start.inputs.items():
                self._held_from(stream, stored.replay_from)
            recover_waiting(self.log, self.processor.source, start, self.partition)
            nexts = {stream: stored.next for stream, stored in start.inputs.items()}
        self.cursors = {stream: self._cursor(stream, offset) for stream, offset in nexts.items()}
        self._topic_ids()

    def rebuilt(self) -> RebuildResult:
        return RebuildResult(self.processor.position(), self.plan, self.events, self.alerts)

    def _cursor(self, stream: str, start: int) -> PartitionCursor:
        at = self._held_from(stream, start)
        self.processor.source.sources[stream].next = start
        return PartitionCursor(self.log, at, start)

    def _held_from(self, stream: str, start: int) -> TopicPartition:
        """The input, which must still hold its records from here on."""
        at = TopicPartition(self.processor.source.sources[stream].spec.topic, self.partition)
        begin = self.log.bounds([at])[at].begin
        if begin > start:
            refuse_gap(self.log, at, start)
            raise Refused(
                "input-expired",
                f"{at} begins at {begin:,}, and the state was made from {start:,} on",
                EXPIRED,
            )
        return at

    def _topic_ids(self) -> None:
        changelog, journal = self.plan.topics.changelog, self.plan.topics.journal
        topics = self.log.topics([changelog, journal, *(spec.topic for spec in self.plan.inputs)])
        for source in self.processor.source.sources.values():
            source.topic_id = topics[source.spec.topic].id
        self.processor.changelog_id = topics[changelog].id if changelog in topics else ""
        self.processor.journal_id = topics[journal].id if journal in topics else ""

    def run(self, until: ReplayEnd) -> None:
        for entry in self.entries_up_to(until.inputs):
            self._feed_up_to(entry.inputs)
            self._apply(entry)
        self._feed_up_to(until.inputs)
        self._commit()

    def entries_up_to(self, inputs: Mapping[str, int]) -> Iterator[JournalEntry]:
        """The entries before the first that was written further on in the inputs."""
        return takewhile(
            lambda each: all(at <= inputs.get(stream, at) for stream, at in each.inputs.items()), self.entries
        )

    def _apply(self, entry: JournalEntry) -> None:
        if entry.kind == EntryKind.RULES:
            self._change_rules(entry)
        elif entry.kind == EntryKind.REWIND:
            self.processor.source.journaled = entry.number
        else:
            self.processor.apply(entry)

    def _feed_up_to(self, inputs: Mapping[str, int]) -> None:
        """Read all inputs up to these offsets, the one that is behind in event time first."""
        left = {stream: offset for stream, offset in inputs.items() if stream in self.processor.source.sources}
        while left:
            stream = min(left, key=self.processor.source.max_event_time)
            if stream not in self.cursors:  # a stream that came later
                self.cursors[stream] = self._cursor(stream, self.processor.source.sources[stream].next)
            records = self._take(stream, left[stream])
            if records is None:
                self.processor.source.sources[stream].next = left.pop(stream)
                continue
            # Few at a time where one event can complete many matches: they are in memory until they are given out.
            tunables, has_bursts = self.plan.tunables, any(may_burst(each.rule) for each in self.plan.program.rules)
            for piece in in_pieces(records, max(1, tunables.burst_records if has_bursts else len(records))):
                self.processor.feed(piece)
                self.events += len(piece)
                self._uncommitted += len(piece)
                if self.processor.found_bytes >= tunables.replay_bytes or self._uncommitted >= tunables.replay_events:
                    self._commit()
            self.on_progress(self.events)

    def _take(self, stream: str, until: int) -> Records | None:
        with expired_if_gone(EXPIRED):
            return self.cursors[stream].next_records(until)

    def _commit(self) -> None:
        self.alerts += len(self.processor.alerts)
        self.on_alerts(self.processor.alerts)
        outcome = self.processor.outcome()
        self.store.write(outcome.changes)
        self.processor.committed(outcome)
        self._uncommitted = 0

    def _change_rules(self, entry: JournalEntry) -> None:
        """As a restart with other rules does: states of rules that are no more go, waiting events are read again."""
        self._commit()
        position = self.processor.position()
        self.plan = plan_at(self.today, entry)
        specs = numbered(position, self.plan.inputs)
        if (
            self.plan.ruleset_change is not None
        ):  # as the task did it: before the rules that come after the change begin
            warm = entry.facts.get("warm", {"rules": (), "from": {}})
            change = RuleMigration(
                plan=self.plan, moves=entry.facts.get("moves", {}), warm=tuple(warm["rules"]), warm_from=warm["from"]
            )
            assert isinstance(self.processor, RuleProcessor), self.processor
            folded = warm_rows(self.log, change, self.partition, self.processor, specs)
            rows = [*migrated_rows(self.store, change.plan, change.moves), *folded]
            self.store.write(rows if self.store.get(INDEXED) is None else [*rows, *deadline_rows(rows)])
        self.processor = make_processor(self.plan, self.partition, self.store, specs, position)
        self.processor.source.replay()
        self.store.write([*self.processor.gone_rows(), *standing_rows(self.plan, self.store)])
        recover_waiting(self.log, self.processor.source, position, self.partition)
        self.processor.source.journaled = entry.number
        self._topic_ids()
        for stream, offset in entry.inputs.items():
            if stream not in position.inputs and stream in self.processor.source.sources:
                self.processor.source.sources[stream].next = offset

    def close(self) -> None:
        self.processor.close()
        for cursor in self.cursors.values():
            cursor.close()
