"""What the HTTP process writes down besides changes: logins, refused tokens, posted events, and reads of marked fields
in the clear.

What may come a thousand times a second is gathered: the first of its kind is written at once, and how many came after
it once a minute. So nobody can fill the topic by asking, and a process that is killed loses a minute of counts at most.
A token is never in it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from samovar.changelog.log import Log
from samovar.common.errors import Fenced, LogUnavailable, Refused
from samovar.service.auth import audit
from samovar.service.config.models import ServiceFile

EVERY_S = 60.0
PLACES_MOST = 50  # that are named in one entry; how many came from others is told
ACTORS_MOST = 1_000
CLOSE_S = 5.0
NOBODY = "nobody"
LOGGER = logging.getLogger("samovar.audit")


@dataclass
class _Tally:
    """What came since the last entry, by place."""

    since_ms: int
    counts: Counter[str] = field(default_factory=Counter)
    more: int = 0

    def add(self, place: str, count: int) -> None:
        if place in self.counts or len(self.counts) < PLACES_MOST:
            self.counts[place] += count
        else:
            self.more += count

    def detail(self) -> dict[str, Any]:
        found = {"count": self.counts.total() + self.more, "of": dict(self.counts), "since": self.since_ms}
        return found | ({"elsewhere": self.more} if self.more else {})


class AuditWriter:
    """The source of truth for what is yet to be written. Threads may share it."""

    def __init__(self, settings: ServiceFile, log: Log, every_s: float = EVERY_S) -> None:
        self._settings, self._log, self._every_s = settings, log, every_s
        self._tallies: dict[tuple[str, str], _Tally] = {}
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        self.flush()

    def record(self, who: str, what: str, detail: Mapping[str, Any]) -> None:
        """At once."""
        audit.record(self._log, self._settings, who, what, detail)

    def refused(self, client: str) -> None:
        """A token that nobody knows."""
        self.count(NOBODY, "token refused", client)

    def count(self, who: str, what: str, place: str, count: int = 1) -> None:
        """One of many: written at once where it is the first, else with those that come in the same minute."""
        with self._lock:
            key = who, what
            tally = self._tallies.get(key)
            is_first = tally is None and len(self._tallies) < ACTORS_MOST
            if tally is None:
                tally = self._tallies[key] = _Tally(_now_ms())
            tally.add(place, count)
        if is_first:
            self._write(key)

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
                self._tallies[key] = _Tally(_now_ms())
        if not tally.counts:
            return
        try:
            self.record(*key, tally.detail())
        except (LogUnavailable, Fenced, Refused) as error:
            LOGGER.warning("the audit trail cannot be written, and is tried again: %s", str(error).splitlines()[0])
            self._put_back(key, tally)

    def _put_back(self, key: tuple[str, str], tally: _Tally) -> None:
        with self._lock:
            newer = self._tallies.get(key)
            for place, count in () if newer is None else newer.counts.items():
                tally.add(place, count)
            tally.more += 0 if newer is None else newer.more
            self._tallies[key] = tally

    def _run(self) -> None:
        while not self._ending.wait(self._every_s):
            self.flush()


def _now_ms() -> int:
    return int(time.time() * 1000)
