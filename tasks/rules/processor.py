"""Runs the rules of a task: records in, and out comes what one commit has to write. No log, no clock, no file.

The live task, a rebuild from the source and the tests all use this one, so that a replay gives what the live run gave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from samovar.changelog.formats.journal import ANEW, JournalEntry, pack_entry
from samovar.changelog.formats.record import POSITION, Position, pack_position
from samovar.changelog.formats.redrives import carried
from samovar.changelog.log import Append, Headers, Pair, Records, TopicPartition
from samovar.patterns.engine.matcher import MatchHeader, PendingMatches
from samovar.patterns.engine.order import NO_TIME, OrderedEvents, release
from samovar.state.store import Change, TaskStore
from samovar.tasks.input.placement import checked_streams
from samovar.tasks.input.repartition_sink import RepartitionSink
from samovar.tasks.input.repartition_source import RepartitionSource
from samovar.tasks.input.source import DecodedBatch, StreamSource, count_misplaced
from samovar.tasks.input.startup_checks import rows_of_gone_rules
from samovar.tasks.model.plan import MAIN, InputSpec, Plan
from samovar.tasks.model.results import NOTHING_SETTLED, Counts, LetterBuffer, Outcome, SettledRecords, added
from samovar.tasks.rules.alert_filter import Alert, AlertFilter
from samovar.tasks.rules.migration import RuleMigration, rules_facts
from samovar.tasks.rules.rate_limiter import AlertRateLimiter
from samovar.tasks.rules.replay_dedup import ReplayDedupFilter
from samovar.tasks.rules.shadow_filter import ShadowFilter
from samovar.tasks.rules.state_cache import StateCache


class RuleProcessor:
    """One task's rules at work on its inputs, from a position on."""

    def __init__(
        self, plan: Plan, partition: int, store: TaskStore, inputs: Sequence[InputSpec], position: Position | None
    ) -> None:
        self.plan = plan
        self.partition = partition
        self.source = _source_of(inputs, plan, partition)
        if position is not None:
            self.source.resume(position)
        self.source.check_places(checked_streams(plan), position)
        told = {} if position is None else position.forwards
        self._dedup = ReplayDedupFilter.of(store)
        self.sink = RepartitionSink(plan.forwards, self.source, partition, told, self._dedup.written_up_to)
        self.state_cache = StateCache(plan, store, [spec.origin for spec in inputs])
        self.store = store
        self.changelog_id = self.journal_id = ""
        self.counts = Counts()  # of what is committed
        self._since = Counts()  # and since then
        self.shadow_filter = ShadowFilter(plan.rules)
        self.rate_limiter = AlertRateLimiter(plan.storm, store)
        self.filters: tuple[AlertFilter, ...] = (self.shadow_filter, self.rate_limiter, self._dedup)
        self.alerts: list[Pair] = []
        self._dead, self._late = LetterBuffer(), LetterBuffer()
        self._dirty = False
        self.found_bytes = 0  # of matches, since the last outcome

    @property
    def watermark(self) -> int:
        return self.source.watermark

    @property
    def dirty(self) -> bool:
        """Whether there is something to commit."""
        return self._dirty

    # ------------------------------------------------------------ what happens

    def feed(self, records: Records, settled: SettledRecords = NOTHING_SETTLED) -> frozenset[int]:
        """Take the next records of one input."""
        aside: frozenset[int] = frozenset()
        for piece, anew in self.source.pieces(records):
            if anew:
                self.state_cache.forget()
            aside |= self._feed(piece, settled)
        self._since.missed += self.source.take_missed()
        return aside

    def _feed(self, records: Records, settled: SettledRecords) -> frozenset[int]:
        self.sink.begin()
        fed = self.source.feed(records)
        self._dirty = True
        if self.plan.stage == MAIN:  # in a later stage they come once more
            self._since.events += len(records)
        self._put_aside(records, fed.unsettled(records, settled))
        if self.sink.outlets:
            self._since.unkeyed += self.sink.take(self.source.by_topic[records.topic].spec.stream, records, fed)
        self._run(fed.ordered)
        return fed.aside(records)

    def tick(self, now_ms: int) -> bool:
        """Let event time pass where inputs are idle, if anything waits for it, here or in a later stage."""
        has_news = self.sink.look(now_ms)
        self._dirty = self._dirty or has_news
        return self._advance(now_ms) or has_news

    def _advance(self, now_ms: int) -> bool:
        watermark = self.source.idle_watermark(now_ms)
        if watermark <= self.watermark:
            return False
        if not self.source.waits_before(watermark) and self.state_cache.next_deadline() >= watermark:
            return False
        self._dirty = True
        self._run(self.source.advance(now_ms))
        return True

    def apply(self, entry: JournalEntry) -> None:
        """Do again what the journal tells; only in a replay."""
        self._dirty = True
        if entry.kind == ANEW:
            self.state_cache.forget()
        self._run(self.source.apply(entry))

    def count_on(self, counts: Counts) -> None:
        """Go on with the counts of those that were at work here before."""
        self.counts = counts
        self.state_cache.dropped_before += counts.dropped

    def release_to(self, watermark: int) -> None:
        """Let event time be this, where it is behind: of a fold that ends where another task stands."""
        buffer = self.source.buffer
        buffer.floor = max(buffer.floor, watermark)
        self._run(release(buffer))

    def index_some(self) -> None:
        """Go on a little with the index of deadlines."""
        self.state_cache.index_some()

    def note_rules(self) -> None:
        """Write the rules to the journal: from here on they are these."""
        self.source.note_rules(rules_facts(self.plan))
        self._dirty = True

    def turn(self, switch: RuleMigration, inputs: Mapping[str, int]) -> None:
        """The next outcome is the last of these rules: it leaves the state to those that come after."""
        self.plan = switch.plan
        self.source.note_rules(switch.facts(), inputs)
        self._dirty = True

    def _run(self, ordered: OrderedEvents) -> None:
        has_filters = any(not each.is_idle for each in self.filters)
        found = self.state_cache.run(ordered.released, ordered.watermark, defer_messages=has_filters)
        if len(found):
            left = self._filtered(found) if has_filters else self._rendered(found)
            self._since.matches += len(left)
            self.alerts += left

    def _filtered(self, found: PendingMatches) -> list[Pair]:
        """The alerts that are left when all filters have decided, by nothing but headers: only these get messages."""
        alerts: Sequence[Alert] = found.headers()
        for each in self.filters:
            if not each.is_idle:
                alerts = each.left(alerts, self._since)
        rendered = iter(self._rendered(found, [alert.row for alert in alerts if isinstance(alert, MatchHeader)]))
        return [next(rendered) if isinstance(alert, MatchHeader) else alert.record for alert in alerts]

    def _rendered(self, found: PendingMatches, rows: Sequence[int] | None = None) -> list[Pair]:
        matches = found.render(rows)
        self.found_bytes += len(matches.text)
        return list(matches.records())

    def _put_aside(self, records: Records, fed: DecodedBatch) -> None:
        if not fed.dead and not fed.late:
            return
        more: Headers = () if self.plan.stage == MAIN else (("samovar.stage", self.plan.stage.encode()),)
        for dead in fed.dead:
            where, offset, pair = self.source.letter(records, dead.row)
            redriven = carried(records.headers(dead.row))
            self._dead.put(pair, (*where.dead(offset, dead.kind, dead.message), *redriven, *more))
        for late in fed.late:
            where, offset, pair = self.source.letter(records, late.row)
            redriven = carried(records.headers(late.row))
            self._late.put(pair, (*where.late(offset, late.late_ms), *redriven, *more))
        self._since.dead += len(fed.dead)
        self._since.misplaced += count_misplaced(fed)
        self._since.late += len(fed.late)

    # ------------------------------------------------------------ what is to be written

    def position(self) -> Position:
        stream_source = self.source
        watermark = None if stream_source.watermark == NO_TIME else stream_source.watermark
        told, book = self.sink.told(), 0 if self.plan.book is None else self.plan.book.change
        head = watermark, stream_source.inputs(), stream_source.streams, self.plan.versions, stream_source.journaled
        return Position(*head, told, book, self.changelog_id, self.plan.service, self.journal_id)

    @property
    def indexing(self) -> bool:
        return self.state_cache.indexing

    @property
    def waits_for_index(self) -> bool:
        return self.state_cache.waits_for_index

    def outcome(self, more: Sequence[Change] = ()) -> Outcome:
        """All since the last one. `more` are further rows to log, of rules that are no more."""
        topics, partition = self.plan.topics, self.partition
        sent_bytes, forwarded = self.sink.bytes, self.sink.appends()
        position = self.position()
        rows, index = self.state_cache.changes(self.watermark)
        gone = [] if self._dedup.is_idle else self._dedup.changes(position)
        rows = [*more, *rows, *gone, *self.rate_limiter.changes(), (POSITION, pack_position(position))]
        self._since.rows = len(rows)
        appends = [Append(topics.changelog, rows, partition)]
        if self.alerts:
            appends.append(Append(topics.alerts, self.alerts))
        if self.source.entries:
            name = str(partition).encode()
            appends.append(
                Append(topics.journal, [(name, pack_entry(each)) for each in self.source.entries], partition)
            )
        for topic, letters in ((topics.dead_letters, self._dead), (topics.late, self._late)):
            if letters.pairs:
                appends.append(Append(topic, letters.pairs, None, letters.headers))
        appends += forwarded
        self._since.forwarded = sum(len(each.records) for each in forwarded if each.partition is None)
        offsets = {TopicPartition(each.topic, partition): each.next for each in position.inputs.values()}
        since, self._since = self._since, Counts()
        since.commits = 1
        self.alerts, self._dead, self._late = [], LetterBuffer(), LetterBuffer()
        self.found_bytes = 0
        self.source.entries = []
        self._dirty = False
        return Outcome(appends, offsets, [*rows, *index], position, since, sent_bytes)

    def committed(self, outcome: Outcome) -> None:
        """What `outcome` gave is in the log and in the store now."""
        self.counts = added(self.counts, outcome.counts)
        self.counts.dropped = self.state_cache.dropped()
        self.state_cache.committed()

    # ------------------------------------------------------------ rows

    def gone_rows(self) -> list[Change]:
        return rows_of_gone_rules(self.store, self.plan)

    def memory_bytes(self) -> int:
        return self.state_cache.states.memory_bytes()

    def evict(self) -> None:
        self.state_cache.evict()

    def close(self) -> None:
        """Rules hold nothing but their store."""


def _source_of(inputs: Sequence[InputSpec], plan: Plan, partition: int) -> StreamSource:
    is_forwarded = any(spec.is_forwarded for spec in inputs)
    return (RepartitionSource if is_forwarded else StreamSource)(inputs, plan.fields, partition, plan.tunables)
