"""Compaction and retention of the embedded log, with a clock that is set."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.embedded import file, maintenance
from samovar.changelog.embedded.file import stored_topics
from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.embedded.maintenance import join_newest, whole_pass
from samovar.changelog.log import Append, Bounds, Pair, TopicPartition, TopicSpec
from samovar.common.errors import Refused
from samovar.common.tunables import DEFAULTS, Tunables
from tests.contracts.log_driving import Row, read_to_end, read_until, until, values
from tests.support.tunables import tiny

AT = TopicPartition("t", 0)


@dataclass
class Clock:
    now_ms: int = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody cuts the power here, and a commit is quicker."""
    monkeypatch.setattr(file, "SETTINGS", (*file.SETTINGS, "PRAGMA synchronous = OFF"))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path: Path, clock: Clock, request: pytest.FixtureRequest) -> Iterator[EmbeddedLog]:
    log = EmbeddedLog(tmp_path, clock, getattr(request, "param", DEFAULTS))
    yield log
    log.close()


def tuned(**tunables: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("log", [Tunables(**tunables)], indirect=True, ids=["tuned"])


def compacted(log: EmbeddedLog, **settings: str) -> None:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    log.create([TopicSpec("t", 1, {"cleanup.policy": "compact"} | named)])


def append(log: EmbeddedLog, *pairs: Pair) -> None:
    log.append([Append(topic="t", records=pairs, partition=0)])


def pairs_and_offsets(log: EmbeddedLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(row.offset, row.key, row.value) for row in read_to_end(log, "t")]


def segments(log: EmbeddedLog) -> int:
    (count,) = log._connection.execute("SELECT count(*) FROM segment").fetchone()
    return int(count)


def newest(rows: list[Row]) -> dict[bytes | None, bytes | None]:
    return {key: value for key, value in {row.key: row.value for row in rows}.items() if value is not None}


# ---------------------------------------------------------------- compaction


def test_the_newest_record_of_each_key_stays_where_it_stands(log: EmbeddedLog) -> None:
    compacted(log)
    append(log, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    append(log, (b"c", b"4"), (b"b", b"5"))
    log.compact("t")
    assert pairs_and_offsets(log) == [(2, b"a", b"3"), (3, b"c", b"4"), (4, b"b", b"5")]
    append(log, (b"c", b"6"))
    log.compact("t")
    assert pairs_and_offsets(log) == [(2, b"a", b"3"), (4, b"b", b"5"), (5, b"c", b"6")]
    assert log.bounds([AT])[AT] == Bounds(0, 6)


def test_a_reader_passes_the_gaps(log: EmbeddedLog) -> None:
    """Positions, never counts: a compacted partition is read from any offset, also from one that is gone."""
    compacted(log)
    for number in range(10):
        append(log, (b"k%d" % (number % 2), b"%d" % number))
    log.compact("t")
    for start in range(11):
        rows = read_to_end(log, "t", start)
        assert [row.offset for row in rows] == [offset for offset in (8, 9) if offset >= start]


def test_a_gap_at_the_end_is_passed(log: EmbeddedLog, clock: Clock) -> None:
    compacted(log, delete_retention_ms="1000")
    append(log, (b"a", b"1"))
    append(log, (b"a", None))
    log.compact("t")
    clock.now_ms += 1000
    log.compact("t")
    reader = log.reader({AT: 0})
    (records,) = reader.poll(10, 0)
    assert (len(records), records.next, reader.position(AT)) == (0, 2, 2)
    assert reader.poll(10, 0) == []
    reader.close()
    assert log.bounds([AT])[AT] == Bounds(0, 2)


def test_a_tombstone_stays_for_its_time_after_the_value_has_gone(log: EmbeddedLog, clock: Clock) -> None:
    """P10: anyone who has read the value has delete.retention.ms to read that it is gone."""
    compacted(log, delete_retention_ms="5000")
    append(log, (b"a", b"1"), (b"b", b"2"))
    append(log, (b"a", None))
    clock.now_ms += 50_000  # old already when the first pass meets it
    log.compact("t")
    assert pairs_and_offsets(log) == [(1, b"b", b"2"), (2, b"a", None)]
    clock.now_ms += 4_999
    log.compact("t")
    assert pairs_and_offsets(log) == [(1, b"b", b"2"), (2, b"a", None)]
    clock.now_ms += 1
    log.compact("t")
    assert pairs_and_offsets(log) == [(1, b"b", b"2")]


def test_what_is_young_is_not_touched_and_makes_nothing_old(log: EmbeddedLog, clock: Clock) -> None:
    """Within min.compaction.lag.ms the state as of any moment can be read."""
    compacted(log, min_compaction_lag_ms="1000")
    append(log, (b"a", b"1"))
    append(log, (b"a", b"2"))
    clock.now_ms += 1000
    append(log, (b"a", b"3"))
    append(log, (b"a", b"4"))
    log.compact("t")
    assert values(read_to_end(log, "t")) == [b"2", b"3", b"4"]
    clock.now_ms += 1000
    log.compact("t")
    assert values(read_to_end(log, "t")) == [b"4"]


def test_times_and_headers_survive(log: EmbeddedLog, clock: Clock) -> None:
    compacted(log)
    log.append(
        [Append(topic="t", records=[(b"a", b"1"), (b"b", b"2")], partition=0, headers=[(("x", b"1"),), (("y", b"2"),)])]
    )
    clock.now_ms += 10
    append(log, (b"a", b"3"))
    log.compact("t")
    first, second = read_to_end(log, "t")
    assert (first.time, first.headers) == (1_000_000, (("y", b"2"),))
    assert (second.time, second.headers) == (1_000_010, ())
    assert segments(log) == 1
    assert [log.offset_at(AT, 1_000_000 + more) for more in (0, 1, 10, 11)] == [1, 2, 2, 3]


@tuned(compact_bytes=1_000, dirty_bytes=2_000)
def test_whoever_writes_compacts_in_bounded_steps(log: EmbeddedLog, clock: Clock) -> None:
    compacted(log)
    chosen = random.Random(4)
    for number in range(400):
        clock.now_ms += 1000
        append(log, *((b"k%d" % chosen.randrange(30), b"%d" % number) for _ in range(10)))
    rows = read_to_end(log, "t")
    assert len(rows) < 1000
    assert len(newest(rows)) == 30
    assert rows[-1].offset == 3999
    assert segments(log) < 100


def test_two_that_compact_at_once_lose_nothing(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """P2, P10: the state is that of all records ever written, anyone who compacted when, and no deleted key comes
    back.
    """
    monkeypatch.setattr(maintenance, "EVERY_MS", 5)
    for seed in range(4):
        chosen = random.Random(seed)
        logs = [EmbeddedLog(tmp_path / str(seed), clock, tiny(chosen)) for _ in range(3)]
        compacted(logs[0], delete_retention_ms="40", min_compaction_lag_ms="10")
        state: dict[bytes | None, bytes | None] = {}
        for number in range(300):
            clock.now_ms += chosen.randrange(4)
            key = b"k%d" % chosen.randrange(25)
            state[key] = None if chosen.random() < 0.4 else b"%d" % number
            append(chosen.choice(logs), (key, state[key]))
            if chosen.random() < 0.02:
                chosen.choice(logs).compact("t")
        expected = {key: value for key, value in state.items() if value is not None}
        assert newest(read_to_end(logs[0], "t")) == expected, f"seed {seed}"
        clock.now_ms += 100
        for log in logs:
            log.compact("t")
            clock.now_ms += 100
        assert newest(read_to_end(logs[0], "t")) == expected, f"seed {seed}"
        for log in logs:
            log.close()


def test_a_pass_meets_what_another_has_joined_across_its_limit(log: EmbeddedLog, clock: Clock) -> None:
    """What is too young stays too young next to old records; what was not cleaned is cleaned by the next pass."""
    compacted(log, min_compaction_lag_ms="16000")
    for number in range(3):
        append(log, (b"k%d" % number, bytes(DEFAULTS.join_bytes)))
    for number in range(20):
        append(log, (b"old", b"%d" % number))
    clock.now_ms += 1000
    for number in range(20):
        append(log, (b"k%d" % number, b"young"))
    clock.now_ms += 15_000
    stored = stored_topics(log._connection, ["t"])["t"]
    running = whole_pass(log._connection, log.folder / "log.db", stored, 0, clock())
    join_newest(log._connection, log.folder / "log.db", stored, 0)
    assert segments(log) == 4
    until(lambda: running.step(log._connection, clock()))
    assert [row.key for row in read_to_end(log, "t")[:3]] == [b"k0", b"k1", b"k2"]
    clock.now_ms += 1000
    log.compact("t")
    assert [row.offset for row in read_to_end(log, "t")] == [22, *range(23, 43)]


def test_a_joined_tombstone_has_its_own_time(log: EmbeddedLog, clock: Clock) -> None:
    """P10: it is not removed at the time of the older ones that it was joined with."""
    compacted(log, delete_retention_ms="5000")
    append(log, (b"first", None))
    log.compact("t")
    append(log, (b"second", b"value"))
    for number in range(40):
        append(log, (b"second", None) if number == 3 else (b"k%d" % number, b"v"))
    assert segments(log) < 32
    clock.now_ms += 5000
    log.compact("t")
    assert [row.key for row in read_to_end(log, "t") if row.value is None][-1] == b"second"
    clock.now_ms += 5000
    log.compact("t")
    assert None not in values(read_to_end(log, "t"))


@tuned(compact_bytes=1, compact_keys=10)
def test_more_keys_than_one_pass_holds(log: EmbeddedLog) -> None:
    compacted(log)
    for turn in range(3):
        for number in range(0, 60, 4):
            append(log, *((b"k%d" % (number + more), b"%d" % turn) for more in range(4)))
    log.compact("t")
    rows = read_to_end(log, "t")
    assert len(rows) == 60
    assert set(values(rows)) == {b"2"}


def test_a_compacted_topic_takes_no_record_without_a_key(log: EmbeddedLog) -> None:
    compacted(log)
    with pytest.raises(Refused) as refused:
        append(log, (b"a", b"1"), (None, b"2"))
    assert refused.value.code == "record-without-key"
    assert log.bounds([AT])[AT] == Bounds(0, 0)


# ---------------------------------------------------------------- small segments


def test_many_small_segments_become_few(log: EmbeddedLog, clock: Clock) -> None:
    log.create([TopicSpec("t", 1)])
    for number in range(500):
        clock.now_ms += 1
        append(log, (b"k", b"%d" % number))
    assert segments(log) < 40
    rows = read_to_end(log, "t")
    assert values(rows) == [b"%d" % number for number in range(500)]
    assert [row.time for row in rows] == list(range(1_000_001, 1_000_501))
    assert [row.offset for row in rows] == list(range(500))


# ---------------------------------------------------------------- retention


@pytest.mark.parametrize("joined", [1, 32])
def test_a_topic_with_few_records_does_not_keep_them_for_long_after_their_time(
    tmp_path: Path, clock: Clock, joined: int
) -> None:
    """Small segments are joined again and again, and a segment is as old as its newest record."""
    log = EmbeddedLog(tmp_path, clock, Tunables(join_segments=joined, retain_segments=2))
    log.create([TopicSpec("t", 1, {"retention.ms": "160000"})])
    for number in range(500):
        clock.now_ms += 1_000
        append(log, (b"k", b"%d" % number))
    log.compact("t")
    begin, end = log.bounds([AT])[AT]
    assert end == 500
    assert 160 <= end - begin <= 171, "retention, and a segment that was joined"
    assert values(read_to_end(log, "t", begin)) == [b"%d" % number for number in range(begin, end)]
    log.close()


def test_what_comes_slowly_is_compacted_after_its_lag(log: EmbeddedLog, clock: Clock) -> None:
    """P10: a record that was joined with younger ones does not wait for the youngest of all that ever comes."""
    compacted(log, min_compaction_lag_ms="160000")
    for number in range(500):
        clock.now_ms += 1_000
        append(log, (b"k", b"%d" % number))
    log.compact("t")
    assert len(read_to_end(log, "t")) <= 172


def test_retention_by_time_moves_the_beginning(log: EmbeddedLog, clock: Clock) -> None:
    log.create([TopicSpec("t", 1, {"retention.ms": "1000"})])
    append(log, (b"a", b"1"), (b"a", b"2"))
    clock.now_ms += 600
    append(log, (b"a", b"3"))
    clock.now_ms += 600
    log.compact("t")
    assert log.bounds([AT])[AT] == Bounds(2, 3)
    reader = log.reader({AT: 2})
    assert values(read_until(reader, lambda found: len(found) == 1)) == [b"3"]
    reader.close()
    clock.now_ms += 600
    log.compact("t")
    assert log.bounds([AT])[AT] == Bounds(3, 3)
    assert log.offset_at(AT, 0) == 3
    append(log, (b"a", b"4"))
    assert log.bounds([AT])[AT] == Bounds(3, 4)


def test_retention_by_size_is_done_by_whoever_writes(log: EmbeddedLog, clock: Clock) -> None:
    log.create([TopicSpec("t", 1, {"retention.bytes": "300000"})])
    for number in range(20):
        clock.now_ms += maintenance.EVERY_MS
        append(log, (b"a", bytes([number]) * 100_000))
    begin, end = log.bounds([AT])[AT]
    assert (begin, end) == (17, 20)


def test_everything_is_kept_where_nothing_is_said(log: EmbeddedLog, clock: Clock) -> None:
    log.create([TopicSpec("t", 1)])
    append(log, (b"a", b"1"))
    clock.now_ms += 10**12
    log.compact("t")
    assert log.bounds([AT])[AT] == Bounds(0, 1)


@pytest.mark.parametrize(("position", "code"), [(0, "offset-gone"), (9, "offset-beyond-end")])
def test_a_position_that_the_log_does_not_have_is_refused(
    log: EmbeddedLog, clock: Clock, position: int, code: str
) -> None:
    """P4, P8: never a guess, and nothing is passed over in silence."""
    log.create([TopicSpec("t", 1, {"retention.ms": "1000"})])
    append(log, (b"a", b"1"))
    clock.now_ms += 2000
    append(log, (b"a", b"2"))
    log.compact("t")
    reader = log.reader({AT: position})
    with pytest.raises(Refused) as refused:
        reader.poll(10, 0)
    assert refused.value.code == code
    reader.close()
