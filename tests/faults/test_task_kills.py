"""Tasks of the user's, killed at every point of their commits: stores, timers, emits and rules as if they never were.
One of them reads its stream through a repartition topic.

P1 what it emitted is what a straight run emits, once; P2 its store equals a straight run's, and what is rebuilt from
the source; P3 and P4 a store that was kept goes on, one that was lost comes back; P9 timers fire once.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.faults import task_world
from tests.faults.harness import Service

BATCH = 10  # records of a poll, so that a little input is many commits
INPUT = 30
POINTS = (
    "produce.before",
    "produce.after",
    "offsets.before",
    "offsets.after",
    "commit.before",
    "commit.after",
    "write.before",
    "write.after",
)


@pytest.fixture
def service(tmp_path: Path, bootstrap: str | None, services: list[Service]) -> Service:
    services.append(task_world.task_service(tmp_path / "killed", bootstrap, snapshots={"every": "1h"}))
    return services[-1]


def kill_at(service: Service, point: str, count: int) -> None:
    running = service.start(kill=f"{point}:{count}", poll=BATCH)
    code = running.ended()
    assert code == -signal.SIGKILL, f"{point} was not hit {count} times; exit code {code}: {running.text}"


def test_a_task_killed_at_every_point_of_a_commit(
    service: Service, services: list[Service], tmp_path: Path, bootstrap: str | None
) -> None:
    source = task_world.events(7)
    task_world.feed(service, source, INPUT)
    # On the broker, where a start takes long, the points at which log and store part.
    kept = POINTS if bootstrap is None else POINTS[3:7]
    lost = POINTS[4:] if bootstrap is None else POINTS[5:7]
    for number, point in enumerate([*kept, *lost]):
        task_world.feed(service, source, INPUT)
        if number >= len(kept):
            service.wipe()
        kill_at(service, point, 2 + number % 3)
    task_world.last(service)
    service.run_to_end()  # in large batches: there is much to catch up on
    services.append(task_world.straight(service, tmp_path / "straight"))
    found, wanted = task_world.outcome(service), task_world.outcome(services[-1])
    assert found == wanted
    assert task_world.rebuilt_digests(service) == found["task"]
    assert task_world.rebuilt_digests(service, task_world.SCATTERED) == found["heaps"]
    _something_happened(wanted)


def _something_happened(found: dict[str, Any]) -> None:
    for where in ("told", "heaped"):
        told = [value for rows in found[where].values() for _, value in rows]
        assert sum(b'"what":"quiet"' in value for value in told) > 10
        assert sum(b'"what":"event"' in value for value in told) > 100
    assert len(found["alerts"]) > 5
    assert sum(map(len, found["dead"].values())) > 3
    assert sum(map(len, found["seen"].values())) > 3
    assert len(set(found["task"].values())) == task_world.PARTITIONS
