"""What a task of the user's holds, for `samovar state` and `samovar verify`: rows of its stores, and its timers.

As data (`--json`) what is held of a key is one object:

    key         [the text]
    partition, stage, watermark
    stores      store, key, value (bytes as hex), expires (event time, ms; null: never)
    timers      name, due (event time, ms)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from samovar.changelog.formats.journal import JournalEntry
from samovar.changelog.formats.record import POSITION
from samovar.patterns.explain.key_trace import iso_time
from samovar.state.memory import MemoryStore
from samovar.state.stack import ROWS, namespace
from samovar.state.store import Readable
from samovar.state.ttl import UnknownRowVersionError
from samovar.tasks.model.plan import Plan
from samovar.tasks.user.inspect import UserRow, rows_of_stores, timers_of, user_row
from samovar.tasks.user.stores import key_bytes
from samovar.tasks.user.timers import OWN, TIMER, time_of

SHOWN_CHARACTERS = 300


@dataclass(frozen=True)
class TaskKeyState:
    """What a task's stores have under one key, and the timer of that name."""

    key: tuple[str]
    rows: Sequence[UserRow]
    timer: int | None

    @property
    def is_empty(self) -> bool:
        return not self.rows and self.timer is None

    def data(self) -> dict[str, Any]:
        timers = [] if self.timer is None else [{"name": self.key[0], "due": self.timer}]
        return {"key": list(self.key), "stores": [row.data() for row in self.rows], "timers": timers}

    def lines(self) -> list[str]:
        timer = [] if self.timer is None else [f"  timer: due {iso_time(self.timer)}"]
        return [*(f"  {line_of(row)}" for row in self.rows), *timer]


def held_of(plan: Plan, store: Readable, key: str) -> TaskKeyState:
    """What there is under a key, in all stores that the service file names."""
    assert plan.task is not None
    names = [namespace(ROWS, name) + key_bytes(key) for name in plan.task.stores]
    rows = [user_row(row, packed) for row in names if (packed := store.get(row)) is not None]
    timer = store.get(namespace(ROWS, OWN) + TIMER + key_bytes(key))
    return TaskKeyState((key,), rows, None if timer is None else time_of(timer))


def history_of(
    plan: Plan, records: Iterable[tuple[int, int, bytes, bytes | None]], key: str
) -> Iterator[tuple[int, int, TaskKeyState]]:
    """What was held of a key after each commit of a changelog that changed it: offset, log time, and what."""
    assert plan.task is not None
    wanted = {namespace(ROWS, name) + key_bytes(key) for name in plan.task.stores}
    wanted.add(namespace(ROWS, OWN) + TIMER + key_bytes(key))
    rows, touched = MemoryStore(), None
    for offset, time_ms, row, value in records:
        if row in wanted:
            rows.write([(row, value)])
            touched = offset, time_ms
        elif row == POSITION and touched:
            yield *touched, held_of(plan, rows, key)
            touched = None


def scanned(store: Readable) -> Iterator[dict[str, Any]]:
    """Every row of every store, in the order of stores and keys; and then the timers."""
    for row in rows_of_stores(store):
        due = {} if row.expires is None else {"due": row.expires}
        yield {"key": [row.key], "rules": [row.store], "rows": 1, "bytes": row.size} | due
    for name, due_ms in timers_of(store).items():
        yield {"key": [name], "rules": ["(timer)"], "rows": 1, "bytes": len(name) + 11, "due": due_ms}


def line_of(row: UserRow) -> str:
    value = row.value.hex() if isinstance(row.value, bytes) else json.dumps(row.value, ensure_ascii=False)
    shown = value if len(value) <= SHOWN_CHARACTERS else f"{value[:SHOWN_CHARACTERS]}..."
    expires = "" if row.expires is None else f"  (until {iso_time(row.expires)})"
    return f"{row.store}: {shown}{expires}"


def versions_of(entries: Iterable[JournalEntry], today: str) -> int:
    """How many versions of a task's code had a part in its state."""
    noted = {entry.facts["task"]["version"] for entry in entries if "task" in entry.facts}
    return len(noted | {today})


def named(row: bytes) -> tuple[str, str]:
    """Of any row of a task: what it belongs to, and its key."""
    size = row[1]
    if size:
        return f"store {row[2 : 2 + size].decode('utf-8', 'replace')}", row[2 + size :].decode("utf-8", "replace")
    return ("timer", row[3:].decode("utf-8", "replace")) if row[2:3] == TIMER else ("window", "")


def shown(row: bytes, packed: bytes | None) -> list[str]:
    """A row's value, as far as it can be read."""
    if packed is None:
        return ["nothing"]
    if not row[1]:
        return [f"due {iso_time(time_of(packed))}"]
    try:
        return [line_of(user_row(row, packed))]
    except (UnknownRowVersionError, ValueError) as error:
        return [f"unreadable: {error}", packed.hex()[:SHOWN_CHARACTERS]]
