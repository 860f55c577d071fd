"""The heart of a task: records in, and out comes what one commit has to write. No log, no clock, no file.

The live task, a rebuild from the source and the tests all use this one, so that a replay gives what the live run gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from samovar.changelog.journal import Entry, pack_entry
from samovar.changelog.letters import Origin, fitted
from samovar.changelog.log import Append, Headers, Pair, Records, TopicPartition
from samovar.changelog.record import POSITION, Position, pack_position
from samovar.patterns.order import NO_TIME, Ordered, release
from samovar.state.store import Change, TaskStore
from samovar.tasks.intake import Fed, Intake
from samovar.tasks.plan import InputSpec, Plan
from samovar.tasks.residence import Residence


@dataclass
class Counts:
    """What a task did since it began. Nothing is skipped without being counted."""

    events: int = 0
    dead: int = 0
    late: int = 0
    matches: int = 0
    commits: int = 0
    rows: int = 0  # changed rows, as logged
    dropped: int = 0  # partial matches and events that max_partials and max_events let go of


def added(left: Counts, right: Counts) -> Counts:
    return Counts(*(getattr(left, name) + getattr(right, name) for name in Counts.__dataclass_fields__))


@dataclass
class Letters:
    """Records for one topic with headers."""

    pairs: list[Pair] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)

    def add(self, records: Records, row: int, headers: Headers) -> None:
        pair, headers = fitted((records.key(row), records.value(row)), headers)
        self.pairs.append(pair)
        self.headers.append(headers)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one commit writes: to the log in a transaction, and then to the store."""

    appends: Sequence[Append]
    offsets: dict[TopicPartition, int]
    changes: list[Change]
    position: Position


class Core:
    """One task's rules at work on its inputs, from a position on."""

    def __init__(
        self, plan: Plan, partition: int, store: TaskStore, inputs: Sequence[InputSpec], position: Position | None
    ) -> None:
        self.plan = plan
        self.partition = partition
        self.intake = Intake(inputs, plan.fields, partition)
        if position is not None:
            self.intake.resume(position)
        self.residence = Residence(plan, store, [spec.topic for spec in inputs])
        self.counts = Counts()  # of what is committed
        self._since = Counts()  # and since then
        self.alerts: list[Pair] = []
        self._dead, self._late = Letters(), Letters()
        self._dirty = False

    @property
    def watermark(self) -> int:
        return self.intake.watermark

    @property
    def dirty(self) -> bool:
        """Whether there is something to commit."""
        return self._dirty

    # ------------------------------------------------------------ what happens

    def feed(self, records: Records) -> None:
        """Take the next records of one input."""
        fed = self.intake.feed(records)
        self._dirty = True
        self._since.events += len(records)
        self._put_aside(records, fed)
        self._run(fed.ordered)

    def tick(self, now_ms: int) -> bool:
        """Let event time pass where inputs are idle, if anything waits for it."""
        watermark = self.intake.idle_watermark(now_ms)
        if watermark <= self.watermark:
            return False
        if not self.intake.waits_before(watermark) and self.residence.next_deadline() >= watermark:
            return False
        self._dirty = True
        self._run(self.intake.advance(now_ms))
        return True

    def apply(self, entry: Entry) -> None:
        """Do again what the journal tells; only in a replay."""
        self._dirty = True
        self._run(self.intake.apply(entry))

    def index_some(self) -> None:
        """Go on with the index of deadlines; what it shows to be due happens when it is complete."""
        if self.residence.index_some():
            self._run(release(self.intake.buffer))
            self._dirty = True

    def note_rules(self) -> None:
        """Write the rules to the journal: from here on they are these."""
        self.intake.note_rules({"rules": [asdict(rule) for rule in self.plan.rules]})
        self._dirty = True

    def _run(self, ordered: Ordered) -> None:
        found = self.residence.run(ordered.released, ordered.watermark)
        if len(found):
            self._since.matches += len(found)
            self.alerts += found.records()

    def _put_aside(self, records: Records, fed: Fed) -> None:
        if not fed.dead and not fed.late:
            return
        where = Origin.of(records.topic, records.partition, self.intake.by_topic[records.topic].spec.stream)
        for dead in fed.dead:
            offset = int(records.offsets[dead.row])
            self._dead.add(records, dead.row, where.dead(offset, dead.kind, dead.message))
        for late in fed.late:
            self._late.add(records, late.row, where.late(int(records.offsets[late.row]), late.late_ms))
        self._since.dead += len(fed.dead)
        self._since.late += len(fed.late)

    # ------------------------------------------------------------ what is to be written

    def position(self) -> Position:
        intake = self.intake
        watermark = None if intake.watermark == NO_TIME else intake.watermark
        return Position(watermark, intake.inputs(), tuple(intake.sources), self.plan.versions, intake.journaled)

    def outcome(self, more: Sequence[Change] = ()) -> Outcome:
        """All since the last commit. `more` are further rows to log, of rules that are no more."""
        topics, partition = self.plan.topics, self.partition
        position = self.position()
        rows, index = self.residence.changes(self.watermark)
        rows = [*more, *rows, (POSITION, pack_position(position))]
        self._since.rows = len(rows)
        appends = [Append(topics.changelog, rows, partition)]
        if self.alerts:
            appends.append(Append(topics.alerts, self.alerts))
        if self.intake.entries:
            name = str(partition).encode()
            appends.append(
                Append(topics.journal, [(name, pack_entry(each)) for each in self.intake.entries], partition)
            )
        for topic, letters in ((topics.dead_letters, self._dead), (topics.late, self._late)):
            if letters.pairs:
                appends.append(Append(topic, letters.pairs, None, letters.headers))
        offsets = {TopicPartition(each.topic, partition): each.next for each in position.inputs.values()}
        return Outcome(appends, offsets, [*rows, *index], position)

    def committed(self) -> None:
        """What `outcome` gave is in the log and in the store now."""
        self._since.commits = 1
        self.counts = added(self.counts, self._since)
        self.counts.dropped = self.residence.dropped()
        self._since = Counts()
        self.alerts, self._dead, self._late = [], Letters(), Letters()
        self.intake.entries = []
        self._dirty = False
        self.residence.committed()
