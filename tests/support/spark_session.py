"""One Spark session for all tests that ask for it: its start is the slow part. Commands that tests run find it open."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pytest

from samovar.changelog.spark.session import SCHEDULING, OpenSession, starting
from tests.support.project import ROOT


@pytest.fixture(scope="session")
def spark() -> Iterator[OpenSession]:
    """On two cores, with the connector for Kafka."""
    root = str(ROOT)
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {"spark.ui.enabled": "true", "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
    settings |= SCHEDULING  # small jobs: most of Java's time would go into compiling them well
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", paths)  # executors import what tests give them
        with starting("samovar tests", "local[2]", kafka=True, settings=settings) as start:
            yield start.ready()


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """PySpark leaves the sockets by which rows come to the collector."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) or "test_docs.py" in item.nodeid:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
