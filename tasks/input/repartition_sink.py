"""Events on their way to stages that are keyed otherwise, and marks that tell those stages how far this task is.

All of it goes out in the task's own commit: events as they were taken, in order of offset, and after them a mark to
every partition of each repartition topic, where it has news. A late or dead event is not forwarded: it was put aside.

While a stream is idle its marks go on with the clock, at most one per second, for as long as a rule may still wait for
its last event; then the partition says that it is idle, and holds the others back no more until it is active again.
That moves event time only there: this task's own rules let time pass when they themselves wait for it.

A task of the user's may wait for ever. For those an idle partition still says how late it is, the more rarely the
longer it is idle; where all are idle, that is event time.
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

MARK_INTERVAL_MS = 1_000  # of event time, while no event comes
MARK_INTERVAL_PART = 60  # and at most this part of the time for which none came
ONE_KEY = b"all"


class State(NamedTuple):
    """How far a stream is, for a stage: its maximum event time, and whether it holds the others back no more."""

    max_event_time: int
    idle: bool


NOTHING_EMITTED = State(NO_TIME, False)


@dataclass(kw_only=True)
class RepartitionOutput:
    """One forward: what goes out with the next commit, and what was told last, which a restart remembers."""

    forward: Forward
    since: int | None = None  # offset of the source from which on all was forwarded
    before: int = 0  # events before this offset are in the topic, from before a rewind
    emitted: State = NOTHING_EMITTED
    pending: State = NOTHING_EMITTED
    base: int = NO_TIME  # what was told when the stream became idle
    is_active: bool = False  # since it was told to be idle
    pairs: list[Pair] = field(default_factory=list)


class RepartitionSink:
    """The source of truth for what one task forwards between two commits."""

    def __init__(
        self,
        forwards: Sequence[Forward],
        stream_source: StreamSource,
        partition: int,
        emitted: Mapping[str, EmittedWatermark],
        written_up_to: Callable[[str, str], int],
    ) -> None:
        """`written_up_to` says, of a stream and a topic, before which offset all is there already."""
        self.source = stream_source
        self.partition = partition
        self.bytes = 0  # of events that go out with the next commit
        self.outputs: list[RepartitionOutput] = []
        self.by_stream: dict[str, list[RepartitionOutput]] = {}
        for forward in forwards:
            output = RepartitionOutput(forward=forward)
            if (stored := emitted.get(forward.topic)) is not None:
                output.emitted = State(NO_TIME if stored.max_event_time is None else stored.max_event_time, stored.idle)
                output.since, output.pending = stored.since, output.emitted
                output.before = written_up_to(forward.stream, forward.topic)
            self.outputs.append(output)
            self.by_stream.setdefault(forward.stream, []).append(output)
        for stream in self.by_stream:
            stream_source.texts[stream] = tuple(map(stream_source.fields.index, self._fields(stream)))

    def _fields(self, stream: str) -> list[str]:
        """Fields that a stream's events are keyed by, each once."""
        fields = (each.forward.field for each in self.by_stream[stream])
        return list(dict.fromkeys(each for each in fields if each is not None))

    def begin(self) -> None:
        """Before anything is taken: from here on all is forwarded."""
        for output in self.outputs:
            if output.since is None:
                output.since = self.source.sources[output.forward.stream].next

    def emitted(self) -> dict[str, EmittedWatermark]:
        """As it is stored."""
        return {
            each.forward.topic: EmittedWatermark(each.since, known_time(each.emitted.max_event_time), each.emitted.idle)
            for each in self.outputs
            if each.since is not None
        }

    def forward(self, stream: str, records: Records, fed: DecodedBatch) -> int:
        """Forward the events of records; how many have no key there."""
        outputs = self.by_stream.get(stream)
        if not outputs or not len(fed.rows):
            return 0
        keep = np.ones(len(fed.rows), bool)
        if fed.late:
            keep[np.isin(fed.rows, [each.row for each in fed.late])] = False
        rows = fed.rows[keep]
        messages = Messages(records.values.data, records.values.starts[rows], records.values.ends[rows])
        values = pack_events(records.partition, records.offsets[rows], records.times[rows], messages)
        texts = dict(zip(self._fields(stream), fed.texts, strict=True))
        unkeyed = 0
        for output in outputs:
            first = int(np.searchsorted(records.offsets[rows], output.before)) if output.before else 0
            if first and first == len(rows):
                continue  # it was told all of it before a rewind
            output.is_active, output.pending = True, State(self.source.max_event_time(stream), False)
            field_ = output.forward.field
            keys: list[bytes | None] = [ONE_KEY] * len(rows)
            if field_ is not None:
                keys = list(compress(texts[field_], keep.tolist()) if fed.late else texts[field_])
            keys = keys[first:]
            pairs = list(zip(keys, values[first:], strict=True))
            missing = keys.count(None)
            output.pairs += pairs if not missing else [pair for pair in pairs if pair[0] is not None]
            unkeyed += missing
            self.bytes += len(messages.data[messages.starts[0] : messages.ends[-1]]) if len(rows) else 0
        return unkeyed

    def due_watermarks(self, now_ms: int) -> bool:
        """Look at the clock; whether there is something to tell that no event tells."""
        self.begin()
        has_news = False
        for output in self.outputs:
            self._update_pending(output, now_ms)
            has_news = has_news or output.pending != output.emitted
        return has_news

    def _update_pending(self, output: RepartitionOutput, now_ms: int) -> None:
        """How far an idle stream is. What was told before a restart counts, so that it does not fall behind."""
        forward, emitted, source = output.forward, output.emitted, self.source.sources[output.forward.stream]
        is_idle = emitted.idle and not output.is_active
        if is_idle and not forward.endless:
            return
        advanced = self.source.idle_max_event_time(source, now_ms)
        if advanced is None:
            output.base = emitted.max_event_time
            if not is_idle:
                output.pending = State(max(self.source.max_event_time(forward.stream), emitted.max_event_time), False)
            return
        state, every_ms = State(NO_TIME, True), MARK_INTERVAL_MS
        if advanced > NO_TIME:
            max_event_time = advanced + max(output.base - source.idle_base_time, 0)
            end = source.idle_base_time + source.spec.slack_ms + forward.lasting_ms + 1
            state = State(
                max(max_event_time if forward.endless else min(max_event_time, end), emitted.max_event_time),
                max_event_time >= end,
            )
        if forward.endless:
            every_ms = max(MARK_INTERVAL_MS, (state.max_event_time - source.idle_base_time) // MARK_INTERVAL_PART)
        if state.idle != is_idle or state.max_event_time >= emitted.max_event_time + every_ms:
            output.pending = state

    def appends(self) -> list[Append]:
        """All since the last commit: events, then marks."""
        events = [
            Append(topic=each.forward.topic, records=each.pairs, among=each.forward.partitions)
            for each in self.outputs
            if each.pairs
        ]
        marks: list[Append] = []
        self.bytes = 0
        for output in self.outputs:
            output.pairs = []
            pending = State(max(output.pending.max_event_time, output.emitted.max_event_time), output.pending.idle)
            if pending != output.emitted:
                output.emitted, output.is_active = pending, output.is_active and not pending.idle
                forward = output.forward
                assert output.since is not None, forward
                mark = WatermarkMarker(
                    partition=self.partition,
                    next=self.source.sources[forward.stream].next,
                    max_event_time=pending.max_event_time,
                    idle=pending.idle,
                    since=output.since,
                )
                value = pack_mark(mark)
                marks += [
                    Append(topic=forward.topic, records=[(None, value)], partition=each)
                    for each in range(forward.partitions)
                ]
            output.pending = output.emitted
        return events + marks
