"""Opens the log that a service file names."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from samovar.changelog.log import Log
from samovar.service.config.models import ServiceFile


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
