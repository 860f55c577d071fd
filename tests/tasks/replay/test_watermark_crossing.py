"""Where event time passes a moment in a repartition topic: as found by looking ahead, and as it is when all is taken
record by record.
"""

from __future__ import annotations

import random

import pytest

from samovar.tasks.replay.point_in_time import course_of, crossing_row, most, said_by
from tests.tasks.input.test_repartition_source import SEEDS, Run, values

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
