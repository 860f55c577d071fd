"""Opens the log that a service file names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager

from samovar.changelog.log import Delivery, GroupConfig, Log, Member, TopicPartition
from samovar.common.errors import LogUnavailable
from samovar.service.config.models import ServiceFile

JOIN_S = 60.0


def open_log(settings: ServiceFile) -> Log:
    """The embedded log or Kafka. Only the one that is needed is imported."""
    if settings.log.kafka is not None:
        from samovar.changelog.kafka.log import KafkaLog  # noqa: PLC0415 - its client takes long to load

        return KafkaLog(settings.log.kafka.librdkafka(), settings.tunables)
    from samovar.changelog.embedded.log import EmbeddedLog  # noqa: PLC0415 - as above

    assert settings.log.embedded is not None
    return EmbeddedLog(settings.log.embedded, tunables=settings.tunables)


def opened(settings: ServiceFile) -> closing[Log]:
    """The log, closed at the end whatever happens."""
    return closing(open_log(settings))


def kafka_of(settings: ServiceFile) -> Mapping[str, str] | None:
    """The settings of its client, secrets in the clear, where the log is Kafka's."""
    return None if settings.log.kafka is None else settings.log.kafka.librdkafka()


@contextmanager
def sole_member(log: Log, group: str, topic: str, *, leaves: bool = False) -> Iterator[Member]:
    """The only one in a group, from now on; anyone who was in it before can write nothing any more.

    One that `leaves` gives its slot up at the end; any other is expected to come back to it.
    """
    owned: set[TopicPartition] = set()
    went: Callable[..., None] = owned.difference_update
    member = log.join(
        GroupConfig(
            group=group,
            slot=0,
            topics=[topic],
            delivery=Delivery.EXACTLY_ONCE,
            on_assigned=owned.update,
            on_revoked=went,
            on_lost=went,
        )
    )
    try:
        # Until the group is joined: a client that leaves while it still joins may wait for its own answer.
        deadline = time.monotonic() + JOIN_S
        while not owned:
            member.poll(1, 0.05)
            if time.monotonic() > deadline:
                raise LogUnavailable(f"nobody gave out the partitions of {topic} within {JOIN_S:.0f} s")
        yield member
    finally:
        (member.leave if leaves else member.close)()
