"""`samovar status CONFIG`: who runs what, how far each task is, and what is held up.

Lag and committed offsets come from the log itself, so that they are true when nothing runs, too; the rest is what the
containers tell (changelog/formats/heartbeat.py). The document of `--json`:

    {"service", "time", "containers": [{"slot", "state": "running" | "silent" | "gone" | "joining", "host", "pid",
     "since", "version", "told", "tasks": how many}], "tasks": [{"stage", "partition", "container", "life", "watermark",
     "held_by", "lag", "behind_s", "inputs": [{"stream", "topic", "partition", "committed", "end", "lag", "behind_s"}],
     "restore": {"done", "todo", "per_s", "left_s"}}], "lag", "behind_s", "watermark", "watermark_age_s", "held_by"}
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from samovar.changelog.cursors import PartitionCursor
from samovar.changelog.formats.heartbeat import (
    HeartbeatRecord,
    MemberMetadata,
    RestoreReport,
    RuleAtWork,
    TaskReport,
    all_seen,
)
from samovar.changelog.formats.record import POSITION, Position, unpack_position
from samovar.changelog.log import Log, TopicPartition
from samovar.common.errors import Refused
from samovar.service.config.models import ServiceFile
from samovar.service.topology.plans import rule_plans
from samovar.service.topology.rule_registry import with_rulebook
from samovar.service.topology.topics import GrownInput, counted_topics, grown_inputs, partitions_of
from samovar.tasks.model.plan import PublishedRule

SILENT_MS = 15_000  # a container tells of itself every two seconds
FIRST_S = 2.0  # to find the first records that are not processed
FIRST_RECORDS = 1_000  # of a partition, looked through at once: those of one must not hide another's behind them
BACK_RECORDS = 64  # of a changelog; every commit ends with its position


@dataclass(frozen=True)
class RulesStatus:
    """The rules of a service. `refused` is why a published change is not taken."""

    rules: tuple[RuleAtWork, ...] = ()
    refused: str | None = None

    @property
    def lines(self) -> list[str]:
        """What is worth a word: what was published, what does not simply alert, what is throttled."""
        found = [f"rule {_text(rule)}" for rule in self.rules if rule.number or rule.status != "live" or rule.kept_back]
        return found + ([] if self.refused is None else [f"not taken: {self.refused}"])


def _text(rule: RuleAtWork) -> str:
    number = f" number {rule.number}" if rule.number else ""
    storm = f", throttled: {rule.kept_back:,} alerts kept back" if rule.kept_back else ""
    return f"{rule.rule}{number}, version {rule.version}: {rule.status}{storm}"


def rules_of_service(settings: ServiceFile, log: Log, told: Iterable[MemberMetadata]) -> RulesStatus:
    told = list(told)
    refused = next((each.rules_refused for each in told if each.rules_refused), None)
    found = tuple(_together(rule for each in told for rule in each.at_work))
    return RulesStatus(found or tuple(_planned(settings, log)), refused)


def _together(rules: Iterable[RuleAtWork]) -> Iterator[RuleAtWork]:
    """A rule of several containers is one; a storm anywhere is one of the rule."""
    found: dict[tuple[str, str, str], RuleAtWork] = {}
    for rule in rules:
        place = rule.rule, rule.version, rule.status
        known = found.get(place)
        found[place] = rule if known is None else replace(known, kept_back=known.kept_back + rule.kept_back)
    yield from (found[place] for place in sorted(found))


def _status(rule: PublishedRule) -> str:
    if rule.quarantined is not None:
        return "quarantined"
    return "shadow" if rule.shadow else "live"


def _planned(settings: ServiceFile, log: Log) -> Iterator[RuleAtWork]:
    with suppress(Refused):  # rules with errors are the doctor's to tell
        existing = log.topics(counted_topics(settings))
        plans = rule_plans(with_rulebook(settings, log), partitions_of(settings, existing))
        for rule in sorted((rule for plan in plans for rule in plan.rules), key=lambda each: each.id):
            yield RuleAtWork(rule.id, rule.version, rule.number, _status(rule))


@dataclass(frozen=True)
class ContainerStatus:
    """A container: `running` tells, `silent` has not for a while, `joining` not yet; `gone` left without a word."""

    slot: int
    state: str
    seen: HeartbeatRecord | None = None

    @property
    def presence(self) -> MemberMetadata | None:
        return None if self.seen is None else self.seen.presence

    def data(self) -> dict[str, Any]:
        known = self.presence
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


@dataclass(frozen=True)
class InputStatus:
    """One input partition, as the log has it. `committed` is None where nothing was ever processed."""

    stream: str
    at: TopicPartition
    committed: int | None
    end: int
    lag: int
    behind_s: float

    def data(self) -> dict[str, Any]:
        place = {"stream": self.stream, "topic": self.at.topic, "partition": self.at.partition}
        return place | {"committed": self.committed, "end": self.end, "lag": self.lag, "behind_s": self.behind_s}


@dataclass(frozen=True)
class TaskStatus:
    """One task; without a container it has the event time of its last commit."""

    stage: str
    partition: int
    container: int | None
    life: str
    watermark: int | None
    held_by: tuple[str, int] | None
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
        restore = self.restore
        return {
            "stage": self.stage,
            "partition": self.partition,
            "container": self.container,
            "life": self.life,
            "watermark": self.watermark,
            "held_by": None if self.held_by is None else list(self.held_by),
            "lag": self.lag,
            "behind_s": self.behind_s,
            "inputs": [each.data() for each in self.inputs],
            "restore": None
            if restore is None
            else {
                "done": restore.done,
                "todo": restore.todo,
                "per_s": None if restore.per_s is None else round(restore.per_s),
                "left_s": None if restore.left_s is None else round(restore.left_s, 1),
            },
        }


@dataclass(frozen=True)
class ServiceStatus:
    """A whole service at one moment."""

    service: str
    time_ms: int
    containers: Sequence[ContainerStatus]
    tasks: Sequence[TaskStatus]
    rules: RulesStatus = field(default_factory=RulesStatus)
    grown: Sequence[GrownInput] = ()

    @property
    def runs(self) -> bool:
        """Whether every task runs."""
        return bool(self.tasks) and all(task.life == "running" for task in self.tasks)

    @property
    def lag(self) -> int:
        return sum(task.lag for task in self.tasks)

    @property
    def slowest(self) -> TaskStatus | None:
        """The task whose event time is the least; one with none yet only where none has one."""
        known = [task for task in self.tasks if task.watermark is not None]
        return min(known, key=lambda task: task.watermark or 0, default=None)

    def data(self) -> dict[str, Any]:
        slowest = self.slowest
        watermark = None if slowest is None else slowest.watermark
        return {
            "service": self.service,
            "time": self.time_ms,
            "running": self.runs,
            "containers": [each.data() for each in self.containers],
            "tasks": [each.data() for each in self.tasks],
            "rules": [asdict(each) for each in self.rules.rules],
            "rules_refused": self.rules.refused,
            "grown": [each.data() for each in self.grown],
            "lag": self.lag,
            "behind_s": max((task.behind_s for task in self.tasks), default=0.0),
            "watermark": watermark,
            "watermark_age_s": None if watermark is None else round((self.time_ms - watermark) / 1000, 3),
            "held_by": None
            if slowest is None
            else {"stage": slowest.stage, "partition": slowest.partition, "input": slowest.held_by},
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
    seen = all_seen(log, settings.service)
    containers = containers_of(seen, log.members(settings.service), settings.service, now_ms)
    stages = stages_of(settings, log)
    tasks = tasks_of(settings, log, stages, containers, now_ms)
    told = [each.presence for each in containers if each.presence is not None and each.state in ("running", "silent")]
    rules, grown = rules_of_service(settings, log, told), grown_inputs(settings, log)
    return ServiceStatus(settings.service, now_ms, containers, tasks, rules, grown)


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
            has_begun = bool(known.presence.tasks) or now_ms - known.log_ms > SILENT_MS
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


def stages_of(settings: ServiceFile, log: Log) -> list[StagePlan]:
    """The stages of a service. Rules tell of further ones; where they have errors, only the first is shown."""
    existing = log.topics(counted_topics(settings))
    inputs = {name: stream.topic for name, stream in settings.streams.items() if stream.topic in existing}
    if not inputs:
        return []
    partitions = partitions_of(settings, existing)
    found = [StagePlan("", inputs, settings.changelog.topic, partitions)]
    with suppress(Refused):
        for each in rule_plans(with_rulebook(settings, log), partitions)[1:]:
            topics = {spec.stream: spec.topic for spec in each.inputs}
            found.append(StagePlan(each.stage, topics, each.topics.changelog, partitions))
    for name, task in settings.tasks.items():
        topics = {stream: topic for stream, topic in inputs.items() if stream in task.streams}
        found.append(StagePlan(name, topics, f"{settings.changelog.topic}-{name}", partitions))
    made = log.topics([topic for stage in found for topic in stage.inputs.values()])
    return [stage for stage in found if all(topic in made for topic in stage.inputs.values())]


def tasks_of(
    settings: ServiceFile,
    log: Log,
    stages: Sequence[StagePlan],
    containers: Sequence[ContainerStatus],
    now_ms: int,
) -> list[TaskStatus]:
    told = {
        (task.stage, task.partition): (each.slot, replace(task, life="silent") if each.state == "silent" else task)
        for each in containers
        if each.presence is not None and each.state in ("running", "silent")
        for task in each.presence.tasks
    }
    lags = lags_of(settings, log, stages, now_ms)
    found = []
    for stage in stages:
        for partition in range(stage.partitions):
            inputs = [lags[TopicPartition(topic, partition)] for topic in stage.inputs.values()]
            slot, task = told.get((stage.stage, partition), (None, None))
            found.append(_task(log, stage, partition, slot, task, inputs))
    return found


def _task(
    log: Log,
    stage: StagePlan,
    partition: int,
    slot: int | None,
    task: TaskReport | None,
    inputs: Sequence[InputStatus],
) -> TaskStatus:
    if task is not None and task.life == "running":
        return TaskStatus(stage.stage, partition, slot, task.life, task.watermark, task.held_by, inputs)
    position = committed_position(log, TopicPartition(stage.changelog, partition))
    watermark = None if position is None else position.watermark
    life, restore = ("stopped", None) if task is None else (task.life, task.restore)
    return TaskStatus(stage.stage, partition, slot, life, watermark, None, inputs, restore)


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
    first = first_times(log, behind, {at: bounds[at].end for at in behind})
    found = {}
    for at, stream in streams.items():
        lag = max(bounds[at].end - starts[at], 0)
        seconds = max((now_ms - first[at]) / 1000, 0.0) if at in first else 0.0
        is_behind = at in first or at not in behind
        found[at] = InputStatus(stream, at, committed[at], bounds[at].end, lag if is_behind else 0, round(seconds, 3))
    return found


def first_times(
    log: Log, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Log times of the first records from these places on; none where only markers of transactions are left."""
    found: dict[TopicPartition, int] = {}
    if not starts:
        return found
    reader = log.point_reader(starts, 1)
    deadline = time.monotonic() + FIRST_S
    try:
        while time.monotonic() < deadline:
            for records in reader.poll(FIRST_RECORDS * len(starts), 0.1):
                at = TopicPartition(records.topic, records.partition)
                if len(records):
                    found.setdefault(at, int(records.times[0]))
            if all(at in found or reader.position(at) >= ends[at] for at in starts):
                break
    finally:
        reader.close()
    return found


def committed_position(log: Log, changelog: TopicPartition) -> Position | None:
    """What the last commit says. It is the last record but for what others wrote next to it."""
    if changelog.topic not in log.topics([changelog.topic]):
        return None
    begin, end = log.bounds([changelog])[changelog]
    back = BACK_RECORDS
    while True:
        start = max(begin, end - back)
        value = _last_position(log, changelog, start, end)
        if value is not None or start == begin:
            return None if value is None else unpack_position(value)
        back *= 50


def _last_position(log: Log, changelog: TopicPartition, start: int, end: int) -> bytes | None:
    found = None
    cursor = PartitionCursor(log, changelog, start, end)
    try:
        while (records := cursor.take(end)) is not None:
            found = next((value for key, value in reversed(records.pairs()) if key == POSITION), found)
    finally:
        cursor.close()
    return found
