"""A changelog as it was: where a commit ends, and whether compaction may have touched what counted."""

from __future__ import annotations

import pytest

from samovar.changelog.formats.record import CHECKPOINT, POSITION, Position, pack_position
from samovar.changelog.log import Append, Pair, TopicPartition, TopicSpec
from samovar.changelog.restore.point_in_time import commit_before, is_exact, last_position, materialize_at
from samovar.changelog.restore.restore import ChangelogPartition
from samovar.common.tunables import Tunables
from samovar.tasks.model.clock import SetClock
from tests.simulation.broker import Broker
from tests.simulation.memory_log import MemoryLog

AT = TopicPartition("c", 0)


def position(journal: int) -> Pair:
    return POSITION, pack_position(Position(watermark=None, inputs={}, streams=(), rules={}, journal=journal))


# Commits end at 3, 5 and 45; what comes after that belongs to none that is whole.
RECORDS: list[Pair] = [(b"ra", b"1"), (b"rb", b"1"), position(1), (b"ra", b"2"), position(2)]
RECORDS += [(b"r%d" % number, b"1") for number in range(39)] + [position(3), (b"rz", b"1"), (b"ra", None)]


def changelog() -> tuple[MemoryLog, ChangelogPartition, SetClock]:
    """One record per second."""
    clock = SetClock()
    log = MemoryLog(Broker(clock), Tunables(look_back_records=2, replay_records=3))
    log.create([TopicSpec("c", 1)])
    for pair in RECORDS:
        log.append([Append(topic="c", records=[pair], partition=0)])
        clock.pass_ms(1_000)
    return log, ChangelogPartition.load(log, AT, 1_000), clock


@pytest.mark.parametrize(
    ("offset", "end"), [(0, 0), (2, 0), (3, 3), (4, 3), (5, 5), (6, 5), (44, 5), (45, 45), (46, 45), (47, 45)]
)
def test_the_last_whole_commit_before_an_offset(offset: int, end: int) -> None:
    log, found, _ = changelog()
    assert commit_before(log, found, offset) == end


def test_the_newest_position() -> None:
    log, found, _ = changelog()
    newest = last_position(log, found)
    assert newest is not None
    assert newest.journal == 3
    log.create([TopicSpec("empty", 1)])
    assert last_position(log, ChangelogPartition.load(log, TopicPartition("empty", 0), 1_000)) is None


def test_an_image_has_the_rows_up_to_an_offset() -> None:
    log, found, _ = changelog()
    rows = {key: value for key, value in materialize_at(log, found, 4).range() if key != CHECKPOINT}
    assert rows == {b"ra": b"2", b"rb": b"1", POSITION: position(1)[1]}


def test_it_is_exact_while_all_that_came_later_is_too_young_to_be_compacted() -> None:
    log, found, clock = changelog()
    now_ms, last = clock.now_ms, len(RECORDS)
    # The record at the offset was written so many seconds ago as there are from it to the end.
    for offset in (last - 1, last - 7, 0):
        age_ms = (last - offset) * 1_000
        assert is_exact(log, found, offset, age_ms + 1, now_ms)
        assert not is_exact(log, found, offset, age_ms, now_ms)
    assert is_exact(log, found, last, 0, now_ms)
