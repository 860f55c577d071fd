"""Every fault test runs on both logs, with the same words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.faults.harness import Service, make_service, twin

Making: TypeAlias = Callable[..., Service]


@pytest.fixture(params=["embedded", "kafka"])
def bootstrap(request: pytest.FixtureRequest) -> str | None:
    """The log of a test: None is the embedded one, else a broker's address."""
    return None if request.param == "embedded" else str(request.getfixturevalue("kafka"))


@pytest.fixture
def services() -> Iterator[list[Service]]:
    """All services of a test: what they started is ended, what they opened is closed."""
    made: list[Service] = []
    yield made
    for service in reversed(made):
        service.close()


@pytest.fixture
def make(tmp_path: Path, services: list[Service], bootstrap: str | None) -> Making:
    """Makes services on this test's log."""

    def made(*arguments: Any, **more: Any) -> Service:
        folder = tmp_path / f"service-{len(services)}"
        services.append(make_service(folder, *arguments, bootstrap=bootstrap, **more))
        return services[-1]

    return made


@pytest.fixture
def make_here(tmp_path: Path, services: list[Service]) -> Making:
    """Makes services on an embedded log."""

    def made(*arguments: Any, **more: Any) -> Service:
        services.append(make_service(tmp_path / f"service-{len(services)}", *arguments, **more))
        return services[-1]

    return made


@pytest.fixture
def make_kafka(tmp_path: Path, services: list[Service], kafka: str) -> Making:
    """Makes services on Kafka."""

    def made(*arguments: Any, **more: Any) -> Service:
        services.append(make_service(tmp_path / f"service-{len(services)}", *arguments, bootstrap=kafka, **more))
        return services[-1]

    return made


@pytest.fixture
def make_twin(tmp_path: Path, services: list[Service]) -> Callable[[Service], Service]:
    """The same service with the same input on an embedded log, for a straight run."""

    def made(service: Service) -> Service:
        services.append(twin(service, tmp_path / f"service-{len(services)}"))
        return services[-1]

    return made
