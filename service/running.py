"""A service at work: its plan from the service file, and one container, or several processes that share the work."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import IO

from samovar.changelog.log import Log
from samovar.patterns.compile import compile_rules
from samovar.patterns.loading import RuleSet
from samovar.patterns.schema import Schema
from samovar.service.processes import stopping
from samovar.service.service_rules import rules_of
from samovar.service.settings_models import ServiceFile, Stream
from samovar.service.topics import ensure
from samovar.state.rocks import Memory
from samovar.tasks.clock import Clock, SystemClock
from samovar.tasks.container import Container, Status
from samovar.tasks.core import Counts
from samovar.tasks.plan import InputSpec, OutputTopics, Plan, RuleText
from samovar.tasks.task import Upkeep

STATUS_EVERY_S = 5.0


def plan_of(settings: ServiceFile, partitions: int) -> Plan:
    """What the tasks of a service are to do."""
    rules = rules_of(settings, partitions)
    program = compile_rules(rules.rules)
    topics = OutputTopics(
        settings.alerts.topic,
        settings.late.topic,
        settings.dead_letters.topic,
        settings.changelog.topic,
        settings.journal.topic,
    )
    return Plan(
        settings.service,
        tuple(input_of(name, stream) for name, stream in settings.streams.items()),
        program,
        _texts(settings, rules, [plan.version for plan in program.rules]),
        topics,
        settings.max_partials,
        settings.max_events,
        settings.cache_bytes,
    )


def input_of(name: str, stream: Stream) -> InputSpec:
    kinds: dict[str, str] = {}
    if stream.fields is not None and stream.type is None:
        kinds = dict(Schema.of({name: stream.fields}).types[name])
    return InputSpec(
        name,
        stream.topic,
        stream.key,
        stream.time,
        stream.type,
        stream.slack_ms,
        stream.idle_ms,
        stream.max_future_skew_ms,
        kinds,
    )


def _texts(settings: ServiceFile, rules: RuleSet, versions: Sequence[str]) -> tuple[RuleText, ...]:
    found = []
    for rule, version in zip(rules.rules, versions, strict=True):
        params = {name: value for name, value in settings.params.items() if name in rule.params}
        lists = {name: value for name, value in settings.lists.items() if name in rule.lists}
        found.append(RuleText(rule.id, version, rule.text, params, lists))
    return tuple(found)


def upkeep_of(settings: ServiceFile) -> Upkeep:
    return Upkeep(
        settings.state,
        Memory(),
        settings.service,
        settings.delivery,
        settings.changelog.delete_retention_ms,
        settings.snapshots.every_ms,
        settings.snapshots.keep,
    )


def container_of(
    settings: ServiceFile, log: Log, slot: int, tell: Callable[[str], None], clock: Clock | None = None
) -> Container:
    """A container of the service; its topics are made or checked first."""
    partitions = ensure(log, settings)[0].partitions
    return Container(plan_of(settings, partitions), log, slot, upkeep_of(settings), clock or SystemClock(), tell)


def run_here(settings: ServiceFile, log: Log, slot: int, out: IO[str], *, until_caught_up: bool) -> Counts:
    """One container in this process. SIGTERM and Ctrl-C end it after the cycle at hand."""

    def tell(text: str) -> None:
        print(text, file=out, flush=True)

    container = container_of(settings, log, slot, tell)
    tell(f"container {slot} of {settings.service}: {len(container.plan.rules)} rules, {settings.delivery.value}")
    with stopping(container.stop):
        counts = container.run(until_caught_up=until_caught_up, on_cycle=Shown(tell))
    tell(f"container {slot} stopped: {summary(counts)}")
    return counts


class Shown:
    """Tells now and then how a container is doing: on every change of its tasks, and every few seconds of work."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self.at = time.monotonic()
        self.events = 0
        self.tasks: object = None

    def __call__(self, status: Status) -> None:
        now = time.monotonic()
        tasks = (status.running, tuple(status.restoring))
        if tasks != self.tasks:
            self.tasks = tasks
            self._tell_tasks(status)
        elif now - self.at >= STATUS_EVERY_S and status.counts.events > self.events:
            rate = (status.counts.events - self.events) / (now - self.at)
            self.tell(f"container {status.slot}: {summary(status.counts)}, {rate:,.0f} events/s")
        elif now - self.at >= STATUS_EVERY_S and status.restoring:
            self._tell_tasks(status)
        else:
            return
        self.at, self.events = now, status.counts.events

    def _tell_tasks(self, status: Status) -> None:
        running = ", ".join(map(str, status.running)) or "none"
        restoring = ", ".join(
            f"{number} ({done:,} of {todo:,})" for number, (done, todo) in sorted(status.restoring.items())
        )
        more = f"; restoring {restoring}" if restoring else ""
        self.tell(f"container {status.slot}: running partitions {running}{more}")


def summary(counts: Counts) -> str:
    dropped = f", {counts.dropped:,} dropped by limits" if counts.dropped else ""
    return f"{counts.events:,} events, {counts.matches:,} alerts, {counts.late:,} late, {counts.dead:,} dead{dropped}"
