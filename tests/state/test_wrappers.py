"""What a wrapper does beyond the contract."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from samovar.state.digest import digest, varint
from samovar.state.errors import StoreError
from samovar.state.memory import MemoryStore
from samovar.state.prefixed import PrefixedStore, after
from samovar.state.stack import INDEX, ROWS, CachedStore, Overlay, Stack, namespace, reindexed
from samovar.state.store import Change
from samovar.state.ttl import TtlStore, UnknownRowVersionError


class CountingStore(MemoryStore):
    """Counts the keys it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        self.asked.append(key)
        return super().get(key)

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.asked.extend(keys)
        return super().multi_get(keys)


# ---------------------------------------------------------------- overlay


def test_p3_an_overlay_never_reaches_the_store_below() -> None:
    below = MemoryStore()
    below.write([(b"a", b"1"), (b"b", b"2")])
    overlay = Overlay(below)
    overlay.put(b"a", b"new")
    overlay.delete(b"b")
    overlay.write([(b"c", b"3"), (b"c", b"4")])
    assert list(overlay.range()) == [(b"a", b"new"), (b"c", b"4")]
    assert list(below.range()) == [(b"a", b"1"), (b"b", b"2")]
    assert overlay.changes() == [(b"a", b"new"), (b"b", None), (b"c", b"4")]
    overlay.clear()
    assert list(overlay.range()) == [(b"a", b"1"), (b"b", b"2")]
    assert overlay.changes() == []


def test_an_overlay_gives_ranges_in_order_whatever_came_between_them() -> None:
    """Few new keys are placed among those that are in order, many are sorted anew: no difference is to be seen."""
    below, twin = MemoryStore(), MemoryStore()
    overlay = Overlay(below)
    random_ = random.Random(5)
    for count in (3, 1, 200, 5, 64, 65, 0):
        for _ in range(count):
            key = b"%d" % random_.randrange(400)
            value = b"v" if random_.random() < 0.7 else None
            for store in (overlay, twin):
                store.write([(key, value)])
        start, end = sorted((b"%d" % random_.randrange(400), b"%d" % random_.randrange(400)))
        assert list(overlay.range(start, end)) == list(twin.range(start, end))
    assert list(overlay.range()) == list(twin.range())
    overlay.clear()
    overlay.put(b"5", b"5")
    assert list(overlay.range()) == [(b"5", b"5")]


# ---------------------------------------------------------------- cache


def test_a_cache_asks_once_also_for_what_is_not_there() -> None:
    below = CountingStore()
    below.put(b"a", b"1")
    cached = CachedStore(below, cache_bytes=10_000)
    for _ in range(3):
        assert cached.get(b"a") == b"1"
        assert cached.multi_get([b"b", b"a", b"b"]) == [None, b"1", None]
    assert below.asked == [b"a", b"b"]
    cached.accept([(b"b", b"2")])
    assert cached.get(b"b") == b"2"
    assert below.asked == [b"a", b"b"]


def test_a_cache_stays_within_its_bytes_and_drops_the_least_recently_used() -> None:
    below = CountingStore()
    below.write([(b"%03d" % place, bytes(100)) for place in range(100)])
    cached = CachedStore(below, cache_bytes=2000)
    for place in range(100):
        cached.get(b"000")
        cached.get(b"%03d" % place)
        assert cached.bytes_used <= 2000
    assert below.asked.count(b"000") == 1
    below.put(b"huge", bytes(5000))
    cached.accept([(b"huge", bytes(5000))])
    assert cached.bytes_used <= 2000
    assert cached.get(b"huge") == bytes(5000)
    cached.clear()
    assert cached.bytes_used == 0


def test_a_cached_row_that_is_written_again_counts_once_and_is_the_newest() -> None:
    cached = CachedStore(MemoryStore(), cache_bytes=3 * (160 + 1 + 10))
    cached.accept([(b"a", bytes(10)), (b"b", bytes(10)), (b"c", bytes(10))])
    full = cached.bytes_used
    assert full == 3 * (160 + 1 + 10)
    cached.accept([(b"a", bytes(10))])
    assert cached.bytes_used == full, "to the last byte it fits"
    cached.accept([(b"d", bytes(10))])
    assert (list(cached._rows), cached.bytes_used) == ([b"c", b"a", b"d"], full)
    cached.accept([(b"d", None)])
    assert cached.bytes_used == full - 10


def test_many_keys_are_asked_for_at_once_and_each_once() -> None:
    below = CountingStore()
    below.write([(b"a", b"1"), (b"b", b"2")])
    cached = CachedStore(below, cache_bytes=10_000)
    assert cached.get(b"a") == b"1"
    assert cached.multi_get([b"b", b"a", b"none", b"b"]) == [b"2", b"1", None, b"2"]
    assert cached.multi_get([b"a", b"b", b"none"]) == [b"1", b"2", None]
    assert sorted(below.asked) == [b"a", b"b", b"none"]
    assert list(cached._rows) == [b"a", b"b", b"none"]
    assert cached.multi_get([]) == []


@pytest.mark.parametrize("new", [1, 63, 64, 65, 200])
def test_an_overlay_keeps_its_keys_in_order_however_many_came(new: int) -> None:
    overlay = Overlay(MemoryStore())
    overlay.put(b"m", b"")
    assert [key for key, _ in overlay.range()] == [b"m"]
    keys = [b"%03d" % (place * 37 % 211) for place in range(new)]
    for key in keys:
        overlay.put(key, b"")
    overlay.put(b"m", b"again")
    assert [key for key, _ in overlay.range()] == sorted([b"m", *keys])
    assert [key for key, _ in overlay.range(keys[0], b"m")] == sorted(key for key in keys if key >= keys[0])
    overlay.clear()
    overlay.put(b"a", b"")
    assert [key for key, _ in overlay.range()] == [b"a"]


def test_what_was_not_committed_is_gone_with_the_overlay() -> None:
    overlay = Overlay(MemoryStore())
    overlay.put(b"a", b"1")
    overlay.close()
    assert (overlay.changes(), overlay.get(b"a")) == ([], None)


# ---------------------------------------------------------------- namespaces


@pytest.mark.parametrize(
    ("prefix", "end"), [(b"a", b"b"), (b"a\xff", b"b"), (b"\xff", None), (b"", None), (b"a\xfe", b"a\xff")]
)
def test_the_end_of_a_prefix(prefix: bytes, end: bytes | None) -> None:
    assert after(prefix) == end


def test_no_namespace_begins_another() -> None:
    names = ["", "a", "aa", "ab", "b", "é", "a" * 255]
    spaces = [namespace(kind, name) for kind in (ROWS, INDEX) for name in names]
    assert not [(x, y) for x in spaces for y in spaces if x != y and x.startswith(y)]


# ---------------------------------------------------------------- time to live


class Clock:
    """Event time that a test sets."""

    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms


def expiring(below: MemoryStore, clock: Clock, ttl_ms: int | None) -> TtlStore:
    return TtlStore(PrefixedStore(below, b"r"), PrefixedStore(below, b"x"), ttl_ms=ttl_ms, now=clock)


def test_a_row_is_gone_from_its_expiry_on_even_before_it_is_deleted() -> None:
    clock = Clock()
    clock.ms = -50  # before 1970 is a time like any other
    store = expiring(MemoryStore(), clock, 100)
    store.put(b"a", b"1")
    clock.ms = 49
    assert (store.get(b"a"), store.multi_get([b"a"]), list(store.range())) == (b"1", [b"1"], [(b"a", b"1")])
    clock.ms = 50
    assert (store.get(b"a"), store.multi_get([b"a"]), list(store.range())) == (None, [None], [])


def test_a_write_begins_the_time_to_live_anew() -> None:
    clock, below = Clock(), MemoryStore()
    store = expiring(below, clock, 100)
    store.write([(b"a", b"1"), (b"b", b"1")])
    clock.ms = 60
    store.put(b"a", b"2")
    assert len(list(below.range(b"x", b"y"))) == 2  # one index row per row, not one a write
    clock.ms = 100
    assert store.expire(100) == [b"b"]
    assert list(store.range()) == [(b"a", b"2")]
    assert store.expire(159) == []
    assert store.expire(160) == [b"a"]
    assert list(below.range()) == []


def test_a_deleted_row_does_not_expire() -> None:
    clock, below = Clock(), MemoryStore()
    store = expiring(below, clock, 100)
    store.put(b"a", b"1")
    store.delete(b"a")
    assert list(below.range()) == []
    assert store.expire(1 << 62) == []


def test_a_time_to_live_may_be_set_changed_and_unset() -> None:
    clock, below = Clock(), MemoryStore()
    expiring(below, clock, None).write([(b"stays", b"1"), (b"later", b"1")])
    expiring(below, clock, 100).write([(b"goes", b"1"), (b"later", b"2"), (b"kept", b"1")])
    store = expiring(below, clock, None)
    store.put(b"kept", b"2")
    clock.ms = (1 << 63) - 1
    assert store.expire(clock.ms) == [b"goes", b"later"]
    assert list(store.range()) == [(b"kept", b"2"), (b"stays", b"1")]


def test_an_index_that_does_not_fit_deletes_no_living_row() -> None:
    clock, below = Clock(), MemoryStore()
    store = expiring(below, clock, 100)
    store.put(b"a", b"1")
    stale = list(below.range(b"x", b"y"))
    clock.ms = 50
    store.put(b"a", b"2")
    below.write(stale)
    assert store.expire(100) == []
    assert store.get(b"a") == b"2"
    assert store.expire(150) == [b"a"]


def test_a_row_of_an_unknown_version_is_refused() -> None:
    below = MemoryStore()
    below.put(b"ra", b"\x02something else")
    store = expiring(below, Clock(), 100)
    for read in (lambda: store.get(b"a"), lambda: store.multi_get([b"a"]), lambda: list(store.range())):
        with pytest.raises(UnknownRowVersionError):
            read()


# ---------------------------------------------------------------- the stack


def committed(stack: Stack, base: MemoryStore) -> list[Change]:
    """What a commit does; what the changelog is told."""
    rows, index = stack.changes()
    base.write([*rows, *index])
    stack.committed()
    return rows


def test_a_stack_commits_rows_and_index_in_one_batch_and_logs_rows_only() -> None:
    clock, base = Clock(), MemoryStore()
    stack = Stack(base, 10_000)
    sums = stack.store("sums", ttl_ms=100, now=clock)
    sums.write([(b"a", b"1"), (b"b", b"2")])
    stack.keep()
    assert list(base.range()) == []
    assert [key for key, _ in committed(stack, base)] == [b"u\x04sumsa", b"u\x04sumsb"]
    assert stack.changes() == ([], [])
    assert [key[:6] for key, _ in base.range()] == [b"u\x04sums"] * 2 + [b"x\x04sums"] * 2
    clock.ms = 100
    stack.expire(100)
    assert committed(stack, base) == [(b"u\x04sumsa", None), (b"u\x04sumsb", None)]
    assert list(base.range()) == []


def test_p3_what_is_undone_leaves_neither_rows_nor_cached_values_nor_changes() -> None:
    base = MemoryStore()
    stack = Stack(base, 10_000)
    sums = stack.store("sums", ttl_ms=None, now=Clock())
    sums.put(b"a", b"committed")
    stack.keep()
    committed(stack, base)
    sums.put(b"b", b"kept")
    stack.keep()
    sums.put(b"a", b"not")
    sums.delete(b"b")
    sums.put(b"c", b"not")
    assert sums.multi_get([b"a", b"b", b"c"]) == [b"not", None, b"not"]
    stack.undo()
    assert sums.multi_get([b"a", b"b", b"c"]) == [b"committed", b"kept", None]
    assert [key for key, _ in committed(stack, base)] == [b"u\x04sumsb"]


def test_p2_what_the_changelog_was_told_brings_back_rows_index_and_expiries() -> None:
    clock, base, restored = Clock(), MemoryStore(), MemoryStore()
    stack = Stack(base, 0)
    sums = stack.store("sums", ttl_ms=100, now=clock)
    for clock.ms in range(0, 90, 10):
        sums.write([(b"%d" % (clock.ms % 40), b"v"), (b"%d" % clock.ms, None if clock.ms % 30 else b"w")])
        stack.keep()
        restored.write(committed(stack, base))
    restored.write([(b"x\x04sumsstale", b"")])
    reindexed(restored, "sums", 1)
    assert digest(restored.range()) == digest(base.range())
    again = Stack(restored, 1000)
    again.store("sums", ttl_ms=100, now=clock)
    for each in (stack, again):
        each.expire(150)
    assert again.changes() == stack.changes() != ([], [])


# ---------------------------------------------------------------- twin and digest


def test_ingest_refuses_what_is_not_sorted_and_takes_nothing_of_it() -> None:
    store = MemoryStore()
    for pairs in ([(b"b", b"1"), (b"a", b"1")], [(b"a", b"1"), (b"a", b"2")]):
        with pytest.raises(StoreError, match="pair 1 to ingest"):
            store.ingest(pairs)
    assert list(store.range()) == []
    store.ingest([(b"a", b"1"), (b"b", b"2")])
    assert store.prefixes([b"b", b"", b"c"]) == [[(b"b", b"2")], [(b"a", b"1"), (b"b", b"2")], []]


def test_the_digest_is_one_of_lengths_and_bytes() -> None:
    assert [varint(number).hex() for number in (0, 127, 128, 16384)] == ["00", "7f", "8001", "808001"]
    assert digest([]) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert len({digest([(b"a", b"b")]), digest([(b"ab", b"")]), digest([(b"", b"ab")]), digest([])}) == 4
    assert digest([(b"k", bytes(5000))]) != digest([(b"k", bytes(5001))])
    with pytest.raises(AssertionError, match="out of order"):
        digest([(b"b", b""), (b"a", b"")])


def test_rows_and_index_are_told_apart() -> None:
    stack = Stack(MemoryStore(), 10_000)
    stack.rows("a").put(b"k", b"1")
    stack.index("a").put(b"k", b"")
    stack.keep()
    rows, index = stack.changes()
    assert ([key[:1] for key, _ in rows], [key[:1] for key, _ in index]) == ([b"u"], [b"x"])
