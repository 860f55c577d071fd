"""Segments: what is packed comes back, and what is damaged is not read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.changelog.batches import RecordBlock, joined, kept, rows_between
from samovar.changelog.embedded.segment import (
    DamagedSegmentError,
    SegmentInfo,
    columns,
    pack,
    repack,
    unpack,
)
from samovar.changelog.log import Headers, Pair
from samovar.common.tunables import DEFAULTS

PAIRS = st.lists(st.tuples(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=30)), min_size=1)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=2).map(tuple)


def packed(pairs: list[Pair], headers: list[Headers] | None = None, first: int = 7, time: int = 50) -> RecordBlock:
    ((count, data),) = pack(columns(pairs, headers))
    assert count == len(pairs)
    return unpack(SegmentInfo("t", 3, first, first + count, time), data)


def headers_of(records: RecordBlock) -> list[Headers]:
    return [records.headers(row) for row in range(len(records))]


@given(PAIRS, st.data())
def test_records_come_back(pairs: list[Pair], data: st.DataObject) -> None:
    headers: list[Headers] = data.draw(st.lists(HEADERS, min_size=len(pairs), max_size=len(pairs)))
    records = packed(pairs, headers)
    assert records.pairs() == pairs
    assert [(records.key(row), records.value(row)) for row in range(len(records))] == pairs
    assert headers_of(records) == headers
    assert records.offsets.tolist() == list(range(7, 7 + len(pairs)))
    assert set(records.times.tolist()) == {50}
    assert (records.topic, records.partition, records.next) == ("t", 3, 7 + len(pairs))


@given(PAIRS, PAIRS, st.data())
def test_parts_that_are_joined_and_thinned_come_back(one: list[Pair], two: list[Pair], data: st.DataObject) -> None:
    """What compaction does: gaps, several times, headers in one part only."""
    headers: list[Headers] = data.draw(st.lists(HEADERS, min_size=len(two), max_size=len(two)))
    whole = joined([packed(one), packed(two, headers, first=100, time=60)])
    stays = np.array(data.draw(st.lists(st.booleans(), min_size=len(whole), max_size=len(whole))), np.bool_)
    still = kept(whole, stays)
    again = unpack(SegmentInfo("t", 3, 7, 200, 60), repack(still, 7, 200, 60))
    assert again.pairs() == [pair for pair, stay in zip(one + two, stays.tolist(), strict=True) if stay]
    assert again.offsets.tolist() == whole.offsets[stays].tolist()
    assert again.times.tolist() == whole.times[stays].tolist()
    assert headers_of(again) == [
        each for each, stay in zip([()] * len(one) + headers, stays.tolist(), strict=True) if stay
    ]


def test_rows_of_a_part() -> None:
    pairs: list[Pair] = [(b"a", b"1"), (None, None), (b"c", b""), (b"d", b"4")]
    part = rows_between(packed(pairs), 1, 3, 10)
    assert (part.pairs(), part.offsets.tolist(), part.next) == (pairs[1:3], [8, 9], 10)
    assert part.values[1] == b""


def test_segments_have_a_bounded_size() -> None:
    most = DEFAULTS.segment_bytes
    third, large = bytes(most // 3), bytes(3 * most)
    pairs = [*[(b"k", third)] * 7, (b"large", large), (b"k", b"v")]
    assert [count for count, _ in pack(columns(pairs))] == [2, 2, 2, 1, 1, 1]


@pytest.mark.parametrize(("first", "following"), [(0, 1), (0, 3), (1, 2), (5, 4)])
def test_a_row_that_does_not_fit_its_records_is_found(first: int, following: int) -> None:
    ((_, data),) = pack(columns([(b"a", b"1"), (b"b", b"2")]))
    with pytest.raises(DamagedSegmentError):
        unpack(SegmentInfo("t", 0, first, following, 0), data)


def test_a_flipped_bit_is_found() -> None:
    ((count, data),) = pack(columns([(b"key", b"value"), (b"key", None)]))
    standing = SegmentInfo("t", 0, 0, count, 0)
    for place in range(len(data)):
        broken = bytearray(data)
        broken[place] ^= 1
        if place in (2, 3):
            continue  # the two bytes that mean nothing
        with pytest.raises(DamagedSegmentError):
            unpack(standing, bytes(broken))
    for size in range(len(data)):
        with pytest.raises(DamagedSegmentError):
            unpack(standing, data[:size])
