"""Events on their way to stages that are keyed otherwise, and marks that tell those stages how far this task is.

All of it goes out in the task's own commit: events as they were taken, in order of offset, and after them a mark to
every partition of each repartition topic, where it has news. A late or dead event is not forwarded: it was put aside.

While a stream is idle its marks go on with the clock, at most one per second, for as long as a rule may still wait for
its last event; then the partition says that it is silent, and holds the others back no more until it speaks again.
That moves event time only there: this task's own rules let time pass when they themselves wait for it.

A task of the user's may wait for ever. For those a silent partition still says how late it is, the more rarely the
longer it is idle; where all are silent, that is event time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

import numpy as np

from samovar.changelog.formats.forwarded import WatermarkMarker, pack_events, pack_mark
from samovar.changelog.formats.record import EmittedWatermark
from samovar.changelog.log import Append, Pair, Records
from samovar.native.kernel import Messages
from samovar.patterns.engine.order import NO_TIME
from samovar.tasks.input.source import DecodedBatch, StreamSource, known_time
from samovar.tasks.model.plan import Forward

TELL_EVERY_MS = 1_000  # of event time, while no event comes
TELL_PART = 60  # and at most this part of the time for which none came
ONE_KEY = b"all"


class State(NamedTuple):
    """How far a stream is, for a stage: its largest event time, and whether it holds the others back no more."""

    largest: int
    silent: bool


UNTOLD = State(NO_TIME, False)


@dataclass(kw_only=True)
class RepartitionOutput:
    """One forward: what goes out with the next commit, and what was told last, which a restart remembers."""

    forward: Forward
    since: int | None = None  # offset of the source from which on all was forwarded
    before: int = 0  # events before this offset are in the topic, from before a rewind
    told: State = UNTOLD
    news: State = UNTOLD
    base: int = NO_TIME  # what was told when the stream became idle
    spoke: bool = False  # since it was told to be silent
    pairs: list[Pair] = field(default_factory=list)


class RepartitionSink:
    """The source of truth for what one task forwards between two commits."""

    def __init__(
        self,
        forwards: Sequence[Forward],
        stream_source: StreamSource,
        partition: int,
        told: Mapping[str, EmittedWatermark],
        written_up_to: Callable[[str, str], int],
    ) -> None:
        """`written_up_to` says, of a stream and a topic, before which offset all is there already."""
        self.source = stream_source
        self.partition = partition
        self.bytes = 0  # of events that go out with the next commit
        self.outlets: list[RepartitionOutput] = []
        self.by_stream: dict[str, list[RepartitionOutput]] = {}
        for forward in forwards:
            outlet = RepartitionOutput(forward=forward)
            if (stored := told.get(forward.topic)) is not None:
                outlet.told = State(NO_TIME if stored.largest is None else stored.largest, stored.silent)
                outlet.since, outlet.news = stored.since, outlet.told
                outlet.before = written_up_to(forward.stream, forward.topic)
            self.outlets.append(outlet)
            self.by_stream.setdefault(forward.stream, []).append(outlet)
        for stream in self.by_stream:
            stream_source.texts[stream] = tuple(map(stream_source.fields.index, self._fields(stream)))

    def _fields(self, stream: str) -> list[str]:
        """Fields that a stream's events are keyed by, each once."""
        fields = (each.forward.field for each in self.by_stream[stream])
        return list(dict.fromkeys(each for each in fields if each is not None))

    def begin(self) -> None:
        """Before anything is taken: from here on all is forwarded."""
        for outlet in self.outlets:
            if outlet.since is None:
                outlet.since = self.source.sources[outlet.forward.stream].next

    def told(self) -> dict[str, EmittedWatermark]:
        """As it is stored."""
        return {
            each.forward.topic: EmittedWatermark(each.since, known_time(each.told.largest), each.told.silent)
            for each in self.outlets
            if each.since is not None
        }

    def take(self, stream: str, records: Records, fed: DecodedBatch) -> int:
        """Forward the events of records; how many have no key there."""
        outlets = self.by_stream.get(stream)
        if not outlets or not len(fed.rows):
            return 0
        keep = np.ones(len(fed.rows), bool)
        if fed.late:
            keep[np.isin(fed.rows, [each.row for each in fed.late])] = False
        rows = fed.rows[keep]
        messages = Messages(records.values.data, records.values.starts[rows], records.values.ends[rows])
        values = pack_events(records.partition, records.offsets[rows], records.times[rows], messages)
        texts = dict(zip(self._fields(stream), fed.texts, strict=True))
        unkeyed = 0
        for outlet in outlets:
            first = int(np.searchsorted(records.offsets[rows], outlet.before)) if outlet.before else 0
            if first and first == len(rows):
                continue  # it was told all of it before a rewind
            outlet.spoke, outlet.news = True, State(self.source.largest(stream), False)
            field_ = outlet.forward.field
            keys: list[bytes | None] = [ONE_KEY] * len(rows)
            if field_ is not None:
                keys = list(compress(texts[field_], keep.tolist()) if fed.late else texts[field_])
            keys = keys[first:]
            pairs = list(zip(keys, values[first:], strict=True))
            missing = keys.count(None)
            outlet.pairs += pairs if not missing else [pair for pair in pairs if pair[0] is not None]
            unkeyed += missing
            self.bytes += len(messages.data[messages.starts[0] : messages.ends[-1]]) if len(rows) else 0
        return unkeyed

    def look(self, now_ms: int) -> bool:
        """Look at the clock; whether there is something to tell that no event tells."""
        self.begin()
        has_news = False
        for outlet in self.outlets:
            self._look(outlet, now_ms)
            has_news = has_news or outlet.news != outlet.told
        return has_news

    def _look(self, outlet: RepartitionOutput, now_ms: int) -> None:
        """How far an idle stream is. What was told before a restart counts, so that it does not fall behind."""
        forward, told, source = outlet.forward, outlet.told, self.source.sources[outlet.forward.stream]
        is_silent = told.silent and not outlet.spoke
        if is_silent and not forward.endless:
            return
        raised = self.source.idle_largest(source, now_ms)
        if raised is None:
            outlet.base = told.largest
            if not is_silent:
                outlet.news = State(max(self.source.largest(forward.stream), told.largest), False)
            return
        state, every_ms = State(NO_TIME, True), TELL_EVERY_MS
        if raised > NO_TIME:
            largest = raised + max(outlet.base - source.idle_max_time, 0)
            end = source.idle_max_time + source.spec.slack_ms + forward.lasting_ms + 1
            state = State(max(largest if forward.endless else min(largest, end), told.largest), largest >= end)
        if forward.endless:
            every_ms = max(TELL_EVERY_MS, (state.largest - source.idle_max_time) // TELL_PART)
        if state.silent != is_silent or state.largest >= told.largest + every_ms:
            outlet.news = state

    def appends(self) -> list[Append]:
        """All since the last commit: events, then marks."""
        events = [
            Append(topic=each.forward.topic, records=each.pairs, among=each.forward.partitions)
            for each in self.outlets
            if each.pairs
        ]
        marks: list[Append] = []
        self.bytes = 0
        for outlet in self.outlets:
            outlet.pairs = []
            news = State(max(outlet.news.largest, outlet.told.largest), outlet.news.silent)
            if news != outlet.told:
                outlet.told, outlet.spoke = news, outlet.spoke and not news.silent
                forward = outlet.forward
                assert outlet.since is not None, forward
                mark = WatermarkMarker(self.partition, self.source.sources[forward.stream].next, *news, outlet.since)
                value = pack_mark(mark)
                marks += [
                    Append(topic=forward.topic, records=[(None, value)], partition=each)
                    for each in range(forward.partitions)
                ]
            outlet.news = outlet.told
        return events + marks
