"""Readers for a few records. Making a client, and learning where partitions are, takes far longer than such a read: so
clients are kept for the next one, for a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from samovar.changelog.kafka.read import PositionReader
from samovar.changelog.kafka.settings import GLANCING, Settings
from samovar.changelog.log import PointReader, Records, TopicPartition

KEPT_MOST = 12  # clients that wait for work
KEPT_S = 60.0  # a broker closes connections that are idle for longer; ours are gone before


@dataclass(eq=False)
class _Client:
    stream: PositionReader
    topics: frozenset[str]
    size: int
    rested_s: float = field(default_factory=time.monotonic)


class PointReaderPool:
    """The source of truth for which clients wait. Threads may share it, not what it gives out."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._resting: list[_Client] = []
        self._is_closed = False

    def reader(self, positions: Mapping[TopicPartition, int], records: int) -> PointReader:
        topics = frozenset(at.topic for at in positions)
        size = next((each for each in GLANCING if records <= each), max(GLANCING))
        with self._lock:
            # One that knows these topics: another one would first have to ask where they are.
            fits = (each for each in reversed(self._resting) if each.size == size and topics <= each.topics)
            client = next(fits, None)
            if client is not None:
                self._resting.remove(client)
        if client is None:
            conf = self._settings.fetcher(GLANCING[size])
            client = _Client(PositionReader(self._settings, "reading", topics, conf=conf), topics, size)
        for at, offset in positions.items():
            client.stream.seek(at, offset)
        return _PooledReader(self, client)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            ended, self._resting = self._resting, []
        for client in ended:
            client.stream.close()

    def give_back(self, client: _Client) -> None:
        client.rested_s = time.monotonic()
        is_fit = client.stream.rest()
        with self._lock:
            old = [each for each in self._resting if client.rested_s - each.rested_s > KEPT_S]
            kept = [each for each in self._resting if each not in old]
            if is_fit and not self._is_closed:
                kept.append(client)
            else:
                old.append(client)
            self._resting, spare = kept[-KEPT_MOST:], kept[:-KEPT_MOST]
        for each in (*old, *spare):
            each.stream.close()


class _PooledReader:
    """One reading with a client that others had before, and will have again."""

    def __init__(self, pool: PointReaderPool, client: _Client) -> None:
        self._pool = pool
        self._client: _Client | None = client

    @property
    def _stream(self) -> PositionReader:
        if self._client is None:
            raise ValueError("this reader is closed")
        return self._client.stream

    def poll(self, max_records: int, timeout_s: float) -> list[Records]:
        return self._stream.poll(max_records, timeout_s)

    def position(self, at: TopicPartition) -> int:
        return self._stream.position(at)

    def seek(self, at: TopicPartition, offset: int) -> None:
        self._stream.seek(at, offset)

    def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            self._pool.give_back(client)
