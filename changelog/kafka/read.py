"""Reading from Kafka by positions: what a Reader does, and a Member with what it owns."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import replace

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPlace

from samovar.changelog.batches import RecordBlock, nothing_up_to
from samovar.changelog.kafka.client import ConsumeError, Fetcher
from samovar.changelog.kafka.errors import MISSING, NOTHING, Causes, Needed, error_of, failure_of
from samovar.changelog.kafka.settings import Conf, Settings
from samovar.changelog.log import Records, TopicPartition
from samovar.common.errors import Fenced, LogUnavailable, Refused

LOOK_S = 0.05  # so often a waiting poll looks whether what it owns has changed


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
        self._tell(self._fetcher.pause, partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self._paused.difference_update(partitions)
        self._tell(self._fetcher.resume, partitions)

    def _tell(self, how: Callable[[list[TopicPartition]], None], partitions: Collection[TopicPartition]) -> None:
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
                    records = self._taken(*self._fetcher.fetch(max_records, 0.0 if self._interrupted else wait_s))
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

    def _taken(self, fetched: list[RecordBlock], errors: list[ConsumeError]) -> list[Records]:
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
            hint = "Its records were deleted, or it is another topic under the same name; nothing was guessed."
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


def places_of(partitions: Collection[TopicPartition]) -> list[KafkaPlace]:
    return [KafkaPlace(*at) for at in partitions]
