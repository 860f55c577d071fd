"""Streams of a service by Spark's own source for Kafka, with our decoding: the rows of `readStream.format("samovar")`.

Java reads, and keeps Kafka's offsets in the checkpoint; Python makes rows of the records' Arrow columns. Embedded logs,
and changelogs, whose rows are folded, are read by `format("samovar")` itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samovar.changelog.spark.connector_log import records_of_topic
from samovar.changelog.spark.records import raw_stream
from samovar.changelog.spark.source import map_arrow
from samovar.service.spark.frames.frame import NAME, register_spark
from samovar.service.spark.frames.stream import ServiceStream, stream_of
from samovar.service.topology.logs import kafka_of

if TYPE_CHECKING:
    import pyarrow as pa

    from samovar.changelog.spark.source import DataFrame, SparkSession
    from samovar.service.spark.frames.events import RecordFrame


def read_stream(spark: SparkSession, config: str | Path, source: str, **options: str) -> DataFrame:
    """A stream of a service with the options and columns of `spark.readStream.format("samovar")`.

    On Kafka it needs Spark's connector in the session, and the checkpoint is that of Spark's source.
    """
    given = {"config": str(config), "source": source, **options}
    with closing(stream_of(given)) as stream:
        kafka = kafka_of(stream.settings)
        if kafka is None or stream.options.source == "changelog":
            register_spark(spark)
            return spark.readStream.format(NAME).options(**given).load()
        frame: Any = stream.frame
        raw = raw_stream(spark, kafka, frame.topic, _kafka_options(stream, frame.topic), headers=frame.reads_headers)
    return map_arrow(raw, partial(_rows, frame), [(each.name, each.type) for each in frame.schema])


def _kafka_options(stream: ServiceStream, topic: str) -> dict[str, str]:
    asked = stream.options
    found = {"failOnDataLoss": str(asked.fails_on_loss).lower(), "startingOffsets": "earliest"}
    if asked.start == "end":
        found["startingOffsets"] = "latest"
    elif asked.start not in (None, "begin"):
        offsets = stream.initial_offset()["topics"][topic]["offsets"]
        found["startingOffsets"] = json.dumps({topic: offsets})
    if asked.max_records is not None:
        found["maxOffsetsPerTrigger"] = str(asked.max_records)
    if asked.partitions:
        found["assign"] = json.dumps({topic: list(asked.partitions)})
    return found


def _rows(frame: RecordFrame, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    columns = frame.columns()
    for batch in batches:
        for records in records_of_topic(batch, frame.topic):
            yield from frame.batches(records, columns)
