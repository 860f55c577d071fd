"""An archive: what is copied, that names prove it whole, and that archive and log read as one are the log."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.changelog.archive.archive import Archive, Chain, Gap
from samovar.changelog.archive.archived_log import archived_log, history_log, log_begins
from samovar.changelog.archive.copy import Copier, CopySource
from samovar.changelog.archive.file import file_name
from samovar.changelog.archive.folder import LocalFolder
from samovar.changelog.cursors import PartitionCursor, available_reader
from samovar.changelog.log import Append, Log, Topic, TopicPartition, TopicSpec
from samovar.changelog.spark.connector_log import Range, SparkFeed, fed_log
from samovar.changelog.spark.records import COLUMNS
from samovar.common.errors import Refused
from samovar.common.tunables import Tunables
from samovar.tasks.model.clock import SetClock
from tests.contracts.log_driving import Row, rows_of
from tests.simulation.broker import Broker, Outcome
from tests.simulation.memory_log import MemoryLog
from tests.support.tunables import tiny

AT = TopicPartition("t", 0)


class World:
    """A partition, its archive, and what a reader of all of it must find."""

    def __init__(self, folder: Path, seed: int, **settings: str) -> None:
        self.random = Random(seed)
        self.broker = Broker(SetClock(1_000_000))
        self.log = MemoryLog(self.broker, tiny(self.random))
        self.log.create([TopicSpec("t", 1, settings or {"cleanup.policy": "delete"})])
        self.archive = Archive(LocalFolder(folder), "s")
        self.copier = Copier(self.log, self.archive, self.broker.clock.wall_ms)
        self.written = 0

    @property
    def topic(self) -> Topic:
        return self.log.topics(["t"])["t"]

    def append(self, count: int, keys: int = 1000) -> list[tuple[bytes | None, bytes | None]]:
        draw, pairs = self.random.random, list[tuple[bytes | None, bytes | None]]()
        for _ in range(count):
            self.written += 1
            key = b"k%d" % self.random.randrange(keys) if keys < 1000 or draw() < 0.9 else None
            pairs.append((key, b"v%d" % self.written if draw() < 0.9 else None))
        return pairs

    def write(self, count: int, outcome: Outcome | None, keys: int = 1000) -> None:
        """Records outside a transaction, or in one that ends so; one that stays open belongs to another producer."""
        pairs = self.append(count, keys)
        heads = [(("h", b"%d" % row),) if self.random.random() < 0.3 else () for row in range(count)]
        append = Append(topic="t", records=pairs, partition=0, headers=heads)
        if outcome is None:
            self.log.append([append])
            return
        producer = self.broker.start_producer(f"p{self.random.randrange(3)}")
        self.broker.write(append, self.broker.begin(producer, producer.epoch))
        if outcome is not Outcome.OPEN:
            self.broker.end(producer, producer.epoch, outcome)

    def copy(self, most: int = 1000) -> int:
        copied = 0
        while copied < most and self.copier.copy_file(CopySource(topic=self.topic, partition=0)) is not None:
            copied += 1
        return copied

    def truncate(self, begin: int) -> None:
        self.broker.truncate(self.broker.log(AT), begin)

    def committed(self) -> list[Row]:
        return [Row(AT, each.offset, each.key, each.value, each.time_ms, each.headers) for each in self.committed_now()]

    def committed_now(self) -> list:  # type: ignore[type-arg]
        return self.broker.committed_records("t")


def read(log: Log, start: int = 0, end: int | None = None) -> list[Row]:
    end = log.bounds([AT])[AT].end if end is None else end
    return [row for each in PartitionCursor(log, AT, start).read_to(end) for row in rows_of(each)]


@given(seed=st.integers(0, 1 << 32))
def test_archive_and_log_are_the_log_whatever_retention_took_and_wherever_files_end(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), seed)
        random = world.random
        reached = 0
        for _ in range(random.randint(1, 12)):
            act = random.randrange(4)
            if act <= 1:
                outcome = random.choice([None, Outcome.COMMITTED, Outcome.COMMITTED, Outcome.ABORTED])
                world.write(random.randint(1, 12), outcome)
            elif act == 2:
                world.copy(random.randint(1, 3))
            chain = world.archive.chain(world.topic, 0)
            reached = chain.end
        expected = world.committed()
        world.truncate(random.randint(0, reached))
        begin, end = world.log.bounds([AT])[AT]
        for prefers in (False, True):
            log = archived_log(world.log, world.archive, prefers_archive=prefers)
            assert log.bounds([AT])[AT] == (0 if begin else begin, end)
            start = random.randint(0, end)
            until = random.randint(start, end)
            assert read(log) == expected
            assert read(log, start, until) == [row for row in expected if start <= row.offset < until]
            moment = random.choice([each.time for each in expected] or [0])
            place = log.offset_at(AT, moment)
            assert all(row.time < moment for row in expected if row.offset < place)
        assert world.archive.chain(world.topic, 0).gaps() == []


@given(seed=st.integers(0, 1 << 32))
def test_a_range_of_sparks_connector_goes_on_where_the_files_end(seed: int) -> None:
    """Of a range whose beginning retention took the connector reads what no file has, and that is read once."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), seed)
        for _ in range(world.random.randint(1, 5)):
            world.write(world.random.randint(1, 12), world.random.choice([None, Outcome.COMMITTED, Outcome.ABORTED]))
            world.copy(world.random.randint(0, 2))
        chain, end = world.archive.chain(world.topic, 0), world.log.bounds([AT])[AT].end
        everything = world.committed()
        world.truncate(world.random.randint(0, chain.end))
        begin = world.log.bounds([AT])[AT].begin
        start = world.random.randint(0, end)
        first = log_begins(archived_log(world.log, world.archive), AT, start, end)
        assert first == (start if start >= begin else chain.end)
        rows = [row for row in everything if row.offset >= start]
        brought = [
            {"partition": 0, "offset": row.offset, "timestamp": row.time * 1000, "key": row.key, "value": row.value}
            for row in rows
            if row.offset >= first
        ]
        kinds = zip(COLUMNS, (pa.int32(), pa.int64(), pa.timestamp("us", "UTC"), pa.binary(), pa.binary()), strict=True)
        batches = iter([pa.RecordBatch.from_pylist(brought, pa.schema(list(kinds)))])
        feed = SparkFeed([Range(AT, first, end, is_rest=first > start)], batches)
        found = read(archived_log(fed_log(world.log, feed), world.archive), start, end)
        assert [row[:4] for row in found] == [row[:4] for row in rows]
        assert feed.given == len(brought)


def test_a_file_ends_at_the_last_stable_offset_and_the_next_begins_there(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    world.write(3, Outcome.COMMITTED)  # 0 to 2, marker 3
    stuck = world.broker.start_producer("zombie")
    append = Append(topic="t", records=[(b"k", b"open")], partition=0)
    world.broker.write(append, world.broker.begin(stuck, stuck.epoch))  # 4
    world.write(2, None)  # 5, 6
    world.copy()
    assert world.archive.chain(world.topic, 0).end == 4
    world.broker.end(stuck, stuck.epoch, Outcome.ABORTED)  # marker 7
    world.copy()
    chain = world.archive.chain(world.topic, 0)
    assert (chain.spans[0].first, chain.end, chain.gaps()) == (0, 8, [])
    world.truncate(8)
    assert [row.offset for row in read(archived_log(world.log, world.archive))] == [0, 1, 2, 5, 6]


def test_a_deleted_file_is_noticed_before_anything_is_read_and_copied_again_while_the_log_has_it(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, 2)
    for _ in range(6):
        world.write(5, None)
        world.copy()
    expected, chain = world.committed(), world.archive.chain(world.topic, 0)
    lost = chain.spans[len(chain.spans) // 2]
    path = tmp_path / world.archive.place(world.topic, 0) / lost.name
    path.unlink()
    assert world.archive.chain(world.topic, 0).gaps() == [Gap(lost.first, lost.next)]
    assert world.copy() > 0
    assert world.archive.chain(world.topic, 0).gaps() == []
    world.truncate(30)
    assert read(archived_log(world.log, world.archive)) == expected
    lost = world.archive.chain(world.topic, 0).spans[1]
    (tmp_path / world.archive.place(world.topic, 0) / lost.name).unlink()
    log = archived_log(world.log, world.archive)
    with pytest.raises(Refused, match=f"offsets {lost.first:,} to {lost.next - 1:,}") as refused:
        read(log)
    assert refused.value.code == "archive-gap"
    assert log.bounds([AT])[AT].begin == lost.next
    with pytest.raises(Refused, match="archive-gap"):
        read(log, lost.first + 1)
    # A question goes on with what is there.
    reader = available_reader(log, {AT: 0})
    found = [row for _ in range(60) for each in reader.poll(100, 0) for row in rows_of(each)]
    assert found == [row for row in expected if row.offset >= lost.next]


def test_another_topic_of_the_same_name_is_another_topic(tmp_path: Path) -> None:
    world = World(tmp_path, 3)
    world.write(10, None)
    world.copy()
    world.log.delete(["t"])
    world.log.create([TopicSpec("t", 1, {"cleanup.policy": "delete"})])
    world.write(20, None)
    world.truncate(10)
    log = archived_log(world.log, world.archive)
    assert log.bounds([AT])[AT].begin == 10
    with pytest.raises(Refused):
        read(log)
    assert [row.offset for row in read(log, 10)] == list(range(10, 20))


def test_an_id_is_one_folder_whatever_is_in_it(tmp_path: Path) -> None:
    """Kafka's are base64, and one in three has a `/` in it."""
    world = World(tmp_path, 1)
    topic = replace(world.topic, id="G/kUI3+KRtmuQvi/i2ks7Q")
    assert world.archive.place(topic, 0) == "s/t/G_kUI3-KRtmuQvi_i2ks7Q/partition=0"


def test_two_that_copy_at_once_do_no_harm(tmp_path: Path) -> None:
    """One reads while the other publishes, and publishes what it read then."""
    world = World(tmp_path, 4)
    world.write(8, None)
    world.log.tunables = Tunables(archive_records=5)
    log = MemoryLog(world.broker, Tunables(archive_records=3))  # whose files end elsewhere
    other = Copier(log, world.archive, world.broker.clock.wall_ms)
    original = world.archive.folder.publish

    def publish(file: Path, name: str) -> None:
        if other is not None:
            world.archive.folder.publish = original  # type: ignore[method-assign]
            world.write(5, None)
            while other.copy_file(CopySource(topic=world.topic, partition=0)) is not None:
                pass
        original(file, name)

    world.archive.folder.publish = publish  # type: ignore[method-assign]
    world.copy()
    expected = world.committed()
    world.truncate(13)
    assert read(archived_log(world.log, world.archive)) == expected
    assert world.archive.chain(world.topic, 0).gaps() == []


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, 5)
    world.log.tunables = Tunables()
    world.write(500, None)
    world.copy()
    expected = world.committed()
    world.truncate(500)
    (file,) = (tmp_path / world.archive.place(world.topic, 0)).iterdir()
    data, codes = file.read_bytes(), []
    for place in range(len(data)):
        file.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        try:
            assert read(archived_log(world.log, world.archive)) == expected  # a byte that says nothing to a reader
        except Refused as refused:
            codes.append(refused.code)
    assert {*codes} == {"archive-damaged"}
    assert len(codes) > 20
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(Refused, match="archive-damaged"):
        read(archived_log(world.log, world.archive))


def test_a_file_under_another_name_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, 6)
    world.write(10, None)
    world.log.tunables = Tunables()
    world.copy()
    world.truncate(10)
    (file,) = (tmp_path / world.archive.place(world.topic, 0)).iterdir()
    file.rename(file.with_name(file_name(0, 11)))
    with pytest.raises(Refused, match="it says that it is t/0, 0 to 10") as refused:
        read(archived_log(world.log, world.archive))
    assert refused.value.code == "archive-damaged"


@given(names=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8)), max_size=8), start=st.integers(0, 30))
def test_a_chain_has_every_offset_that_a_file_has_once(names: list[tuple[int, int]], start: int) -> None:
    chain = Chain.of([file_name(first, first + size) for first, size in names])
    held = {offset for first, size in names for offset in range(first, first + size)}
    spans = [offset for span in chain.spans for offset in range(span.first, span.next)]
    assert sorted(held) == spans
    gap = chain.missing(start, 30)
    first = next((offset for offset in range(start, 30) if offset not in held), None)
    assert (None if gap is None else gap.first) == first
    begin = chain.begin_of(start)
    assert begin == start or all(offset in held for offset in range(begin, start))
    assert begin - 1 not in held or (begin == start and start - 1 not in held)


@given(seed=st.integers(0, 1 << 32))
def test_of_a_compacted_topic_the_archive_has_what_it_saw_and_says_where_it_is_exact(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = {"min.compaction.lag.ms": "1000", "delete.retention.ms": "2000", "cleanup.policy": "compact"}
        world = World(Path(folder), seed, **settings)
        random, all_rows = world.random, dict[int, Row]()
        for _ in range(random.randint(1, 25)):
            act = random.randrange(5)
            if act <= 1:
                world.write(random.randint(1, 10), None, keys=4)
                all_rows |= {row.offset: row for row in world.committed()}
            elif act == 2:
                world.copy(random.randint(1, 3))
            elif act == 3:
                world.broker.clock.pass_ms(random.choice([10, 400, 1500, 4000]))
            else:
                world.broker.compact(random)
        world.copy()
        end = world.log.bounds([AT])[AT].end
        assert world.archive.chain(world.topic, 0).end == end
        found = read(history_log(world.log, world.archive))
        for offset in range(end + 1):
            if world.archive.is_exact(world.topic, 0, offset):
                assert image(found, offset) == image(list(all_rows.values()), offset), offset


def image(rows: list[Row], before: int) -> dict[bytes | None, bytes]:
    held = {row.key: row.value for row in rows if row.offset < before}
    return {key: value for key, value in held.items() if value is not None}


def test_an_archive_that_keeps_up_is_exact_everywhere_and_one_that_was_away_says_so(tmp_path: Path) -> None:
    settings = {"min.compaction.lag.ms": "1000", "delete.retention.ms": "4000", "cleanup.policy": "compact"}
    world = World(tmp_path, 7, **settings)

    def rounds(pause_ms: int) -> None:
        for _ in range(5):
            world.write(4, None, keys=2)
            world.broker.clock.pass_ms(pause_ms)
            world.copy()
            world.broker.compact(world.random)

    def exact() -> list[bool]:
        return [world.archive.is_exact(world.topic, 0, offset) for offset in range(world.log.bounds([AT])[AT].end + 1)]

    rounds(300)
    assert all(exact())
    assert len(world.committed()) < 20, "nothing was compacted: the test tries nothing"
    rounds(1500)  # longer than the lag, shorter than half of what tombstones have
    found = exact()
    assert not all(found)
    assert found[-1]
    rounds(5000)
    assert not exact()[-1]
