"""How far a job on Spark is: stages and tasks as Spark's status tracker tells them, rows as its sources count them.

Spark counts what a data source reads while a task runs. A task that reads by itself tells it in a file of its own, in
a folder that the driver looks into: where a cluster's machines share no such folder, the tasks that ended are all that
is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pyspark import SparkContext

TELL_S = 0.3  # between two tellings of a task


@dataclass(frozen=True, kw_only=True)
class JobProgress:
    """A job at one moment. `total` is how many rows there are to read, where that is known."""

    job: str
    stages_done: int
    stages: int
    tasks_done: int
    tasks: int
    rows: int
    total: int | None
    seconds: float
    waits_for: str | None = None  # before it begins

    @property
    def rate(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """By the rows where their number is known, else by tasks."""
        part = self.rows / self.total if self.total else self.tasks_done / self.tasks if self.tasks else 0.0
        return self.seconds / part - self.seconds if 0 < part <= 1 else None

    def data(self) -> dict[str, Any]:
        left = self.left_s
        return {
            "job": self.job,
            "stages": [self.stages_done, self.stages],
            "tasks": [self.tasks_done, self.tasks],
            "rows": self.rows,
            "total": self.total,
            "rows_per_s": round(self.rate),
            "seconds": round(self.seconds, 1),
            "left_s": None if left is None else round(left, 1),
            **({} if self.waits_for is None else {"waits_for": self.waits_for}),
        }

    def text(self) -> str:
        if self.waits_for is not None:
            return f"{self.job}: {self.waits_for}, is waited for since {self.seconds:,.0f} s"
        of = "" if self.total is None else f" of {self.total:,}"
        left = "" if self.left_s is None else f", {self.left_s:,.0f} s left"
        return (
            f"{self.job}: stage {min(self.stages_done + 1, max(self.stages, 1))} of {max(self.stages, 1)},"
            f" {self.tasks_done} of {self.tasks} tasks, {self.rows:,}{of} rows, {self.rate:,.0f}/s{left}"
        )


OnProgress: TypeAlias = Callable[[JobProgress], None]


def look(
    context: SparkContext, group: str, job: str, begun: float, total: int | None, ticks: Path | None
) -> JobProgress:
    """Ask Spark about all jobs of a group."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - with pyspark, which only its jobs need

    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(group)]
    stages = {stage for info in jobs if info is not None for stage in info.stageIds}
    done = tasks = tasks_done = rows = 0
    for stage in stages:
        info = tracker.getStageInfo(stage)
        if info is None:
            continue
        tasks, tasks_done = tasks + info.numTasks, tasks_done + info.numCompletedTasks
        done += info.numCompletedTasks >= info.numTasks
        if ticks is None:
            # Spark's Python side has no such count: its Java side is asked. A stage that has not begun has none.
            with suppress(Py4JError):
                rows += int(context._jsc.sc().statusStore().lastStageAttempt(stage).inputRecords())
    if ticks is not None:
        rows = ticked(ticks)
    return JobProgress(
        job=job,
        stages_done=done,
        stages=len(stages),
        tasks_done=tasks_done,
        tasks=tasks,
        rows=rows,
        total=total,
        seconds=time.monotonic() - begun,
    )


class Ticker:
    """On an executor: how many rows a task has done, now and then."""

    def __init__(self, folder: str | None, name: str) -> None:
        self._file = None if folder is None else Path(folder) / name
        self._told = 0.0

    def __call__(self, rows: int, *, last: bool = False) -> None:
        now = time.monotonic()
        if self._file is None or (now - self._told < TELL_S and not last):
            return
        self._told = now
        try:
            being_written = self._file.with_name(f".{self._file.name}")
            being_written.write_text(str(rows), "ascii")
            being_written.replace(self._file)
        except OSError:
            self._file = None  # another machine: nobody looks there


def ticked(folder: Path) -> int:
    """What all tasks have told so far."""
    return sum(int(file.read_text("ascii")) for file in folder.iterdir() if not file.name.startswith("."))
