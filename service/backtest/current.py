"""What the service itself found: its alerts, how people labelled them, and how far it has come."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from samovar.changelog.cursors import PartitionCursor
from samovar.changelog.formats.record import POSITION, Position, unpack_position
from samovar.changelog.log import Log, Records, TopicPartition
from samovar.service.backtest.finds import Finds, hashed
from samovar.service.backtest.fold import FoldedMatch
from samovar.service.config.models import ServiceFile

TAIL = 2_000  # records of a changelog that are searched for its last position, then ten times as many, and so on
UNLABELLED, CONFIRMED, FALSE_ALARM, OPEN = range(4)
LABELS = {"confirmed": CONFIRMED, "false_alarm": FALSE_ALARM, "open": OPEN}
ALERT_FIELDS = {"rule", "id", "version", "at", "start"}


@dataclass
class Current:
    """The alerts of the service. `versions` are by rule: how many alerts each version of it made."""

    finds: Finds
    versions: dict[str, Counter[str]] = field(default_factory=dict)
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
    labels = _read_labels(log, settings)
    current = Current(into, labelled=bool(labels))
    from_ms, to_ms = between
    # An event is at most so far ahead of its record's time, and no alert is before its event's record.
    ahead_ms = max(stream.max_future_skew_ms for stream in settings.streams.values())
    seen: set[int] = set()
    for records in _read_topic(log, settings.alerts.topic, max(0, from_ms - ahead_ms)):
        for key, value in records.pairs():
            try:
                alert = json.loads(value or b"")
            except ValueError:
                alert = None
            if not isinstance(alert, dict) or not alert.keys() >= ALERT_FIELDS:
                current.unreadable += 1
                continue
            rule, number = alert["rule"], hashed(alert["id"].encode())
            if rule not in rules or not from_ms <= alert["at"] < to_ms or number in seen:
                continue
            seen.add(number)  # a rewind may have published it again
            current.versions.setdefault(rule, Counter())[alert["version"]] += 1
            event = next((event for step in alert.get("steps", {}).values() for event in step), None)
            partition = -1 if event is None or rule not in apart else int(event[1])
            match = FoldedMatch(rule, partition, key or b"", alert["start"], alert["at"], value or b"")
            current.finds.add(match, labels.get(alert["id"], UNLABELLED))
    return current


def _read_labels(log: Log, settings: ServiceFile) -> dict[str, int]:
    """How alerts are labelled now, by their ids. The last label of an alert counts."""
    labels: dict[str, int] = {}
    for records in _read_topic(log, f"{settings.service}-labels"):
        for key, value in records.pairs():
            if value is None:
                labels.pop((key or b"").decode("utf-8", "replace"), None)
                continue
            try:
                label = json.loads(value)
                labels[label["alert"]] = LABELS[label["label"]]
            except (ValueError, KeyError, TypeError):
                continue  # not a label
    return labels


def _read_topic(log: Log, topic: str, from_ms: int | None = None) -> Iterator[Records]:
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
        while (records := cursor.next_records(end)) is not None:
            yield records
    finally:
        cursor.close()


# ---------------------------------------------------------------- how far the service is


@dataclass
class StagePosition:
    """Where a stage of the service is: by partition, its event time; and its rules with their versions."""

    times: dict[int, int] = field(default_factory=dict)
    rules: dict[str, str] = field(default_factory=dict)


def reached(log: Log, changelog: str) -> StagePosition:
    """What the last position of each partition says; nothing where the service never ran."""
    known = log.topics([changelog]).get(changelog)
    stage = StagePosition()
    for partition in range(known.partitions if known else 0):
        position = _last_position(log, TopicPartition(changelog, partition))
        if position is not None:
            stage.rules |= position.rules
            if position.watermark is not None:
                stage.times[partition] = position.watermark
    return stage


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
