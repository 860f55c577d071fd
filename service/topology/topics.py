"""The topics of a service: as they should be, whether they are so, and making those that are missing.

Who owns a topic decides what is checked. An input belongs to others: only what would make a wrong answer is refused
(its partition count, compaction). The changelog and the journal are the service's memory: all of their settings that
matter are checked. Alerts, late events and dead letters may be kept as long as their owner likes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from samovar.changelog.cursors import read_all
from samovar.changelog.formats import heartbeat, redrives, rules_topic
from samovar.changelog.formats.record import newer
from samovar.changelog.log import Log, Topic, TopicPartition, TopicSpec
from samovar.common.errors import Refused
from samovar.common.wire import from_wire, stored, to_wire
from samovar.service.config.models import ServiceFile, emit_topics
from samovar.service.topology.plans import rule_plans, task_forwards
from samovar.service.topology.rule_registry import registry_of, with_published_rules
from samovar.service.topology.ruleset import has_rules, wanted_partitions
from samovar.tasks.model.plan import Forward
from samovar.tasks.runtime.repartition_fence import refuse_unfinished

MAX_MESSAGE_BYTES = 1_048_588  # Kafka's own default; a state's rows stay below it
MAX_HEAD_BYTES = 1_024  # what a forwarded event has before it, and its key's growth
MAX_LETTER_BYTES = 4 * 1_048_576  # the largest usual message and what is said about it

AUDIT_KEPT_MS = 365 * 86_400_000
COMPACTED = {"cleanup.policy": "compact"}


def labels_topic(service: str, replication: int = 1) -> TopicSpec:
    return TopicSpec(f"{service}-labels", 1, COMPACTED, replication)


def access_topic(service: str, replication: int = 1) -> TopicSpec:
    return TopicSpec(f"{service}-access", 1, COMPACTED, replication)


def audit_topic(service: str, replication: int = 1) -> TopicSpec:
    settings = {"cleanup.policy": "delete", "retention.ms": str(AUDIT_KEPT_MS)}
    return TopicSpec(f"{service}-audit", 1, settings, replication)


def archive_group(service: str) -> str:
    """Which of those that copy into the archive copies what."""
    return f"{service}-archive"


def redrive_group(service: str) -> str:
    return f"{service}-redrive"


def sink_group(service: str, sink: str) -> str:
    return f"{service}-sink-{sink}"


def traffic_topic(service: str) -> str:
    """Where `samovar traffic` keeps how far it is."""
    return f"{service}-traffic"


def traffic_labels_topic(service: str) -> str:
    """Where `samovar traffic` says which of its events are part of an incident."""
    return f"{service}-traffic-labels"


def spark_topic(service: str) -> str:
    """Where streaming queries of Spark keep which batches they have written."""
    return f"{service}-spark"


def marker_topic(service: str) -> str:
    """Where `samovar repartition` keeps how far it is; it is there only meanwhile."""
    return f"{service}.repartition"


MARKER_ROW = b"marker"  # the latest counts; other rows are of those who copy


@stored("old to at_ms cut done digests rows size waiting followed rules ends settled spread")
@dataclass(frozen=True, kw_only=True)
class RepartitionMarker:
    """How far a repartition is. By task: `cut` is its changelog's id, and the offset from which on that is followed; it
    is `done` when all rows from before are copied, and `followed` up to an offset. `rules` made its rows.
    """

    old: int
    to: int
    at_ms: int
    cut: Mapping[str, Any]
    done: tuple[str, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)  # by stage, of the rows of all keys
    rows: int = 0
    size: int = 0  # of these, in bytes
    waiting: int = 0
    followed: Mapping[str, int] = field(default_factory=dict)
    rules: Mapping[str, Any] = field(default_factory=dict)
    ends: Mapping[str, int] = field(default_factory=dict)  # of the changelogs, when what ends the copy was written
    settled: bool = False  # the copy is whole: there is no way back
    spread: bool = False  # others than this process may have written to the copies

    def packed(self) -> bytes:
        return json.dumps({"v": 1, **to_wire(self)}, separators=(",", ":")).encode()


def marker_of(settings: ServiceFile, log: Log) -> RepartitionMarker | None:
    """How far a repartition is; None: there is none."""
    name = marker_topic(settings.service)
    at = [TopicPartition(name, 0)] if name in log.topics([name]) else []
    pairs = [pair for each in at for records in read_all(log, each) for pair in records.pairs()]
    values = [value for key, value in pairs if key == MARKER_ROW]
    if not values:
        return None
    raw = json.loads(values[-1] or b"{}")
    version = raw.pop("v")
    if version > 1:
        raise newer("the marker of a repartition", version, 1)
    return from_wire(RepartitionMarker, raw)


class TopicRole(StrEnum):
    INPUT = "input"
    ALERTS = "alerts"
    LATE = "late"
    DEAD_LETTERS = "dead letters"
    CHANGELOG = "changelog"
    JOURNAL = "journal"
    REPARTITION = "repartition"
    EMITTED = "emitted"
    CONTAINERS = "containers"
    RULES = "rules"
    LABELS = "labels"
    ACCESS = "access"
    AUDIT = "audit"
    REDRIVEN = "redriven"


# One partition of these is one partition of the input.
TASK_ROLES = (TopicRole.INPUT, TopicRole.CHANGELOG, TopicRole.JOURNAL, TopicRole.REPARTITION)

# Containers run without these: the HTTP API and the commands need them, and refuse then.
SIDE_ROLES = (TopicRole.LABELS, TopicRole.ACCESS, TopicRole.AUDIT, TopicRole.REDRIVEN)

# What a topic has where a setting is not given.
KAFKA_DEFAULTS = {
    "cleanup.policy": "delete",
    "delete.retention.ms": "86400000",
    "max.message.bytes": str(MAX_MESSAGE_BYTES),
    "min.compaction.lag.ms": "0",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
}
AT_LEAST = ("delete.retention.ms", "max.message.bytes", "min.compaction.lag.ms")
# The settings that are checked; of other topics only the first. A letter or an event that its topic does not take would
# stop the service for good.
CHECKED = {
    TopicRole.CHANGELOG: ("cleanup.policy", "min.compaction.lag.ms", "delete.retention.ms", "max.message.bytes"),
    TopicRole.JOURNAL: ("cleanup.policy", "retention.ms", "retention.bytes"),
    **dict.fromkeys(
        (TopicRole.REPARTITION, TopicRole.LATE, TopicRole.DEAD_LETTERS, TopicRole.RULES),
        ("cleanup.policy", "max.message.bytes"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class PlannedTopic(TopicSpec):
    """A topic and what the service needs it for."""

    role: TopicRole = TopicRole.INPUT
    # More partitions are no fault where there is state already: it was made with so many.
    may_grow: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Mismatch:
    """A topic that is not as it should be, and what to do about it."""

    code: str
    topic: str
    what: str
    fix: str


# ---------------------------------------------------------------- as it should be


def plan(
    settings: ServiceFile, existing: Mapping[str, Topic] | None = None, *, stages: bool = True
) -> list[PlannedTopic]:
    """All topics of a service. Where the file gives no partition count, that of existing inputs counts.

    Which further stages there are is told by the rules, which are loaded for it; not without `stages`.
    """
    existing = existing or {}
    partitions = partitions_of(settings, existing)
    plans = rule_plans(settings, partitions) if stages and has_rules(settings) else []
    forwards = plans[0].forwards if plans else task_forwards(settings, partitions) if stages else ()
    names = [*(each.stage for each in plans[1:]), *settings.tasks] if stages else []

    def planned(name: str, role: TopicRole, policy: str, **given: int) -> PlannedTopic:
        own = {key.replace("_", "."): str(value) for key, value in given.items()}
        own = {"cleanup.policy": policy, **own, **_replicated(settings)}
        return PlannedTopic(name=name, partitions=partitions, settings=own, replication=settings.replication, role=role)

    def kept(name: str, role: TopicRole, retention_ms: int, **given: int) -> PlannedTopic:
        return planned(name, role, "delete", retention_ms=retention_ms, **given)

    def changelog(name: str) -> PlannedTopic:
        return planned(
            name,
            TopicRole.CHANGELOG,
            "compact",
            min_compaction_lag_ms=settings.changelog.min_compaction_lag_ms,
            delete_retention_ms=settings.changelog.delete_retention_ms,
            max_message_bytes=MAX_MESSAGE_BYTES,
        )

    def journal(name: str) -> PlannedTopic:
        return kept(name, TopicRole.JOURNAL, -1, retention_bytes=-1)

    def repartition(forward: Forward) -> PlannedTopic:
        """As long as the stream's own records, and for the largest of them."""
        stream = settings.streams[forward.stream]
        topic = existing.get(stream.topic)
        largest = MAX_MESSAGE_BYTES if topic is None else int(_actual("max.message.bytes", topic))
        most_bytes = max(MAX_LETTER_BYTES, largest + MAX_HEAD_BYTES)
        return kept(forward.topic, TopicRole.REPARTITION, stream.retention_ms, max_message_bytes=most_bytes)

    has_state, letters = settings.journal.topic in existing, settings.dead_letters
    return [
        *(
            replace(kept(stream.topic, TopicRole.INPUT, stream.retention_ms), may_grow=has_state)
            for stream in settings.streams.values()
        ),
        kept(settings.alerts.topic, TopicRole.ALERTS, settings.alerts.retention_ms),
        kept(settings.late.topic, TopicRole.LATE, settings.late.retention_ms, max_message_bytes=MAX_LETTER_BYTES),
        kept(letters.topic, TopicRole.DEAD_LETTERS, letters.retention_ms, max_message_bytes=MAX_LETTER_BYTES),
        changelog(settings.changelog.topic),
        journal(settings.journal.topic),
        *map(repartition, forwards),
        *(changelog(f"{settings.changelog.topic}-{name}") for name in names),
        *(journal(f"{settings.journal.topic}-{name}") for name in names),
        *(
            kept(topic, TopicRole.EMITTED, settings.tasks[task].emits[to].retention_ms)
            for task, topics in emit_topics(settings).items()
            for to, topic in topics.items()
        ),
        *single_topics(settings),
    ]


def single_topics(settings: ServiceFile) -> list[PlannedTopic]:
    """The topics that have one partition, however many the inputs have."""
    made = {
        TopicRole.CONTAINERS: heartbeat.spec_of,
        TopicRole.RULES: rules_topic.spec_of,
        TopicRole.LABELS: labels_topic,
        TopicRole.ACCESS: access_topic,
        TopicRole.AUDIT: audit_topic,
        TopicRole.REDRIVEN: redrives.spec_of,
    }
    found = [(role, of(settings.service, settings.replication)) for role, of in made.items()]
    more = _replicated(settings)
    return [
        PlannedTopic(
            name=own.name, partitions=1, settings={**own.settings, **more}, replication=own.replication, role=role
        )
        for role, own in found
    ]


def _replicated(settings: ServiceFile) -> Mapping[str, str]:
    return {"min.insync.replicas": "2"} if settings.replication >= 3 else {}


def counted_topics(settings: ServiceFile) -> list[str]:
    """The topics that tell how many partitions a service has."""
    return [settings.journal.topic, *(stream.topic for stream in settings.streams.values())]


def partitions_of(settings: ServiceFile, existing: Mapping[str, Topic]) -> int:
    """How many partitions, and so tasks, the service has: as the file says, else as its state was made with, which the
    journal has too, else as the inputs have, else the default. `existing` are those of `counted_topics`.

    Topics that differ from it are found by `check`. An input may have grown: its further partitions are not read.
    """
    given = next((stream.partitions for stream in settings.streams.values() if stream.partitions), None)
    found = (existing[topic].partitions for topic in counted_topics(settings) if topic in existing)
    return given or next(found, None) or wanted_partitions(settings)


def plan_here(log: Log, settings: ServiceFile, *, stages: bool = True) -> list[PlannedTopic]:
    """All topics of a service, where its inputs may exist already."""
    if stages and registry_of(settings) is None:
        settings = with_published_rules(settings, log)
    return plan(settings, log.topics(counted_topics(settings)), stages=stages)


# ---------------------------------------------------------------- as it is


def check(log: Log, specs: Sequence[PlannedTopic], bootstrap: str | None = None) -> list[Mismatch]:
    """What is missing or otherwise. `bootstrap` is where Kafka is, for the commands that repair it."""
    existing = log.topics([spec.name for spec in specs])
    found: list[Mismatch] = []
    for spec in specs:
        topic = existing.get(spec.name)
        found.extend([missing(spec, bootstrap)] if topic is None else mismatches(spec, topic, bootstrap))
    return found


def missing(spec: PlannedTopic, bootstrap: str | None) -> Mismatch:
    what = f"the topic {spec.name} ({spec.role}) does not exist"
    fix = "`samovar run` makes it where the service file says `topics: create`"
    return Mismatch("topic-missing", spec.name, what, create_command(spec, bootstrap) if bootstrap else fix)


def mismatches(spec: PlannedTopic, topic: Topic, bootstrap: str | None) -> Iterator[Mismatch]:
    """All that an existing topic has against the plan."""
    has = f"the topic {spec.name} ({spec.role}) has"
    has_others = topic.partitions < spec.partitions if spec.may_grow else topic.partitions != spec.partitions
    if spec.role in TASK_ROLES and has_others:
        fix = (
            f"the partition count changed under keyed state: bring it back, or move the state with `samovar"
            f" repartition CONFIG --partitions {spec.partitions}`"
        )
        if spec.role is TopicRole.INPUT:
            fix = (
                f"write `partitions: {topic.partitions}` for the stream; all inputs of a service need equally many, so "
                "others must be made again with as many"
            )
        what = f"{has} {topic.partitions} partitions, not {spec.partitions}"
        yield Mismatch("topic-partitions", spec.name, what, fix)
    checked = CHECKED.get(spec.role, ("cleanup.policy",))
    wrong = {name: spec.settings[name] for name in checked if not _is_fine(name, spec, topic)}
    if wrong:
        told = ", ".join(f"{name}={_actual(name, topic)} instead of {wanted}" for name, wanted in wrong.items())
        fix = "the embedded log keeps what a topic was made with: set the service file back, or take another topic"
        if bootstrap is not None:
            changes = ",".join(f"{name}={value}" for name, value in wrong.items())
            fix = (
                f"kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics "
                f"--entity-name {spec.name} --add-config {changes}"
            )
        yield Mismatch("topic-settings", spec.name, f"{has} {told}", fix)
    if spec.role is not TopicRole.INPUT and topic.replication < spec.replication:
        what = f"{has} {topic.replication} replicas, not {spec.replication}"
        fix = f"add replicas with kafka-reassign-partitions.sh, or write `replication: {topic.replication}`"
        yield Mismatch("topic-replication", spec.name, what, fix)


def _actual(name: str, topic: Topic) -> str:
    return topic.settings.get(name) or KAFKA_DEFAULTS[name]


def _is_fine(name: str, spec: PlannedTopic, topic: Topic) -> bool:
    actual, wanted = _actual(name, topic), spec.settings[name]
    if name == "cleanup.policy":
        # Only the changelog may lose what a later record of the same key replaces, and it may lose nothing else.
        policies = {policy.strip() for policy in actual.split(",")}
        return policies == {"compact"} if wanted == "compact" else "compact" not in policies
    return int(actual) >= int(wanted) if name in AT_LEAST else actual == wanted


# ---------------------------------------------------------------- making it so


def ensure(
    log: Log, settings: ServiceFile, *, stages: bool = True, roles: Collection[TopicRole] = tuple(TopicRole)
) -> list[PlannedTopic]:
    """Make what is missing (with `topics: create`) and refuse what is otherwise. Returns the topics as they are now.

    Only topics of these `roles` are looked at: nobody needs a right to a topic that is not used.
    """
    if TopicRole.CHANGELOG in roles:
        refuse_unfinished(settings.service, log)
    specs = plan_here(log, settings, stages=stages)
    creates = settings.topics == "create"
    wanted = [spec for spec in specs if spec.role in roles and (creates or spec.role not in SIDE_ROLES)]
    existing = log.topics([spec.name for spec in wanted])
    bootstrap = bootstrap_of(settings)
    absent = [spec for spec in wanted if spec.name not in existing]
    used = [spec for spec in wanted if spec.name in existing and spec.role not in SIDE_ROLES]
    refuse([found for spec in used for found in mismatches(spec, existing[spec.name], bootstrap)])
    if absent and creates:
        log.create(absent)
        refuse(check(log, absent, bootstrap))  # another container may have been first, with another file
    elif absent:
        # Without a rules topic a service runs the rules of its folder, as all did before there was one.
        refuse([missing(spec, bootstrap) for spec in absent if spec.role is not TopicRole.RULES])
    return specs


def ensure_topic(settings: ServiceFile, log: Log, role: TopicRole) -> None:
    """Made where it is missing. Refused where it is otherwise, or missing with `topics: check`, with the way out."""
    (spec,) = (each for each in single_topics(settings) if each.role is role)
    found = log.topics([spec.name]).get(spec.name)
    bootstrap = bootstrap_of(settings)
    if found is not None:
        refuse(list(mismatches(spec, found, bootstrap)))
    elif settings.topics != "create" and bootstrap is not None:
        refuse([missing(spec, bootstrap)])
    else:
        log.create([spec])


def ensure_inputs(log: Log, settings: ServiceFile) -> int:
    """For one who only writes events, and needs no other right. Returns how many partitions keys are placed among."""
    roles = tuple(TopicRole) if settings.log.kafka is None else (TopicRole.INPUT,)
    return ensure(log, settings, stages=False, roles=roles)[0].partitions


def bootstrap_of(settings: ServiceFile) -> str | None:
    return settings.log.kafka.bootstrap if settings.log.kafka else None


def refuse(found: Sequence[Mismatch]) -> None:
    if not found:
        return
    first, *others = found
    detail = "\n  ".join(f"{other.code}: {other.what}\n    {other.fix}" for other in others)
    raise Refused(first.code, first.what, first.fix, detail)


def create_command(spec: PlannedTopic, bootstrap: str) -> str:
    settings = "".join(f" --config {name}={value}" for name, value in spec.settings.items())
    return (
        f"kafka-topics.sh --bootstrap-server {bootstrap} --create --topic {spec.name} "
        f"--partitions {spec.partitions} --replication-factor {spec.replication}{settings}"
    )


# ---------------------------------------------------------------- inputs that have grown

GROWN_FIX = (
    "partitions cannot be taken away again. Take them over with the state of their keys: `samovar repartition`. Or"
    " write `repartition: true` for the stream and give the service another name: it folds all partitions from the"
    " beginning. Or let producers place keys among the partitions that are read, bring the records of the others there,"
    " and put the moved ones back: `samovar dlq redrive --reason key-moved`"
)


@dataclass(frozen=True, kw_only=True)
class GrownInput:
    """`unread` are the records in partitions that the service does not read."""

    stream: str
    topic: str
    read: int
    partitions: int
    unread: int

    @property
    def text(self) -> str:
        return (
            f"input-grown: {self.topic} has {self.partitions} partitions, and the state of the service was made with"
            f" {self.read}: {self.unread:,} records in the others are not read"
        )

    def data(self) -> dict[str, Any]:
        return asdict(self)


def grown_inputs(settings: ServiceFile, log: Log) -> list[GrownInput]:
    existing = log.topics(counted_topics(settings))
    if settings.journal.topic not in existing:
        return []
    read = partitions_of(settings, existing)
    found = []
    for name, stream in settings.streams.items():
        topic = existing.get(stream.topic)
        if topic is not None and topic.partitions > read:
            beyond = [TopicPartition(topic.name, number) for number in range(read, topic.partitions)]
            # Before a repartition to fewer partitions they were read, up to the group's offsets.
            passed = log.committed(settings.service, beyond)
            unread = sum(end - max(begin, passed[at] or 0) for at, (begin, end) in log.bounds(beyond).items())
            found.append(
                GrownInput(stream=name, topic=topic.name, read=read, partitions=topic.partitions, unread=unread)
            )
    return found
