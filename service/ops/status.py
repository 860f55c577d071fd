"""`samovar status CONFIG`: who runs what, how far each task is, and what is held up.

Lag and committed offsets come from the log itself, so that they are true when nothing runs, too; the rest is what the
containers tell (changelog/formats/heartbeat.py). The document of `--json`:

    {"service", "time", "containers": [{"slot", "state": "running" | "silent" | "gone" | "joining", "host", "pid",
     "since", "version", "told", "tasks": how many}], "tasks": [{"stage", "partition", "container", "life", "watermark",
     "blocked_by", "lag", "behind_s", "inputs": [{"stream", "topic", "partition", "committed", "end", "lag",
     "behind_s"}], "restore": {"done", "todo", "per_s", "left_s"}}], "lag", "behind_s", "watermark", "watermark_age_s",
     "blocked_by"}
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from samovar.changelog.cursors import PartitionCursor, available_reader
from samovar.changelog.formats.heartbeat import (
    ActiveRule,
    HeartbeatRecord,
    MemberMetadata,
    RestoreReport,
    TaskReport,
    read_heartbeats,
)
from samovar.changelog.formats.record import POSITION, Position, unpack_position
from samovar.changelog.log import Log, TopicPartition
from samovar.common.errors import Refused
from samovar.common.texts import counted
from samovar.patterns.explain.key_trace import iso_time
from samovar.service.config.models import ServiceFile
from samovar.service.query.state.view import watermark_text
from samovar.service.topology.plans import rule_plans
from samovar.service.topology.rule_registry import with_published_rules
from samovar.service.topology.topics import GrownInput, counted_topics, grown_inputs, partitions_of

SILENT_MS = 15_000  # a container tells of itself every two seconds
FIRST_S = 2.0  # to find the first records that are not processed
FIRST_RECORDS = 1_000  # of a partition, looked through at once: those of one must not hide another's behind them
BACK_RECORDS = 64  # of a changelog; every commit ends with its position


@dataclass(frozen=True)
class ContainerStatus:
    """A container: `running` tells, `silent` has not for a while, `joining` not yet; `gone` left without a word."""

    slot: int
    state: str
    seen: HeartbeatRecord | None = None

    @property
    def metadata(self) -> MemberMetadata | None:
        return None if self.seen is None else self.seen.metadata

    def data(self) -> dict[str, Any]:
        known = self.metadata
        if known is None or self.seen is None:
            return {"slot": self.slot, "state": self.state}
        return {
            "slot": self.slot,
            "state": self.state,
            "host": known.host,
            "pid": known.pid,
            "since": known.since_ms,
            "version": known.version,
            "address": known.address,
            "told": self.seen.log_ms,
            "tasks": len(known.tasks),
        }


@dataclass(frozen=True, kw_only=True)
class InputStatus:
    """One input partition, as the log has it. `committed` is None where nothing was ever processed."""

    stream: str
    topic: str
    partition: int
    committed: int | None
    end: int
    lag: int
    behind_s: float


@dataclass(frozen=True, kw_only=True)
class TaskStatus:
    """One task; without a container it has the event time of its last commit."""

    stage: str
    partition: int
    container: int | None
    life: str
    watermark: int | None
    blocked_by: tuple[str, int] | None
    inputs: Sequence[InputStatus]
    restore: RestoreReport | None = None

    @property
    def name(self) -> str:
        return f"{self.stage}/{self.partition}" if self.stage else str(self.partition)

    @property
    def lag(self) -> int:
        return sum(each.lag for each in self.inputs)

    @property
    def behind_s(self) -> float:
        return max((each.behind_s for each in self.inputs), default=0.0)

    def data(self) -> dict[str, Any]:
        restore = None
        if (known := self.restore) is not None:
            per_s = None if known.per_s is None else round(known.per_s)
            left_s = None if known.left_s is None else round(known.left_s, 1)
            restore = {"done": known.done, "todo": known.todo, "per_s": per_s, "left_s": left_s}
        return {
            "stage": self.stage,
            "partition": self.partition,
            "container": self.container,
            "life": self.life,
            "watermark": self.watermark,
            "blocked_by": None if self.blocked_by is None else list(self.blocked_by),
            "lag": self.lag,
            "behind_s": self.behind_s,
            "inputs": [asdict(each) for each in self.inputs],
            "restore": restore,
        }


@dataclass(frozen=True, kw_only=True)
class ServiceStatus:
    """A whole service at one moment. `rules_refused` is why a published change is not taken."""

    service: str
    time_ms: int
    containers: Sequence[ContainerStatus]
    tasks: Sequence[TaskStatus]
    rules: Sequence[ActiveRule] = ()
    rules_refused: str | None = None
    grown: Sequence[GrownInput] = ()

    @property
    def runs(self) -> bool:
        """Whether every task runs."""
        return bool(self.tasks) and all(task.life == "running" for task in self.tasks)

    @property
    def lag(self) -> int:
        return sum(task.lag for task in self.tasks)

    @property
    def behind_s(self) -> float:
        return max((task.behind_s for task in self.tasks), default=0.0)

    @property
    def slowest(self) -> TaskStatus | None:
        """The task whose event time is the least; one with none yet only where none has one."""
        known = [task for task in self.tasks if task.watermark is not None]
        return min(known, key=lambda task: task.watermark or 0, default=None)

    def data(self) -> dict[str, Any]:
        watermark = blocked_by = None
        if (slowest := self.slowest) is not None:
            watermark = slowest.watermark
            blocked_by = {"stage": slowest.stage, "partition": slowest.partition, "input": slowest.blocked_by}
        return {
            "service": self.service,
            "time": self.time_ms,
            "running": self.runs,
            "containers": [each.data() for each in self.containers],
            "tasks": [each.data() for each in self.tasks],
            "rules": [asdict(each) for each in self.rules],
            "rules_refused": self.rules_refused,
            "grown": [each.data() for each in self.grown],
            "lag": self.lag,
            "behind_s": self.behind_s,
            "watermark": watermark,
            "watermark_age_s": None if watermark is None else round((self.time_ms - watermark) / 1000, 3),
            "blocked_by": blocked_by,
        }


@dataclass(frozen=True)
class StagePlan:
    """What a status needs to know of a stage: its inputs by stream, and its changelog."""

    stage: str
    inputs: Mapping[str, str]  # stream to topic
    changelog: str
    partitions: int


# ---------------------------------------------------------------- asking


def status_of(settings: ServiceFile, log: Log, now_ms: int) -> ServiceStatus:
    """Ask the log and what containers told. Nothing is changed."""
    seen = read_heartbeats(log, settings.service)
    containers = containers_of(seen, log.members(settings.service), settings.service, now_ms)
    told = {each.slot: each for each in containers if each.metadata is not None and each.state in ("running", "silent")}
    tasks = tasks_of(settings, log, told, now_ms)
    members = [each.metadata for each in told.values() if each.metadata is not None]
    refused = next((each.rules_refused for each in members if each.rules_refused), None)
    rules = rules_at_work(members) or planned_rules(settings, log)
    return ServiceStatus(
        service=settings.service,
        time_ms=now_ms,
        containers=containers,
        tasks=tasks,
        rules=rules,
        rules_refused=refused,
        grown=grown_inputs(settings, log),
    )


def containers_of(
    seen: Mapping[int, HeartbeatRecord], members: Collection[str], service: str, now_ms: int
) -> list[ContainerStatus]:
    """Those in the group, and those that left a record behind."""
    live = {slot for slot in (slot_of(name, service) for name in members) if slot is not None}
    found = []
    for slot in sorted({*seen, *live}):
        known = seen.get(slot)
        if known is None:
            state = "joining"
        elif slot not in live:
            has_begun = bool(known.metadata.tasks) or now_ms - known.log_ms > SILENT_MS
            state = "gone" if has_begun else "joining"
        else:
            state = "running" if now_ms - known.log_ms <= SILENT_MS else "silent"
        found.append(ContainerStatus(slot, state, known))
    return found


def slot_of(member: str, service: str) -> int | None:
    """The slot of a member's name; None of a stranger in the group.

    >>> slot_of("fraud-2", "fraud"), slot_of("slot-0", "fraud"), slot_of("rdkafka", "fraud")
    (2, 0, None)
    """
    for prefix in (f"{service}-", "slot-"):
        number = member.removeprefix(prefix)
        if number != member and number.isdecimal():
            return int(number)
    return None


def rules_at_work(members: Iterable[MemberMetadata]) -> list[ActiveRule]:
    """A rule of several containers is one; a storm anywhere is one of the rule."""
    found: dict[tuple[str, str, str], ActiveRule] = {}
    for rule in (rule for each in members for rule in each.active_rules):
        place = rule.rule, rule.version, rule.status
        known = found.get(place)
        found[place] = rule if known is None else replace(known, kept_back=known.kept_back + rule.kept_back)
    return [found[place] for place in sorted(found)]


def planned_rules(settings: ServiceFile, log: Log) -> list[ActiveRule]:
    """The rules that would run, where no container tells; none where they have errors, which the doctor tells."""
    try:
        partitions = partitions_of(settings, log.topics(counted_topics(settings)))
        plans = rule_plans(with_published_rules(settings, log), partitions)
    except Refused:
        return []
    found = []
    for rule in sorted((rule for plan in plans for rule in plan.rules), key=lambda each: each.id):
        status = "quarantined" if rule.quarantined is not None else "shadow" if rule.shadow else "live"
        found.append(ActiveRule(rule=rule.id, version=rule.version, number=rule.number, status=status))
    return found


def stages_of(settings: ServiceFile, log: Log) -> list[StagePlan]:
    """The stages of a service. Rules tell of further ones; where they have errors, only the first is shown."""
    existing = log.topics(counted_topics(settings))
    inputs = {name: stream.topic for name, stream in settings.streams.items() if stream.topic in existing}
    if not inputs:
        return []
    partitions = partitions_of(settings, existing)
    found = [StagePlan("", inputs, settings.changelog.topic, partitions)]
    with suppress(Refused):
        for each in rule_plans(with_published_rules(settings, log), partitions)[1:]:
            topics = {spec.stream: spec.topic for spec in each.inputs}
            found.append(StagePlan(each.stage, topics, each.topics.changelog, partitions))
    for name, task in settings.tasks.items():
        topics = {stream: topic for stream, topic in inputs.items() if stream in task.streams}
        found.append(StagePlan(name, topics, f"{settings.changelog.topic}-{name}", partitions))
    made = log.topics([topic for stage in found for topic in stage.inputs.values()])
    return [stage for stage in found if all(topic in made for topic in stage.inputs.values())]


def tasks_of(settings: ServiceFile, log: Log, told: Mapping[int, ContainerStatus], now_ms: int) -> list[TaskStatus]:
    """All tasks: by what their containers told, and without one by their last commits."""
    reports: dict[tuple[str, int], tuple[int, TaskReport]] = {}
    for own, container in told.items():
        for task in () if container.metadata is None else container.metadata.tasks:
            known = replace(task, life="silent") if container.state == "silent" else task
            reports[task.stage, task.partition] = own, known
    stages = stages_of(settings, log)
    lags = lags_of(settings, log, stages, now_ms)
    found = []
    for stage in stages:
        for partition in range(stage.partitions):
            inputs = [lags[TopicPartition(topic, partition)] for topic in stage.inputs.values()]
            slot, report = reports.get((stage.stage, partition), (None, None))
            if report is not None and report.life == "running":
                watermark, blocked_by, life, restore = report.watermark, report.blocked_by, report.life, None
            else:
                position = committed_position(log, TopicPartition(stage.changelog, partition))
                watermark, blocked_by = None if position is None else position.watermark, None
                life, restore = ("stopped", None) if report is None else (report.life, report.restore)
            found.append(
                TaskStatus(
                    stage=stage.stage,
                    partition=partition,
                    container=slot,
                    life=life,
                    watermark=watermark,
                    blocked_by=blocked_by,
                    inputs=inputs,
                    restore=restore,
                )
            )
    return found


# ---------------------------------------------------------------- lag


def lags_of(
    settings: ServiceFile, log: Log, stages: Sequence[StagePlan], now_ms: int
) -> dict[TopicPartition, InputStatus]:
    """Of every input partition: what is committed, and what waits behind it."""
    streams = {
        TopicPartition(topic, partition): stream
        for stage in stages
        for stream, topic in stage.inputs.items()
        for partition in range(stage.partitions)
    }
    committed = log.committed(settings.service, list(streams))
    bounds = log.bounds(list(streams))
    starts = {at: bounds[at].begin if offset is None else offset for at, offset in committed.items()}
    behind = {at: starts[at] for at in streams if starts[at] < bounds[at].end}
    first = first_times(log, behind, {at: bounds[at].end for at in behind}) if behind else {}
    found = {}
    for at, stream in streams.items():
        is_behind = at in first or at not in behind
        lag = max(bounds[at].end - starts[at], 0) if is_behind else 0
        seconds = round(max((now_ms - first[at]) / 1000, 0.0), 3) if at in first else 0.0
        found[at] = InputStatus(
            stream=stream,
            topic=at.topic,
            partition=at.partition,
            committed=committed[at],
            end=bounds[at].end,
            lag=lag,
            behind_s=seconds,
        )
    return found


def first_times(
    log: Log, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Log times of the first records from these places on; none where only markers of transactions are left."""
    found: dict[TopicPartition, int] = {}
    deadline = time.monotonic() + FIRST_S
    with closing(available_reader(log, starts, few=1)) as reader:
        while time.monotonic() < deadline:
            for records in reader.poll(FIRST_RECORDS * len(starts), 0.1):
                if len(records):
                    found.setdefault(TopicPartition(records.topic, records.partition), int(records.times[0]))
            if all(at in found or reader.position(at) >= ends[at] for at in starts):
                break
    return found


def committed_position(log: Log, changelog: TopicPartition) -> Position | None:
    """What the last commit says. It is the last record but for what others wrote next to it."""
    if changelog.topic not in log.topics([changelog.topic]):
        return None
    begin, end = log.bounds([changelog])[changelog]
    back, start, value = BACK_RECORDS, end, None
    while value is None and start > begin:
        start, back = max(begin, end - back), back * 50
        with closing(PartitionCursor(log, changelog, start, end, available=True)) as cursor:
            while (records := cursor.next_records(end)) is not None:
                value = next((value for key, value in reversed(records.pairs()) if key == POSITION), value)
    return None if value is None else unpack_position(value)


# ---------------------------------------------------------------- as text


def status_lines(status: ServiceStatus) -> list[str]:
    """A service's status for people: a summary, then containers, then tasks."""
    live = sum(each.state != "gone" for each in status.containers)
    running = sum(task.life == "running" for task in status.tasks)
    parts = [counted(live, "container") if live else "no container"]
    parts += [f"{running} of {len(status.tasks)} tasks running", f"lag {_lag(status)}"]
    slowest = status.slowest
    if slowest is not None and slowest.watermark is not None:
        age = seconds_text((status.time_ms - slowest.watermark) / 1000)
        parts.append(f"event time {iso_time(slowest.watermark)}, {age} old, held by task {slowest.name}")
    lines = [f"{status.service}: {'; '.join(parts)}"]
    if status.containers:
        containers = ("container", "state", "host", "pid", "since", "version", "tasks", "told")
        lines += ["", *_table([containers, *(_container_cells(status, each) for each in status.containers)])]
    if status.tasks:
        tasks = ("task", "container", "life", "lag", "event time", "held by")
        lines += ["", *_table([tasks, *map(_task_cells, status.tasks)])]
    lines += ["", *(each.text for each in status.grown)] if status.grown else []
    rules = [*_rules_lines(status)]
    lines += ["", *rules] if rules else []
    for task in status.tasks:
        if (restore := task.restore) is not None:
            text = f"restoring {task.name}: {restore.done:,} of {restore.todo:,} offsets"
            if restore.per_s is not None and restore.left_s is not None:
                text += f", {restore.per_s:,.0f}/s, {seconds_text(restore.left_s)} left"
            lines.append(text)
    return lines


def _lag(of: ServiceStatus | TaskStatus) -> str:
    return counted(of.lag, "event") + (f", {seconds_text(of.behind_s)}" if of.lag else "")


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


def _container_cells(status: ServiceStatus, each: ContainerStatus) -> tuple[str, ...]:
    known = each.metadata
    if known is None or each.seen is None:
        return str(each.slot), each.state, "-", "-", "-", "-", "-", "nothing yet"
    told = f"{seconds_text(max(status.time_ms - each.seen.log_ms, 0) / 1000)} ago"
    since = iso_time(known.since_ms)
    return str(each.slot), each.state, known.host, str(known.pid), since, known.version, str(len(known.tasks)), told


def _task_cells(task: TaskStatus) -> tuple[str, ...]:
    container = "-" if task.container is None else str(task.container)
    blocked_by = "-" if task.blocked_by is None else f"{task.blocked_by[0]}/{task.blocked_by[1]}"
    return task.name, container, task.life, _lag(task), watermark_text(task.watermark), blocked_by


def _rules_lines(status: ServiceStatus) -> Iterator[str]:
    """What is worth a word: what was published, what does not simply alert, what is throttled."""
    for rule in status.rules:
        if rule.number or rule.status != "live" or rule.kept_back:
            number = f" number {rule.number}" if rule.number else ""
            storm = f", throttled: {rule.kept_back:,} alerts kept back" if rule.kept_back else ""
            yield f"rule {rule.rule}{number}, version {rule.version}: {rule.status}{storm}"
    if status.rules_refused is not None:
        yield f"not taken: {status.rules_refused}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
