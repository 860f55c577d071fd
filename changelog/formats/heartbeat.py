"""What containers tell of themselves, in a compacted topic of one partition: `{service}-containers`. Format 1.

A record's key is the container's slot as text; its value JSON, `v` first, then the fields of `MemberMetadata`. A
container that leaves deletes its record; one that was killed leaves it behind, and is known by that it is in no group
any more. The log's time of a record is the broker's (LogAppendTime on Kafka), `time_ms` the container's own: the
difference shows a wrong clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from samovar.changelog.cursors import PartitionCursor, read_all
from samovar.changelog.log import Append, Log, TopicPartition, TopicSpec
from samovar.common.errors import Refused
from samovar.common.wire import from_wire, stored, to_wire

FORMAT = 1
SETTINGS = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime", "segment.ms": "3600000"}


@stored("stream topic partition next end behind_s")
@dataclass(frozen=True, kw_only=True)
class InputReport:
    """Where a task stands in one input. `end` is the log's, as of the last look; `behind_s` is the lag in seconds."""

    stream: str
    topic: str
    partition: int
    next: int
    end: int | None = None
    behind_s: float | None = None

    @property
    def lag(self) -> int | None:
        """In events, at most: offsets have gaps."""
        return None if self.end is None else max(self.end - self.next, 0)


@stored("done todo per_s")
@dataclass(frozen=True)
class RestoreReport:
    """How far a restore is, in offsets of the changelog."""

    done: int
    todo: int
    per_s: float | None = None

    @property
    def left_s(self) -> float | None:
        return (self.todo - self.done) / self.per_s if self.per_s else None


@stored("stage partition life watermark blocked_by inputs restore state_bytes waiting")
@dataclass(frozen=True, kw_only=True)
class TaskReport:
    """One task. `blocked_by` is the input partition that event time waits for; `waiting` events wait for event time."""

    stage: str
    partition: int
    life: str
    watermark: int | None = None
    blocked_by: tuple[str, int] | None = None
    inputs: Sequence[InputReport] = ()
    restore: RestoreReport | None = None
    state_bytes: int | None = None
    waiting: int | None = None


@stored(
    "id matches suppressed dropped_partials dropped_events dropped_matches no_key seconds live_partials muted throttled"
)
@dataclass(frozen=True, kw_only=True)
class RuleReport:
    """What a rule did in a container, of all its tasks; never less than before. Live partials are of now."""

    id: str
    matches: int = 0
    suppressed: int = 0
    dropped_partials: int = 0
    dropped_events: int = 0
    dropped_matches: int = 0
    no_key: int = 0
    seconds: float = 0.0
    live_partials: int = 0
    muted: int = 0  # matches in shadow
    throttled: int = 0  # alerts kept back in a storm


@stored("rule version number status kept_back")
@dataclass(frozen=True, kw_only=True)
class ActiveRule:
    """A rule at work: live, shadow, cold (too little history yet) or draining. `kept_back`: alerts lost to a storm."""

    rule: str
    version: str
    number: int = 0
    status: str = "live"
    kept_back: int = 0


@stored("slot host pid since_ms version time_ms tasks counts caught_up address rules active_rules rules_refused unread")
@dataclass(frozen=True, kw_only=True)
class MemberMetadata:
    """One container. `address` is where questions about its keys are answered, if anywhere."""

    slot: int
    host: str
    pid: int
    since_ms: int
    version: str
    time_ms: int
    tasks: Sequence[TaskReport] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    caught_up: bool = False
    address: str | None = None
    rules: Sequence[RuleReport] = ()
    active_rules: Sequence[ActiveRule] = ()  # where rules were published, or one is in a storm
    rules_refused: str | None = None  # why a published change is not taken
    unread: Mapping[str, int] = field(default_factory=dict)  # by stream: records in partitions that came later


@dataclass(frozen=True)
class HeartbeatRecord:
    """A container's record as it is in the log."""

    metadata: MemberMetadata
    log_ms: int


class Heartbeat(NamedTuple):
    """Who told something, and when by the log's clock."""

    host: str
    pid: int
    since_ms: int
    log_ms: int


def topic_of(service: str) -> str:
    return f"{service}-containers"


def spec_of(service: str, replication: int = 1) -> TopicSpec:
    return TopicSpec(topic_of(service), 1, SETTINGS, replication)


def pack_metadata(metadata: MemberMetadata) -> bytes:
    return json.dumps({"v": FORMAT, **to_wire(metadata)}, separators=(",", ":")).encode()


def unpack_metadata(data: bytes) -> MemberMetadata:
    raw: dict[str, Any] = json.loads(data)
    if raw.pop("v") > FORMAT:
        raise Refused(
            "format-newer",
            "a container of a newer version of Samovar runs, and this one cannot read what it tells",
            "Use the version that the containers run, or a newer one.",
        )
    return from_wire(MemberMetadata, raw)


def send_heartbeat(log: Log, service: str, metadata: MemberMetadata) -> None:
    """Say how a container is doing, outside of any transaction."""
    log.append(
        [Append(topic=topic_of(service), records=[(b"%d" % metadata.slot, pack_metadata(metadata))], partition=0)]
    )


def send_tombstone(log: Log, service: str, slot: int, host: str, pid: int) -> None:
    """Say that a container is no more, unless another process tells of the slot by now."""
    told, _ = heartbeats(log, service, slot)
    last = told[-1] if told else None
    if last is not None and (last.host, last.pid) == (host, pid):
        log.append([Append(topic=topic_of(service), records=[(b"%d" % slot, None)], partition=0)])


def read_heartbeats(log: Log, service: str) -> dict[int, HeartbeatRecord]:
    """The newest record of each slot; none where the service never ran."""
    topic = topic_of(service)
    if topic not in log.topics([topic]):
        return {}
    found: dict[int, HeartbeatRecord] = {}
    for records in read_all(log, TopicPartition(topic, 0)):
        for row, (key, value) in enumerate(records.pairs()):
            slot = int(key or b"-1")
            if value is None:
                found.pop(slot, None)
            else:
                found[slot] = HeartbeatRecord(unpack_metadata(value), int(records.times[row]))
    return dict(sorted(found.items()))


def heartbeats(log: Log, service: str, slot: int, start: int = 0) -> tuple[list[Heartbeat | None], int]:
    """What a slot told from an offset on, of any format; None where a container left. And the offset to go on from."""
    at = TopicPartition(topic_of(service), 0)
    if at.topic not in log.topics([at.topic]):
        return [], start
    begin, end = log.bounds([at])[at]
    found: list[Heartbeat | None] = []
    for records in PartitionCursor(log, at, max(start, begin), end, available=True).read_to(end):
        for row, (key, value) in enumerate(records.pairs()):
            if key == b"%d" % slot:
                told = None if value is None else json.loads(value)
                log_ms = int(records.times[row])
                found.append(told and Heartbeat(told["host"], told["pid"], told["since_ms"], log_ms))
    return found, end
