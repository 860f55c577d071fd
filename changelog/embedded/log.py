"""The embedded log: a Log in one SQLite file, with no server. The file: samovar.changelog.embedded.file.

Settings that it acts on: cleanup.policy, retention.ms, retention.bytes (without them everything is kept),
min.compaction.lag.ms, delete.retention.ms, min.cleanable.dirty.ratio, max.message.bytes. Others are kept and told.
"""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from samovar.changelog.embedded.file import (
    Clock,
    connect,
    existing_partition,
    existing_topics,
    failing,
    prepare,
    reading,
    stored_topics,
    writing,
)
from samovar.changelog.embedded.group import EmbeddedMember
from samovar.changelog.embedded.locks import folder_of, live_slots
from samovar.changelog.embedded.maintenance import LogMaintenance, policies
from samovar.changelog.embedded.read import ReadCursor, ReadPlace, unpacked
from samovar.changelog.embedded.segment import SegmentInfo
from samovar.changelog.embedded.write import packed_appends, write
from samovar.changelog.log import (
    Append,
    Bounds,
    GroupConfig,
    Member,
    Reader,
    Topic,
    TopicPartition,
    TopicSpec,
)
from samovar.common.errors import Refused
from samovar.common.tunables import DEFAULTS, Tunables


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class EmbeddedLog:
    """A log in a folder, as samovar.changelog.log.Log says. Threads may share it; readers and members they may not."""

    def __init__(self, folder: Path, clock: Clock = wall_clock_ms, tunables: Tunables = DEFAULTS) -> None:
        self.folder = folder
        self.tunables = tunables
        self._path = folder / "log.db"
        self._clock = clock
        self._one_at_a_time = Lock()
        prepare(folder)
        with failing(self._path):
            self._connection = connect(self._path)
        self._maintenance = LogMaintenance(self._connection, self._path, clock, tunables)

    def close(self) -> None:
        with self._one_at_a_time:
            self._connection.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._one_at_a_time, reading(self._connection, self._path):
            yield self._connection

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._one_at_a_time, writing(self._connection, self._path):
            yield self._connection

    # ---------------------------------------------------------------- topics

    def topics(self, names: Collection[str]) -> Mapping[str, Topic]:
        with self._reading() as connection:
            return {name: stored.topic for name, stored in stored_topics(connection, names).items()}

    def create(self, specs: Sequence[TopicSpec]) -> None:
        with self._writing() as connection:
            exist = stored_topics(connection, [spec.name for spec in specs])
            for spec in {spec.name: spec for spec in specs if spec.name not in exist}.values():
                if spec.partitions < 1:
                    what = f"topic {spec.name} is to have no partitions"
                    raise Refused("topic-without-partitions", what, "Give it at least one.")
                settings = json.dumps(dict(spec.settings), sort_keys=True)
                made = connection.execute(
                    "INSERT INTO topic (name, id, partitions, replication, settings) VALUES (?, ?, ?, ?, ?)",
                    (spec.name, uuid.uuid4().hex, spec.partitions, spec.replication, settings),
                )
                connection.executemany(
                    "INSERT INTO partition (topic, partition, begin, end, cleaned) VALUES (?, ?, 0, 0, 0)",
                    [(made.lastrowid, partition) for partition in range(spec.partitions)],
                )

    def grow(self, name: str, partitions: int) -> None:
        """Give a topic more partitions; its records stay where they are."""
        with self._writing() as connection:
            stored = existing_topics(connection, [name])[name]
            connection.execute("UPDATE topic SET partitions = ? WHERE number = ?", (partitions, stored.number))
            connection.executemany(
                "INSERT INTO partition (topic, partition, begin, end, cleaned) VALUES (?, ?, 0, 0, 0)",
                [(stored.number, partition) for partition in range(stored.topic.partitions, partitions)],
            )

    def delete(self, names: Collection[str]) -> None:
        with self._writing() as connection:
            for stored in stored_topics(connection, names).values():
                connection.execute("DELETE FROM topic WHERE number = ?", (stored.number,))
                for table in ("partition", "segment", "place"):
                    connection.execute(f"DELETE FROM {table} WHERE topic = ?", (stored.number,))  # noqa: S608 - our own names

    def bounds(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        with self._reading() as connection:
            numbers = _numbers(connection, partitions)
            found = {}
            for at in partitions:
                where = numbers[at], at.partition
                row = connection.execute("SELECT begin, end FROM partition WHERE topic = ? AND partition = ?", where)
                found[at] = Bounds(*row.fetchone())
            return found

    def offset_at(self, at: TopicPartition, time_ms: int) -> int:
        with self._reading() as connection:
            where = _numbers(connection, [at])[at], at.partition
            row = connection.execute(
                "SELECT first, next, time, data FROM segment "
                "WHERE topic = ? AND partition = ? AND time >= ? ORDER BY first LIMIT 1",
                (*where, time_ms),
            ).fetchone()
            if row is None:
                found = connection.execute("SELECT end FROM partition WHERE topic = ? AND partition = ?", where)
                return int(found.fetchone()[0])
            *standing, data = row
            records = unpacked(self._path, SegmentInfo(*at, *standing), data)
            return int(records.offsets[(records.times >= time_ms).argmax()])

    def compact(self, topic: str) -> None:
        """Do now what the topic's cleanup.policy says; anyone who writes does it in small pieces otherwise."""
        with self._one_at_a_time:
            with failing(self._path):
                stored = existing_topics(self._connection, [topic])[topic]
            for partition in range(stored.topic.partitions):
                if "delete" in policies(stored):
                    self._maintenance.retain(stored, partition)
                if "compact" in policies(stored):
                    self._maintenance.compact(stored, partition)

    # ---------------------------------------------------------------- groups

    def committed(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int | None]:
        with self._reading() as connection:
            numbers = _numbers(connection, partitions)
            found = {}
            for at in partitions:
                row = connection.execute(
                    "SELECT offset FROM place WHERE grp = ? AND topic = ? AND partition = ?",
                    (group, numbers[at], at.partition),
                ).fetchone()
                found[at] = None if row is None else int(row[0])
            return found

    def members(self, group: str) -> Sequence[str]:
        return [f"slot-{slot}" for slot in live_slots(folder_of(self.folder, group))]

    def join(self, joining: GroupConfig) -> Member:
        return EmbeddedMember(self.folder, joining, self._clock, self.tunables)

    # ---------------------------------------------------------------- records

    def reader(self, positions: Mapping[TopicPartition, int]) -> Reader:
        return self.point_reader(positions)

    def point_reader(self, positions: Mapping[TopicPartition, int], records: int = 0) -> Reader:  # noqa: ARG002 - all are quick
        with self._reading() as connection:
            numbers = _numbers(connection, positions)
        cursor = ReadCursor(self._path, self.tunables.fetch_bytes)
        cursor.places = {at: ReadPlace(number=numbers[at], position=position) for at, position in positions.items()}
        return cursor

    def tail(self, positions: Mapping[TopicPartition, int]) -> Reader:
        return self.point_reader(positions)

    def append(self, appends: Sequence[Append]) -> int:
        with self._one_at_a_time:
            with failing(self._path):
                segments = packed_appends(self._connection, appends, self.tunables.segment_bytes)
            if segments:
                with writing(self._connection, self._path):
                    write(self._connection, segments, self._clock())
                self._maintenance.after((segment.stored, segment.partition) for segment in segments)
        return sum(segment.count for segment in segments)


def _numbers(connection: sqlite3.Connection, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    topics = existing_topics(connection, [at.topic for at in partitions])
    return {at: existing_partition(topics, at.topic, at.partition) for at in partitions}
