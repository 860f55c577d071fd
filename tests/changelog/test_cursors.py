"""A partition read up to an exact offset, and on from there."""

from __future__ import annotations

import pytest

from samovar.changelog.cursors import POLL_S, STUCK_S, PartitionCursor, RecordSlice, in_pieces, read_all
from samovar.changelog.log import Append, Records, TopicPartition, TopicSpec
from samovar.common.errors import Refused
from samovar.common.tunables import Tunables
from samovar.tasks.model.clock import SetClock
from tests.simulation.broker import Broker
from tests.simulation.memory_log import MemoryLog
from tests.simulation.test_broker import IN, OUT, Cluster, out

AT = TopicPartition("t", 0)


def log_of(count: int, at_once: int = 4) -> MemoryLog:
    log = MemoryLog(Broker(SetClock()), Tunables(replay_records=at_once, few_records=3))
    log.create([TopicSpec("t", 1)])
    log.append(
        [Append(topic="t", records=[(b"k%d" % number, b"v%d" % number) for number in range(count)], partition=0)]
    )
    return log


def offsets(records: Records | None) -> list[int]:
    return [] if records is None else records.offsets.tolist()


@pytest.mark.parametrize("end", [None, 3, 4, 10])
def test_it_gives_all_before_an_offset_and_goes_on_from_there(end: int | None) -> None:
    cursor = PartitionCursor(log_of(10), AT, 0, end)
    first = cursor.next_records(3)
    assert first is not None
    assert (offsets(first), first.next, cursor.next) == ([0, 1, 2], 3, 3)
    assert cursor.next_records(3) is None
    second = cursor.next_records(9)
    assert second is not None
    assert (offsets(second), second.next) == ([3], 4)
    assert [second.key(0), second.value(0), second.pairs()] == [b"k3", b"v3", [(b"k3", b"v3")]]
    third, fourth = cursor.next_records(9), cursor.next_records(9)
    assert (offsets(third), offsets(fourth), cursor.next) == ([4, 5, 6, 7], [8], 9)
    assert cursor.next_records(9) is None
    cursor.close()


def test_nothing_is_given_before_where_it_stands() -> None:
    cursor = PartitionCursor(log_of(10), AT, 5)
    assert (cursor.next_records(5), cursor.next_records(2), cursor.next) == (None, None, 5)
    assert offsets(cursor.next_records(6)) == [5]
    cursor.close()


def test_what_is_cut_off_is_kept_in_order() -> None:
    cursor = PartitionCursor(log_of(10, at_once=10), AT, 0)
    found = [offsets(cursor.next_records(until)) for until in (1, 2, 2, 7, 10)]
    assert found == [[0], [1], [], [2, 3, 4, 5, 6], [7, 8, 9]]
    cursor.close()


def test_a_replay_that_gets_no_record_fails_after_so_many_polls() -> None:
    cursor = PartitionCursor(log_of(2), AT, 0)
    assert offsets(cursor.next_records(5)) == [0, 1]
    polls = []
    poll = cursor._reader.poll
    cursor._reader.poll = lambda *asked: polls.append(asked) or poll(*asked)  # type: ignore[func-returns-value,method-assign]
    with pytest.raises(Refused) as refused:
        cursor.next_records(5)
    assert refused.value.code == "read-stalled"
    assert abs(len(polls) - STUCK_S / POLL_S) <= 1
    cursor.close()


@pytest.mark.parametrize(("rows", "parts"), [(3, [3, 3, 1]), (7, [7]), (8, [7]), (1, [1] * 7)])
def test_records_in_pieces_are_the_records(rows: int, parts: list[int]) -> None:
    (whole,) = read_all(log_of(7, at_once=10), AT)
    pieces = list(in_pieces(whole, rows))
    assert [len(piece) for piece in pieces] == parts
    assert [offset for piece in pieces for offset in piece.offsets.tolist()] == list(range(7))
    assert [piece.next for piece in pieces] == [int(piece.offsets[-1]) + 1 for piece in pieces]
    assert [pair for piece in pieces for pair in piece.pairs()] == whole.pairs()


def test_all_of_a_partition_is_read() -> None:
    assert [offsets(each) for each in read_all(log_of(10), AT)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert read_all(log_of(0), AT) == []


def test_a_gap_up_to_the_offset_gives_nothing() -> None:
    """Not records of which there are none: anyone who looks at the first of them would fail."""
    cluster = Cluster()
    seat = cluster.seat()
    seat.member.transact(out(b"1", b"2"), {IN: 1})  # 0 1, marker 2
    seat.member.transact(out(b"3"), {IN: 2})  # 3, marker 4
    cursor = PartitionCursor(cluster.log, OUT, 2)
    assert (cursor.next_records(3), cursor.next) == (None, 3)
    assert offsets(cursor.next_records(5)) == [3]
    cursor.close()


@pytest.mark.parametrize("rows", [1, 3])
def test_no_records_are_one_piece_that_says_where_to_read_on(rows: int) -> None:
    """As of a poll that met markers of transactions only: an input would else be read at the same place for ever."""
    (whole,) = read_all(log_of(2), AT)
    nothing = RecordSlice(whole, 2, 2, 7)
    assert [(len(each), each.next) for each in in_pieces(nothing, rows)] == [(0, 7)]
