"""A service's status for people."""

from __future__ import annotations

from collections.abc import Sequence

from samovar.patterns.explain.key_trace import iso_time
from samovar.service.ops.status import ContainerStatus, ServiceStatus, TaskStatus


def status_lines(status: ServiceStatus) -> list[str]:
    """A summary, then containers, then tasks."""
    lines = [f"{status.service}: {_summary(status)}"]
    if status.containers:
        containers = ("container", "state", "host", "pid", "since", "version", "tasks", "told")
        lines += ["", *table([containers, *(_container(status, each) for each in status.containers)])]
    if status.tasks:
        tasks = ("task", "container", "life", "lag", "event time", "held by")
        lines += ["", *table([tasks, *(_task(each) for each in status.tasks)])]
    lines += ["", *(each.text for each in status.grown)] if status.grown else []
    if status.rules.lines:
        lines += ["", *status.rules.lines]
    for task in status.tasks:
        if task.restore is not None:
            lines.append(f"restoring {task.name}: {_restore(task)}")
    return lines


def _summary(status: ServiceStatus) -> str:
    live = [each for each in status.containers if each.state != "gone"]
    running = sum(task.life == "running" for task in status.tasks)
    who = f"{len(live)} container{'s' * (len(live) != 1)}" if live else "no container"
    parts = [who, f"{running} of {len(status.tasks)} tasks running", f"lag {lag_text(status)}"]
    slowest = status.slowest
    if slowest is not None and slowest.watermark is not None:
        age = seconds_text((status.time_ms - slowest.watermark) / 1000)
        parts.append(f"event time {iso_time(slowest.watermark)}, {age} old, held by task {slowest.name}")
    return "; ".join(parts)


def lag_text(of: ServiceStatus | TaskStatus) -> str:
    behind_s = of.behind_s if isinstance(of, TaskStatus) else max((task.behind_s for task in of.tasks), default=0.0)
    seconds = f", {seconds_text(behind_s)}" if of.lag else ""
    return f"{of.lag:,} event{'s' * (of.lag != 1)}{seconds}"


def seconds_text(seconds: float) -> str:
    """A length of time, in the unit that fits.

    >>> seconds_text(0.25), seconds_text(75), seconds_text(7200), seconds_text(300_000)
    ('0.2 s', '75 s', '120 min', '83 h')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 600:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 36_000 else f"{seconds / 3600:,.0f} h"


def _container(status: ServiceStatus, each: ContainerStatus) -> tuple[str, ...]:
    known = each.presence
    if known is None or each.seen is None:
        return str(each.slot), each.state, "-", "-", "-", "-", "-", "nothing yet"
    told = f"{seconds_text(max(status.time_ms - each.seen.log_ms, 0) / 1000)} ago"
    since = iso_time(known.since_ms)
    return str(each.slot), each.state, known.host, str(known.pid), since, known.version, str(len(known.tasks)), told


def _task(task: TaskStatus) -> tuple[str, ...]:
    container = "-" if task.container is None else str(task.container)
    watermark = "none yet" if task.watermark is None else iso_time(task.watermark)
    held_by = "-" if task.held_by is None else f"{task.held_by[0]}/{task.held_by[1]}"
    return task.name, container, task.life, lag_text(task), watermark, held_by


def _restore(task: TaskStatus) -> str:
    restore = task.restore
    assert restore is not None
    text = f"{restore.done:,} of {restore.todo:,} offsets"
    if restore.per_s is not None and restore.left_s is not None:
        text += f", {restore.per_s:,.0f}/s, {seconds_text(restore.left_s)} left"
    return text


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
