"""A Spark session for a command on a service: with the connector where its log is Kafka's, and without where not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from samovar.changelog.broker.jars import Say
from samovar.changelog.kafka.java import java_settings
from samovar.changelog.spark.jars import SPARK, pyspark_version
from samovar.changelog.spark.session import READING, SCHEDULING, SessionStart, is_local, starting
from samovar.common.errors import Refused
from samovar.service.config.models import ServiceFile
from samovar.service.topology.logs import kafka_of


def connector_settings(settings: ServiceFile) -> Mapping[str, str] | None:
    """For Spark's connector, where that is what reads the log: it is Kafka's, and this Spark the connector's own."""
    is_wanted = settings.tunables.spark_connector and pyspark_version() in ("", SPARK)
    return kafka_of(settings) if is_wanted else None


def refuse_remote_executors(settings: ServiceFile, *, is_local: bool) -> None:
    """An executor elsewhere would find no embedded log, and make an empty one."""
    if settings.log.embedded is not None and not is_local:
        raise Refused(
            "engine-unfit",
            "the embedded log is a file of this machine, which executors elsewhere cannot read",
            "Run Spark here: leave `--master` out, or give a session the master `local[*]`. For a cluster the service's"
            " log must be Kafka's.",
        )


@contextmanager
def starting_for(
    settings: ServiceFile, name: str, master: str | None = None, say: Say = lambda _: None
) -> Iterator[SessionStart]:
    """A session that starts now. Settings that the connector cannot have are refused before it does."""
    refuse_remote_executors(settings, is_local=master is None or is_local(master))
    kafka = connector_settings(settings)
    if kafka is None and kafka_of(settings) is not None and settings.tunables.spark_connector:
        say(f"Spark {pyspark_version()} reads Kafka by Samovar's own reader: its connector is used with {SPARK} only")
    left_out = () if kafka is None else java_settings(kafka).left_out
    if left_out:
        say(f"Spark reads Kafka without {', '.join(left_out)}: librdkafka's own")
    # Without Kafka Java only schedules what Python does; with it, it reads.
    with starting(
        name, master, kafka=kafka is not None, settings=SCHEDULING if kafka is None else READING, say=say
    ) as start:
        yield start
