"""Which Spark reads Kafka by its own connector: the one that the connector is made for."""

from __future__ import annotations

from pathlib import Path

import pytest

from samovar.changelog.spark import jars
from samovar.service.spark.session import connector_settings
from tests.support.small_service import make


@pytest.mark.parametrize(("version", "is_read_by_it"), [(jars.SPARK, True), ("4.1.4", False), ("4.0.1", False)])
def test_another_spark_than_the_connectors_reads_kafka_by_our_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, is_read_by_it: bool
) -> None:
    monkeypatch.setattr("samovar.service.spark.session.pyspark_version", lambda: version)
    service = make(tmp_path / "s")
    assert connector_settings(service.settings) is None  # of an embedded log
    with service.config.open("a") as file:
        file.write('log: {kafka: {bootstrap: "127.0.0.1:1"}}\n')
    assert (connector_settings(service.settings) is not None) == is_read_by_it


def test_the_version_is_that_of_the_package() -> None:
    pyspark = pytest.importorskip("pyspark")
    assert jars.pyspark_version() == pyspark.__version__
