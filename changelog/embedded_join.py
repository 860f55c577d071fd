"""Joining small segments: what was written in many small commits is kept in larger pieces. No record is dropped."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from samovar.changelog.embedded_compact import Row, groups, replace, retained
from samovar.changelog.embedded_file import Stored, writing
from samovar.changelog.embedded_read import unpacked
from samovar.changelog.embedded_segment import Standing
from samovar.changelog.packed import joined
from samovar.common.tunables import DEFAULTS, Tunables


def join_newest(
    connection: sqlite3.Connection, path: Path, stored: Stored, partition: int, tunables: Tunables = DEFAULTS
) -> None:
    """Join the newest segments of a partition where many of them are small."""
    with writing(connection, path):
        rows = _small(connection, path, stored, partition, tunables)
        if len(rows) < tunables.join_segments:
            return
        for group in groups([(row, row.packed) for row in rows], stored, tunables, _period_ms(stored)):
            if len(group) > 1:
                together = [row for row, _ in group]
                still = joined([packed for _, packed in group])
                replace(connection, (stored.number, partition), together, still, _horizon(together))


def _small(connection: sqlite3.Connection, path: Path, stored: Stored, partition: int, tunables: Tunables) -> list[Row]:
    """The small ones at the end, in order."""
    most = max(tunables.joined_segments, tunables.join_segments)  # with fewer, none would ever be joined
    found = connection.execute(
        "SELECT rowid, size FROM segment INDEXED BY standing WHERE topic = ? AND partition = ? "
        "ORDER BY first DESC LIMIT ?",
        (stored.number, partition, most),
    ).fetchall()
    large = next((place for place, (_, size) in enumerate(found) if size >= tunables.join_bytes), len(found))
    rows = []
    for rowid, size in found[:large][::-1] if large >= tunables.join_segments else []:
        horizon, first, following, time_ms, data = connection.execute(
            "SELECT horizon, first, next, time, data FROM segment WHERE rowid = ?", (rowid,)
        ).fetchone()
        standing = Standing(stored.topic.name, partition, first, following, time_ms)
        rows.append(Row(rowid, horizon, unpacked(path, standing, data), standing, size))
    return rows


def _period_ms(stored: Stored) -> int | None:
    """How long records stay as they are."""
    lag_ms = int(stored.topic.settings.get("min.compaction.lag.ms", "0"))
    found = [each for each in (retained(stored, "retention.ms"), lag_ms or None) if each is not None]
    return min(found, default=None)


def _horizon(rows: Sequence[Row]) -> int | None:
    """Tombstones may go once all of them may; those that no compaction has met yet may not."""
    horizons = [row.horizon for row in rows if row.packed.null.any()]
    known = [horizon for horizon in horizons if horizon is not None]
    return max(known) if known and len(known) == len(horizons) else None
