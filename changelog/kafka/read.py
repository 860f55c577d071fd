"""Reading from Kafka by positions: what a Reader does, a Member with what it owns, and point reads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPlace

from samovar.changelog.batches import RecordBlock, nothing_up_to
from samovar.changelog.kafka.client import ConsumeError, Fetcher
from samovar.changelog.kafka.errors import MISSING, NOTHING, Causes, Needed, error_of, failure_of
from samovar.changelog.kafka.settings import GLANCING, Conf, Settings
from samovar.changelog.log import Reader, Records, TopicPartition
from samovar.common.errors import Fenced, LogUnavailable, Refused

LOOK_S = 0.05  # so often a waiting poll looks whether what it owns has changed
KEPT_MOST = 12  # clients that wait for point reads
KEPT_S = 60.0  # a broker closes connections that are idle for longer; ours are gone before


class PositionReader:
    """Partitions read by positions. The source of truth for where each of them is read next.

    The client is told all positions at once, when it is next polled after a change; a partition without a position is
    none of its business. Positions are kept here because the client's own stand still at markers and gaps.

    `poll_group` is called in every poll, with the time it may wait: a member looks after its group there.
    """

    def __init__(
        self,
        settings: Settings,
        doing: str,
        topics: Collection[str],
        poll_group: Callable[[float], None] | None = None,
        conf: Conf | None = None,
        needed: Needed = NOTHING,
    ) -> None:
        """`needed` are rights of one who is in a group."""
        self._settings = settings
        self._doing = doing
        self._topics, self._needed = frozenset(topics), needed
        self._poll_group = poll_group
        self._positions: dict[TopicPartition, int] = {}
        self._ended: set[TopicPartition] = set()
        self._paused: set[TopicPartition] = set()
        self._moved = False
        self._interrupted = False
        self._failure: Exception | None = None
        self._down: KafkaError | None = None
        self.causes = Causes()
        try:
            self._fetcher = Fetcher(conf or settings.fetcher(), self.note_down, topics)
        except KafkaException as error:
            raise settings.refusal(error) from None

    def seek(self, at: TopicPartition, offset: int) -> None:
        self._positions[at] = offset
        self._ended.discard(at)
        self._moved = True

    def forget(self) -> None:
        """Other partitions are owned from now on. The one who polls has something to do: it gets back at once."""
        self._positions.clear()
        self._ended.clear()
        self._paused.clear()
        self._moved = True
        self._interrupted = True

    def rest(self) -> bool:
        """Let go of all partitions, to be used for others later; False where it is better thrown away."""
        self.forget()
        self._tell_positions()
        return self._failure is None and self._down is None

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self._paused.update(partitions)
        self._call_with_positions(self._fetcher.pause, partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self._paused.difference_update(partitions)
        self._call_with_positions(self._fetcher.resume, partitions)

    def _call_with_positions(
        self, how: Callable[[list[TopicPartition]], None], partitions: Collection[TopicPartition]
    ) -> None:
        known = [at for at in partitions if at in self._positions]
        if known and not self._moved:  # else the client hears of it together with the positions
            how(known)

    def position(self, at: TopicPartition) -> int:
        if at not in self._positions:
            raise ValueError(f"{at} is not read here, or was never sought")
        return self._positions[at]

    def at_end(self, at: TopicPartition) -> bool:
        return at in self._ended

    def ended(self) -> dict[TopicPartition, int]:
        """Partitions that were read to their ends, and where those are."""
        return {at: self._positions[at] for at in self._ended if at in self._positions}

    def poll(self, max_records: int, timeout_s: float) -> list[Records]:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        deadline = time.monotonic() + timeout_s
        self._interrupted = False
        try:
            while True:
                left = deadline - time.monotonic()
                wait_s = max(min(left, LOOK_S), 0.0)
                if self._poll_group is not None:
                    self._poll_group(0.0 if self._positions else wait_s)
                if self._moved:
                    self._tell_positions()
                records: list[Records] = []
                if self._positions or self._poll_group is None:
                    records = self._advance_past(
                        *self._fetcher.fetch(max_records, 0.0 if self._interrupted else wait_s)
                    )
                if records:
                    return records
                if self._down is not None:
                    down, self._down = self._down, None
                    raise failure_of(down, self._doing, self._settings, causes=self.causes)
                if left <= 0 or self._interrupted:
                    return []
        except KafkaException as error:
            raise failure_of(error_of(error), self._doing, self._settings) from None

    def close(self) -> None:
        self._fetcher.close()

    def _tell_positions(self) -> None:
        self._moved = False
        self._fetcher.assign(self._positions)
        paused = self._paused & self._positions.keys()
        if paused:
            self._fetcher.pause(paused)

    def _advance_past(self, fetched: list[RecordBlock], errors: list[ConsumeError]) -> list[Records]:
        """Moves positions past what was fetched. An error is raised now, or after what came with it."""
        ends: dict[TopicPartition, int] = {}  # of partitions that are read to their ends
        for each in errors:
            if each.error.code() == KafkaError._PARTITION_EOF:
                ends[each.at] = each.offset
            elif each.error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                # The client asks for the coordinator of a group that it never joins: that needs no right.
                self._failure = self._failure or self.to_exception(each)
        if self._failure is not None and not fetched:
            failure, self._failure = self._failure, None
            raise failure
        rows = {TopicPartition(each.topic, each.partition): each for each in fetched}
        records: list[Records] = []
        for at in [*rows, *(at for at in ends if at not in rows)]:
            if at not in self._positions:
                continue
            taken, end = rows.get(at), ends.get(at, -1)
            next = max(self._positions[at] if taken is None else taken.next, end)
            (self._ended.add if end == next else self._ended.discard)(at)
            if taken is None:
                taken = nothing_up_to(*at, next)
            if len(taken) or next != self._positions[at]:
                records.append(taken if taken.next == next else replace(taken, next=next))
            self._positions[at] = next
        return records

    def to_exception(self, trouble: ConsumeError) -> Fenced | LogUnavailable | Refused:
        error, at = trouble.error, trouble.at
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            what = f"{at} does not hold offset {self._positions.get(at, trouble.offset)}, which is to be read next"
            hint = (
                "Its records were deleted, or it is another topic under the same name; nothing was guessed. Run it"
                " again: it begins with what is there now, or says what it lacks."
            )
            return Refused("log-truncated", what, hint, self._settings.scrubbed(error.str()))
        if error.code() == KafkaError._FATAL:  # of a consumer: another one has its name
            return Fenced(f"{self._doing}: {self._settings.scrubbed(error.str())}")
        if error.code() in MISSING and self._settings.recent.among([at.topic]):
            return LogUnavailable(f"{self._doing}: a broker does not know the topic {at.topic} yet")
        needed = {"topic": ("READ", [at.topic] if at.topic else self._topics)}
        return failure_of(error, self._doing, self._settings, {**needed, **self._needed})

    def note_down(self, error: KafkaError) -> None:
        self.causes.note(error)
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._down = error


@dataclass(eq=False)
class _Client:
    stream: PositionReader
    topics: frozenset[str]
    size: int
    rested_s: float = field(default_factory=time.monotonic)


class PointReaderPool:
    """Readers for a few records. The source of truth for which clients wait for the next ones.

    Making a client, and learning where partitions are, takes far longer than such a read: so they are kept for a while.
    Threads may share it, not what it gives out.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._resting: list[_Client] = []
        self._is_closed = False

    def reader(self, positions: Mapping[TopicPartition, int], records: int) -> Reader:
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


def places_of(partitions: Collection[TopicPartition]) -> list[KafkaPlace]:
    return [KafkaPlace(*at) for at in partitions]
