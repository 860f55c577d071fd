"""What a container says about itself while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from samovar.service.runtime.running import STATUS_EVERY_S, ProgressReporter
from samovar.tasks.model.results import Counts
from samovar.tasks.runtime.container import RunStatus
from tests.support.small_service import make, many, run


class Told:
    """A reporter and what it said; it is always time to say something."""

    def __init__(self, left: int | None = None) -> None:
        self.lines: list[str] = []
        self.reporter = ProgressReporter(self.lines.append, None if left is None else lambda: left)

    def on(self, events: int, *, caught_up: bool = False, running: tuple[int, ...] = (0, 1)) -> str | None:
        before = len(self.lines)
        self.reporter.at -= 2 * STATUS_EVERY_S
        counts = Counts(events=events)
        self.reporter(RunStatus(slot=0, running=running, restoring={}, counts=counts, caught_up=caught_up))
        return self.lines[-1] if len(self.lines) > before else None


def test_one_that_ends_when_all_is_done_says_how_long_that_will_take() -> None:
    told = Told(left=500)
    assert told.on(0) == "container 0: running partitions 0, 1"
    line = told.on(1_000)
    assert line is not None
    assert "100 events/s, 500 records left, about 5 s" in line


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"caught_up": True}, "its partitions are done, those of other containers are not"),
        ({"running": ()}, "it has no partitions yet"),
        ({}, "nothing came, and 500 records are left"),
    ],
)
def test_it_says_what_it_waits_for(how: dict[str, Any], reason: str) -> None:
    told = Told(left=500)
    told.on(7, **how)
    assert told.on(7, **how) == f"container 0 waits: {reason}"


def test_one_that_goes_on_for_ever_has_nothing_left_and_waits_in_silence() -> None:
    told = Told()
    told.on(0)
    line = told.on(1_000)
    assert line is not None
    assert "left" not in line
    assert told.on(1_000, caught_up=True) is None


def test_counts_as_json_come_without_progress(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.produce(many(20))
    assert "running partitions" in run("run", service.config, "--until-caught-up").stderr
    service.produce(many(20, start_s=100))
    done = run("run", service.config, "--until-caught-up", "--json")
    assert '"events": 20' in done.stdout
    assert "running partitions" not in done.stderr
    assert "container 0 stopped" in done.stderr
