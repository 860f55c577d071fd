"""Samovar inside Spark, as docs/spark.md says: `register(spark)` makes the format `samovar` known to a session,
`match(events, rules)` runs rules on a data frame or stream, and `read_stream(spark, config, source)` reads Kafka by
Spark's own source.
"""

from __future__ import annotations

from samovar.service.spark.frames.frame import register_spark as register
from samovar.service.spark.match import match
from samovar.service.spark.read_stream import read_stream

__all__ = ["match", "read_stream", "register"]
