"""The file of the embedded log, FOLDER/log.db: SQLite in WAL mode. Version (user_version) 1:

    topic      number (never used again), name, id, partitions, replication, settings (JSON)
    partition  topic, partition, begin, end; cleaned: compaction has seen all below this offset
    segment    topic, partition, first and next offset, time (the newest), size, horizon (when its tombstones may go,
               set by compaction), data: see samovar.changelog.embedded.segment
    place      a group's committed offset: grp, topic, partition, offset
    epoch      who may commit: grp, partition number, epoch: one more each time that a member takes the partition

A commit is fsynced (synchronous=FULL) and is all or nothing; readers are never blocked. Several processes may use one
file, all on one machine. FOLDER/locks holds the lock files: see samovar.changelog.embedded.locks.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from samovar.changelog.embedded.locks import holder, take
from samovar.changelog.log import Topic
from samovar.common.errors import CommitUnknown, LogUnavailable, Refused
from samovar.common.folders import make_private, make_private_file, sync

Clock: TypeAlias = Callable[[], int]

VERSION = 1
APPLICATION = 0x534D5652  # "SMVR"
BUSY_S = 10.0
SETTINGS = (
    "PRAGMA synchronous = FULL",
    "PRAGMA wal_autocheckpoint = 2000",
    "PRAGMA cache_size = -8000",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA foreign_keys = OFF",
)
SCHEMA = (
    "CREATE TABLE topic (number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, id TEXT NOT NULL, "
    "partitions INTEGER NOT NULL, replication INTEGER NOT NULL, settings TEXT NOT NULL)",
    "CREATE TABLE partition (topic INTEGER, partition INTEGER, begin INTEGER NOT NULL, end INTEGER NOT NULL, "
    "cleaned INTEGER NOT NULL, PRIMARY KEY (topic, partition)) WITHOUT ROWID",
    "CREATE TABLE segment (topic INTEGER NOT NULL, partition INTEGER NOT NULL, first INTEGER NOT NULL, "
    "next INTEGER NOT NULL, time INTEGER NOT NULL, size INTEGER NOT NULL, horizon INTEGER, data BLOB NOT NULL)",
    # Covers all that is asked without the data, so that no scan passes over the data's pages.
    "CREATE INDEX standing ON segment (topic, partition, first, next, time, size)",
    "CREATE TABLE place (grp TEXT, topic INTEGER, partition INTEGER, offset INTEGER NOT NULL, "
    "PRIMARY KEY (grp, topic, partition)) WITHOUT ROWID",
    "CREATE TABLE epoch (grp TEXT, partition INTEGER, epoch INTEGER NOT NULL, "
    "PRIMARY KEY (grp, partition)) WITHOUT ROWID",
)
_PAGE_BYTES = 8192
_FULL_BELOW_BYTES = 1 << 20
_UNUSABLE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH)


@dataclass(frozen=True)
class StoredTopic:
    """A topic and the number under which its rows are kept."""

    number: int
    topic: Topic


# ---------------------------------------------------------------- opening


def prepare(folder: Path) -> None:
    """Makes the file where there is none, and refuses one that is not ours."""
    path, lock_path = folder / "log.db", folder / "locks" / "open.lock"
    with failing(path):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_private(folder / "locks")
        make_private_file(path)  # SQLite makes the files next to it with the same rights
        # One process at a time makes the file: SQLite does not wait when two turn WAL mode on at once.
        lock = take(lock_path, BUSY_S)
        if lock is None:
            raise LogUnavailable(f"{lock_path} is held by {holder(lock_path)}, which opens the log and does not get on")
        try:
            with closing(connect(path)) as connection:
                _make_tables(connection, path)
            sync(folder)  # the name of a new file survives a power cut, too
        finally:
            lock.release()


def connect(path: Path) -> sqlite3.Connection:
    """A connection of one user: no two threads at once."""
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    for setting in SETTINGS:
        connection.execute(setting)
    return connection


def _make_tables(connection: sqlite3.Connection, path: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION:
        raise damaged(path, "it is a SQLite file of something else")
    if version > VERSION:
        raise Refused(
            "log-newer",
            f"the log {path} has version {version}; this Samovar knows versions up to {VERSION}",
            "Run the Samovar that wrote it, or a newer one.",
        )
    if tables:
        return
    connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    connection.execute("PRAGMA journal_mode = WAL")
    with writing(connection, path):
        for statement in SCHEMA:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


# ---------------------------------------------------------------- transactions


@contextmanager
def writing(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """A transaction: whatever is raised inside, nothing of it happened."""
    with failing(path):
        begin(connection)
        try:
            yield
            try:
                connection.execute("COMMIT")
            except sqlite3.DatabaseError as error:
                rollback(connection)
                # A full disk is certain to have stopped it; after any other error here nobody can say.
                if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY):
                    raise
                raise CommitUnknown(f"the commit failed: {error}") from error
        finally:
            if connection.in_transaction:
                rollback(connection)


@contextmanager
def reading(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """All that is read inside is of one moment."""
    with failing(path):
        connection.execute("BEGIN")
        try:
            yield
        finally:
            rollback(connection)


def begin(connection: sqlite3.Connection) -> None:
    """Become the one writer. SQLite's own wait is too coarse: it grows to 100 ms, a commit takes one."""
    deadline, wait_s = time.monotonic() + BUSY_S, 0.0002
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            else:
                return
            time.sleep(wait_s)
            wait_s = min(wait_s * 1.5, 0.002)
    finally:
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}")


def rollback(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.OperationalError):  # SQLite has rolled back by itself
        connection.execute("ROLLBACK")


# ---------------------------------------------------------------- errors


@contextmanager
def failing(path: Path) -> Iterator[None]:
    """SQLite's and the system's errors in Samovar's words."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise _in_words(path, error, error.sqlite_errorcode & 0xFF) from error
    except OSError as error:
        raise _in_words(path, error, sqlite3.SQLITE_CANTOPEN) from error


def _in_words(path: Path, error: Exception, code: int) -> Exception:
    # A full disk has more than one face: a file that cannot grow, and a shared-memory file that cannot be made.
    is_full = code == sqlite3.SQLITE_FULL
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        with suppress(OSError):
            space = os.statvfs(path.parent)
            is_full = space.f_bavail * space.f_frsize < _FULL_BELOW_BYTES
    if is_full:
        hint = "Free some space and start again: nothing was half written."
        return Refused("log-disk-full", f"no space is left for the log {path}", hint, str(error))
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damaged(path, str(error))
    if code in _UNUSABLE:
        what, hint = f"the log {path} cannot be opened for writing", "Check the folder and who may write there."
        return Refused("log-not-writable", what, hint, str(error))
    return LogUnavailable(f"the log {path} does not answer: {error}")


def damaged(path: Path, detail: str) -> Refused:
    return Refused(
        "log-damaged",
        f"the log {path} cannot be trusted",
        "Put back a copy of it. Without one, move the folder away and produce the events again.",
        detail,
    )


# ---------------------------------------------------------------- topics


def stored_topics(connection: sqlite3.Connection, names: Collection[str]) -> dict[str, StoredTopic]:
    """Those that exist."""
    found = {}
    for name in dict.fromkeys(names):
        row = connection.execute(
            "SELECT number, id, partitions, replication, settings FROM topic WHERE name = ?", (name,)
        ).fetchone()
        if row:
            number, topic_id, partitions, replication, settings = row
            found[name] = StoredTopic(
                number,
                Topic(
                    name=name,
                    partitions=partitions,
                    settings=json.loads(settings),
                    id=topic_id,
                    replication=replication,
                ),
            )
    return found


def existing_topics(connection: sqlite3.Connection, names: Collection[str]) -> dict[str, StoredTopic]:
    found = stored_topics(connection, names)
    for name in names:
        if name not in found:
            raise missing(name)
    return found


def existing_partition(topics: Mapping[str, StoredTopic], topic: str, partition: int) -> int:
    """The topic's number, once it is seen to have this partition."""
    if not 0 <= partition < topics[topic].topic.partitions:
        raise Refused(
            "partition-missing",
            f"topic {topic} has {topics[topic].topic.partitions} partitions, and none with number {partition}",
            "Check the partition's number, and whether the topic was made again with fewer.",
        )
    return topics[topic].number


def missing(topic: str) -> Refused:
    return Refused("topic-missing", f"there is no topic {topic}", "Make it, or check its name.")
