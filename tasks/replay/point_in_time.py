"""State as it was at a moment of event time: input and journal folded again, up to there and no further.

At moment T all events up to T have gone through the rules, as far as they were not late, and none after it. A stream is
read until its own watermark passes T: every later record of an earlier time is late, in the live run as here. What
then still waits is released up to T.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samovar.changelog.cursors import RecordSlice
from samovar.changelog.formats.forwarded import EVENT, IDLE, MARK, OriginalRecords
from samovar.changelog.formats.journal import EntryKind, JournalEntry
from samovar.changelog.log import Int64s, Log, Records
from samovar.patterns.engine.order import NO_TIME, Partition
from samovar.state.store import TaskStore
from samovar.tasks.input.repartition_source import RepartitionSource, is_ours
from samovar.tasks.model.plan import Plan
from samovar.tasks.replay.rebuild import RebuildResult, ReplayEnd, SourceReplay


def rebuild_at(
    log: Log,
    plan: Plan,
    partition: int,
    store: TaskStore,
    until: ReplayEnd,
    moment_ms: int,
    on_progress: Callable[[int], None] = lambda _: None,
) -> RebuildResult:
    """Fold input and journal into an empty store up to a moment, and never beyond `until`."""
    with closing(PointInTimeRebuild(log, plan, partition, store, until, on_progress)) as replay:
        replay.run_to(until.inputs, moment_ms)
    return replay.rebuilt()


class PointInTimeRebuild(SourceReplay):
    """A rebuild that ends at a moment. `cuts` says which streams have passed it, and where."""

    moment_ms: int
    cuts: dict[str, int]
    applied: list[int]
    released: list[JournalEntry]

    def run_to(self, inputs: Mapping[str, int], moment_ms: int) -> None:
        self.moment_ms, self.cuts, self.applied, self.released = moment_ms, {}, [], []
        is_receiving = isinstance(self.processor.source, RepartitionSource)
        for entry in self.entries:
            self._feed_up_to(entry.inputs)
            if is_receiving:  # or it was once set back to a later moment, by this entry, with nothing in between
                is_beyond = entry.kind == EntryKind.ADVANCE and entry.facts["max_event_time"] > moment_ms + 1
                is_over = bool(self.cuts) or is_beyond
            else:
                sources = self.processor.source.sources.items()
                is_over = all(stream in self.cuts or source.idle for stream, source in sources)
            is_later = entry.watermark is not None and entry.watermark > moment_ms
            if is_over or (entry.kind == EntryKind.RULES and is_later):  # rules that came later were not there yet
                break
            if is_receiving or not self._cuts_off(entry):
                self._apply(entry)
                self.applied.append(entry.number)
        else:
            self._feed_up_to(inputs)
        if is_receiving:
            # Source partitions pass the moment one by one, in one topic: it is read up to the record by which the last
            # of them does. What is later than the moment waits, as it does in a live run.
            self._advance({"max_event_time": moment_ms + 1})
        else:
            # As an idle stream's time passes. Of several streams, events of the watermark's own time still wait.
            watermark = moment_ms + (len(self.processor.source.sources) > 1)
            for stream, source in list(self.processor.source.sources.items()):
                if not source.idle:
                    self._advance({"stream": stream, "max_event_time": watermark + source.spec.slack_ms})
        self._commit()

    def _advance(self, facts: Mapping[str, Any]) -> None:
        """Let event time pass up to the moment."""
        source = self.processor.source
        entry = JournalEntry(
            kind=EntryKind.ADVANCE,
            number=source.journaled,
            inputs=source.nexts(),
            watermark=source.watermark,
            facts=facts,
        )
        self.processor.apply(entry)
        self.released.append(entry)

    def _cuts_off(self, entry: JournalEntry) -> bool:
        """Whether the entry does not count at the moment: its stream has passed it, or does so by this entry."""
        if entry.kind in (EntryKind.RULES, EntryKind.REWIND):
            return False
        stream, max_event_time = entry.facts["stream"], entry.facts.get("max_event_time")
        slack_ms = self.processor.source.sources[stream].spec.slack_ms
        if stream not in self.cuts and max_event_time is not None and max_event_time - slack_ms > self.moment_ms:
            self.cuts[stream] = entry.inputs[stream]
        return stream in self.cuts

    def _feed_up_to(self, inputs: Mapping[str, int]) -> None:
        super()._feed_up_to({stream: min(offset, self.cuts.get(stream, offset)) for stream, offset in inputs.items()})
        for stream, offset in self.cuts.items():
            self.processor.source.sources[stream].next = offset

    def _take(self, stream: str, until: int) -> Records | None:
        """What may be taken before the moment is passed. Of repartition topics then nothing more, of no stream."""
        source = self.processor.source
        if isinstance(source, RepartitionSource):
            records = None if self.cuts else super()._take(stream, until)
            row = None if records is None else crossing_row(source, records, self.moment_ms)
        else:
            records = None if stream in self.cuts else super()._take(stream, until)
            row = None
            if records is not None:
                batch, rows, _ = source.decode(records)
                beyond = np.flatnonzero(batch.time - source.sources[stream].spec.slack_ms > self.moment_ms)
                row = int(rows[beyond[0]]) if len(beyond) else None
        if records is None or row is None:
            return records
        if isinstance(source, RepartitionSource):
            self.cuts = source.nexts()
        self.cuts[stream] = int(records.offsets[row])
        return RecordSlice(records, 0, row, self.cuts[stream]) if row else None


class SourceProgress(NamedTuple):
    """What each of some records says of its source partition; partition -1: nothing."""

    partitions: Int64s
    times: Int64s  # NO_TIME: none
    idle: NDArray[np.bool_]


@dataclass
class WatermarkTracker:
    """Event time on its way, record by record. `told` is how far idle partitions were."""

    slack_ms: list[int]
    low_watermark: int
    max_event_time: dict[Partition, int] = field(default_factory=dict)
    told: dict[Partition, int] = field(default_factory=dict)

    def watermark(self) -> int:
        if self.max_event_time:
            return max(self.low_watermark, min(map(self._less_slack, self.max_event_time.items())))
        return max([self.low_watermark, *map(self._less_slack, self.told.items())])

    def _less_slack(self, place: tuple[Partition, int]) -> int:
        (number, _), time = place
        return time - self.slack_ms[number] if time > NO_TIME else NO_TIME

    def take(self, place: Partition, time: int, idle: bool) -> None:
        if idle:
            self.told[place] = max(self.max_event_time.pop(place, NO_TIME), time, self.told.get(place, NO_TIME))
            return
        if place not in self.max_event_time:  # it was idle, and joins where event time is
            self.max_event_time[place] = (
                self.low_watermark + self.slack_ms[place[0]] if self.low_watermark > NO_TIME else NO_TIME
            )
            self.told.pop(place, None)
        self.max_event_time[place] = max(self.max_event_time[place], time)


def crossing_row(receiver: RepartitionSource, records: Records, moment_ms: int) -> int | None:
    """The first row by which event time would pass a moment; None: it does not. Nothing is taken."""
    number, said = receiver.by_topic[records.topic].number, said_by(receiver, records)
    course = course_of(receiver)
    if not len(records) or most(course, number, said) <= moment_ms:
        return None
    for row, (partition, time, idle) in enumerate(zip(*(each.tolist() for each in said), strict=True)):
        if partition >= 0:
            course.take((number, partition), time, idle)
            course.low_watermark = course.watermark()
            if course.low_watermark > moment_ms:
                return row
    return None


def said_by(receiver: RepartitionSource, records: Records) -> SourceProgress:
    source = receiver.by_topic[records.topic]
    heads = receiver.heads(records)
    ours = is_ours(heads, source.spec)
    events = receiver.new_events(source.spec.stream, heads, np.flatnonzero(ours & (heads["kind"] == EVENT)))
    batch, kept, _ = receiver.decode(OriginalRecords(records, heads, events))
    times = np.full(len(records), NO_TIME, np.int64)
    times[events[kept]] = batch.time
    is_mark = ours & (heads["kind"] == MARK)
    times[is_mark] = heads["time"][is_mark]
    partitions = np.where(ours, heads["partition"].astype(np.int64), -1)
    return SourceProgress(partitions, times, is_mark & ((heads["flags"] & IDLE) != 0))


def course_of(receiver: RepartitionSource) -> WatermarkTracker:
    told = {
        (receiver.sources[stream].number, partition): part.max_event_time
        for stream, received in receiver.received.items()
        for partition, part in received.parts.items()
        if part.max_event_time is not None
    }
    buffer = receiver.buffer
    return WatermarkTracker(list(buffer.slack_ms), buffer.low_watermark, dict(buffer.max_event_time), told)


def most(course: WatermarkTracker, number: int, said: SourceProgress) -> int:
    """As far as event time can come by these records at most: those that are idle, or fall idle, aside."""
    best = dict(course.max_event_time)
    for partition in np.unique(said.partitions[said.partitions >= 0]).tolist():
        place, mine = (number, partition), said.partitions == partition
        if said.idle[mine].any():
            best.pop(place, None)
        elif place in best:
            best[place] = max(best[place], int(said.times[mine].max()))
    if best:
        return WatermarkTracker(course.slack_ms, course.low_watermark, best).watermark()
    times = [(place, time) for place, time in (*course.max_event_time.items(), *course.told.items())]
    latest = int(said.times.max()) - course.slack_ms[number] if len(said.times) else NO_TIME
    return max([course.low_watermark, latest, *(time - course.slack_ms[place[0]] for place, time in times)])
