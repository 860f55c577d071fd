"""Alerts to search: a SQLite file of this process, folded from the alerts and labels topics, and made again when lost.

The topics are the source of truth; this holds the newest MOST_ALERTS of them, and how far it has read:

    alert(id, partition, offset, logged, rule, key, at, start, finish, body)      body: the record's JSON, as it is
    label(alert, rule, label, by, at, note)
    position(topic, topic_id, partition, next, floor)                             floor: older ones are not here
    PRAGMA user_version                                                           of this format

A file of another version, of a topic that was made again, or that is damaged is thrown away and folded again.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samovar.changelog.log import Records, Topic, TopicPartition
from samovar.common.folders import make_private, make_private_file
from samovar.service.alerts.labels import Label

FORMAT = 1
MOST_ALERTS = 200_000
TRIM_EVERY = 2_000  # alerts taken between two looks at the bound
BUSY_MS = 5_000

TABLES = """
CREATE TABLE IF NOT EXISTS alert (
  id TEXT PRIMARY KEY, partition INTEGER NOT NULL, offset INTEGER NOT NULL, logged INTEGER NOT NULL,
  rule TEXT NOT NULL, key TEXT NOT NULL, at INTEGER NOT NULL, start INTEGER NOT NULL, finish INTEGER NOT NULL,
  body TEXT NOT NULL) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS alert_place ON alert (partition, offset);
CREATE INDEX IF NOT EXISTS alert_at ON alert (at, id);
CREATE INDEX IF NOT EXISTS alert_rule ON alert (rule, at, id);
CREATE INDEX IF NOT EXISTS alert_key ON alert (key, at, id);
CREATE INDEX IF NOT EXISTS alert_logged ON alert (logged, rule);
CREATE TABLE IF NOT EXISTS label (
  alert TEXT PRIMARY KEY, rule TEXT NOT NULL, label TEXT NOT NULL, by TEXT NOT NULL, at INTEGER NOT NULL,
  note TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS label_rule ON label (rule, label);
CREATE TABLE IF NOT EXISTS position (
  topic TEXT NOT NULL, topic_id TEXT NOT NULL, partition INTEGER NOT NULL, next INTEGER NOT NULL,
  floor INTEGER NOT NULL, PRIMARY KEY (topic, partition)) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert as the topic has it. `match` is its JSON object."""

    partition: int
    offset: int
    logged: int
    match: Mapping[str, Any]
    body: str

    @property
    def id(self) -> str:
        return str(self.match["id"])

    @property
    def rule(self) -> str:
        return str(self.match["rule"])

    @property
    def key(self) -> str:
        return key_text(self.match["key"])


def key_text(key: Mapping[str, Any]) -> str:
    """A key as people write and search it.

    >>> key_text({"card": "c1"}), key_text({"card": "c1", "user": 7}), key_text({})
    ('c1', '["c1", 7]', '')
    """
    values = list(key.values())
    if len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return json.dumps(values, ensure_ascii=False) if values else ""


def read_alert(partition: int, offset: int, logged: int, value: bytes | None) -> Alert | None:
    """From a record; None where it is not an alert of ours (somebody else's record in the topic)."""
    if value is None:
        return None
    try:
        body = value.decode()
        match = json.loads(body)
        found = Alert(partition=partition, offset=offset, logged=logged, match=match, body=body)
        whole = all(isinstance(match[name], int) for name in ("at", "start", "end"))
        whole = whole and isinstance(match["version"], str) and isinstance(match["steps"], dict)
        return found if whole and found.id and found.rule and isinstance(match["key"], dict) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def read_alerts(records: Records) -> Iterator[Alert]:
    """The alerts among records of the topic."""
    rows = zip(records.offsets.tolist(), records.times.tolist(), records.pairs(), strict=True)
    for offset, logged, (_, value) in rows:
        alert = read_alert(records.partition, offset, logged, value)
        if alert is not None:
            yield alert


class AlertsIndex:
    """The source of truth for what a search finds. Threads may share it; one writes."""

    def __init__(self, path: Path, topic: str, most: int = MOST_ALERTS) -> None:
        self.path, self.topic, self.most = path, topic, most
        self._lock = threading.Lock()
        self._connection = self._open()
        self._since_trim = 0

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _open(self) -> sqlite3.Connection:
        make_private(self.path.parent)
        try:
            return self._connect()
        except sqlite3.DatabaseError:
            return self._create()

    def _connect(self) -> sqlite3.Connection:
        make_private_file(self.path)
        connection = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
        try:
            connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")  # what a lost machine forgets is folded again
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, FORMAT):
                raise sqlite3.DatabaseError(f"another format: {version}")
            connection.executescript(TABLES)
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        except sqlite3.DatabaseError:
            connection.close()
            raise
        return connection

    def _create(self) -> sqlite3.Connection:
        """In the place of a file that is thrown away."""
        for ending in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + ending).unlink(missing_ok=True)
        return self._connect()

    def renew(self) -> None:
        """Throws all away; what the topics hold is folded again."""
        with self._lock:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = self._create()

    # ------------------------------------------------------------ where it stands

    def positions(self, topic: Topic) -> dict[int, int]:
        """Where to read on, by partition. What is of another topic of that name is forgotten."""
        with self._writing() as connection:
            stored = connection.execute(
                "SELECT partition, topic_id, next FROM position WHERE topic = ?", (topic.name,)
            ).fetchall()
            if any(topic_id != topic.id for _, topic_id, _ in stored):
                connection.execute("DELETE FROM position WHERE topic = ?", (topic.name,))
                connection.execute("DELETE FROM alert" if topic.name == self.topic else "DELETE FROM label")
                return {}
            return {partition: checkpoint for partition, _, checkpoint in stored}

    def begin(self, topics: Mapping[str, Topic], starts: Mapping[TopicPartition, int]) -> None:
        """Say where folding begins, of partitions that were never read."""
        with self._writing() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO position VALUES (?, ?, ?, ?, ?)",
                [(at.topic, topics[at.topic].id, at.partition, start, start) for at, start in starts.items()],
            )

    def floors(self, topic: str) -> dict[int, int]:
        """The offset of each partition before which the index has nothing."""
        return dict(self.ask("SELECT partition, floor FROM position WHERE topic = ?", [topic]))

    # ------------------------------------------------------------ folding

    def take(
        self, alerts: Iterable[Alert], labels: Iterable[Label], positions: Mapping[TopicPartition, int]
    ) -> list[Alert]:
        """Folds records in, with the positions that they end at. Returns the alerts that were not here before."""
        new = []
        with self._writing() as connection:
            for alert in alerts:
                match, place = alert.match, (alert.partition, alert.offset, alert.logged)
                times = match["at"], match["start"], match["end"]
                made = connection.execute(
                    "INSERT OR IGNORE INTO alert VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (alert.id, *place, alert.rule, alert.key, *times, alert.body),
                )
                if made.rowcount:
                    new.append(alert)
            connection.executemany(
                "INSERT OR REPLACE INTO label VALUES (?, ?, ?, ?, ?, ?)",
                [(each.alert, each.rule, each.label, each.by, each.at, each.note) for each in labels],
            )
            connection.executemany(
                "UPDATE position SET next = ? WHERE topic = ? AND partition = ?",
                [(after, at.topic, at.partition) for at, after in positions.items()],
            )
            self._since_trim += len(new)
            if self._since_trim >= min(TRIM_EVERY, self.most):
                self._since_trim = 0
                self._trim(connection)
        return new

    def _trim(self, connection: sqlite3.Connection) -> None:
        """Let the oldest go, of each partition those with the least offsets, so that what is left has no holes."""
        (count,) = connection.execute("SELECT count(*) FROM alert").fetchone()
        if count <= self.most:
            return
        oldest = connection.execute(
            "SELECT partition, offset + 1 FROM alert ORDER BY logged, offset LIMIT ?", (count - self.most,)
        ).fetchall()
        floors: dict[int, int] = {}
        for partition, after in oldest:
            floors[partition] = max(floors.get(partition, 0), after)
        for partition, floor in floors.items():
            connection.execute("DELETE FROM alert WHERE partition = ? AND offset < ?", (partition, floor))
            connection.execute(
                "UPDATE position SET floor = ? WHERE topic = ? AND partition = ?", (floor, self.topic, partition)
            )

    # ------------------------------------------------------------ asking

    def ask(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a question. The text is ours, what people gave is in the values."""
        with self._lock:
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
