"""A service at work: one container, or several processes that share the work."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import IO

from samovar import __version__
from samovar.changelog.formats.heartbeat import MemberMetadata
from samovar.changelog.log import Log
from samovar.common.errors import Refused
from samovar.common.folders import close_to_others
from samovar.service.config.models import ServiceFile
from samovar.service.ops.log_output import forward_kafka_logs, make_logger
from samovar.service.ops.metrics import ContainerMetrics
from samovar.service.runtime.metrics_server import address_of, serving
from samovar.service.runtime.processes import stopping
from samovar.service.runtime.rule_source import PublishedRuleSource
from samovar.service.topology.archives import with_archive
from samovar.service.topology.copartitioning import refuse_misplaced
from samovar.service.topology.plans import plans_of
from samovar.service.topology.rule_registry import with_published_rules
from samovar.service.topology.topics import ensure
from samovar.state.rocks import RocksMemory
from samovar.tasks.model.clock import Clock, SystemClock
from samovar.tasks.model.log_events import LogEvent
from samovar.tasks.model.results import Counts
from samovar.tasks.runtime.container import Container, RunStatus
from samovar.tasks.runtime.heartbeat import HeartbeatReporter
from samovar.tasks.runtime.metrics import MetricsSampler
from samovar.tasks.runtime.slot_claim import SlotClaim
from samovar.tasks.runtime.stream_task import LIVE_BUDGET, TaskConfig

STATUS_EVERY_S = 5.0


def config_of(settings: ServiceFile) -> TaskConfig:
    return TaskConfig(
        folder=settings.state,
        memory=RocksMemory(),
        group=settings.service,
        delivery=settings.delivery,
        delete_retention_ms=settings.changelog.delete_retention_ms,
        snapshot_keep=settings.snapshots.keep,
        budget=replace(LIVE_BUDGET, step_bytes=settings.tunables.step_bytes),
        past=partial(with_archive, settings),
    )


def container_of(
    settings: ServiceFile, log: Log, slot: int, tell: Callable[[str], None], clock: Clock | None = None
) -> Container:
    """A container of the service; its topics are made or checked first."""
    refuse_unwritable(settings)
    settings = with_published_rules(settings, log)
    partitions = ensure(log, settings)[0].partitions
    plans = plans_of(settings, partitions)
    refuse_misplaced(log, settings, plans, partitions)
    watch = PublishedRuleSource(log, settings, plans, partitions, tell)
    clock = clock or SystemClock()
    claim = SlotClaim(log, settings.service, slot, clock=clock)
    return Container(plans, log, slot, config_of(settings), clock, tell, watch, claim)


def refuse_unwritable(settings: ServiceFile) -> None:
    """A folder of the state that cannot be made, or not be written. It is closed to others, unless the service's own
    sources are in it.
    """
    folder = settings.state
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not settings.folder.resolve().is_relative_to(folder.resolve()):
            close_to_others(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Refused(
            "state-unwritable",
            f"the state folder {folder} cannot be written: {error.strerror}",
            "Give this user the right to write it, mount it for writing, or set `state` to another folder: `samovar"
            " doctor` says what is wrong with it. Nothing is lost: state is restored from its changelog.",
        ) from error


def run_here(
    settings: ServiceFile,
    log: Log,
    out: IO[str],
    *,
    until_caught_up: bool,
    address: str | None = None,
    quiet: bool = False,
) -> Counts:
    """One container in this process. SIGTERM and Ctrl-C end it after the cycle at hand; with `run.leave` for good, as
    SIGUSR1 always does. `quiet`: it does not say how far it is.
    """
    slot, metrics = settings.run.slot, settings.run.metrics
    tell = make_logger(settings.run.log_form, out, settings.service, slot)
    container = container_of(settings, log, slot, tell)
    rules = sum(len(plan.program.rules) for plan in container.plans.values())
    stages = [stage for stage in container.plans if stage]
    more = f", stages {', '.join(stages)}" if stages else ""
    text = f"container {slot} of {settings.service}: {rules} rules, {settings.delivery.value}{more}"
    tell(LogEvent(text, "started", version=__version__, delivery=settings.delivery.value))
    sampler = MetricsSampler(container, SystemClock())
    heartbeat = HeartbeatReporter(log, settings.service, sampler, address=address)
    progress = ProgressReporter(tell, (lambda: records_left(heartbeat.latest)) if until_caught_up else None)
    sampler.on_change = heartbeat.wake
    assert isinstance(container.rule_source, PublishedRuleSource)

    def after_cycle(status: RunStatus) -> None:
        if not quiet:
            progress(status)
        sampler()

    with ExitStack() as stack:
        stack.enter_context(stopping(container.leave if settings.run.leave else container.stop, container.leave))
        stack.enter_context(forward_kafka_logs(tell))
        stack.enter_context(container.rule_source.watching())
        if metrics is not None:
            collector = ContainerMetrics(settings.service, heartbeat, container.commit_times)
            stack.enter_context(serving(settings, log, address_of(metrics), collector))
        heartbeat.start()
        stack.callback(heartbeat.close)
        counts = container.run(until_caught_up=until_caught_up, on_cycle=after_cycle)
    tell(LogEvent(f"container {slot} stopped: {summary(counts)}", "stopped", **asdict(counts)))
    return counts


class ProgressReporter:
    """Tells now and then how a container is doing: on every change of its tasks, and every few seconds of work.

    Where it ends when all is done, `left` says how many records that are: it tells the time they take, and what it
    waits for.
    """

    def __init__(self, tell: Callable[[str], None], left: Callable[[], int | None] | None = None) -> None:
        self.tell, self.left = tell, left
        self.at = time.monotonic()
        self.events = 0
        self.tasks: object = None

    def __call__(self, status: RunStatus) -> None:
        now = time.monotonic()
        tasks = (status.running, tuple(status.restoring))
        has_changed, is_due = tasks != self.tasks, now - self.at >= STATUS_EVERY_S
        if not has_changed and is_due and status.counts.events > self.events:
            rate = (status.counts.events - self.events) / (now - self.at)
            left = None if self.left is None else self.left()
            more = "" if left is None else f", {left:,} records left, about {left / rate:,.0f} s"
            text = f"container {status.slot}: {summary(status.counts)}, {rate:,.0f} events/s{more}"
            self.tell(LogEvent(text, "progress", events_per_s=round(rate), left=left, **asdict(status.counts)))
        elif has_changed or (is_due and status.restoring):
            running = ", ".join(map(str, status.running)) or "none"
            places = sorted(status.restoring.items())
            restoring = ", ".join(f"{number} ({done:,} of {todo:,})" for number, (done, todo) in places)
            more = f"; restoring {restoring}" if restoring else ""
            text = f"container {status.slot}: running partitions {running}{more}"
            self.tell(LogEvent(text, "tasks", running=list(status.running), restoring=restoring or None))
        elif is_due and self.left is not None:
            left = self.left()
            reason = "its partitions are done, those of other containers are not"
            if not status.caught_up:
                nothing = f"nothing came, and {left or 0:,} records are left"
                reason = nothing if status.running else "it has no partitions yet"
            self.tell(LogEvent(f"container {status.slot} waits: {reason}", "waiting", left=left))
        else:
            return
        self.at, self.events, self.tasks = now, status.counts.events, tasks


def records_left(told: MemberMetadata | None) -> int | None:
    """How many records of its inputs a container has yet to take, as far as is known."""
    inputs = [] if told is None else [each for task in told.tasks for each in task.inputs]
    return sum(each.lag or 0 for each in inputs) if inputs else None


def summary(counts: Counts) -> str:
    more = f", {counts.emitted:,} emitted" if counts.emitted else ""
    more += f", {counts.dropped:,} dropped by limits" if counts.dropped else ""
    return f"{counts.events:,} events, {counts.matches:,} alerts, {counts.late:,} late, {counts.dead:,} dead{more}"
