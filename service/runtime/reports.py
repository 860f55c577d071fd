"""What a container tells of itself while it runs: to the topic of containers, and as metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from samovar.changelog.log import Log
from samovar.service.config.models import ServiceFile
from samovar.tasks.model.clock import SystemClock
from samovar.tasks.runtime.container import Container
from samovar.tasks.runtime.heartbeat import Reporter
from samovar.tasks.runtime.metrics import Observer


@contextmanager
def reported(
    container: Container, log: Log, settings: ServiceFile, metrics: str | None = None, address: str | None = None
) -> Iterator[Observer]:
    """While this lasts, the container is told of. Call what it gives after every cycle."""
    observer = Observer(container, SystemClock())
    reporter = Reporter(log, settings.service, observer, address=address)
    observer.on_change = reporter.wake
    with served(settings, log, container, reporter, metrics):
        reporter.start()
        try:
            yield observer
        finally:
            reporter.close()


@contextmanager
def served(
    settings: ServiceFile, log: Log, container: Container, reporter: Reporter, where: str | None
) -> Iterator[None]:
    """While this lasts, metrics are served, if anywhere."""
    if where is None:
        yield
        return
    from samovar.service.ops.metrics import ContainerMetrics  # noqa: PLC0415 - only where it is asked for
    from samovar.service.runtime.metrics_server import address_of, serving  # noqa: PLC0415 - as above

    collector = ContainerMetrics(settings.service, reporter, container.commit_times)
    with serving(settings, log, address_of(where), collector):
        yield
