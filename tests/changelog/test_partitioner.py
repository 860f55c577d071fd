"""murmur2: the values that Kafka's own tests have, and many keys at once as one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.changelog.partitioner import murmur2, partition_of, partitions_of

KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "code"), KNOWN.items())
def test_the_hash_is_that_of_kafkas_clients(key: bytes, code: int) -> None:
    assert murmur2(key) == code
    assert partition_of(key, 1000) == (code & 0x7FFFFFFF) % 1000


@given(st.lists(st.binary(max_size=20) | st.binary(min_size=120, max_size=140)), st.integers(1, 2000))
def test_many_keys_go_where_each_goes_alone(keys: list[bytes], partitions: int) -> None:
    assert partitions_of(keys, partitions).tolist() == [partition_of(key, partitions) for key in keys]


def test_rows_without_a_key_take_turns() -> None:
    keys = [None, b"abc", None, None, b"21", None]
    places = partitions_of(keys, 3).tolist()
    assert places == [0, partition_of(b"abc", 3), 2, 0, partition_of(b"21", 3), 2]
    assert partitions_of([None, None], 4).tolist() == [0, 1]


def test_many_keys_are_more_than_one_slice() -> None:
    keys = [b"card-%d" % number for number in range(150_000)]
    places = partitions_of(keys, 12)
    assert places[::1_000].tolist() == [partition_of(key, 12) for key in keys[::1_000]]
