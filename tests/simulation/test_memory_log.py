"""The log of the simulator keeps the contract of logs, and does what Kafka does beyond it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from samovar.changelog.log import Log
from samovar.tasks.model.clock import SetClock
from tests.contracts.log import LogContract
from tests.contracts.log_driving import NewLog
from tests.simulation.broker import Broker
from tests.simulation.memory_log import MemoryLog


@dataclass
class TickingClock(SetClock):
    """Moves a little whenever it is asked: then all that waits for time comes to an end."""

    def steady_ms(self) -> int:
        self.now_ms += 1
        return self.now_ms

    def wall_ms(self) -> int:
        return self.steady_ms()


@pytest.fixture(scope="module")
def broker() -> Broker:
    return Broker(TickingClock(), session_ms=1_500)


@pytest.fixture(scope="module")
def log(broker: Broker) -> Iterator[Log]:
    log = MemoryLog(broker)
    yield log
    log.close()


@pytest.fixture
def new_log(broker: Broker) -> NewLog:
    return lambda: MemoryLog(broker)


class TestMemoryLog(LogContract):
    @pytest.fixture
    def now_ms(self, broker: Broker) -> Callable[[], int]:
        return broker.clock.wall_ms
