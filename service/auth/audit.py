"""Who changed what, logged in, or read marked fields in the clear. Format 1.

A topic of one partition that is never compacted: `{service}-audit`.

A record's key is who; its value JSON:

    {"v": 1, "at": epoch ms, "who", "what": a few words, "detail": {...}, "version": of Samovar}

It is written before the change is answered. Values of secret settings and tokens are never in it.

What may come to the HTTP process a thousand times a second (refused tokens, posted events, reads of marked fields in
the clear) is gathered: the first of its kind is written at once, and how many came after it once a minute. So nobody
can fill the topic by asking, and a process that is killed loses a minute of counts at most.
"""

from __future__ import annotations

import getpass
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
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
EVERY_S = 60.0
PLACES_MOST = 50  # that are named in one entry; how many came from others is told
ACTORS_MOST = 1_000
CLOSE_S = 5.0
LOGGER = logging.getLogger("samovar.audit")


def topic_of(service: str) -> str:
    return audit_topic(service).name


def record(log: Log, settings: ServiceFile, who: str, what: str, detail: Mapping[str, Any]) -> None:
    """Writes down a change. Durable when this returns."""
    ensure_topic(settings, log, TopicRole.AUDIT)
    text = json.dumps(detail, ensure_ascii=False, default=str)
    if len(text) > MAX_DETAIL:
        detail = {"cut": text[:MAX_DETAIL], "characters": len(text)}
    told = {"v": FORMAT, "at": int(time.time() * 1000), "who": who, "what": what, "detail": detail}
    value = json.dumps({**told, "version": __version__}, ensure_ascii=False, default=str).encode()
    log.append([Append(topic=topic_of(settings.service), records=[(who.encode(), value)], partition=0)])


def record_reading(log: Log, settings: ServiceFile, command: str, detail: Mapping[str, Any]) -> None:
    """Writes down a command that shows marked fields in the clear, where there are any."""
    if any(stream.pii for stream in settings.streams.values()):
        _record_command(log, settings, "unmasked read", {"command": command, **detail})


def record_export(log: Log, settings: ServiceFile, command: str, to: Path | None) -> None:
    """Writes down a command that takes data away, to a file or folder of the user's choice."""
    _record_command(log, settings, "exported", {"command": command, "to": str(to)})


def _record_command(log: Log, settings: ServiceFile, what: str, detail: Mapping[str, Any]) -> None:
    """As far as the user may write: who can read the log needs no command for it, and somebody on call with fewer
    rights is not kept from looking.
    """
    with suppress(LogUnavailable, Fenced, Refused):
        record(log, settings, getpass.getuser(), what, detail)


def entries(log: Log, settings: ServiceFile, limit: int) -> list[dict[str, Any]]:
    """The newest changes, newest first."""
    back = limit * 2
    while True:
        found, is_all = _newest(log, settings, back)
        if len(found) >= limit or is_all:
            return found[::-1][:limit]
        back *= 10  # offsets have gaps: the last of them may hold fewer records


def has(log: Log, settings: ServiceFile, what: str) -> bool:
    """Whether this was ever written down."""
    return any(entry["what"] == what for entry in _newest(log, settings, None)[0])


def _newest(log: Log, settings: ServiceFile, back: int | None) -> tuple[list[dict[str, Any]], bool]:
    """The records of so many last offsets, None for all; and whether there are no others."""
    at = TopicPartition(topic_of(settings.service), 0)
    if at.topic not in log.topics([at.topic]):
        return [], True
    begin, end = log.bounds([at])[at]
    start = begin if back is None else max(begin, end - back)
    cursor = PartitionCursor(log, at, start)
    found = []
    try:
        while (records := cursor.next_records(end)) is not None:
            for _, value in records.pairs():
                if value is not None:
                    raw = json.loads(value)
                    found.append({name: raw[name] for name in ("at", "who", "what", "detail")})
    finally:
        cursor.close()
    return found, start == begin


# ---------------------------------------------------------------- counted by the HTTP process


@dataclass
class _Tally:
    """What came since the last entry, by place."""

    since_ms: int = field(default_factory=lambda: int(time.time() * 1000))
    counts: Counter[str] = field(default_factory=Counter)
    elsewhere: int = 0

    def add(self, place: str, count: int) -> None:
        if place in self.counts or len(self.counts) < PLACES_MOST:
            self.counts[place] += count
        else:
            self.elsewhere += count

    def detail(self) -> dict[str, Any]:
        found = {"count": self.counts.total() + self.elsewhere, "of": dict(self.counts), "since": self.since_ms}
        return found | ({"elsewhere": self.elsewhere} if self.elsewhere else {})


class AuditWriter:
    """The source of truth for what is yet to be written. Threads may share it."""

    def __init__(self, settings: ServiceFile, log: Log) -> None:
        self._settings, self._log = settings, log
        self._tallies: dict[tuple[str, str], _Tally] = {}
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.wait(EVERY_S):
            self.flush()

    def close(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        self.flush()

    def record(self, who: str, what: str, detail: Mapping[str, Any]) -> None:
        """At once."""
        record(self._log, self._settings, who, what, detail)

    def count(self, who: str, what: str, place: str, count: int = 1) -> None:
        """One of many: written at once where it is the first, else with those that come in the same minute."""
        key = who, what
        with self._lock:
            is_first = key not in self._tallies and len(self._tallies) < ACTORS_MOST
            self._tallies.setdefault(key, _Tally()).add(place, count)
        if is_first:
            self._write(key)

    def count_refused_token(self, client: str) -> None:
        self.count("nobody", "token refused", client)

    def flush(self) -> None:
        with self._lock:
            keys = list(self._tallies)
        for key in keys:
            self._write(key, is_over=True)

    def _write(self, key: tuple[str, str], *, is_over: bool = False) -> None:
        with self._lock:
            tally = self._tallies.pop(key, None)
            if tally is None:
                return
            if tally.counts or not is_over:
                self._tallies[key] = _Tally()
        if not tally.counts:
            return
        try:
            self.record(*key, tally.detail())
        except (LogUnavailable, Fenced, Refused) as error:
            LOGGER.warning("the audit trail cannot be written, and is tried again: %s", str(error).splitlines()[0])
            with self._lock:
                newer = self._tallies.get(key, _Tally())
                for place, count in newer.counts.items():
                    tally.add(place, count)
                tally.elsewhere += newer.elsewhere
                self._tallies[key] = tally
