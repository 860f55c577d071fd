"""Maintenance of the embedded log, by all who write: small segments are joined, old records go, a piece per write."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from sqlite3 import Connection

import numpy as np

from samovar.changelog.batches import RecordBlock, joined, kept, objects
from samovar.changelog.embedded.file import Clock, StoredTopic, failing, reading, writing
from samovar.changelog.embedded.read import unpacked
from samovar.changelog.embedded.segment import SegmentInfo, repack
from samovar.common.errors import CommitUnknown, LogUnavailable, Refused
from samovar.common.tunables import DEFAULTS, Tunables

EVERY_MS = 10_000
_logger = logging.getLogger(__name__)

DAY_MS = 86_400_000
PARTS = 16  # of what a topic keeps, a segment that was joined is no more than one
_REACHING = (
    "SELECT rowid, horizon, size, first, next, time, data FROM segment "
    "WHERE topic = :topic AND partition = :partition AND next > :at AND first >= "
    "(SELECT coalesce(max(first), 0) FROM segment WHERE topic = :topic AND partition = :partition AND first <= :at) "
)
_WHOLE = _REACHING + "AND next <= :limit ORDER BY first"
_BEGUN = _REACHING + "AND first < :limit ORDER BY first"


@dataclass(frozen=True, kw_only=True)
class SegmentRow:
    """A segment as a pass sees it."""

    rowid: int
    horizon: int | None
    packed: RecordBlock
    standing: SegmentInfo
    size: int


@dataclass(kw_only=True)
class Pass:
    """One pass over one partition. The source of truth for how far it has come."""

    path: Path
    stored: StoredTopic
    partition: int
    mapped: int  # the keys of all below, down to where the last pass ended, are in `newest`
    limit: int  # nothing from here on is touched
    tunables: Tunables = DEFAULTS
    swept: int = 0  # all below is clean
    newest: dict[bytes | None, int] = field(default_factory=dict)

    def step(self, connection: Connection, now_ms: int) -> bool:
        """Do a bounded piece of work; whether the pass is at its end."""
        if self.mapped < self.limit:
            self._map(connection)
            return False
        with writing(connection, self.path):
            rows = list(self._rows(connection, self.swept, within=True))
            still = [(row, self._still(row, now_ms)) for row in rows]
            for together in groups(still, self.stored, self.tunables, retained(self.stored, "retention.ms")):
                self._replace(connection, together, now_ms)
            if not rows:
                # All is clean up to here. What another has joined across that place is looked at by the next pass.
                connection.execute(
                    "UPDATE partition SET cleaned = max(cleaned, ?) WHERE topic = ? AND partition = ?",
                    (self.limit, self.stored.number, self.partition),
                )
        self.swept = rows[-1].standing.next if rows else self.limit
        return not rows

    def _map(self, connection: Connection) -> None:
        with reading(connection, self.path):
            rows = list(self._rows(connection, self.mapped, within=False))
        for row in rows:
            offsets = row.packed.offsets
            # Above the limit a segment may hold what is too young to make anything old.
            old = int(np.searchsorted(offsets, self.limit))
            keys = objects(row.packed.keys, row.packed.keyless)[:old]
            self.newest.update(zip(keys, offsets[:old].tolist(), strict=True))
        self.mapped = rows[-1].standing.next if rows else self.limit
        if len(self.newest) > self.tunables.compact_keys:
            self.limit = min(self.limit, self.mapped)

    def _rows(self, connection: Connection, start: int, within: bool) -> Iterator[SegmentRow]:
        """Segments that reach beyond an offset, begun or whole below the limit: as many as a step may take."""
        size = 0
        asked = {"topic": self.stored.number, "partition": self.partition, "at": start, "limit": self.limit}
        for rowid, horizon, bytes_here, first, following, time_ms, data in connection.execute(
            _WHOLE if within else _BEGUN, asked
        ):
            standing = SegmentInfo(self.stored.topic.name, self.partition, first, following, time_ms)
            yield SegmentRow(
                rowid=rowid,
                horizon=horizon,
                packed=unpacked(self.path, standing, data),
                standing=standing,
                size=bytes_here,
            )
            size += bytes_here
            if size >= self.tunables.compact_bytes:
                return

    def _still(self, row: SegmentRow, now_ms: int) -> RecordBlock:
        """What stays of a segment."""
        packed = row.packed
        keys, offsets = objects(packed.keys, packed.keyless), packed.offsets.tolist()
        newest = self.newest.get
        stays = np.fromiter(
            (newest(key, -1) <= offset for key, offset in zip(keys, offsets, strict=True)), np.bool_, len(packed)
        )
        if row.horizon is not None and now_ms >= row.horizon:
            stays &= ~packed.null
        return packed if stays.all() else kept(packed, stays)

    def _replace(self, connection: Connection, group: Sequence[tuple[SegmentRow, RecordBlock]], now_ms: int) -> None:
        rows = [row for row, _ in group]
        still = joined([packed for _, packed in group])
        horizon = None
        if still.null.any():
            # When the tombstones that are left may go: the latest of all, for they stand in one segment now.
            later = now_ms + int(self.stored.topic.settings.get("delete.retention.ms", DAY_MS))
            horizon = max(later if row.horizon is None else row.horizon for row in rows if row.packed.null.any())
        if len(group) > 1 or still is not rows[0].packed:
            replace(connection, (self.stored.number, self.partition), rows, still, horizon)
        elif horizon != rows[0].horizon:
            connection.execute("UPDATE segment SET horizon = ? WHERE rowid = ?", (horizon, rows[0].rowid))


def replace(
    connection: Connection, here: tuple[int, int], rows: Sequence[SegmentRow], still: RecordBlock, horizon: int | None
) -> None:
    """Put one segment in the place of some that stand side by side."""
    connection.executemany("DELETE FROM segment WHERE rowid = ?", [(row.rowid,) for row in rows])
    if len(still) == 0:
        return
    first, following, time_ms = rows[0].standing.first, rows[-1].standing.next, int(still.times.max())
    data = repack(still, first, following, time_ms)
    connection.execute(
        "INSERT INTO segment (topic, partition, first, next, time, size, horizon, data) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (*here, first, following, time_ms, len(data), horizon, data),
    )


def groups(
    rows: Sequence[tuple[SegmentRow, RecordBlock]], stored: StoredTopic, tunables: Tunables, period_ms: int | None
) -> Iterator[list[tuple[SegmentRow, RecordBlock]]]:
    """Neighbours that fit into one segment together. A segment is as old as its newest record and goes as a whole, so
    it spans a small part of the period after which records may go, and of the bytes that are kept.
    """
    kept_bytes = retained(stored, "retention.bytes")
    most_bytes = tunables.segment_bytes if kept_bytes is None else min(tunables.segment_bytes, kept_bytes // PARTS)
    group: list[tuple[SegmentRow, RecordBlock]] = []
    size = oldest_ms = newest_ms = 0
    for row, still in rows:
        messages = [each for each in (still.keys, still.values, still.header_bytes) if each is not None]
        # The columns of a record take up to 28 bytes next to its own.
        here = sum(int((each.ends - each.starts).sum()) for each in messages) + 28 * len(still)
        first_ms = int(still.times.min()) if len(still) else row.standing.time
        oldest_ms, newest_ms = min(oldest_ms, first_ms), max(newest_ms, row.standing.time)
        is_long = period_ms is not None and newest_ms - oldest_ms > period_ms // PARTS
        if group and (size + here > most_bytes or is_long):
            yield group
            group, size = [], 0
        if not group:
            oldest_ms, newest_ms = first_ms, row.standing.time
        group.append((row, still))
        size += here
    if group:
        yield group


def retained(stored: StoredTopic, setting: str) -> int | None:
    """What retention.ms or retention.bytes says; None: nothing goes by it."""
    found = int(stored.topic.settings.get(setting, "-1"))
    return found if found >= 0 and "delete" in policies(stored) else None


def policies(stored: StoredTopic) -> list[str]:
    return [policy.strip() for policy in stored.topic.settings.get("cleanup.policy", "delete").split(",")]


def whole_pass(
    connection: Connection, path: Path, stored: StoredTopic, partition: int, now_ms: int, tunables: Tunables = DEFAULTS
) -> Pass:
    """A pass over all that min.compaction.lag.ms lets it touch."""
    where = stored.number, partition
    row = connection.execute("SELECT end, cleaned FROM partition WHERE topic = ? AND partition = ?", where).fetchone()
    end, cleaned = row or (0, 0)
    young = now_ms - int(stored.topic.settings.get("min.compaction.lag.ms", "0"))
    (limit,) = connection.execute(
        "SELECT min(first) FROM segment WHERE topic = ? AND partition = ? AND time > ?", (*where, young)
    ).fetchone()
    limit = end if limit is None else limit
    return Pass(
        path=path, stored=stored, partition=partition, mapped=min(cleaned, limit), limit=limit, tunables=tunables
    )


class LogMaintenance:
    """What one writer does besides writing. Keeps unfinished passes in memory: one that is lost is begun again."""

    def __init__(self, connection: Connection, path: Path, clock: Clock, tunables: Tunables = DEFAULTS) -> None:
        self._connection = connection
        self._path = path
        self._clock = clock
        self._tunables = tunables
        self._passes: dict[tuple[int, int], Pass] = {}
        self._looked_ms: dict[tuple[int, int], int] = {}
        self._writes: Counter[tuple[int, int]] = Counter()  # since segments were last joined

    def after(self, written: Iterable[tuple[StoredTopic, int]]) -> None:
        """A piece of work for each partition written to. The write has happened: no trouble here undoes it."""
        for (number, partition), stored in {(stored.number, place): stored for stored, place in written}.items():
            self._writes[number, partition] += 1
            try:
                self._piece(stored, partition)
            except (Refused, LogUnavailable, CommitUnknown) as error:
                self._passes.pop((number, partition), None)
                _logger.warning("upkeep of %s/%d is put off: %s", stored.topic.name, partition, error)

    def _piece(self, stored: StoredTopic, partition: int) -> None:
        here, now_ms = (stored.number, partition), self._clock()
        if self._writes[here] >= self._tunables.join_segments:
            self._writes[here] = 0
            join_newest(self._connection, self._path, stored, partition, self._tunables)
        if here not in self._passes:
            if now_ms - self._looked_ms.get(here, -EVERY_MS) < EVERY_MS:
                return
            self._looked_ms[here] = now_ms
            if "delete" in policies(stored):
                self.retain(stored, partition)
            due = self._due_pass(stored, partition, now_ms) if "compact" in policies(stored) else None
            if due is None:
                return
            self._passes[here] = due
        with failing(self._path):
            is_done = self._passes[here].step(self._connection, self._clock())
        if is_done:
            del self._passes[here]

    def _due_pass(self, stored: StoredTopic, partition: int, now_ms: int) -> Pass | None:
        """A pass, where enough has come since the last one."""
        sizes = (
            "SELECT coalesce(sum(size), 0) FROM segment WHERE topic = ? AND partition = ? AND first >= ? AND next <= ?"
        )
        with failing(self._path):
            ready = whole_pass(self._connection, self._path, stored, partition, now_ms, self._tunables)
            where = stored.number, partition
            (dirty,) = self._connection.execute(sizes, (*where, ready.mapped, ready.limit)).fetchone()
            (total,) = self._connection.execute(sizes, (*where, 0, ready.limit)).fetchone()
        ratio = float(stored.topic.settings.get("min.cleanable.dirty.ratio", "0.5"))
        return ready if dirty >= self._tunables.dirty_bytes and dirty >= ratio * total else None

    def compact(self, stored: StoredTopic, partition: int) -> None:
        """All that may go, now."""
        while True:
            with failing(self._path):
                now_ms = self._clock()
                running = whole_pass(self._connection, self._path, stored, partition, now_ms, self._tunables)
                wanted = running.limit
                while not running.step(self._connection, self._clock()):
                    pass
            if running.limit >= wanted:  # else the keys were too many for one pass
                return

    def retain(self, stored: StoredTopic, partition: int) -> None:
        """Removes the oldest segments that are too old or too many, in steps."""
        while self._expired(stored, partition):
            with writing(self._connection, self._path):
                expired = self._expired(stored, partition)
                self._connection.executemany("DELETE FROM segment WHERE rowid = ?", [(rowid,) for rowid, _ in expired])
                if expired:
                    self._connection.execute(
                        "UPDATE partition SET begin = max(begin, ?) WHERE topic = ? AND partition = ?",
                        (expired[-1][1], stored.number, partition),
                    )
            if len(expired) < self._tunables.retain_segments:
                return

    def _expired(self, stored: StoredTopic, partition: int) -> list[tuple[int, int]]:
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
        expired = []
        for rowid, following, time_ms, size in found:
            is_old = oldest_ms >= 0 and time_ms < self._clock() - oldest_ms
            if not is_old and not (0 <= most_bytes <= total - size):
                break
            expired.append((rowid, following))
            total -= size
        return expired


def join_newest(
    connection: Connection, path: Path, stored: StoredTopic, partition: int, tunables: Tunables = DEFAULTS
) -> None:
    """Joins the newest segments of a partition where many of them are small."""
    most = max(tunables.joined_segments, tunables.join_segments)  # with fewer, none would ever be joined
    with writing(connection, path):
        found = connection.execute(
            "SELECT rowid, size FROM segment INDEXED BY standing WHERE topic = ? AND partition = ? "
            "ORDER BY first DESC LIMIT ?",
            (stored.number, partition, most),
        ).fetchall()
        large = next((place for place, (_, size) in enumerate(found) if size >= tunables.join_bytes), len(found))
        if large < tunables.join_segments:
            return
        rows = []
        for rowid, size in reversed(found[:large]):
            horizon, first, following, time_ms, data = connection.execute(
                "SELECT horizon, first, next, time, data FROM segment WHERE rowid = ?", (rowid,)
            ).fetchone()
            standing = SegmentInfo(stored.topic.name, partition, first, following, time_ms)
            rows.append(
                SegmentRow(
                    rowid=rowid, horizon=horizon, packed=unpacked(path, standing, data), standing=standing, size=size
                )
            )
        # How long records stay as they are.
        lag_ms = int(stored.topic.settings.get("min.compaction.lag.ms", "0")) or None
        periods = [each for each in (retained(stored, "retention.ms"), lag_ms) if each is not None]
        for group in groups([(row, row.packed) for row in rows], stored, tunables, min(periods, default=None)):
            if len(group) == 1:
                continue
            together = [row for row, _ in group]
            # Tombstones may go once all of them may; those that no compaction has met yet may not.
            horizons = [row.horizon for row in together if row.packed.null.any()]
            known = [each for each in horizons if each is not None]
            latest = max(known) if known and len(known) == len(horizons) else None
            still = joined([packed for _, packed in group])
            replace(connection, (stored.number, partition), together, still, latest)
