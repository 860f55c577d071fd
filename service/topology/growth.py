"""Inputs that have more partitions than the service's state was made with: what waits there is read by nobody."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from samovar.changelog.log import Log, TopicPartition
from samovar.service.config.models import ServiceFile
from samovar.service.topology.topics import counted_topics, partitions_of

GROWN_FIX = (
    "partitions cannot be taken away again. Either write `repartition: true` for the stream and give the service"
    " another name: it folds all partitions from the beginning. Or let producers place keys among the partitions that"
    " are read, bring the records of the others there, and put the moved ones back: `samovar dlq redrive --reason"
    " key-moved`"
)


@dataclass(frozen=True)
class GrownInput:
    """`unread` are the records in partitions that the service does not read."""

    stream: str
    topic: str
    read: int
    partitions: int
    unread: int

    @property
    def text(self) -> str:
        return (
            f"input-grown: {self.topic} has {self.partitions} partitions, and the state of the service was made with"
            f" {self.read}: {self.unread:,} records in the others are not read"
        )

    def data(self) -> dict[str, Any]:
        return asdict(self)


def grown_inputs(settings: ServiceFile, log: Log) -> list[GrownInput]:
    existing = log.topics(counted_topics(settings))
    if settings.journal.topic not in existing:
        return []
    read = partitions_of(settings, existing)
    found = []
    for name, stream in settings.streams.items():
        topic = existing.get(stream.topic)
        if topic is not None and topic.partitions > read:
            beyond = [TopicPartition(topic.name, number) for number in range(read, topic.partitions)]
            unread = sum(end - begin for begin, end in log.bounds(beyond).values())
            found.append(GrownInput(name, topic.name, read, topic.partitions, unread))
    return found
