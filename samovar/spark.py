"""Samovar inside Spark, as docs/spark.md says: `register(spark)` makes the format `samovar` known to a session, and
`match(events, rules)` runs rules on a data frame.
"""

from __future__ import annotations

from samovar.service.spark.frames.frame import register_spark as register
from samovar.service.spark.match import match

__all__ = ["match", "register"]
