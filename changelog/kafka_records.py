"""Records as confluent-kafka gives them: a list of messages, from which columns are made when they are asked for.

Nothing here is done once a record in Python where a call into C can be mapped over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from operator import itemgetter
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
        return np.fromiter(map(Message.offset, self._messages), np.int64, len(self))

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


def by_partition(messages: Rows) -> dict[TopicPartition, Rows]:
    """The messages of each partition, in their order. They come in runs, so only the ends of runs are looked at."""
    found: dict[TopicPartition, Rows] = {}
    partitions = np.fromiter(map(Message.partition, messages), np.int64, len(messages))
    changes = (np.flatnonzero(np.diff(partitions)) + 1).tolist()
    for first, last in zip([0, *changes], [*changes, len(messages)], strict=True):
        for start, end in _runs_of_topics(messages, first, last):
            at = place_of(messages[start])
            found[at] = found[at] + messages[start:end] if at in found else messages[start:end]
    return found


def _runs_of_topics(messages: Rows, first: int, last: int) -> list[tuple[int, int]]:
    """Where neighbours of equal partition are of several topics. Names are shared, so equal ones are soon known."""
    topics = list(map(Message.topic, messages[first:last]))
    if topics.count(topics[0]) == len(topics):
        return [(first, last)]
    changes = [first + row for row in range(1, len(topics)) if topics[row] != topics[row - 1]]
    return list(zip([first, *changes], [*changes, last], strict=True))


def place_of(message: Message) -> TopicPartition:
    return TopicPartition(cast(str, message.topic()), cast(int, message.partition()))
