"""Upkeep of the embedded log, by whoever writes: small segments are joined, old records go, a piece after a write."""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from samovar.changelog.embedded_compact import Pass, due_pass, policies, whole_pass
from samovar.changelog.embedded_file import Clock, Stored, failing, writing
from samovar.changelog.embedded_join import join_newest
from samovar.changelog.errors import CommitUnknown, LogUnavailable, Refused
from samovar.common.tunables import DEFAULTS, Tunables

EVERY_MS = 10_000
_logger = logging.getLogger(__name__)


class Upkeep:
    """What one writer does beside writing. Keeps unfinished passes in memory: one that is lost is begun anew."""

    def __init__(self, connection: sqlite3.Connection, path: Path, clock: Clock, tunables: Tunables = DEFAULTS) -> None:
        self._connection = connection
        self._path = path
        self._clock = clock
        self._tunables = tunables
        self._passes: dict[tuple[int, int], Pass] = {}
        self._looked_ms: dict[tuple[int, int], int] = {}
        self._writes: Counter[tuple[int, int]] = Counter()  # since segments were last joined

    def after(self, written: Iterable[tuple[Stored, int]]) -> None:
        """A piece of work for each partition written to. The write has happened: no trouble here undoes it."""
        for (number, partition), stored in {(stored.number, place): stored for stored, place in written}.items():
            self._writes[number, partition] += 1
            try:
                self._piece(stored, partition)
            except (Refused, LogUnavailable, CommitUnknown) as error:
                self._passes.pop((number, partition), None)
                _logger.warning("upkeep of %s/%d is put off: %s", stored.topic.name, partition, error)

    def _piece(self, stored: Stored, partition: int) -> None:
        here, now_ms = (stored.number, partition), self._clock()
        if self._writes[here] >= self._tunables.join_segments:
            self._writes[here] = 0
            join_newest(self._connection, self._path, stored, partition, self._tunables)
        if here not in self._passes:
            if now_ms - self._looked_ms.get(here, -EVERY_MS) < EVERY_MS:
                return
            self._looked_ms[here] = now_ms
            if is_retained(stored):
                self.retain(stored, partition)
            if not is_compacted(stored):
                return
            with failing(self._path):
                due = due_pass(self._connection, self._path, stored, partition, now_ms, self._tunables)
            if due is None:
                return
            self._passes[here] = due
        if self._step(self._passes[here]):
            del self._passes[here]

    def _step(self, running: Pass) -> bool:
        with failing(self._path):
            return running.step(self._connection, self._clock())

    def compact(self, stored: Stored, partition: int) -> None:
        """All that may go, now."""
        while True:
            with failing(self._path):
                now_ms = self._clock()
                running = whole_pass(self._connection, self._path, stored, partition, now_ms, self._tunables)
            wanted = running.limit
            while not self._step(running):
                pass
            if running.limit >= wanted:  # else the keys were too many for one pass
                return

    def retain(self, stored: Stored, partition: int) -> None:
        """Remove the oldest segments that are too old or too many, in steps."""
        while self._retain_step(stored, partition) == self._tunables.retain_segments:
            pass

    def _retain_step(self, stored: Stored, partition: int) -> int:
        if not self._too_many(stored, partition):
            return 0
        with writing(self._connection, self._path):
            doomed = self._too_many(stored, partition)
            self._connection.executemany("DELETE FROM segment WHERE rowid = ?", [(rowid,) for rowid, _ in doomed])
            if doomed:
                self._connection.execute(
                    "UPDATE partition SET begin = max(begin, ?) WHERE topic = ? AND partition = ?",
                    (doomed[-1][1], stored.number, partition),
                )
        return len(doomed)

    def _too_many(self, stored: Stored, partition: int) -> list[tuple[int, int]]:
        """Row and next offset of the oldest segments, as far as they must go."""
        settings, where = stored.topic.settings, (stored.number, partition)
        oldest_ms = int(settings.get("retention.ms", "-1"))
        most_bytes = int(settings.get("retention.bytes", "-1"))
        with failing(self._path):
            (total,) = self._connection.execute(
                "SELECT coalesce(sum(size), 0) FROM segment WHERE topic = ? AND partition = ?", where
            ).fetchone()
            found = self._connection.execute(
                "SELECT rowid, next, time, size FROM segment WHERE topic = ? AND partition = ? ORDER BY first LIMIT ?",
                (*where, self._tunables.retain_segments),
            ).fetchall()
        doomed = []
        for rowid, following, time_ms, size in found:
            is_old = oldest_ms >= 0 and time_ms < self._clock() - oldest_ms
            if not is_old and not (0 <= most_bytes <= total - size):
                break
            doomed.append((rowid, following))
            total -= size
        return doomed


def is_compacted(stored: Stored) -> bool:
    return "compact" in policies(stored)


def is_retained(stored: Stored) -> bool:
    return "delete" in policies(stored)
