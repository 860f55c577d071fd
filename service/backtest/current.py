"""What the service itself found: its alerts, how far it has come, and how people labelled them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from samovar.changelog.cursors import PartitionCursor
from samovar.changelog.formats.record import POSITION, Position, unpack_position
from samovar.changelog.log import Log, Records, TopicPartition
from samovar.service.backtest.finds import Finds, hashed
from samovar.service.backtest.fold import FoldedMatch
from samovar.service.config.models import ServiceFile

TAIL = 2_000  # records of a changelog that are looked at for its last position, then ten times as many, and so on
UNLABELLED, CONFIRMED, FALSE_ALARM, OPEN = range(4)
LABELS = {"confirmed": CONFIRMED, "false_alarm": FALSE_ALARM, "open": OPEN}


@dataclass
class Current:
    """The alerts of the service. `versions` are by rule: how many alerts each version of it made."""

    finds: Finds
    versions: dict[str, dict[str, int]] = field(default_factory=dict)
    labelled: bool = False  # whether anybody labelled anything
    unreadable: int = 0  # records that are not alerts


def read_current(
    log: Log,
    settings: ServiceFile,
    rules: Collection[str],
    apart: Collection[str],
    between: tuple[int, int],
    into: Finds,
) -> Current:
    """The alerts of these rules between two moments, those of rules that run `apart` with their partition."""
    current = Current(into)
    from_ms, to_ms = between
    labels = read_labels(log, settings)
    current.labelled = bool(labels)
    seen: set[int] = set()
    for alert, key, line in _alerts(log, settings, from_ms, current):
        rule, number = alert["rule"], hashed(alert["id"].encode())
        if rule not in rules or not from_ms <= alert["at"] < to_ms or number in seen:
            continue
        seen.add(number)  # a rewind may have published it again
        versions = current.versions.setdefault(rule, {})
        versions[alert["version"]] = versions.get(alert["version"], 0) + 1
        partition = _partition(alert) if rule in apart else -1
        mark = labels.get(alert["id"], UNLABELLED)
        current.finds.add(FoldedMatch(rule, partition, key, alert["start"], alert["at"], line), mark)
    return current


def _alerts(
    log: Log, settings: ServiceFile, from_ms: int, current: Current
) -> Iterator[tuple[dict[str, Any], bytes, bytes]]:
    # An event is at most so far ahead of its record's time, and no alert is before its event's record.
    ahead_ms = max(stream.max_future_skew_ms for stream in settings.streams.values())
    for records in read_topic(log, settings.alerts.topic, max(0, from_ms - ahead_ms)):
        for key, value in records.pairs():
            alert = _alert_of(value)
            if alert is None:
                current.unreadable += 1
            else:
                yield alert, key or b"", value or b""


def _alert_of(value: bytes | None) -> dict[str, Any] | None:
    try:
        alert = json.loads(value or b"")
    except ValueError:
        return None
    wanted = ("rule", "id", "version", "at", "start")
    return alert if isinstance(alert, dict) and all(name in alert for name in wanted) else None


def _partition(alert: Mapping[str, Any]) -> int:
    """The partition of its first event."""
    for places in alert.get("steps", {}).values():
        for place in places:
            return int(place[1])
    return -1


def labels_topic(settings: ServiceFile) -> str:
    return f"{settings.service}-labels"


def read_labels(log: Log, settings: ServiceFile) -> dict[str, int]:
    """How alerts are labelled now, by their ids. The last label of an alert counts."""
    labels: dict[str, int] = {}
    for records in read_topic(log, labels_topic(settings)):
        for key, value in records.pairs():
            if value is None:
                labels.pop((key or b"").decode("utf-8", "replace"), None)
                continue
            try:
                label = json.loads(value)
                labels[label["alert"]] = LABELS[label["label"]]
            except (ValueError, KeyError, TypeError):
                continue  # anyone who wrote it wrote no label
    return labels


def read_topic(log: Log, topic: str, from_ms: int | None = None) -> Iterator[Records]:
    """All records of a topic since a log time; none where there is no such topic."""
    known = log.topics([topic]).get(topic)
    for partition in range(known.partitions if known else 0):
        at = TopicPartition(topic, partition)
        begin, end = log.bounds([at])[at]
        start = begin if from_ms is None else min(end, max(begin, log.offset_at(at, from_ms)))
        yield from read_between(log, at, start, end)


def read_between(log: Log, at: TopicPartition, start: int, end: int) -> Iterator[Records]:
    if start >= end:
        return
    cursor = PartitionCursor(log, at, start)
    try:
        while (records := cursor.take(end)) is not None:
            yield records
    finally:
        cursor.close()


# ---------------------------------------------------------------- how far the service is


@dataclass(frozen=True)
class StagePosition:
    """Where a stage of the service is: by partition, its event time; and its rules with their versions."""

    times: Mapping[int, int]
    rules: Mapping[str, str]


def reached(log: Log, changelog: str) -> StagePosition:
    """What the last position of each partition says; nothing where the service never ran."""
    known = log.topics([changelog]).get(changelog)
    places = [TopicPartition(changelog, partition) for partition in range(known.partitions if known else 0)]
    found = {at.partition: position for at in places if (position := _last_position(log, at)) is not None}
    times = {partition: each.watermark for partition, each in found.items() if each.watermark is not None}
    return StagePosition(times, {rule: version for each in found.values() for rule, version in each.rules.items()})


def _last_position(log: Log, at: TopicPartition) -> Position | None:
    """The last position in a changelog: it is the last record of every commit."""
    begin, end = log.bounds([at])[at]
    size = TAIL
    while True:
        start = max(begin, end - size)
        pairs = (pair for records in read_between(log, at, start, end) for pair in records.pairs())
        values = [value for key, value in pairs if key == POSITION and value is not None]
        if values:
            return unpack_position(values[-1])
        if start == begin:
            return None
        size *= 10
