"""A Spark session for a command on a service: with the connector where its log is Kafka's, and without where not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from samovar.changelog.broker.jars import Say
from samovar.changelog.kafka.java import java_settings
from samovar.changelog.spark.jars import SPARK, pyspark_version
from samovar.changelog.spark.session import READING, SCHEDULING, SessionStart, starting
from samovar.service.config.models import ServiceFile
from samovar.service.topology.logs import kafka_of


def connector_settings(settings: ServiceFile) -> Mapping[str, str] | None:
    """For Spark's connector, where that is what reads the log: it is Kafka's, and this Spark the connector's own."""
    return kafka_of(settings) if pyspark_version() in ("", SPARK) else None


@contextmanager
def starting_for(
    settings: ServiceFile, name: str, master: str | None = None, say: Say = lambda _: None
) -> Iterator[SessionStart]:
    """A session that starts now. Settings that the connector cannot have are refused before it does."""
    kafka = connector_settings(settings)
    if kafka is None and kafka_of(settings) is not None:
        say(f"Spark {pyspark_version()} reads Kafka by Samovar's own reader: its connector is used with {SPARK} only")
    left_out = () if kafka is None else java_settings(kafka).left_out
    if left_out:
        say(f"Spark reads Kafka without {', '.join(left_out)}: librdkafka's own")
    # Without Kafka Java only schedules what Python does; with it, it reads.
    with starting(
        name, master, kafka=kafka is not None, settings=SCHEDULING if kafka is None else READING, say=say
    ) as start:
        yield start
