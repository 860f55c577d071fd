"""Who changed what, logged in, or read marked fields in the clear. Format 1.

A topic of one partition that is never compacted: `{service}-audit`.

A record's key is who; its value JSON:

    {"v": 1, "at": epoch ms, "who", "what": a few words, "detail": {...}, "version": of Samovar}

It is written before the change is answered. Values of secret settings are never in it.
"""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samovar import __version__
from samovar.changelog.cursors import PartitionCursor
from samovar.changelog.log import Append, Log, TopicPartition
from samovar.common.errors import Fenced, LogUnavailable, Refused
from samovar.service.config.models import ServiceFile
from samovar.service.topology.topics import TopicRole, audit_topic, ensure_topic

FORMAT = 1
MAX_DETAIL = 20_000  # characters of JSON; a longer detail is cut, and says so


@dataclass(frozen=True)
class AuditRecord:
    """One change."""

    at: int
    who: str
    what: str
    detail: Mapping[str, Any]

    def data(self) -> dict[str, Any]:
        return {"at": self.at, "who": self.who, "what": self.what, "detail": dict(self.detail)}


def topic_of(service: str) -> str:
    return audit_topic(service).name


def record(log: Log, settings: ServiceFile, who: str, what: str, detail: Mapping[str, Any]) -> None:
    """Write down a change. Durable when this returns."""
    ensure_topic(settings, log, TopicRole.AUDIT)
    told = {"v": FORMAT, "at": int(time.time() * 1000), "who": who, "what": what, "detail": _bounded(detail)}
    value = json.dumps({**told, "version": __version__}, ensure_ascii=False, default=str).encode()
    log.append([Append(topic_of(settings.service), [(who.encode(), value)], 0)])


def record_reading(log: Log, settings: ServiceFile, command: str, detail: Mapping[str, Any]) -> None:
    """Write down a command that shows marked fields in the clear, where there are any."""
    if any(stream.pii for stream in settings.streams.values()):
        _record_command(log, settings, "unmasked read", {"command": command, **detail})


def record_export(log: Log, settings: ServiceFile, command: str, to: Path | None) -> None:
    """Write down a command that takes data away, to a file or folder of the user's choice."""
    _record_command(log, settings, "exported", {"command": command, "to": str(to)})


def _record_command(log: Log, settings: ServiceFile, what: str, detail: Mapping[str, Any]) -> None:
    """As far as the user may write: who can read the log needs no command for it, and somebody on call with fewer
    rights is not kept from looking.
    """
    with suppress(LogUnavailable, Fenced, Refused):
        record(log, settings, getpass.getuser(), what, detail)


def _bounded(detail: Mapping[str, Any]) -> Mapping[str, Any]:
    text = json.dumps(detail, ensure_ascii=False, default=str)
    return detail if len(text) <= MAX_DETAIL else {"cut": text[:MAX_DETAIL], "characters": len(text)}


def entries(log: Log, settings: ServiceFile, limit: int) -> list[AuditRecord]:
    """The newest changes, newest first."""
    at = TopicPartition(topic_of(settings.service), 0)
    if at.topic not in log.topics([at.topic]):
        return []
    begin, end = log.bounds([at])[at]
    found: list[AuditRecord] = []
    # Offsets have gaps, so that the last `limit` of them may hold fewer records: look further back until it is enough.
    back = limit * 2
    while True:
        start = max(begin, end - back)
        found = _read(log, at, start, end)
        if len(found) >= limit or start == begin:
            return found[::-1][:limit]
        back *= 10


def has(log: Log, settings: ServiceFile, what: str) -> bool:
    """Whether this was ever written down."""
    at = TopicPartition(topic_of(settings.service), 0)
    if at.topic not in log.topics([at.topic]):
        return False
    begin, end = log.bounds([at])[at]
    return any(entry.what == what for entry in _read(log, at, begin, end))


def _read(log: Log, at: TopicPartition, start: int, end: int) -> list[AuditRecord]:
    cursor = PartitionCursor(log, at, start)
    found = []
    try:
        while (records := cursor.take(end)) is not None:
            for _, value in records.pairs():
                if value is not None:
                    raw = json.loads(value)
                    found.append(AuditRecord(raw["at"], raw["who"], raw["what"], raw["detail"]))
    finally:
        cursor.close()
    return found
