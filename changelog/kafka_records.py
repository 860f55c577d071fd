"""Records as confluent-kafka gives them: a list of messages, from which columns are made when they are asked for.

Nothing here is done once a record in Python where a call into C can be mapped over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from operator import itemgetter, ne
from typing import TypeAlias, cast

import numpy as np
from confluent_kafka import Message

from samovar.changelog.log import Headers, Int64s, Pair, TopicPartition
from samovar.patterns.native import Messages, joined

Rows: TypeAlias = list[Message]  # of one partition, in order of offset


class KafkaRecords:
    """Records of one partition. Keys, values and headers stay in their messages until they are needed."""

    def __init__(self, at: TopicPartition, messages: Rows, next: int) -> None:
        self.topic, self.partition = at
        self.next = next
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    @cached_property
    def offsets(self) -> Int64s:
        messages, count = self._messages, len(self._messages)
        first, last = (messages[0].offset() or 0, messages[-1].offset() or 0) if messages else (0, -1)
        if last - first == count - 1:  # no gap between them
            return np.arange(first, last + 1, dtype=np.int64)
        return np.fromiter(map(Message.offset, messages), np.int64, count)

    @cached_property
    def times(self) -> Int64s:
        return np.fromiter(map(itemgetter(1), map(Message.timestamp, self._messages)), np.int64, len(self))

    @cached_property
    def values(self) -> Messages:
        found = list(map(Message.value, self._messages))
        return joined([value or b"" for value in found] if None in found else cast(list[bytes], found))

    def value(self, row: int) -> bytes | None:
        return self._messages[row].value()

    def key(self, row: int) -> bytes | None:
        return self._messages[row].key()

    def headers(self, row: int) -> Headers:
        found = cast(Sequence[tuple[str, bytes | None]], self._messages[row].headers() or ())
        return tuple((name, value or b"") for name, value in found)

    def pairs(self) -> list[Pair]:
        return list(zip(map(Message.key, self._messages), map(Message.value, self._messages), strict=True))


def by_partition(messages: Rows, *, one_topic: bool) -> dict[TopicPartition, Rows]:
    """The messages of each partition, in their order. They come in runs, so only the ends of runs are looked at."""
    found: dict[TopicPartition, Rows] = {}
    for first, last in _runs(messages, one_topic=one_topic):
        at = place_of(messages[first])
        found[at] = found[at] + messages[first:last] if at in found else messages[first:last]
    return found


def _runs(messages: Rows, *, one_topic: bool) -> list[tuple[int, int]]:
    """From where to where neighbours are of one partition."""
    partitions = np.fromiter(map(Message.partition, messages), np.int64, len(messages))
    changes = partitions[1:] != partitions[:-1]
    if not one_topic:
        topics = list(map(Message.topic, messages))
        changes |= np.fromiter(map(ne, topics, islice(topics, 1, None)), np.bool_, len(messages) - 1)
    places = (np.flatnonzero(changes) + 1).tolist()
    return list(zip([0, *places], [*places, len(messages)], strict=True))


def place_of(message: Message) -> TopicPartition:
    return TopicPartition(cast(str, message.topic()), cast(int, message.partition()))
