"""Which dead letters were put back, in a compacted topic of one partition: `{service}-redriven`. Format 1.

A record's key is `TOPIC_ID/PARTITION/OFFSET` of the letter; its value JSON: `v` first, `to` (the topic it went to),
`attempt` (counted from 1) and `time_ms`. It is written in the transaction that puts the letter back, so that a letter
has one exactly if it was. The topic's id is part of it: letters of a topic that was made again are others.

A message that was put back carries these headers, and keeps them where it becomes a letter again:

    samovar.redriven.from      topic/partition/offset of the letter
    samovar.redriven.attempt   how often it was put back, this time included
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from samovar.changelog.cursors import read_all
from samovar.changelog.log import Headers, Log, Pair, Topic, TopicPartition, TopicSpec

FORMAT = 1
PREFIX = "samovar.redriven."
FROM, ATTEMPT = PREFIX + "from", PREFIX + "attempt"
SETTINGS = {"cleanup.policy": "compact"}


@dataclass(frozen=True, order=True)
class DeadLetterPlace:
    """Where a letter is."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}/{self.offset}"


def topic_of(service: str) -> str:
    return f"{service}-redriven"


def spec_of(service: str, replication: int = 1) -> TopicSpec:
    return TopicSpec(topic_of(service), 1, SETTINGS, replication)


def mark(letters: Topic, place: DeadLetterPlace, to: str, attempt: int, time_ms: int) -> Pair:
    """The record that says that a letter was put back."""
    value = {"v": FORMAT, "to": to, "attempt": attempt, "time_ms": time_ms}
    return f"{letters.id}/{place}".encode(), json.dumps(value, separators=(",", ":")).encode()


def headers_of(letters: Topic, place: DeadLetterPlace, attempt: int) -> Headers:
    return (FROM, f"{letters.name}/{place}".encode()), (ATTEMPT, b"%d" % attempt)


def carried(headers: Headers) -> Headers:
    """Of a message that was put back, the headers that a letter keeps."""
    return tuple(each for each in headers if each[0].startswith(PREFIX)) if headers else ()


def marked(log: Log, service: str, letters: Topic) -> set[DeadLetterPlace]:
    """The letters of a topic that were put back."""
    topic = topic_of(service)
    if topic not in log.topics([topic]):
        return set()
    found = set()
    for records in read_all(log, TopicPartition(topic, 0)):
        for key, _ in records.pairs():
            topic_id, partition, offset = (key or b"/0/0").decode().rsplit("/", 2)  # an id may have slashes, too
            if topic_id == letters.id:
                found.add(DeadLetterPlace(int(partition), int(offset)))
    return found
