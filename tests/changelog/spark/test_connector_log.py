"""Records that Spark brings, read as a log: in order, by turns, beyond their end, from files where they are many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from samovar.changelog.cursors import PartitionCursor
from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.log import Append, Log, Pair, TopicPartition, TopicSpec
from samovar.changelog.spark.connector_log import Range, SparkFeed, fed_log
from samovar.common.tunables import Tunables

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
SCHEMA = pa.schema(
    [
        ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")), ("key", pa.binary()), ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)  # fmt: skip


def batch(*rows: tuple[TopicPartition, int]) -> pa.RecordBatch:
    """Records with gaps: offsets as given, and values that name them."""
    made = [
        {
            "topic": at.topic, "partition": at.partition, "offset": offset, "timestamp": offset * 1000,
            "key": None if offset % 5 == 0 else b"k%d" % offset, "value": None if offset % 3 == 0 else b"v%d" % offset,
            "headers": [{"key": "h", "value": b"%d" % offset}] if offset % 2 else None,
        }
        for at, offset in rows
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(made, schema=SCHEMA)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    """The same two topics, with the same records and more."""
    found = EmbeddedLog(tmp_path / "log")
    found.create([TopicSpec("a", 1), TopicSpec("b", 1)])
    pairs: list[Pair] = [(b"k%d" % offset, b"own%d" % offset) for offset in range(30)]
    found.append([Append(topic="a", records=pairs, partition=0), Append(topic="b", records=pairs, partition=0)])
    yield found
    found.close()


def taken(cursor: PartitionCursor, until: int) -> list[tuple[int, bytes | None]]:
    found = []
    while (records := cursor.next_records(until)) is not None:
        found += [(int(offset), records.value(row)) for row, offset in enumerate(records.offsets)]
    return found


def test_a_range_is_read_as_it_came_and_the_log_after_it(log: Log) -> None:
    feed = SparkFeed([Range(A, 2, 20)], iter([batch((A, 2), (A, 4)), batch((A, 7))]))
    cursor = PartitionCursor(fed_log(log, feed), A, 2)
    assert taken(cursor, 20) == [(2, b"v2"), (4, b"v4"), (7, b"v7")]
    assert cursor.next == 20  # gaps at the end are passed
    assert taken(cursor, 22) == [(20, b"own20"), (21, b"own21")]
    assert feed.given == 3


def test_columns_are_those_of_a_log() -> None:
    records = SparkFeed([Range(A, 0, 9)], iter([batch((A, 1), (A, 3), (A, 5), (A, 8))])).take(A)
    assert records is not None
    assert records.pairs() == [(b"k1", b"v1"), (b"k3", None), (None, b"v5"), (b"k8", b"v8")]
    assert records.times.tolist() == [1, 3, 5, 8]
    assert [records.headers(row) for row in range(4)] == [(("h", b"1"),), (("h", b"3"),), (("h", b"5"),), ()]
    assert records.next == 9


def test_other_places_are_the_logs_own_business(log: Log) -> None:
    feed = SparkFeed([Range(A, 2, 20)], iter([batch((A, 2))]))
    read = fed_log(log, feed)
    assert taken(PartitionCursor(read, A, 5), 7) == [(5, b"own5"), (6, b"own6")]
    assert taken(PartitionCursor(read, A, 2), 20) == [(2, b"v2")]
    assert taken(PartitionCursor(read, A, 2), 4) == [(2, b"own2"), (3, b"own3")]  # once more
    assert read.bounds([A]) == log.bounds([A])


@pytest.mark.parametrize("in_memory", [1 << 20, 1])
def test_ranges_are_read_by_turns(log: EmbeddedLog, in_memory: int) -> None:
    """The one that comes first waits for its turn, in files where it is large."""
    log.tunables = Tunables(feed_bytes=in_memory)
    feed = SparkFeed(
        [Range(A, 1, 10), Range(B, 1, 10)], iter([batch((A, 1), (A, 2)), batch((A, 4), (B, 1)), batch((B, 8))])
    )
    read = fed_log(log, feed)
    first, second = PartitionCursor(read, A, 1), PartitionCursor(read, B, 1)
    assert taken(second, 2) == [(1, b"v1")]
    assert taken(first, 2) == [(1, b"v1")]
    assert taken(second, 10) == [(8, b"v8")]
    assert taken(first, 10) == [(2, b"v2"), (4, b"v4")]
    feed.close()


def test_a_range_in_two_stretches_is_an_error(log: Log) -> None:
    """Its order would not be known."""
    feed = SparkFeed([Range(A, 1, 10), Range(B, 1, 10)], iter([batch((A, 1), (B, 1), (A, 2))]))
    with pytest.raises(AssertionError, match="a/0 came in two stretches"):
        taken(PartitionCursor(fed_log(log, feed), B, 1), 10)


def test_a_range_without_records_is_passed(log: Log) -> None:
    cursor = PartitionCursor(fed_log(log, SparkFeed([Range(A, 3, 9)], iter(()))), A, 3)
    assert taken(cursor, 9) == []
    assert cursor.next == 9


def test_a_range_that_came_while_another_was_read_to_its_end_comes_next(log: Log) -> None:
    """A range that ends with a marker is read on into the next one's records."""
    feed = SparkFeed([Range(A, 2, 6), Range(B, 3, 9)], iter([batch((A, 2), (A, 4), (B, 3), (B, 4))]))
    found = {}
    while (at := feed.coming()) is not None:
        found[at] = taken(PartitionCursor(fed_log(log, feed), at, feed.ranges[at].start), feed.ranges[at].end)
    assert {at: [offset for offset, _ in rows] for at, rows in found.items()} == {A: [2, 4], B: [3, 4]}
