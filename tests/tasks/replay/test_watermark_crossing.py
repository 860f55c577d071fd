"""Where event time passes a moment in a repartition topic: as found by looking ahead, and as it is when all is taken
record by record.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from samovar.patterns.engine.order import NO_TIME
from samovar.tasks.replay.point_in_time import (
    SourceProgress,
    WatermarkTracker,
    course_of,
    crossing_row,
    most,
    said_by,
)
from tests.tasks.input.test_repartition_source import SEEDS, Run, event, mark, values

BEFORE, AHEAD = 40, 25


@pytest.mark.parametrize("seed", SEEDS)
def test_the_first_record_that_passes_the_moment(seed: int) -> None:
    random_ = random.Random(seed)
    told = values(random_, BEFORE + 3 * AHEAD)
    stream = told[-1][0]
    ahead = [value for name, value in told[BEFORE:] if name == stream][:AHEAD]
    run, slow = Run(), Run()
    for each in (run, slow):
        for name, value in told[:BEFORE]:
            each.feed(name, [value])
    times = []
    for value in ahead:
        slow.feed(stream, [value])
        times.append(slow.source.watermark)
    start = len(run.taken[stream])
    run.taken[stream] += ahead
    records = run.records(stream, start)
    assert most(course_of(run.source), run.source.sources[stream].number, said_by(run.source, records)) >= times[-1]
    for moment in {run.source.watermark, *times, *(time - 1 for time in times), *(time + 1 for time in times)}:
        if moment >= run.source.watermark:
            wanted = next((row for row, time in enumerate(times) if time > moment), None)
            assert crossing_row(run.source, records, moment) == wanted, moment


def test_the_seeds_have_records_that_pass_and_some_that_do_not() -> None:
    """Else the property above would say nothing."""
    moved = 0
    for seed in SEEDS:
        run = Run()
        for name, value in values(random.Random(seed), BEFORE):
            before = run.source.watermark
            run.feed(name, [value])
            moved += run.source.watermark > before
    assert len(SEEDS) < moved < len(SEEDS) * BEFORE / 2


# ---------------------------------------------------------------- by hand

P0, P1, OTHER = (0, 0), (0, 1), (1, 0)


def tracker(low_watermark: int = NO_TIME, **more: dict[tuple[int, int], int]) -> WatermarkTracker:
    """The first stream has a slack of 20, the second none."""
    return WatermarkTracker([20, 0], low_watermark, **more)


def test_event_time_is_the_least_of_those_that_are_not_silent() -> None:
    assert tracker().watermark() == NO_TIME
    assert tracker(max_event_time={P0: 100, OTHER: 90}).watermark() == 80
    assert tracker(max_event_time={P0: 100, OTHER: 70}).watermark() == 70
    assert tracker(max_event_time={P0: 100, OTHER: NO_TIME}).watermark() == NO_TIME
    assert tracker(85, max_event_time={P0: 100}).watermark() == 85
    assert tracker(75, max_event_time={P0: 100}).watermark() == 80
    assert tracker(max_event_time={P0: 100}, told={OTHER: 999}).watermark() == 80


def test_where_all_are_silent_it_is_the_largest_that_was_told() -> None:
    assert tracker(told={P0: 100, OTHER: 70}).watermark() == 80
    assert tracker(told={P0: 100, OTHER: 90}).watermark() == 90
    assert tracker(95, told={P0: 100, OTHER: 90}).watermark() == 95
    assert tracker(told={P0: NO_TIME}).watermark() == NO_TIME


def test_a_partition_falls_silent_and_tells_how_late_it_was() -> None:
    course = tracker(max_event_time={P0: 100, P1: 50}, told={OTHER: 40})
    course.take(P0, 90, True)
    assert (course.max_event_time, course.told) == ({P1: 50}, {OTHER: 40, P0: 100})
    course.take(P1, 60, True)
    course.take(OTHER, 30, True)
    assert course.told == {OTHER: 40, P0: 100, P1: 60}
    course.take((1, 1), 5, True)
    assert course.told[1, 1] == 5


def test_a_silent_partition_joins_where_event_time_is() -> None:
    course = tracker(80, told={P0: 100, OTHER: 40})
    course.take(P0, 90, False)
    assert (course.max_event_time, course.told) == ({P0: 100}, {OTHER: 40})
    course.take(P0, 130, False)
    course.take(P0, 120, False)
    assert course.max_event_time == {P0: 130}
    fresh = tracker()
    fresh.take(P0, 7, False)
    assert fresh.max_event_time == {P0: 7}


def said(*each: tuple[int, int, bool]) -> SourceProgress:
    partitions, times, idle = (list(column) for column in zip(*each, strict=True)) if each else ([], [], [])
    return SourceProgress(np.array(partitions, np.int64), np.array(times, np.int64), np.array(idle, bool))


def test_how_far_event_time_can_come_at_most() -> None:
    course = tracker(10, max_event_time={P0: 100, P1: 50, OTHER: 90})
    assert most(course, 0, said()) == 30
    assert most(course, 0, said((1, 200, False))) == 80
    assert most(course, 0, said((1, 200, False), (0, 150, False), (-1, 999, False))) == 90
    assert most(course, 0, said((1, 40, False))) == 30
    assert most(course, 0, said((1, 60, True))) == 80, "one that falls idle holds nothing back"
    assert most(course, 0, said((1, 60, True), (1, 70, False))) == 80
    assert most(course, 0, said((5, 60, False))) == 30, "of which nothing was known"
    assert most(tracker(10, told={P0: 100}), 0, said((0, 60, True))) == 80
    assert most(tracker(10, told={P0: 100}), 0, said((0, 160, True))) == 140
    assert most(tracker(10, told={P0: 100, OTHER: 95}), 0, said()) == 95
    assert most(tracker(99, told={P0: 100}), 0, said()) == 99
    assert most(tracker(), 0, said()) == NO_TIME
    assert most(tracker(10, max_event_time={P0: 300}), 0, said((0, 60, True))) == 280


def test_what_each_record_says_of_its_source() -> None:
    run = Run()
    run.taken["a"] += [
        event(0, 4, 90), event(0, 4, 95), event(1, 5, 80, b"{"), b"by hand, and long enough for a head",
        mark(2, 70, idle=True), mark(1, 60),
    ]  # fmt: skip
    found = said_by(run.source, run.records("a", 0))
    assert found.partitions.tolist() == [0, 0, 1, -1, 2, 1]
    assert found.times.tolist() == [90, NO_TIME, NO_TIME, NO_TIME, 70, 60]
    assert found.idle.tolist() == [False, False, False, False, True, False]


def test_the_course_begins_where_the_source_stands() -> None:
    run = Run()
    run.feed("a", [mark(0, 100), mark(1, 50, idle=True), mark(2, NO_TIME, idle=True)])
    course = course_of(run.source)
    assert (course.slack_ms, course.low_watermark, course.told) == ([20, 0], run.source.watermark, {(0, 1): 50})
    assert course.max_event_time == run.source.buffer.max_event_time
    course.take((0, 0), 999, False)
    assert run.source.buffer.max_event_time[0, 0] == 100, "nothing is taken by looking"


def test_the_row_by_which_the_moment_is_passed() -> None:
    run = Run()
    run.feed("b", [mark(each, 10_000) for each in range(3)])
    run.taken["a"] += [mark(0, 100), mark(1, 100), b"by hand, and long enough for a head", mark(2, 100), mark(2, 300)]
    records = run.records("a", 0)
    assert [crossing_row(run.source, records, moment) for moment in (79, 80, 81)] == [3, None, None]
    assert crossing_row(run.source, run.records("a", 5), 0) is None
