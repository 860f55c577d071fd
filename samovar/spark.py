"""Samovar inside Spark: docs/spark.md.

samovar.spark.register(spark)                              # the format "samovar"
alerts = samovar.spark.match(purchases, rules, topics="purchase")
"""

from __future__ import annotations

from samovar.service.spark.frames.frame import register_spark as register
from samovar.service.spark.match import match

__all__ = ["match", "register"]
