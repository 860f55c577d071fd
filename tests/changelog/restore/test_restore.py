"""Where a store may go on in its changelog, and where it must be replaced or refused (P4, P10)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from samovar.changelog.formats.record import (
    CHECKPOINT,
    DEADLINE,
    INDEXED,
    POSITION,
    ChangelogCheckpoint,
    Position,
    pack_position,
    store_prefix,
)
from samovar.changelog.log import Append, Bounds, Pair, Topic, TopicPartition, TopicSpec
from samovar.changelog.restore.restore import (
    STUCK_S,
    ChangelogPartition,
    ChangelogPrefetcher,
    ChangelogReader,
    Restore,
    checkpoint_of,
    next_step,
)
from samovar.common.errors import Refused
from samovar.common.tunables import Tunables
from samovar.state.memory import MemoryStore
from samovar.state.store import SortedTable
from samovar.tasks.model.clock import SetClock
from tests.simulation.broker import Broker
from tests.simulation.memory_log import MemoryLog

AT = TopicPartition("c", 0)
CHANGELOG = ChangelogPartition(
    at=AT, topic=Topic(name="c", partitions=1, settings={}, id="id"), bounds=Bounds(10, 20), delete_retention_ms=1_000
)
NOW = 50_000


def store_at(offset: int, age_ms: int = 0) -> ChangelogCheckpoint:
    return ChangelogCheckpoint(topic="c", topic_id="id", partition=0, partitions=1, next=offset, time_ms=NOW - age_ms)


@pytest.mark.parametrize(
    ("checkpoint", "start"),
    [
        (None, 10),
        (store_at(15), 15),
        (store_at(10), 10),
        (store_at(9), None),  # records that it needs are gone
        (store_at(15, age_ms=500), 15),
        (store_at(15, age_ms=501), None),  # deletes may be compacted away
        (store_at(20, age_ms=9_999), 20),  # nothing to read, so nothing can be missing
    ],
)
def test_a_store_goes_on_where_no_delete_can_be_missing(
    checkpoint: ChangelogCheckpoint | None, start: int | None
) -> None:
    assert next_step(checkpoint, CHANGELOG, NOW) == start


@pytest.mark.parametrize(
    ("checkpoint", "code"),
    [
        (store_at(21), "store-ahead"),
        (replace(store_at(15), topic_id="other"), "changelog-recreated"),
        (replace(store_at(15), partitions=2), "changelog-repartitioned"),
    ],
)
def test_a_store_of_another_changelog_is_refused(checkpoint: ChangelogCheckpoint, code: str) -> None:
    with pytest.raises(Refused) as refused:
        next_step(checkpoint, CHANGELOG, NOW)
    assert refused.value.code == code


# ---------------------------------------------------------------- reading and writing

SMALL = Tunables(restore_records=2, restore_rows=2, whole_states=2, table_rows=1_000)


def log_of(*pairs: Pair, tunables: Tunables = SMALL) -> tuple[MemoryLog, SetClock]:
    """A changelog with these records, one a millisecond."""
    clock = SetClock()
    log = MemoryLog(Broker(clock), tunables)
    log.create([TopicSpec("c", 1)])
    for pair in pairs:
        clock.pass_ms(1)
        log.append([Append(topic="c", records=[pair], partition=0)])
    return log, clock


def rows_of(store: MemoryStore) -> dict[bytes, bytes]:
    return {key: value for key, value in store.range() if key not in (CHECKPOINT, INDEXED)}


def restored(store: MemoryStore, log: MemoryLog, start: int = 0, to: int | None = None) -> Restore:
    restore = Restore(store, log, ChangelogPartition.load(log, AT, 1_000), start, to=to, in_thread=False)
    while not restore.advance(0.0):
        assert not restore.done
    assert restore.done
    return restore


PAIRS: list[Pair] = [(b"ua", b"1"), (b"ub", b"1"), (b"ua", None), (b"uc", b"1"), (b"ub", b"2"), (b"ud", b"9")]


@pytest.mark.parametrize(
    ("to", "rows"),
    [
        (0, {}),
        (1, {b"ua": b"1"}),
        (3, {b"ub": b"1"}),
        (5, {b"ub": b"2", b"uc": b"1"}),
        (None, {b"ub": b"2", b"uc": b"1", b"ud": b"9"}),
    ],
)
def test_a_store_gets_the_newest_value_of_each_key_up_to_an_offset(to: int | None, rows: dict[bytes, bytes]) -> None:
    (log, clock), store = log_of(*PAIRS), MemoryStore()
    restore = restored(store, log, to=to)
    end = 6 if to is None else to
    assert rows_of(store) == rows
    assert (restore.next, restore.records, restore.end) == (end, end, end)
    checkpoint = checkpoint_of(store)
    expected = ChangelogCheckpoint(
        topic="c",
        topic_id=log.topics(["c"])["c"].id,
        partition=0,
        partitions=1,
        next=end,
        time_ms=clock.now_ms - 6 + end,
    )
    assert checkpoint == (expected if end else None)


def test_a_store_that_is_behind_gets_the_rest_and_deletes_too() -> None:
    log, _ = log_of(*PAIRS)
    store = MemoryStore()
    restored(store, log, to=2)
    checkpoint = checkpoint_of(store)
    assert checkpoint is not None
    restore = restored(store, log, checkpoint.next)
    assert rows_of(store) == {b"ub": b"2", b"uc": b"1", b"ud": b"9"}
    assert restore.records == 4


@pytest.mark.parametrize(("count", "is_indexed"), [(1, False), (2, False), (3, True)])
def test_a_large_state_gets_its_timer_index_with_its_rows(count: int, is_indexed: bool) -> None:
    """A small one is kept in memory and has none."""
    tunables = replace(SMALL, restore_records=10, restore_rows=10)
    log, _ = log_of(*[(b"u%d" % number, b"1") for number in range(count)], tunables=tunables)
    store = MemoryStore()
    restored(store, log)
    assert store.get(INDEXED) == (b"" if is_indexed else None)


def test_a_state_of_another_service_is_refused_before_anything_of_it_is_written() -> None:
    position = pack_position(Position(watermark=None, inputs={}, streams=(), rules={}, service="other"))
    tunables = replace(SMALL, restore_records=1)
    log, _ = log_of((POSITION, position), (b"ua", b"1"), tunables=tunables)
    store = MemoryStore()
    restore = Restore(store, log, ChangelogPartition.load(log, AT, 1_000, "mine"), 0, in_thread=False)
    assert not restore.advance(0.0)
    with pytest.raises(Refused) as refused:
        restore.advance(0.0)
    assert refused.value.code == "changelog-foreign"
    assert list(store.range()) == []


def test_an_image_that_belongs_to_nobody_may_be_of_any_service() -> None:
    log, _ = log_of(
        (POSITION, pack_position(Position(watermark=None, inputs={}, streams=(), rules={}, service="other")))
    )
    store = MemoryStore()
    restored(store, log)
    assert POSITION in rows_of(store)


def test_a_restore_that_gets_no_record_fails_by_its_clock() -> None:
    log, clock = log_of(*PAIRS)
    changelog = replace(ChangelogPartition.load(log, AT, 1_000), bounds=Bounds(0, 9))  # of which three never come
    now_s = [0.0]
    restore = Restore(MemoryStore(), log, changelog, 0, in_thread=False, now_s=lambda: now_s[0])
    for now_s[0] in (1.0, 2.0, 3.0, 4.0, 3.0 + STUCK_S):
        assert not restore.advance(0.0)
    now_s[0] = 3.1 + STUCK_S
    with pytest.raises(Refused) as refused:
        restore.advance(0.0)
    assert refused.value.code == "restore-stuck"
    restore.close()
    assert clock.now_ms


class Counting(MemoryStore):
    """Counts the tables that it takes."""

    tables = 0

    def ingest_table(self, table: SortedTable) -> None:
        self.tables += 1
        super().ingest_table(table)


@pytest.mark.parametrize(("table_rows", "tables"), [(1, 2), (2, 1), (3, 1)])
def test_an_empty_store_and_many_rows_come_as_a_table(table_rows: int, tables: int) -> None:
    """Into a store that has rows, tombstones are taken too."""
    tunables = Tunables(restore_records=2, restore_rows=2, whole_states=100, table_rows=table_rows)
    log, _ = log_of((b"ua", b"1"), (b"ub", b"1"), (b"ua", None), (b"uc", b"1"), tunables=tunables)
    store = Counting()
    restored(store, log)
    assert store.tables == tables
    assert rows_of(store) == {b"ub": b"1", b"uc": b"1"}


def state(key: bytes, deadline: int) -> Pair:
    return store_prefix(key, "rule") + b"\0", b"\1" + (deadline + (1 << 63)).to_bytes(8, "big") + b"rest"


def indexed(store: MemoryStore) -> list[bytes]:
    return [row[9:] for row, _ in store.range(DEADLINE, bytes([DEADLINE[0] + 1]))]


@pytest.mark.parametrize("table_rows", [0, 1_000])
def test_a_store_that_has_an_index_gets_the_entries_of_later_rows(table_rows: int) -> None:
    tunables = replace(SMALL, table_rows=table_rows)
    log, _ = log_of(*(state(b"k%d" % number, 10 - number) for number in range(5)), tunables=tunables)
    store = MemoryStore()
    restored(store, log)
    assert (store.get(INDEXED), indexed(store)) == (b"", [b"k4", b"k3", b"k2", b"k1", b"k0"])
    small = MemoryStore()
    restored(small, log_of(state(b"k0", 5), tunables=tunables)[0])
    assert (small.get(INDEXED), indexed(small)) == (None, [])
    small.put(INDEXED, b"")
    more, _ = log_of(state(b"k0", 5), state(b"k1", 6), tunables=tunables)
    restored(small, more, 1)
    assert indexed(small) == [b"k1"]


def test_a_part_is_full_by_its_rows_or_by_its_bytes() -> None:
    pairs: list[Pair] = [(b"u%d" % number, b"x" * 50) for number in range(6)]
    for tunables, parts in (
        (Tunables(restore_records=1, restore_rows=4, restore_bytes=10_000), [4, 2]),
        (Tunables(restore_records=1, restore_rows=100, restore_bytes=104), [2, 2, 2]),
        (Tunables(restore_records=1, restore_rows=100, restore_bytes=105), [3, 3]),
        (Tunables(restore_records=1, restore_rows=100, restore_bytes=10_000), [6]),
    ):
        log, _ = log_of(*pairs, tunables=tunables)
        reader = ChangelogReader(log, AT, 0, 6)
        found = [part for part in (reader.take(0.0) for _ in range(8)) if part is not None]
        assert [part.records for part in found] == [len(part.rows) for part in found] == parts
        assert [part.next for part in found] == [sum(parts[: place + 1]) for place in range(len(parts))]
        assert reader.take(0.0) is None
        reader.close()


@pytest.mark.parametrize("count", [1, 6])
def test_reading_ahead_in_a_thread_gives_the_same(count: int) -> None:
    log, _ = log_of(*PAIRS[:count])
    one, other = MemoryStore(), MemoryStore()
    restored(one, log)
    restore = Restore(other, log, ChangelogPartition.load(log, AT, 1_000), 0, in_thread=True)
    while not restore.advance(1.0):
        assert not restore.done
    assert list(one.range()) == list(other.range())
    assert (restore.records, restore.next, restore.start) == (count, count, 0)
    assert restore.advance(0.0), "it is done"


def test_a_thread_that_reads_ahead_ends_when_nobody_takes_what_it_has() -> None:
    log, _ = log_of(*PAIRS, tunables=replace(SMALL, restore_records=1, restore_rows=1))
    ahead = ChangelogPrefetcher(log, AT, 0, 6)
    first = ahead.take(5.0)
    assert first is not None
    assert (first.next, first.records) == (1, 1)
    ahead.close()
    assert not ahead._thread.is_alive()


def test_what_goes_wrong_in_the_thread_is_raised_by_who_waits_for_it() -> None:
    log, _ = log_of(*PAIRS)
    log.broker.topic("c").logs[0].begin = 3
    ahead = ChangelogPrefetcher(log, AT, 1, 6)
    with pytest.raises(Refused) as refused:
        ahead.take(5.0)
    assert refused.value.code == "log-truncated"
    ahead.close()


def test_there_is_nothing_yet_is_not_the_end() -> None:
    log, _ = log_of()
    ahead = ChangelogPrefetcher(log, AT, 0, 3)
    assert ahead.take(0.0) is None
    ahead.close()


def test_a_missing_changelog_is_refused() -> None:
    log, _ = log_of()
    with pytest.raises(Refused) as refused:
        ChangelogPartition.load(log, TopicPartition("none", 0), 1_000)
    assert refused.value.code == "topic-missing"
