"""Where event time passes a moment: the first record of a repartition topic that takes it there.

A receiver's event time is the least of its source partitions', and they stand in one topic, each with its own times. A
replay that is to end at a moment ends before that record: all that comes after it and belongs before the moment is
late, in the live run too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samovar.changelog.forwarded import EVENT, MARK, SILENT, Originals
from samovar.changelog.log import Int64s, Records
from samovar.patterns.order import NO_TIME, Partition
from samovar.tasks.input.received import is_ours
from samovar.tasks.input.repartition_source import Receiver


class Said(NamedTuple):
    """What each of some records says of its source partition; partition -1: nothing."""

    partitions: Int64s
    times: Int64s  # NO_TIME: none
    silent: NDArray[np.bool_]


@dataclass
class Course:
    """Event time on its way, record by record. `told` is how far silent partitions were."""

    slack_ms: list[int]
    floor: int
    largest: dict[Partition, int] = field(default_factory=dict)
    told: dict[Partition, int] = field(default_factory=dict)

    def watermark(self) -> int:
        if self.largest:
            return max(self.floor, min(map(self._less_slack, self.largest.items())))
        return max([self.floor, *map(self._less_slack, self.told.items())])

    def _less_slack(self, place: tuple[Partition, int]) -> int:
        (number, _), time = place
        return time - self.slack_ms[number] if time > NO_TIME else NO_TIME

    def take(self, place: Partition, time: int, silent: bool) -> None:
        if silent:
            self.told[place] = max(self.largest.pop(place, NO_TIME), time, self.told.get(place, NO_TIME))
            return
        if place not in self.largest:  # it was silent, and joins where event time is
            self.largest[place] = self.floor + self.slack_ms[place[0]] if self.floor > NO_TIME else NO_TIME
            self.told.pop(place, None)
        self.largest[place] = max(self.largest[place], time)


def crossing_row(receiver: Receiver, records: Records, moment_ms: int) -> int | None:
    """The first row by which event time would pass a moment; None: it does not. Nothing is taken."""
    number, said = receiver.by_topic[records.topic].number, said_by(receiver, records)
    course = course_of(receiver)
    if not len(records) or most(course, number, said) <= moment_ms:
        return None
    for row, (partition, time, silent) in enumerate(zip(*(each.tolist() for each in said), strict=True)):
        if partition >= 0:
            course.take((number, partition), time, silent)
            course.floor = course.watermark()
            if course.floor > moment_ms:
                return row
    return None


def said_by(receiver: Receiver, records: Records) -> Said:
    source = receiver.by_topic[records.topic]
    heads = receiver.heads(records)
    ours = is_ours(heads, source.spec)
    events = receiver.new_events(source.spec.stream, heads, np.flatnonzero(ours & (heads["kind"] == EVENT)))
    batch, kept = receiver.decoded(Originals(records, heads, events))
    times = np.full(len(records), NO_TIME, np.int64)
    times[events[kept]] = batch.time
    is_mark = ours & (heads["kind"] == MARK)
    times[is_mark] = heads["time"][is_mark]
    partitions = np.where(ours, heads["partition"].astype(np.int64), -1)
    return Said(partitions, times, is_mark & ((heads["flags"] & SILENT) != 0))


def course_of(receiver: Receiver) -> Course:
    told = {
        (receiver.sources[stream].number, partition): part.largest
        for stream, received in receiver.received.items()
        for partition, part in received.parts.items()
        if part.largest is not None
    }
    buffer = receiver.buffer
    return Course(list(buffer.slack_ms), buffer.floor, dict(buffer.largest), told)


def most(course: Course, number: int, said: Said) -> int:
    """As far as event time can come by these records at most: those that are silent, or fall silent, aside."""
    best = dict(course.largest)
    for partition in np.unique(said.partitions[said.partitions >= 0]).tolist():
        place, mine = (number, partition), said.partitions == partition
        if said.silent[mine].any():
            best.pop(place, None)
        elif place in best:
            best[place] = max(best[place], int(said.times[mine].max()))
    if best:
        return Course(course.slack_ms, course.floor, best).watermark()
    times = [(place, time) for place, time in (*course.largest.items(), *course.told.items())]
    latest = int(said.times.max()) - course.slack_ms[number] if len(said.times) else NO_TIME
    return max([course.floor, latest, *(time - course.slack_ms[place[0]] for place, time in times)])
