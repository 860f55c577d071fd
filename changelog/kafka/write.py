"""Writing to Kafka: records into the client's queue, and what became of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice, repeat
from typing import TypeAlias

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from samovar.changelog.kafka.errors import Causes, failure_of, unreached
from samovar.changelog.kafka.settings import Conf, Settings
from samovar.changelog.log import Append, Headers, TopicPartition
from samovar.changelog.partitioner import partitions_of
from samovar.common.errors import LogUnavailable

Told: TypeAlias = Callable[[KafkaError | None, Message], None] | None

QUEUE_S = 30.0  # until a full queue must have room
FLUSH_S = 30.0  # until all records must be acknowledged
LOOK_S = 0.5  # so often one who waits looks whether there can be no answer


class Writer:
    """A producer. The source of truth for how far the appends of one transaction, or of one call, have come.

    In a transaction a record that fails fails the commit; only the last one to each named partition is reported, for
    its offset. Outside of one (`reports_all`) every record is reported, since nothing else would tell.
    """

    def __init__(self, settings: Settings, more: Conf, *, reports_all: bool) -> None:
        self._settings = settings
        self._each = self._on_any if reports_all else None
        self.failed: KafkaError | None = None
        self.ends: dict[TopicPartition, int] = {}
        self.topics: set[str] = set()  # that are written to, in the same time
        self.causes = Causes()
        try:
            self.producer = Producer(settings.producer({**more, "error_cb": self.causes.note}))
        except KafkaException as error:
            raise settings.refusal(error) from None

    def begin(self) -> None:
        self.failed, self.ends, self.topics = None, {}, set()

    def put(self, append: Append) -> None:
        """Queues the records of one append, in their order."""
        records, topic, each = append.records, append.topic, self._each
        if not records:
            return
        self.topics.add(topic)
        partition = -1 if append.partition is None else append.partition
        if append.headers is None and (append.among is None or append.partition is not None):
            for key, value in islice(records, len(records) - 1):
                try:
                    self.producer.produce(topic, value, key, partition, each)
                except BufferError:
                    self._put_when_room(topic, value, key, partition, each)
            key, value = records[-1]
            self._put_when_room(topic, value, key, partition, each if append.partition is None else self._on_last)
            return
        places: Iterable[int] = repeat(partition, len(records))
        if append.among is not None and append.partition is None:
            # The client would place them among all partitions that the topic has by now.
            places = partitions_of([key for key, _ in records], append.among).tolist()
        headers: Iterable[Headers | None] = append.headers or repeat(None, len(records))
        last = len(records) - 1 if append.partition is not None else -1
        for row, ((key, value), place, own) in enumerate(zip(records, places, headers, strict=True)):
            told = self._on_last if row == last else each
            self._put_when_room(topic, value, key, place, told, None if own is None else [*own])

    def _put_when_room(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        told: Told,
        headers: list[tuple[str, str | bytes | None]] | None = None,
    ) -> None:
        deadline = time.monotonic() + QUEUE_S
        while True:
            try:
                self.producer.produce(topic, value, key, partition, told, headers=headers)
            except BufferError:
                if time.monotonic() > deadline:
                    raise LogUnavailable(f"writing to {topic}: the queue stayed full for {QUEUE_S:.0f} s") from None
                self.producer.poll(0.05)
            else:
                return

    def flush(self) -> None:
        """Wait until all is acknowledged; raises what went wrong."""
        deadline = time.monotonic() + FLUSH_S
        while left := self.producer.flush(min(LOOK_S, max(deadline - time.monotonic(), 0.0))):
            refusal = self.causes.refusal(self._settings)  # with a wrong password there is no answer to wait for
            if refusal is not None:
                raise refusal
            if time.monotonic() > deadline:
                break
        if self.failed is not None:
            raise failure_of(self.failed, "writing", self._settings, {"topic": ("WRITE", self.topics)}, self.causes)
        if left:
            text = f"writing: {left} records were not acknowledged within {FLUSH_S:.0f} s"
            raise unreached(text, self._settings, self.causes)

    def close(self) -> None:
        """Drops what was never sent. The client's own `close` would wait without end for a broker that is away."""
        with suppress(KafkaException):  # one that was fenced says so again
            self.producer.purge()
            self.producer.poll(0)
        del self.producer

    def _on_any(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self.failed = self.failed or error

    def _on_last(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed = self.failed or error
        else:
            at = TopicPartition(message.topic() or "", message.partition() or 0)
            self.ends[at] = message.offset() or 0
