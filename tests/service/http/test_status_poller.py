"""Looks at a service, of which a few stay whole and half an hour as points of curves."""

from __future__ import annotations

from pathlib import Path

from samovar.service.http.status_poller import KEPT, RATE_OVER_S, StatusPoller, StatusSnapshot
from samovar.service.ops.status import ServiceStatus
from tests.support.small_service import make


def test_only_the_newest_looks_stay_whole(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    with service.log() as log:
        poller = StatusPoller(service.settings, log, every_s=2.0)
        for number in range(2 * KEPT):
            status = ServiceStatus(service="s", time_ms=number, containers=(), tasks=())
            poller._take(StatusSnapshot(2.0 * number, status))
        assert poller.latest.at_s - poller._seen[0].at_s >= RATE_OVER_S
        assert len(poller._seen) < 10
        times = [sample["time"] for sample in poller.samples(float("inf"))]
        assert times == list(range(KEPT, 2 * KEPT))
