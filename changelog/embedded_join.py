"""Joining small segments: what was written in many small commits is kept in larger pieces. No record is dropped."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from samovar.changelog.embedded_compact import Row, groups, replace
from samovar.changelog.embedded_file import Stored, writing
from samovar.changelog.embedded_read import unpacked
from samovar.changelog.embedded_segment import Standing
from samovar.changelog.packed import joined

SMALL_BYTES = 128 << 10
MANY = 32
_MOST_AT_ONCE = 256


def join_newest(connection: sqlite3.Connection, path: Path, stored: Stored, partition: int) -> None:
    """Join the newest segments of a partition where many of them are small."""
    with writing(connection, path):
        rows = _small(connection, path, stored, partition)
        if len(rows) < MANY:
            return
        for group in groups([(row, row.packed) for row in rows]):
            if len(group) > 1:
                together = [row for row, _ in group]
                still = joined([packed for _, packed in group])
                replace(connection, (stored.number, partition), together, still, _horizon(together))


def _small(connection: sqlite3.Connection, path: Path, stored: Stored, partition: int) -> list[Row]:
    """The small ones at the end, in order."""
    found = connection.execute(
        "SELECT rowid, size FROM segment INDEXED BY standing WHERE topic = ? AND partition = ? "
        "ORDER BY first DESC LIMIT ?",
        (stored.number, partition, _MOST_AT_ONCE),
    ).fetchall()
    large = next((place for place, (_, size) in enumerate(found) if size >= SMALL_BYTES), len(found))
    rows = []
    for rowid, size in found[:large][::-1] if large >= MANY else []:
        horizon, first, following, time_ms, data = connection.execute(
            "SELECT horizon, first, next, time, data FROM segment WHERE rowid = ?", (rowid,)
        ).fetchone()
        standing = Standing(stored.topic.name, partition, first, following, time_ms)
        rows.append(Row(rowid, horizon, unpacked(path, standing, data), standing, size))
    return rows


def _horizon(rows: Sequence[Row]) -> int | None:
    """Tombstones may go once all of them may; those that no compaction has met yet may not."""
    horizons = [row.horizon for row in rows if row.packed.null.any()]
    known = [horizon for horizon in horizons if horizon is not None]
    return max(known) if known and len(known) == len(horizons) else None
