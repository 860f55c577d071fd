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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samovar.changelog.formats.forwarded import WatermarkMarker, pack_events, pack_mark
from samovar.changelog.formats.record import EmittedWatermark
from samovar.changelog.log import Append, Pair, Records
from samovar.native.kernel import Messages
from samovar.patterns.engine.order import NO_TIME
from samovar.tasks.input.source import DecodedBatch, StreamSource
from samovar.tasks.model.plan import Forward

TELL_EVERY_MS = 1_000  # of event time, while no event comes
TELL_PART = 60  # and at most this part of the time for which none came
ONE_KEY = b"all"


class State(NamedTuple):
    """How far a stream is, for a stage: its largest event time, and whether it holds the others back no more."""

    largest: int
    silent: bool


UNTOLD = State(NO_TIME, False)


@dataclass
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

    @staticmethod
    def of(forward: Forward, told: EmittedWatermark | None, before: int) -> RepartitionOutput:
        if told is None:
            return RepartitionOutput(forward)
        state = State(NO_TIME if told.largest is None else told.largest, told.silent)
        return RepartitionOutput(forward, told.since, before, state, state)


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
        self.outlets = [
            RepartitionOutput.of(each, told.get(each.topic), written_up_to(each.stream, each.topic))
            for each in forwards
        ]
        self.by_stream: dict[str, list[RepartitionOutput]] = {}
        for outlet in self.outlets:
            self.by_stream.setdefault(outlet.forward.stream, []).append(outlet)
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
            each.forward.topic: EmittedWatermark(each.since, _known(each.told.largest), each.told.silent)
            for each in self.outlets
            if each.since is not None
        }

    # ------------------------------------------------------------ events

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
            keys: list[bytes | None] = [ONE_KEY] * len(rows) if field_ is None else _kept(texts[field_], keep)
            keys = keys[first:]
            pairs = list(zip(keys, values[first:], strict=True))
            missing = keys.count(None)
            outlet.pairs += pairs if not missing else [pair for pair in pairs if pair[0] is not None]
            unkeyed += missing
            self.bytes += len(messages.data[messages.starts[0] : messages.ends[-1]]) if len(rows) else 0
        return unkeyed

    # ------------------------------------------------------------ how far the streams are

    def look(self, now_ms: int) -> bool:
        """Look at the clock; whether there is something to tell that no event tells."""
        self.begin()
        for outlet in self.outlets:
            self._look(outlet, now_ms)
        return any(each.news != each.told for each in self.outlets)

    def _look(self, outlet: RepartitionOutput, now_ms: int) -> None:
        stream, told = outlet.forward.stream, outlet.told
        is_silent = told.silent and not outlet.spoke
        if is_silent and not outlet.forward.endless:
            return
        raised = self.source.idle_largest(stream, now_ms)
        if raised is None:
            outlet.base = told.largest
            if not is_silent:
                outlet.news = State(max(self.source.largest(stream), told.largest), False)
            return
        state = self._idle_state(outlet, raised)
        if state.silent != is_silent or state.largest >= told.largest + self._every_ms(outlet, state):
            outlet.news = state

    def _every_ms(self, outlet: RepartitionOutput, state: State) -> int:
        """How often an idle stream tells its time."""
        if not outlet.forward.endless:
            return TELL_EVERY_MS
        idle_ms = state.largest - self.source.sources[outlet.forward.stream].idle_max_time
        return max(TELL_EVERY_MS, idle_ms // TELL_PART)

    def _idle_state(self, outlet: RepartitionOutput, raised: int) -> State:
        """How far an idle stream is. What was told before a restart counts, so that it does not fall behind."""
        if raised == NO_TIME:
            return State(NO_TIME, True)
        source = self.source.sources[outlet.forward.stream]
        largest = raised + max(outlet.base - source.idle_max_time, 0)
        end = source.idle_max_time + source.spec.slack_ms + outlet.forward.lasting_ms + 1
        told = largest if outlet.forward.endless else min(largest, end)
        return State(max(told, outlet.told.largest), largest >= end)

    # ------------------------------------------------------------ what is to be written

    def appends(self) -> list[Append]:
        """All since the last commit: events, then marks."""
        events = [
            Append(each.forward.topic, each.pairs, among=each.forward.partitions) for each in self.outlets if each.pairs
        ]
        marks: list[Append] = []
        self.bytes = 0
        for outlet in self.outlets:
            outlet.pairs = []
            news = State(max(outlet.news.largest, outlet.told.largest), outlet.news.silent)
            if news != outlet.told:
                outlet.told, outlet.spoke = news, outlet.spoke and not news.silent
                marks += self._marks(outlet)
            outlet.news = outlet.told
        return events + marks

    def _marks(self, outlet: RepartitionOutput) -> list[Append]:
        forward, told = outlet.forward, outlet.told
        assert outlet.since is not None, forward
        mark = WatermarkMarker(self.partition, self.source.sources[forward.stream].next, *told, outlet.since)
        value = pack_mark(mark)
        return [Append(forward.topic, [(None, value)], each) for each in range(forward.partitions)]


def _kept(keys: Sequence[bytes | None], keep: NDArray[np.bool_]) -> list[bytes | None]:
    return list(keys) if keep.all() else [keys[row] for row in np.flatnonzero(keep).tolist()]


def _known(time: int) -> int | None:
    return None if time == NO_TIME else time
