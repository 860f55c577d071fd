"""Writing to the embedded log: records are packed before the file is locked, and stand where the file ends."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from samovar.changelog.embedded.file import StoredTopic, existing_partition, existing_topics, missing
from samovar.changelog.embedded.segment import SegmentColumns, columns, pack
from samovar.changelog.log import Append, TopicPartition
from samovar.changelog.partitioner import partitions_of, partitions_of_sized
from samovar.common.errors import Refused

MAX_RECORD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSegment:
    """A segment that waits for its place."""

    stored: StoredTopic
    partition: int
    named: bool
    count: int
    data: bytes

    @property
    def at(self) -> TopicPartition:
        return TopicPartition(self.stored.topic.name, self.partition)


def packed_appends(
    connection: sqlite3.Connection, appends: Sequence[Append], segment_bytes: int
) -> list[PendingSegment]:
    """The segments of all appends, in order."""
    topics = existing_topics(connection, [append.topic for append in appends])
    pending: list[PendingSegment] = []
    for append in appends:
        if not append.records:
            continue
        stored, is_named = topics[append.topic], append.partition is not None
        if append.headers and len(append.headers) != len(append.records):
            raise ValueError(f"{len(append.headers)} headers for {len(append.records)} records of topic {append.topic}")
        records = columns(append.records, append.headers)
        settings = stored.topic.settings
        if "compact" in settings.get("cleanup.policy", "") and records.key_sizes.min() < 0:
            raise Refused(
                "record-without-key",
                f"a record for topic {append.topic} has no key",
                "The topic is compacted: it keeps the newest record of each key, so every record needs one.",
            )
        limit, largest = int(settings.get("max.message.bytes", MAX_RECORD_BYTES)), int(records.sizes().max())
        if largest > limit:
            raise Refused(
                "record-too-large",
                f"a record for topic {append.topic} has {largest} bytes; the topic takes {limit}",
                "Write smaller records, or make the topic with a larger max.message.bytes.",
            )
        for partition, here in _assign_partitions(topics, append, records):
            for count, data in pack(here, segment_bytes):
                pending.append(
                    PendingSegment(stored=stored, partition=partition, named=is_named, count=count, data=data)
                )
    return pending


def _assign_partitions(
    topics: Mapping[str, StoredTopic], append: Append, records: SegmentColumns
) -> Iterator[tuple[int, SegmentColumns]]:
    """The records of each partition, in their order."""
    if append.partition is not None:
        existing_partition(topics, append.topic, append.partition)
        yield append.partition, records
        return
    partitions = append.among or topics[append.topic].topic.partitions
    if records.key_sizes.min() < 0:
        places = partitions_of([key for key, _ in append.records], partitions)
    else:
        places = partitions_of_sized(records.keys, records.key_sizes.astype(np.int64), partitions)
    for partition in range(partitions):
        rows = np.flatnonzero(places == partition)
        if len(rows):
            yield partition, records.rows(rows)


def write(
    connection: sqlite3.Connection, segments: Sequence[PendingSegment], time_ms: int
) -> dict[TopicPartition, int]:
    """Put segments at the ends of their partitions, inside a transaction. Returns the new ends of all of them."""
    ends: dict[TopicPartition, int] = {}
    for segment in segments:
        number, partition, at = segment.stored.number, segment.partition, segment.at
        if at not in ends:
            row = connection.execute(
                "SELECT end FROM partition WHERE topic = ? AND partition = ?", (number, partition)
            ).fetchone()
            if row is None:  # deleted between packing and now
                raise missing(at.topic)
            ends[at] = int(row[0])
        first = ends[at]
        ends[at] = first + segment.count
        connection.execute(
            "INSERT INTO segment (topic, partition, first, next, time, size, data) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (number, partition, first, ends[at], time_ms, len(segment.data), segment.data),
        )
    for segment in {segment.at: segment for segment in segments}.values():
        connection.execute(
            "UPDATE partition SET end = ? WHERE topic = ? AND partition = ?",
            (ends[segment.at], segment.stored.number, segment.partition),
        )
    return ends
