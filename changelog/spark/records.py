"""Raw records of Kafka as a data frame, by Spark's own connector: `topic, partition, offset, timestamp, key, value,
headers`.

The connector reads what it is told, from offset to offset, and both are fixed before with our own client:

    ranges = [Range(at, begin, end), ...]       ends are high watermarks
    settle(log, ranges, ...)                    waits until no transaction below them is open
    frame = raw_records(session, settings, ranges)

So it never meets a transaction that may still commit, of which it would say nothing, and never asks for an end of its
own. Markers and gaps of compaction within a range are passed over; a range whose beginning is no more there is refused
(`log-truncated`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from samovar.changelog.cursors import STUCK_S
from samovar.changelog.kafka.java import java_settings
from samovar.changelog.log import TopicPartition
from samovar.changelog.spark.connector_log import Range
from samovar.changelog.spark.errors import translated
from samovar.changelog.spark.session import OpenSession
from samovar.common.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("partition", "offset", "timestamp", "key", "value")
GROUP = "samovar-reader"  # nobody joins it; who may read by our own client may so by this one
LOOK_S = 0.2
ROWS = "10000"  # of a batch: of large records, so many are still less than Arrow and Java can hold
# Sources that Spark reads by its older interface: its own list but for kafka, whose records would each become a row of
# Java objects on the way.
OLDER = "avro,csv,json,orc,parquet,text"
REDACTED = "(?i)url|jaas|password|secret|token|certificate|keystore"  # options that Spark shows nowhere
PLAN_REDACTION = "spark.sql.redaction.string.regex"
# A plan of a stream has all options of its source, also those: with what they are up to the next one, or to their end.
SECRETS_IN_PLANS = (
    r"(?is)(?:password|jaas\.config|truststore\.certificates|certificate\.chain|keystore\.key)(?: -> |=)"
    r".*?(?=, [a-z][\w.]*(?: -> |=)|\),None\)|\], \[|$)"
)


class Stable(Protocol):
    """A log that knows which of its records are decided."""

    def stable_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]: ...


Stuck: TypeAlias = Callable[[TopicPartition, int, int], Refused]
OnWait: TypeAlias = Callable[[TopicPartition, int], None]  # whose open transaction, and where it begins


def settle(log: Stable, ranges: Sequence[Range], stuck: Stuck, on_wait: OnWait = lambda *_: None) -> None:
    """Wait until all of the ranges is decided; for as long as a reader would, and then with what it would say."""
    ends = {each.at: each.end for each in ranges if each.start < each.end}
    seen: Mapping[TopicPartition, int] = {}
    moved = time.monotonic()
    while ends:
        stable = log.stable_ends(list(ends))
        ends = {at: end for at, end in ends.items() if stable[at] < end}
        now = {at: stable[at] for at in ends}
        if now != seen:
            seen, moved = now, time.monotonic()
        for at, end in ends.items():
            on_wait(at, now[at])
            if time.monotonic() - moved > STUCK_S:
                raise stuck(at, now[at], end)
        if ends:
            time.sleep(LOOK_S)


def raw_records(
    session: OpenSession,
    settings: Mapping[str, str],
    ranges: Sequence[Range],
    *,
    topic: bool = True,
    headers: bool = True,
    tasks: int | None = None,
) -> DataFrame:
    """The records of ranges that are settled, each in order of offsets. `settings` are librdkafka's.

    A task reads one range; with `tasks` about so many read all, and large ranges are cut for that. Every column costs:
    a topic that is known otherwise a tenth of the time, headers most of it.
    """
    wanted = [each for each in ranges if each.start < each.end]
    spark = session.spark
    spark.conf.set("spark.sql.sources.useV1SourceList", OLDER)
    topics: dict[str, list[Range]] = {}
    for each in wanted:
        topics.setdefault(each.at.topic, []).append(each)
    assigned = {topic: [each.at.partition for each in some] for topic, some in topics.items()}
    starts = {topic: {str(each.at.partition): each.start for each in some} for topic, some in topics.items()}
    ends = {topic: {str(each.at.partition): each.end for each in some} for topic, some in topics.items()}
    reader = spark.read.format("kafka").option("assign", json.dumps(assigned))
    reader = reader.option("startingOffsets", json.dumps(starts)).option("endingOffsets", json.dumps(ends))
    reader = reader.options(**_connection(spark, settings))
    if tasks is not None and tasks > len(wanted):
        reader = reader.option("minPartitions", str(tasks))
    reader = reader.option("failOnDataLoss", "true")
    with translated(session.log):
        frame = reader.option("includeHeaders", str(headers).lower()).load()
    frame = frame.select(*(["topic"] if topic else []), *COLUMNS, *(["headers"] if headers else []))
    return frame if tasks is None or tasks >= len(wanted) else frame.coalesce(tasks)


def raw_stream(
    spark: SparkSession, settings: Mapping[str, str], topic: str, options: Mapping[str, str], *, headers: bool
) -> DataFrame:
    """The records of a topic on and on, as far as they are committed. `options` are those of Spark's source."""
    reader = spark.readStream.format("kafka").options(**_connection(spark, settings))
    chosen = {} if "assign" in options else {"subscribe": topic}
    with translated(None):
        frame = reader.options(**chosen, **options, includeHeaders=str(headers).lower()).load()
    return frame.select(*COLUMNS, *(["headers"] if headers else []))


def _connection(spark: SparkSession, settings: Mapping[str, str]) -> dict[str, str]:
    """Where Kafka is and who asks, for a session that shows no secrets."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", ROWS)
    spark.conf.set("spark.sql.redaction.options.regex", REDACTED)
    told = spark.conf.get(PLAN_REDACTION, None)
    if told is None or SECRETS_IN_PLANS not in told:
        spark.conf.set(PLAN_REDACTION, f"(?:{told})|{SECRETS_IN_PLANS}" if told else SECRETS_IN_PLANS)
    java = {f"kafka.{name}": value for name, value in java_settings(settings).settings.items()}
    return {**java, "groupIdPrefix": GROUP}
