"""The contract of a Log on a real Kafka, and what only Kafka can do wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from samovar.changelog.kafka import KafkaLog
from samovar.changelog.log import Log
from tests.contracts.log import LogContract
from tests.contracts.log_driving import NewLog


@pytest.fixture(scope="module")
def log(kafka: str) -> Iterator[Log]:
    log = KafkaLog({"bootstrap.servers": kafka})
    yield log
    log.close()


@pytest.fixture
def new_log(kafka: str) -> Iterator[NewLog]:
    logs: list[KafkaLog] = []

    def make() -> Log:
        logs.append(KafkaLog({"bootstrap.servers": kafka}))
        return logs[-1]

    yield make
    for each in logs:
        each.close()


class TestKafkaLog(LogContract):
    """Every sentence of samovar.changelog.log."""
