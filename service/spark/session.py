"""A Spark session for a command on a service: with the connector where its log is Kafka's, and without where not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from samovar.changelog.broker.jars import Say
from samovar.changelog.kafka.java import java_settings
from samovar.changelog.spark.session import READING, SCHEDULING, SessionStart, starting
from samovar.service.config.models import ServiceFile
from samovar.service.topology.logs import kafka_of


@contextmanager
def starting_for(
    settings: ServiceFile, name: str, master: str | None = None, say: Say = lambda _: None
) -> Iterator[SessionStart]:
    """A session that starts now. Settings that the connector cannot have are refused before it does."""
    kafka = kafka_of(settings)
    left_out = () if kafka is None else java_settings(kafka).left_out
    if left_out:
        say(f"Spark reads Kafka without {', '.join(left_out)}: librdkafka's own")
    # Without Kafka Java only schedules what Python does; with it, it reads.
    with starting(
        name, master, kafka=kafka is not None, settings=SCHEDULING if kafka is None else READING, say=say
    ) as start:
        yield start
