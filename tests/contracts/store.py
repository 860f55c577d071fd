"""What every Store does, whatever it is made of. A test class inherits StoreContract and gives it a fixture `store`."""

from __future__ import annotations

from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.state.digest import digest
from samovar.state.store import Change, Store

Step: TypeAlias = tuple[str, object]

# Few and short, so that keys meet; with the bytes at both ends of the order, and the empty key.
keys = st.binary(max_size=3).map(lambda key: bytes(b"\x00\x01a\xfe\xff"[byte % 5] for byte in key))
values = st.binary(max_size=5)
changes = st.lists(st.tuples(keys, st.none() | values), max_size=8)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.tuples(keys, values)),
        st.tuples(st.just("delete"), keys),
        st.tuples(st.just("write"), changes),
        st.tuples(st.just("get"), st.lists(keys, max_size=6)),
        st.tuples(st.just("range"), st.tuples(keys, st.none() | keys)),
    ),
    max_size=20,
)


def apply(model: dict[bytes, bytes], change: list[Change]) -> None:
    for key, value in change:
        if value is None:
            model.pop(key, None)
        else:
            model[key] = value


def between(model: dict[bytes, bytes], start: bytes, end: bytes | None) -> list[tuple[bytes, bytes]]:
    return [(key, model[key]) for key in sorted(model) if start <= key and (end is None or key < end)]


def empty(store: Store) -> None:
    store.write([(key, None) for key, _ in list(store.range())])


class StoreContract:
    """The contract. `store` is empty at the start of each test."""

    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError

    def test_a_key_that_was_never_written_has_no_value(self, store: Store) -> None:
        assert store.get(b"a") is None
        assert store.multi_get([b"a", b"b"]) == [None, None]
        assert list(store.range()) == []

    def test_put_get_delete(self, store: Store) -> None:
        store.put(b"a", b"1")
        store.put(b"a", b"2")
        assert store.get(b"a") == b"2"
        store.delete(b"a")
        store.delete(b"a")
        assert store.get(b"a") is None

    def test_empty_keys_and_values_are_keys_and_values(self, store: Store) -> None:
        store.put(b"", b"")
        assert store.get(b"") == b""
        assert store.multi_get([b"", b"a"]) == [b"", None]
        assert list(store.range()) == [(b"", b"")]

    def test_multi_get_answers_in_the_order_of_the_question(self, store: Store) -> None:
        wanted = [b"%d" % (place * 7919 % 501) for place in range(500)]
        store.write([(key, b"v" + key) for key in wanted[::2]])
        there = set(wanted[::2])
        assert store.multi_get(wanted) == [b"v" + key if key in there else None for key in wanted]
        assert store.multi_get([b"0", b"0"]) == [b"v0", b"v0"]
        assert store.multi_get([]) == []

    def test_a_batch_is_taken_in_order(self, store: Store) -> None:
        store.put(b"d", b"old")
        store.write([(b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (b"b", None), (b"c", None), (b"c", b"1"), (b"d", None)])
        assert list(store.range()) == [(b"a", b"2"), (b"c", b"1")]
        store.write([])

    def test_a_batch_may_come_from_the_store_itself(self, store: Store) -> None:
        store.write([(b"%03d" % place, b"v") for place in range(300)])
        store.write((key, None) for key, _ in store.range(b"1", b"2"))
        assert [key for key, _ in store.range()] == [b"%03d" % place for place in (*range(100), *range(200, 300))]

    def test_a_range_is_in_order_and_leaves_out_its_end(self, store: Store) -> None:
        pairs = [(bytes([first, second]), b"%d" % second) for first in (0, 9, 255) for second in (0, 1, 254, 255)]
        store.write(reversed(pairs))
        assert list(store.range()) == pairs
        assert list(store.range(b"\x09\x01", b"\xff\x01")) == pairs[5:9]
        assert list(store.range(b"\x09\x02")) == pairs[6:]
        assert list(store.range(b"", b"\x00\x01")) == pairs[:1]
        assert list(store.range(b"\xff\xff\x00")) == []
        assert list(store.range(b"b", b"a")) == list(store.range(b"a", b"a")) == []

    def test_a_range_sees_the_store_as_it_was_when_it_began(self, store: Store) -> None:
        before = [(b"%04d" % place, b"old") for place in range(2000)]
        store.write(before)
        begun, later = store.range(), store.range(b"1", b"2")
        assert [next(begun) for _ in range(3)] == before[:3]
        store.write([(key, None) for key, _ in before[::2]])
        store.write([(key + b"x", b"new") for key, _ in before])
        assert list(begun) == before[3:]
        assert list(later) == before[1000:]

    def test_a_range_may_be_left_in_the_middle(self, store: Store) -> None:
        store.write([(b"%04d" % place, b"v") for place in range(1000)])
        assert next(store.range()) == (b"0000", b"v")
        store.put(b"0000", b"w")
        assert next(store.range()) == (b"0000", b"w")

    def test_a_range_keeps_its_bounds_when_nobody_else_does(self, store: Store) -> None:
        """The bounds' bytes are made for the call only, and their memory is used again before the range is read."""
        pairs = [(b"a key of some length %04d" % place, b"v") for place in range(200)]
        store.write(pairs)
        ranges = [
            store.range(b"a key of some length %04d" % p, b"a key of some length %04d" % (p + 3)) for p in range(90)
        ]
        others = [b"z key of some length %04d" % place for place in range(5000)]
        assert [list(each) for each in ranges] == [pairs[place : place + 3] for place in range(90)]
        assert len(others) == 5000

    def test_the_digest_knows_rows_not_their_history(self, store: Store) -> None:
        store.write([(b"a", b"1"), (b"b", b"2")])
        first = digest(store.range())
        store.put(b"c", b"3")
        assert digest(store.range()) != first
        store.delete(b"c")
        store.put(b"b", b"0")
        store.put(b"b", b"2")
        assert digest(store.range()) == first == digest([(b"a", b"1"), (b"b", b"2")])

    def test_any_operations_give_what_a_dict_gives(self, store: Store) -> None:
        @given(steps)
        def run(taken: list[Step]) -> None:
            empty(store)
            check_against_a_dict(store, taken)

        run()


def check_against_a_dict(store: Store, taken: list[Step]) -> None:
    """Every answer on the way, and all rows at the end."""
    model: dict[bytes, bytes] = {}
    for step in taken:
        match step:
            case "put", (bytes() as key, bytes() as value):
                store.put(key, value)
                model[key] = value
            case "delete", bytes() as key:
                store.delete(key)
                model.pop(key, None)
            case "write", list() as change:
                store.write(change)
                apply(model, change)
            case "get", list() as wanted:
                assert store.multi_get(wanted) == [model.get(key) for key in wanted]
                assert [store.get(key) for key in wanted] == [model.get(key) for key in wanted]
            case "range", (bytes() as start, end):
                assert end is None or isinstance(end, bytes)
                assert list(store.range(start, end)) == between(model, start, end)
            case _:
                raise AssertionError(step)
    assert list(store.range()) == between(model, b"", None)
