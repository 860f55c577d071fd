"""`order`: the same events, within the slack, are released in the same order however they arrive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from samovar.native.kernel import Batch, kernel
from samovar.patterns.engine.order import NO_TIME, Buffer, drain, order

Row = tuple[int, int, int, int]  # time, stream, partition, offset


def batch_of(rows: Sequence[Row]) -> Batch:
    batch = Batch(0)
    time, offset = (np.array([row[place] for row in rows], np.int64) for place in (0, 3))
    stream, partition = (np.array([row[place] for row in rows], np.int32) for place in (1, 2))
    arrays = (array.ctypes.data for array in (time, stream, partition, offset))
    kernel().samovar_batch_rows_set(batch.handle, len(rows), *arrays)
    return batch


def rows_of(batch: Batch) -> list[Row]:
    columns = (batch.time, batch.stream, batch.partition, batch.offset)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def released(batches: Sequence[Sequence[Row]], buffer: Buffer) -> tuple[list[Row], list[tuple[int, int]], list[int]]:
    out: list[Row] = []
    late: list[tuple[int, int]] = []
    watermarks: list[int] = []
    for rows in batches:
        batch = batch_of(rows)
        offsets = batch.offset.copy()
        ordered = order(batch, buffer)
        out += rows_of(ordered.released)
        late += zip(offsets[ordered.late].tolist(), ordered.late_by_ms.tolist(), strict=True)
        watermarks.append(ordered.watermark)
        # What is released is not behind what was promised before, and nothing that waits is due.
        assert all(row[0] <= ordered.watermark for row in rows_of(ordered.released))
    return out + rows_of(drain(buffer)), late, watermarks


TIMES = st.lists(st.integers(0, 50), max_size=30)
CUTS = st.lists(st.integers(1, 6), min_size=1, max_size=4)


def cut(rows: list[Row], sizes: list[int]) -> list[list[Row]]:
    parts, place, number = [], 0, 0
    while place < len(rows):
        size = sizes[number % len(sizes)]
        parts.append(rows[place : place + size])
        place, number = place + size, number + 1
    return parts


@given(TIMES, CUTS, st.integers(0, 60))
def test_one_partition(times: list[int], sizes: list[int], slack: int) -> None:
    rows = [(time, 0, 0, offset) for offset, time in enumerate(times)]
    max_event_time, wanted, wanted_late = NO_TIME, [], []
    for row in rows:
        if max_event_time - slack > row[0]:
            wanted_late.append((row[3], max_event_time - slack - row[0]))
        else:
            wanted.append(row)
        max_event_time = max(max_event_time, row[0])
    out, late, watermarks = released(cut(rows, sizes), Buffer(columns=0, slack_ms=(slack,)))
    assert out == sorted(wanted)
    assert late == wanted_late
    assert watermarks == sorted(watermarks)


@given(TIMES, CUTS, st.integers(0, 60), st.randoms())
def test_two_partitions_interleaved_in_any_way(times: list[int], sizes: list[int], slack: int, random: object) -> None:
    halves = [[(time, 0, side, offset) for offset, time in enumerate(times[side::2])] for side in (0, 1)]
    one_after_the_other = halves[0] + halves[1]
    interleaved = [row for pair in zip(*halves, strict=False) for row in pair]
    interleaved += [row for half in halves for row in half[min(map(len, halves)) :]]

    def run(rows: list[Row]) -> tuple[list[Row], set[tuple[int, int]]]:
        out, late, _ = released(cut(rows, sizes), Buffer(columns=0, slack_ms=(slack,), partitions=((0, 0), (0, 1))))
        return out, set(late)

    assert run(one_after_the_other) == run(interleaved)


def test_a_silent_partition_holds_event_time_back() -> None:
    buffer = Buffer(columns=0, slack_ms=(5,), partitions=((0, 0), (0, 1)))
    ordered = order(batch_of([(100, 0, 0, 0), (200, 0, 0, 1)]), buffer)
    assert (len(ordered.released), ordered.watermark) == (0, NO_TIME)
    ordered = order(batch_of([(150, 0, 1, 0)]), buffer)
    assert ordered.watermark == 145
    assert rows_of(ordered.released) == [(100, 0, 0, 0)]


def test_in_order_without_slack_is_passed_through() -> None:
    batch = batch_of([(1, 0, 0, 0), (1, 0, 0, 1), (4, 0, 0, 2)])
    ordered = order(batch, Buffer(columns=0, slack_ms=(0,)))
    assert ordered.released is batch
    assert ordered.watermark == 4
