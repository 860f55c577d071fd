"""`order` against a plain reference: several streams and partitions, a slack for each stream, late events, watermarks.

The reference keeps everything in Python lists and looks at one event at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from samovar.native.kernel import Batch, kernel
from samovar.patterns.engine.order import NO_TIME, Buffer, Partition, drain, order


class Row(NamedTuple):
    """An event by its place in the order of events: time, stream, partition, offset."""

    time: int
    stream: int
    partition: int
    offset: int

    @property
    def source(self) -> Partition:
        return self.stream, self.partition


@dataclass
class Reference:
    """Meaning 9, word for word."""

    slack_ms: list[int]
    max_event_time: dict[Partition, int | None]
    waiting: list[Row] = field(default_factory=list)
    late: list[tuple[Row, int]] = field(default_factory=list)

    def take(self, row: Row) -> None:
        seen = self.max_event_time.get(row.source)
        if seen is not None and row.time < seen - self.slack_ms[row.stream]:
            self.late.append((row, seen - self.slack_ms[row.stream] - row.time))
        else:
            self.waiting.append(row)
        self.max_event_time[row.source] = row.time if seen is None else max(seen, row.time)

    def watermark(self) -> int | None:
        times = [
            None if time is None else time - self.slack_ms[source[0]] for source, time in self.max_event_time.items()
        ]
        return None if None in times else min(time for time in times if time is not None)

    def release(self) -> list[Row]:
        """All that no event still to come, and not late, can go before."""
        watermark = self.watermark()
        if watermark is None:
            return []
        # A further event of the only partition comes after those of its own time; of another it may come before.
        alone = len(self.max_event_time) == 1
        out = [row for row in self.waiting if row.time < watermark or (alone and row.time == watermark)]
        self.waiting = [row for row in self.waiting if row not in out]
        return sorted(out)


def batch_of(rows: list[Row]) -> Batch:
    """One column holds each row's own text, to see that values go with their rows."""
    batch = Batch(1)
    time, offset = (np.array([row[place] for row in rows], np.int64) for place in (0, 3))
    stream, partition = (np.array([row[place] for row in rows], np.int32) for place in (1, 2))
    arrays = (array.ctypes.data for array in (time, stream, partition, offset))
    kernel().samovar_batch_rows_set(batch.handle, len(rows), *arrays)
    texts = [text_of(row).encode() for row in rows]
    data = np.frombuffer(b"".join(texts) or b" ", np.uint8)
    ends = np.array([0, *np.cumsum([len(text) for text in texts])], np.int64)
    kernel().samovar_batch_fill(batch.handle, 0, 4, data.ctypes.data, ends.ctypes.data, None)
    return batch


def text_of(row: Row) -> str:
    return f"{row.time}/{row.stream}/{row.partition}/{row.offset}"


def rows_of(batch: Batch) -> list[Row]:
    columns = (batch.time, batch.stream, batch.partition, batch.offset)
    rows = [Row(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    assert batch.values(0) == [text_of(row) for row in rows]
    return rows


@dataclass(frozen=True)
class InputPosition:
    """Logs by partition, and one way in which their events arrive, in batches."""

    slack_ms: list[int]
    logs: dict[Partition, list[Row]]
    seed: int

    def arrivals(self, again: int = 0) -> list[list[Row]]:
        """Partitions interleaved in any way, each in its own order; cut anywhere, empty batches too."""
        rng = Random(self.seed + again)
        left = {source: list(reversed(log)) for source, log in self.logs.items() if log}
        batches: list[list[Row]] = [[]]
        while left:
            source = rng.choice(sorted(left))
            for _ in range(rng.choice((1, 1, 2, 5))):
                if left[source]:
                    batches[-1].append(left[source].pop())
            if not left[source]:
                del left[source]
            if rng.random() < 0.4:
                batches.append([])
        return batches

    def buffer(self) -> Buffer:
        return Buffer(columns=1, slack_ms=self.slack_ms, partitions=sorted(self.logs))

    def reference(self) -> Reference:
        return Reference(self.slack_ms, dict.fromkeys(self.logs))


@st.composite
def inputs(draw: st.DrawFn) -> InputPosition:
    streams = draw(st.integers(1, 3))
    slack_ms = draw(st.lists(st.integers(0, 15), min_size=streams, max_size=streams))
    logs = {}
    for stream in range(streams):
        for partition in draw(st.sets(st.integers(0, 3), min_size=1, max_size=3)):
            times = draw(st.lists(st.integers(0, 30), max_size=12))
            # Time goes on, with some disorder.
            logs[stream, partition] = [
                Row(time + 3 * offset, stream, partition, offset) for offset, time in enumerate(times)
            ]
    return InputPosition(slack_ms, logs, draw(st.integers(0, 2**32)))


@given(inputs())
def test_order_is_what_the_reference_says(events: InputPosition) -> None:
    buffer, reference = events.buffer(), events.reference()
    watermark = NO_TIME
    for arrived in events.arrivals():
        reference.late.clear()
        for row in arrived:
            reference.take(row)
        ordered = order(batch_of(arrived), buffer)
        assert rows_of(ordered.released) == reference.release()
        late = [(arrived[at], by) for at, by in zip(ordered.late.tolist(), ordered.late_by_ms.tolist(), strict=True)]
        assert late == reference.late
        wanted = reference.watermark()
        assert ordered.watermark == (NO_TIME if wanted is None else wanted)
        assert ordered.watermark >= watermark
        # Nothing that comes from now on, and is not late, is older than what was promised.
        assert all(row.time >= watermark for row in rows_of(ordered.released))
        watermark = ordered.watermark
        assert sorted(rows_of(buffer.pending)) == sorted(reference.waiting)
    assert rows_of(drain(buffer)) == sorted(reference.waiting)
    assert len(buffer.pending) == 0


def run(events: InputPosition, again: int) -> tuple[list[Row], set[Row]]:
    buffer = events.buffer()
    out: list[Row] = []
    late: set[Row] = set()
    for arrived in events.arrivals(again):
        ordered = order(batch_of(arrived), buffer)
        late |= {arrived[at] for at in ordered.late.tolist()}
        out += rows_of(ordered.released)
    return out + rows_of(drain(buffer)), late


@given(inputs())
def test_how_partitions_are_interleaved_and_cut_changes_nothing(events: InputPosition) -> None:
    out, late = run(events, 0)
    assert out == sorted(out)
    assert run(events, 1) == (out, late)


@given(inputs(), st.integers(0, 2**32))
def test_arrival_within_the_slack_changes_nothing(events: InputPosition, seed: int) -> None:
    """Each partition's events in order of time, and again each late by up to the slack."""
    rng = Random(seed)
    in_time = {
        source: [row._replace(time=time) for row, time in zip(log, sorted(row.time for row in log), strict=True)]
        for source, log in events.logs.items()
    }
    delayed = {
        source: sorted(log, key=lambda row: (row.time + rng.uniform(0, events.slack_ms[row.stream]), row.offset))
        for source, log in in_time.items()
    }
    first = run(InputPosition(events.slack_ms, in_time, events.seed), 0)
    second = run(InputPosition(events.slack_ms, delayed, events.seed), 3)
    assert first == second
    assert first[1] == set()
    assert first[0] == sorted(row for log in in_time.values() for row in log)
