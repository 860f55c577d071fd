"""`order`: the same events, within the slack, are released in the same order however they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.native.kernel import Batch, kernel
from samovar.patterns.engine.order import NO_TIME, Buffer, drain, order, release

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


# ---------------------------------------------------------------- by hand


def two(low_watermark: int = NO_TIME) -> Buffer:
    """Two streams, of which the first has a slack of 10."""
    return Buffer(columns=0, slack_ms=[10, 0], partitions=[(0, 0), (1, 0)], low_watermark=low_watermark)


def taken(buffer: Buffer, *rows: Row) -> tuple[list[Row], list[tuple[int, int]], int]:
    ordered = order(batch_of(rows), buffer)
    late = list(zip(ordered.late.tolist(), ordered.late_by_ms.tolist(), strict=True))
    return rows_of(ordered.released), late, ordered.watermark


def test_the_watermark_is_the_least_of_all_partitions_and_never_goes_back() -> None:
    buffer = two()
    assert buffer.watermark() == NO_TIME
    buffer.max_event_time[0, 0] = 50
    assert buffer.watermark() == NO_TIME
    buffer.max_event_time[1, 0] = 45
    assert buffer.watermark() == 40
    buffer.max_event_time[1, 0] = 30
    assert buffer.watermark() == 30
    buffer.low_watermark = 35
    assert buffer.watermark() == 35
    buffer.max_event_time.clear()
    assert buffer.watermark() == 35


def test_an_event_is_late_behind_its_own_partition_only() -> None:
    buffer = two()
    assert taken(buffer, (50, 0, 0, 0), (39, 0, 0, 1), (40, 0, 0, 2), (5, 1, 0, 0), (4, 1, 0, 1)) == (
        [], [(1, 1), (4, 1)], 5,
    )  # fmt: skip
    assert taken(buffer, (3, 1, 0, 2), (60, 1, 0, 3)) == ([(5, 1, 0, 0)], [(0, 2)], 40)
    assert buffer.max_event_time == {(0, 0): 50, (1, 0): 60}


def test_of_several_partitions_events_of_the_watermark_itself_wait() -> None:
    buffer = two()
    assert taken(buffer, (30, 0, 0, 0), (20, 1, 0, 0))[0] == []
    assert taken(buffer, (31, 0, 0, 1), (21, 1, 0, 1))[0] == [(20, 1, 0, 0)]
    buffer.max_event_time[1, 0] = 99
    assert rows_of(release(buffer).released) == []
    buffer.max_event_time[0, 0] = 41
    assert rows_of(release(buffer).released) == [(21, 1, 0, 1), (30, 0, 0, 0)]
    assert (release(buffer).watermark, rows_of(drain(buffer)), len(buffer.pending)) == (31, [(31, 0, 0, 1)], 0)


def test_of_one_partition_they_do_not() -> None:
    buffer = Buffer(columns=0, slack_ms=[10])
    assert taken(buffer, (20, 0, 0, 0), (30, 0, 0, 1)) == ([(20, 0, 0, 0)], [], 20)
    assert taken(buffer, (25, 0, 0, 2), (25, 0, 0, 3), (40, 0, 0, 4)) == (
        [(25, 0, 0, 2), (25, 0, 0, 3), (30, 0, 0, 1)], [], 30,
    )  # fmt: skip


def test_events_of_one_time_come_by_stream_partition_and_offset() -> None:
    buffer = Buffer(columns=0, slack_ms=[0, 0], partitions=[(0, 0), (0, 1), (1, 0)])
    rows = [(5, 1, 0, 0), (5, 0, 1, 0), (5, 0, 0, 1), (5, 0, 0, 2), (4, 1, 0, 9)]
    taken(buffer, *rows[:4])
    assert rows_of(drain(buffer)) == [(5, 0, 0, 1), (5, 0, 0, 2), (5, 0, 1, 0), (5, 1, 0, 0)]


def test_what_is_in_order_is_passed_through_and_what_is_not_is_sorted() -> None:
    buffer = Buffer(columns=0, slack_ms=[0])
    batch = batch_of([(1, 0, 0, 0), (1, 0, 0, 1), (2, 0, 0, 2)])
    assert order(batch, buffer).released is batch
    swapped = batch_of([(3, 0, 0, 4), (3, 0, 0, 3)])
    ordered = order(swapped, buffer)
    assert ordered.released is not swapped
    assert rows_of(ordered.released) == [(3, 0, 0, 3), (3, 0, 0, 4)]
    waiting = Buffer(columns=0, slack_ms=[5])
    taken(waiting, (10, 0, 0, 0))
    assert taken(waiting, (15, 0, 0, 1))[0] == [(10, 0, 0, 0)]


def test_nothing_changes_nothing() -> None:
    buffer = two(low_watermark=7)
    assert taken(buffer) == ([], [], 7)
    assert buffer.max_event_time == {(0, 0): NO_TIME, (1, 0): NO_TIME}


def test_partitions_with_large_numbers_are_told_apart() -> None:
    buffer = Buffer(columns=0, slack_ms=[0, 0, 0], partitions=[(2, 70_000), (1, 70_000)])
    taken(buffer, (5, 2, 70_000, 0), (9, 1, 70_000, 0))
    assert buffer.max_event_time == {(2, 70_000): 5, (1, 70_000): 9}
    taken(buffer, (6, 2, 70_000, 1))
    assert buffer.max_event_time == {(2, 70_000): 6, (1, 70_000): 9}


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("slack", [0, 1, 2])
def test_every_boundary_of_three_events(partitions: int, size: int, slack: int) -> None:
    """All times and places of three events, a few milliseconds apart: what is late, and what each batch releases,
    as the docstring of the module says it.
    """
    places = [(time, 0, partition) for time in range(4) for partition in range(partitions)]
    for drawn in product(places, repeat=3):
        rows = [(*place, offset) for offset, place in enumerate(drawn)]
        buffer = Buffer(columns=0, slack_ms=(slack,), partitions=[(0, each) for each in range(partitions)])
        newest = dict.fromkeys(range(partitions), NO_TIME)
        waiting: list[Row] = []
        for part in cut(rows, [size]):
            late: list[tuple[int, int]] = []
            for at, row in enumerate(part):
                behind = newest[row[2]] - slack - row[0]
                newest[row[2]] = max(newest[row[2]], row[0])
                if behind > 0:
                    late.append((at, behind))
                else:
                    waiting.append(row)
            watermark = NO_TIME if NO_TIME in newest.values() else min(newest.values()) - slack
            due = sorted(row for row in waiting if row[0] < watermark or (row[0] == watermark and partitions == 1))
            waiting = [row for row in waiting if row not in due]
            found = order(batch_of(part), buffer)
            assert (rows_of(found.released), found.watermark) == (due, watermark), rows
            assert list(zip(found.late.tolist(), found.late_by_ms.tolist(), strict=True)) == late, rows
            assert sorted(rows_of(buffer.pending)) == sorted(waiting), rows
