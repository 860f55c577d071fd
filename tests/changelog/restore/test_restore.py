"""Where a store may go on in its changelog, and where it must be replaced or refused (P4, P10)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from samovar.changelog.formats.record import CHECKPOINT, INDEXED, POSITION, ChangelogCheckpoint, Position, pack_position
from samovar.changelog.log import Append, Bounds, Pair, Topic, TopicPartition, TopicSpec
from samovar.changelog.restore.restore import STUCK_S, ChangelogPartition, Restore, checkpoint_of, next_step
from samovar.common.errors import Refused
from samovar.common.tunables import Tunables
from samovar.state.memory import MemoryStore
from samovar.tasks.model.clock import SetClock
from tests.simulation.broker import Broker
from tests.simulation.memory_log import MemoryLog

AT = TopicPartition("c", 0)
CHANGELOG = ChangelogPartition(
    at=AT, topic=Topic(name="c", partitions=1, settings={}, id="id"), bounds=Bounds(10, 20), delete_retention_ms=1_000
)
NOW = 50_000


def store_at(offset: int, age_ms: int = 0) -> ChangelogCheckpoint:
    return ChangelogCheckpoint("c", "id", 0, 1, offset, NOW - age_ms)


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
    expected = ChangelogCheckpoint("c", log.topics(["c"])["c"].id, 0, 1, end, clock.now_ms - 6 + end)
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
    position = pack_position(Position(None, {}, (), {}, service="other"))
    tunables = replace(SMALL, restore_records=1)
    log, _ = log_of((POSITION, position), (b"ua", b"1"), tunables=tunables)
    store = MemoryStore()
    restore = Restore(store, log, ChangelogPartition.load(log, AT, 1_000, "mine"), 0, in_thread=False)
    assert not restore.advance(0.0)
    with pytest.raises(Refused) as refused:
        restore.advance(0.0)
    assert refused.value.code == "changelog-foreign"
    assert list(store.range()) == []


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
