"""What people say of alerts, in a compacted topic of one partition: `{service}-labels`. Format 1.

A record's key is the alert's id; its value JSON:

    {"v": 1, "alert", "rule", "key": text, "label": confirmed | false_alarm | open, "by", "at": epoch ms, "note"}

The newest record of an alert counts; an alert without one is open. Anyone who reads them finds how precise a rule is:
confirmed of those that somebody has judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from samovar.changelog.cursors import read_all
from samovar.changelog.log import Append, Log, TopicPartition
from samovar.common.errors import Refused
from samovar.common.wire import from_wire, stored, to_wire
from samovar.service.topology.topics import labels_topic

FORMAT = 1
LABELS = ("open", "confirmed", "false_alarm")
MAX_NOTE = 2_000  # characters


@stored("alert rule key label by at note")
@dataclass(frozen=True)
class Label:
    """What somebody said of an alert."""

    alert: str
    rule: str
    key: str
    label: str
    by: str
    at: int
    note: str = ""


def topic_of(service: str) -> str:
    return labels_topic(service).name


def put(log: Log, service: str, label: Label) -> None:
    """Written when this returns."""
    log.append([Append(topic_of(service), [(label.alert.encode(), pack(label))], 0)])


def pack(label: Label) -> bytes:
    return json.dumps({"v": FORMAT, **to_wire(label)}, ensure_ascii=False, separators=(",", ":")).encode()


def unpack(data: bytes) -> Label:
    raw: dict[str, Any] = json.loads(data)
    if raw.pop("v") > FORMAT:
        raise Refused(
            "format-newer",
            "a label was written by a newer version of Samovar",
            "Use the version that wrote it, or a newer one.",
        )
    return from_wire(Label, raw)


def all_labels(log: Log, service: str) -> dict[str, Label]:
    """The newest label of each alert."""
    topic = topic_of(service)
    if topic not in log.topics([topic]):
        return {}
    found: dict[str, Label] = {}
    for records in read_all(log, TopicPartition(topic, 0)):
        for key, value in records.pairs():
            alert = (key or b"").decode("utf-8", "replace")
            if value is None:
                found.pop(alert, None)
            else:
                found[alert] = unpack(value)
    return found


def precision(counts: Mapping[str, int]) -> float | None:
    """Of the alerts that were judged, how many were right; None where nobody judged one.

    >>> precision({"confirmed": 3, "false_alarm": 1, "open": 7}), precision({"open": 2})
    (0.75, None)
    """
    judged = counts.get("confirmed", 0) + counts.get("false_alarm", 0)
    return counts.get("confirmed", 0) / judged if judged else None


def by_rule(labels: Mapping[str, Label]) -> Iterator[tuple[str, dict[str, int]]]:
    """How many of each label a rule has, of the alerts that have one."""
    found: dict[str, dict[str, int]] = {}
    for label in labels.values():
        own = found.setdefault(label.rule, dict.fromkeys(LABELS, 0))
        own[label.label] += 1
    yield from found.items()
