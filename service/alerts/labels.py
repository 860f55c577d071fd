"""What people say of alerts, in a compacted topic of one partition: `{service}-labels`. Format 1.

A record's key is the alert's id; its value JSON:

    {"v": 1, "alert", "rule", "key": text, "label": confirmed | false_alarm | open, "by", "at": epoch ms, "note"}

The newest record of an alert counts; an alert without one is open. Anyone who reads them finds how precise a rule is:
confirmed of those that somebody has judged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from samovar.changelog.log import Append, Log
from samovar.common.errors import Refused
from samovar.common.wire import from_wire, stored, to_wire
from samovar.service.topology.topics import labels_topic

FORMAT = 1
LABELS = ("open", "confirmed", "false_alarm")
MAX_NOTE = 2_000  # characters


@stored("alert rule key label by at note")
@dataclass(frozen=True, kw_only=True)
class Label:
    """What somebody said of an alert."""

    alert: str
    rule: str
    key: str
    label: str
    by: str
    at: int
    note: str = ""


def put(log: Log, service: str, label: Label) -> None:
    """Durable when this returns."""
    value = json.dumps({"v": FORMAT, **to_wire(label)}, ensure_ascii=False, separators=(",", ":")).encode()
    log.append([Append(topic=labels_topic(service).name, records=[(label.alert.encode(), value)], partition=0)])


def unpack(data: bytes) -> Label:
    raw: dict[str, Any] = json.loads(data)
    if raw.pop("v") > FORMAT:
        hint = "Use the version that wrote it, or a newer one."
        raise Refused("format-newer", "a label was written by a newer version of Samovar", hint)
    return from_wire(Label, raw)


def precision(counts: Mapping[str, int]) -> float | None:
    """Of the alerts that were judged, how many were right; None where nobody judged one.

    >>> precision({"confirmed": 3, "false_alarm": 1, "open": 7}), precision({"open": 2})
    (0.75, None)
    """
    judged = counts.get("confirmed", 0) + counts.get("false_alarm", 0)
    return counts.get("confirmed", 0) / judged if judged else None
