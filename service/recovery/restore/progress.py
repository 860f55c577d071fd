"""How far a restore is: bars with rate and time left on a terminal, a line now and then where none is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import IO, Any

from samovar.service.query.state.view import event_time_text
from samovar.service.recovery.restore.plan import RestorePlan
from samovar.service.recovery.restore.run import RestoreResult
from samovar.tasks.runtime.stream_task import name_of

EVERY_S = 5.0


class Bars:
    """A bar a partition. Used as a context, so that the terminal is whole again afterwards."""

    def __init__(self, plans: Sequence[RestorePlan], err: IO[str], *, quiet: bool = False) -> None:
        self._err, self._quiet = err, quiet
        self._begun: dict[str, float] = {}
        self._told = time.monotonic()
        self._progress: Any = None
        if err.isatty() and not quiet:
            from rich.console import Console  # noqa: PLC0415 - slow to load, and only of use on a terminal
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415

            rate = TextColumn("{task.completed:,.0f} records, {task.fields[rate]}/s")
            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), rate, TimeRemainingColumn())
            self._progress = Progress(*columns, console=Console(file=err))
            self._numbers = {
                each.name: self._progress.add_task(each.name, total=max(each.todo, 1), rate="0") for each in plans
            }

    def __enter__(self) -> Bars:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def moved(self, planned: RestorePlan, done: int) -> None:
        now = time.monotonic()
        rate = done / max(now - self._begun.setdefault(planned.name, now), 1e-3)
        if self._progress is not None:
            self._progress.update(self._numbers[planned.name], completed=done, rate=f"{rate:,.0f}")
        elif not self._quiet and now - self._told >= EVERY_S:
            self._told = now
            left = f", {(planned.todo - done) / rate:,.0f} s left" if rate > 0 else ""
            text = f"{planned.name}: {done:,} of {planned.todo:,} records, {rate:,.0f}/s{left}"
            print(text, file=self._err, flush=True)

    def done(self, planned: RestorePlan, restored: RestoreResult) -> None:
        if self._progress is not None:
            rate = f"{restored.records / max(restored.seconds, 1e-3):,.0f}"
            self._progress.update(self._numbers[planned.name], completed=max(planned.todo, 1), rate=rate)


def restored_line(restored: RestoreResult) -> str:
    """One partition that is done."""
    offset = "" if restored.offset is None else f", changelog offset {restored.offset:,}"
    name = name_of(restored.stage, restored.partition)
    text = (
        f"{name}: restored from {restored.source}, {restored.records:,} records in {restored.seconds:.1f} s,"
        f" {event_time_text(restored.position)}{offset}"
    )
    if restored.rows_to_repair:
        repaired = f"{restored.rows_to_repair:,} rows of the changelog were repaired"
        text += f"; {repaired}, {restored.states_differ:,} states differed"
    return f"{text}\n  digest {restored.digest}"
