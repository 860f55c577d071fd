"""Reading from Kafka by positions: what a Reader does, and a Member with what it owns."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPlace

from samovar.changelog.errors import Fenced, LogUnavailable, Refused
from samovar.changelog.kafka_errors import error_of, failure_of
from samovar.changelog.kafka_records import KafkaRecords, Rows, by_partition, place_of
from samovar.changelog.kafka_settings import Conf, Settings
from samovar.changelog.log import Records, TopicPartition

LOOK_S = 0.05  # so often a waiting poll looks whether what it owns has changed
NOBODY = "samovar-reader"  # the client wants a group's name even from one that joins none


class Stream:
    """A consumer read by positions. The source of truth for where each partition is read next.

    The client is told all positions at once, when it is next polled after a change; a partition without a position is
    none of its business. Positions are kept here because the client's own stand still at markers and gaps.
    """

    def __init__(self, settings: Settings, group: str, more: Conf) -> None:
        self._settings = settings
        self._doing = f"reading in group {group}" if group != NOBODY else "reading"
        self._positions: dict[TopicPartition, int] = {}
        self._ended: set[TopicPartition] = set()
        self._paused: set[TopicPartition] = set()
        self._moved = False
        self._interrupted = False
        self._failure: Exception | None = None
        self._down: KafkaError | None = None
        conf = settings.consumer(group, more | {"error_cb": self._on_error})
        try:
            self.consumer = Consumer(conf)
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
        self._moved = False
        self._interrupted = True

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self._paused.update(partitions)
        self._tell(self.consumer.pause, partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self._paused.difference_update(partitions)
        self._tell(self.consumer.resume, partitions)

    def _tell(self, how: Callable[[list[KafkaPlace]], None], partitions: Collection[TopicPartition]) -> None:
        known = [at for at in partitions if at in self._positions]
        if known and not self._moved:  # else the client hears of it together with the positions
            how(places_of(known))

    def position(self, at: TopicPartition) -> int:
        if at not in self._positions:
            raise ValueError(f"{at} is not read here, or was never sought")
        return self._positions[at]

    def at_end(self, at: TopicPartition) -> bool:
        return at in self._ended

    def poll(self, max_records: int, timeout_s: float) -> list[Records]:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        try:
            return self._poll(max_records, timeout_s)
        except KafkaException as error:
            raise failure_of(error_of(error), self._doing, self._settings) from None

    def close(self) -> None:
        self.consumer.close()

    def _poll(self, max_records: int, timeout_s: float) -> list[Records]:
        deadline = time.monotonic() + timeout_s
        self._interrupted = False
        while True:
            if self._moved:
                self._tell_positions()
            left = deadline - time.monotonic()
            messages = self._consumed(max_records, min(left, LOOK_S))
            if self._interrupted:  # they were fetched for those partitions that are gone
                messages = [message for message in messages if is_failure(message)]
            records = self._taken(messages) if messages else []
            if records:
                return records
            self._raise_if_down()
            if left <= 0 or self._interrupted:
                return []

    def _consumed(self, max_records: int, timeout_s: float) -> Rows:
        messages = self.consumer.consume(max_records, 0)
        if not messages and timeout_s > 0:
            # With a time to wait, the client waits for all that was asked for: so it waits for one only.
            messages = self.consumer.consume(1, timeout_s)
            if messages and max_records > 1:
                messages += self.consumer.consume(max_records - 1, 0)
        return messages

    def _tell_positions(self) -> None:
        self._moved = False
        self.consumer.assign([KafkaPlace(*at, offset) for at, offset in self._positions.items()])
        paused = self._paused & self._positions.keys()
        if paused:
            self.consumer.pause(places_of(paused))

    def _taken(self, messages: Rows) -> list[Records]:
        ends: dict[TopicPartition, int] = {}
        if any(map(Message.error, messages)):
            messages = self._without_errors(messages, ends)
        one_topic = len({at.topic for at in self._positions}) == 1
        rows = by_partition(messages, one_topic=one_topic) if messages else {}
        records: list[Records] = []
        for at in [*rows, *(at for at in ends if at not in rows)]:
            if at not in self._positions:
                continue
            taken, end = rows.get(at, []), ends.get(at, -1)
            next = max((taken[-1].offset() or 0) + 1 if taken else self._positions[at], end)
            (self._ended.add if end == next else self._ended.discard)(at)
            if taken or next != self._positions[at]:
                records.append(KafkaRecords(at, taken, next))
            self._positions[at] = next
        return records

    def _without_errors(self, messages: Rows, ends: dict[TopicPartition, int]) -> Rows:
        """The records among them. An end is noted; another error is raised now, or after what came with it."""
        good = []
        for message in messages:
            error = message.error()
            if error is None:
                good.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[place_of(message)] = message.offset() or 0
            else:
                self._failure = self._failure or self._meant_by(error, message)
        if self._failure is not None and not good:
            failure, self._failure = self._failure, None
            raise failure
        return good

    def _meant_by(self, error: KafkaError, message: Message) -> Fenced | LogUnavailable | Refused:
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            at = place_of(message)
            what = f"{at} does not hold offset {self._positions.get(at, message.offset())}, which is to be read next"
            hint = "Its records were deleted, or it is another topic under the same name; nothing was guessed."
            return Refused("log-truncated", what, hint, self._settings.scrubbed(error.str()))
        if error.code() == KafkaError._FATAL:  # of a consumer: another one has its name
            return Fenced(f"{self._doing}: {self._settings.scrubbed(error.str())}")
        return failure_of(error, self._doing, self._settings)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION):
            self._down = error

    def _raise_if_down(self) -> None:
        if self._down is not None:
            down, self._down = self._down, None
            raise failure_of(down, self._doing, self._settings)


class KafkaReader:
    """Reads committed records from given positions."""

    def __init__(self, settings: Settings, positions: Mapping[TopicPartition, int]) -> None:
        self._stream = Stream(settings, NOBODY, {})
        for at, offset in positions.items():
            self._stream.seek(at, offset)

    def poll(self, max_records: int, timeout_s: float) -> list[Records]:
        return self._stream.poll(max_records, timeout_s)

    def position(self, at: TopicPartition) -> int:
        return self._stream.position(at)

    def close(self) -> None:
        self._stream.close()


def is_failure(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() != KafkaError._PARTITION_EOF


def places_of(partitions: Collection[TopicPartition]) -> list[KafkaPlace]:
    return [KafkaPlace(*at) for at in partitions]
