"""One task at work with no log: what `samovar.testing` drives. Its processor is the real one, over the store in memory.

`TaskTestHarness` is what stands around a processor in a service: it has the input to read again, commits, keeps what
was committed as a log would, and can crash. One partition; what is written for another stage is only kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from samovar.changelog.batches import RecordBlock
from samovar.changelog.formats.record import POSITION, unpack_position
from samovar.changelog.log import Headers, TopicPartition
from samovar.native.kernel import joined
from samovar.patterns.engine.order import NO_TIME
from samovar.state.memory import MemoryStore
from samovar.state.store import Change
from samovar.tasks.input.processor import Processor
from samovar.tasks.input.source import numbered
from samovar.tasks.model.clock import SetClock
from samovar.tasks.model.plan import Plan
from samovar.tasks.processors import make_processor

PARTITION = 0


class Crash(Enum):
    """What a crash leaves next to the log: the store as it was, no store, or one without the last commit."""

    KEPT = "kept"
    LOST = "lost"
    BEHIND = "behind"


@dataclass(frozen=True, slots=True)
class WrittenRecord:
    """A committed record of a topic."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(kw_only=True)
class TaskTestHarness:
    """The source of truth for the input, for what is committed, and for the clock."""

    plan: Plan
    clock: SetClock = field(default_factory=SetClock)
    topics: dict[str, list[WrittenRecord]] = field(default_factory=dict)
    store: MemoryStore = field(default_factory=MemoryStore)
    commits: int = 0

    def __post_init__(self) -> None:
        self._input: list[tuple[str, RecordBlock]] = []  # stream and one record each, in the order in which they came
        self._given = 0  # so many of them the task was given, or had before it began
        self._ends = {spec.stream: 0 for spec in self.plan.inputs}
        self._changelog: dict[bytes, bytes | None] = {}
        self._before: list[Change] = []  # rows that the last commit changed, as they were
        self._logged: list[Change] = []  # and as it logged them
        self.processor = self._begun()

    def add(self, stream: str, key: bytes | None, value: bytes | None, time_ms: int) -> None:
        """Append a record to a stream; `take` lets the task have it."""
        spec = next(spec for spec in self.plan.inputs if spec.stream == stream)
        offset = self._ends[stream]
        self._ends[stream] = offset + 1
        record = RecordBlock(
            topic=spec.topic,
            partition=PARTITION,
            offsets=np.array([offset], np.int64),
            times=np.array([time_ms], np.int64),
            next=offset + 1,
            keys=joined([key or b""]),
            values=joined([value or b""]),
            keyless=np.array([key is None]),
            null=np.array([value is None]),
        )
        self._input.append((stream, record))

    def take(self) -> bool:
        """Give the task its next record; False where it has them all."""
        while self._given < len(self._input):
            stream, record = self._input[self._given]
            self._given += 1
            if int(record.offsets[0]) >= self.processor.source.sources[stream].next:
                self.processor.feed(record)
                return True
        return False

    def pass_ms(self, ms: int) -> None:
        """Let the clock go on while no record comes."""
        self._stand()
        self.clock.pass_ms(ms)
        ended = dict.fromkeys((TopicPartition(spec.topic, PARTITION) for spec in self.plan.inputs), 0)
        self.processor.tick(self.clock.steady_ms(), ended)

    def _stand(self) -> None:
        for stream in self.processor.source.sources:
            self.processor.source.observe_end(stream, True, self.clock.steady_ms())

    def idle_ms_until(self, time_ms: int) -> int:
        """For how long the clock has to go on until event time is there."""
        stream_source, waits = self.processor.source, 0
        self._stand()
        for stream, source in stream_source.sources.items():
            max_event_time = stream_source.max_event_time(stream)
            if max_event_time > NO_TIME and source.idle_since_ms is not None:
                stood_ms = self.clock.steady_ms() - source.idle_since_ms
                wanted = time_ms + source.spec.slack_ms - source.idle_base_time + source.spec.idle_ms
                waits = max(waits, wanted - stood_ms)
            elif source.idle_since_ms is not None:
                waits = max(waits, source.spec.idle_ms - self.clock.steady_ms() + source.idle_since_ms)
        return waits

    def commit(self) -> None:
        """Write what there is: to the topics, and then to the store."""
        if not self.processor.dirty:
            return
        outcome = self.processor.outcome()
        logged: list[Change] = []
        for append in outcome.appends:
            if append.topic == self.plan.topics.changelog:
                logged += [(key or b"", value) for key, value in append.records]
            else:
                headers = append.headers or [()] * len(append.records)
                written = [WrittenRecord(*pair, own) for pair, own in zip(append.records, headers, strict=True)]
                self.topics.setdefault(append.topic, []).extend(written)
        before = [(key, self.store.get(key)) for key, _ in outcome.changes]
        self._changelog.update(logged)
        self.store.write(outcome.changes)
        self._before, self._logged = before, logged
        self.processor.committed(outcome)
        self.commits += 1

    def crash(self, crash: Crash) -> None:
        """Throw memory away and come back from what was committed; what was not is to be taken again."""
        if crash is Crash.LOST:
            self.store = MemoryStore()
            self.store.write([(key, value) for key, value in self._changelog.items() if value is not None])
        elif crash is Crash.BEHIND:
            self.store.write(self._before)
            self.store.write(self._logged)  # as a restore does: rows that are local stay behind
        self.processor = self._begun()

    def _begun(self) -> Processor:
        """A processor over the store, as a task of a service begins."""
        self._given = 0
        data = self.store.get(POSITION)
        position = None if data is None else unpack_position(data)
        processor = make_processor(self.plan, PARTITION, self.store, numbered(position, self.plan.inputs), position)
        for stream, stored in (position.inputs if position is not None else {}).items():
            processor.source.sources[stream].next = stored.next
            if stored.replay_from < stored.next:
                records = [
                    each for name, each in self._input if name == stream and each.offsets[0] >= stored.replay_from
                ]
                processor.source.recover(stream, records, stored)
        if position is None or dict(position.rules) != self.plan.versions:
            processor.note_rules()
        return processor
