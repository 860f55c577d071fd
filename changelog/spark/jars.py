"""Spark's connector for Kafka: fetched by name once, and kept in the user's cache.

    $XDG_CACHE_HOME/samovar/spark/VERSION/*.jar     complete: made elsewhere and renamed
    $XDG_CACHE_HOME/samovar/delta/VERSION/*.jar     the same, of Delta Lake

Only what PySpark does not bring itself is handed to Spark: a second copy of a library would be loaded in its place.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

from samovar.changelog.broker.jars import Java, NotFetched, Say, cache_folder, cached_jars, find_java
from samovar.common.errors import Refused

SPARK = "4.0.0"  # another PySpark reads Kafka by the reader that the service uses
CONNECTOR = ("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK)
DELTA = ("io.delta", "delta-spark_2.13", "4.0.0")
_VERSION = re.compile(r"-\d[\w.-]*\.jar$")


def pyspark_version() -> str:
    """Of the PySpark that is installed; empty where there is none."""
    try:
        from pyspark.version import __version__ as version  # noqa: PLC0415 - takes long, and is not always installed
    except ImportError:
        return ""
    return str(version)


def connector_jars(java: Java, say: Say) -> list[Path]:
    """The jars that Spark needs to read Kafka, fetched where they are not there yet."""
    return _jars("spark", CONNECTOR, java, say, f"Spark's Kafka connector {SPARK}")


def delta_jars(java: Java, say: Say) -> list[Path]:
    """The jars with which Spark reads and writes Delta tables itself."""
    return _jars("delta", DELTA, java, say, f"Delta Lake {DELTA[2]} for Spark")


def _jars(folder: str, wanted: tuple[str, str, str], java: Java, say: Say, what: str) -> list[Path]:
    try:
        jars = cached_jars(cache_folder(folder, wanted[2]), java, [wanted], say, what)
    except NotFetched as failed:
        raise Refused("spark-connector-missing", f"{what}: {failed.what}", failed.hint, failed.tried) from None
    known = {_library(jar) for jar in _pyspark().glob("jars/*.jar")}
    return [jar for jar in jars if _library(jar) not in known]


def _library(jar: Path) -> str:
    """A jar's name without its version.

    >>> _library(Path("snappy-java-1.1.10.5.jar")), _library(Path("spark-tags_2.13-4.0.0.jar"))
    ('snappy-java', 'spark-tags_2.13')
    """
    return _VERSION.sub("", jar.name)


def _pyspark() -> Path:
    found = importlib.util.find_spec("pyspark")
    assert found is not None, "asked for with PySpark at hand"
    assert found.origin is not None
    return Path(found.origin).parent


def main() -> int:
    """`python -m samovar.changelog.spark.jars`: their paths, as `spark-submit --jars` takes them; none where Spark is
    another than the connector's.
    """

    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    try:
        jars = connector_jars(find_java("Spark"), say) if pyspark_version() == SPARK else []
    except Refused as refused:
        say(str(refused))
        return 2
    sys.stdout.write(",".join(map(str, jars)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
