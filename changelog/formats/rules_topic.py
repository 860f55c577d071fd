"""The rules topic: every change of a service's rules and shared lists, `{service}-rules`, compacted, one partition.
Format 1.

A record is one change. Its key is the change's number and a word of its own, so that compaction never takes one away;
its value JSON: `v` first, then the fields of `Change`:

    number            of the change, counted from 1
    act               seed, publish, disable, enable, rollback, quarantine or lists
    author, at_ms, note
    rules             what each changed rule is from here on: name, number (counted from 1 a rule), version, text,
                      status (live, shadow, disabled, quarantined), state (what becomes of partial matches: drop or
                      drain), warm_from_ms
    lists             name to the whole list as it is from here on, and what was added and removed
    fields            stream to the types of its fields as they were then, where the service file says them

Of two writers who both write the change N, the one whose record comes first wins: `read_changes` passes the other over,
and its writer is told. A reader therefore needs no lock, and all readers agree.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from samovar.changelog.cursors import read_all
from samovar.changelog.formats.record import newer
from samovar.changelog.log import Append, Log, TopicPartition, TopicSpec
from samovar.common.errors import Refused
from samovar.common.wire import from_wire, stored, to_wire

FORMAT = 1
MAX_BYTES = 4 * 1_048_576  # of a change: many rules, or a long list
SETTINGS = {"cleanup.policy": "compact", "max.message.bytes": str(MAX_BYTES)}
DROP, DRAIN = "drop", "drain"
LIVE, SHADOW, DISABLED, QUARANTINED = "live", "shadow", "disabled", "quarantined"
AT_WORK = (LIVE, SHADOW)


@stored("name number version text status state warm_from_ms")
@dataclass(frozen=True, kw_only=True)
class RuleRecord:
    """A rule as one change leaves it."""

    name: str
    number: int
    version: str
    text: str
    status: str = LIVE
    state: str = DROP
    warm_from_ms: int | None = None


@stored("items added removed")
@dataclass(frozen=True)
class ListRecord:
    """A shared list as one change leaves it, and what that change did."""

    items: Sequence[Any]
    added: Sequence[Any] = ()
    removed: Sequence[Any] = ()


@stored("number act author at_ms note rules lists fields")
@dataclass(frozen=True, kw_only=True)
class Change:
    """One change."""

    number: int
    act: str
    author: str
    at_ms: int
    note: str = ""
    rules: tuple[RuleRecord, ...] = ()
    lists: Mapping[str, ListRecord] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)


def topic_of(service: str) -> str:
    return f"{service}-rules"


def spec_of(service: str, replication: int = 1) -> TopicSpec:
    return TopicSpec(topic_of(service), 1, SETTINGS, replication)


def pack_change(change: Change) -> bytes:
    return json.dumps({"v": FORMAT, **to_wire(change)}, separators=(",", ":")).encode()


def read_changes(log: Log, service: str) -> list[Change]:
    """All changes that count; none where nothing was ever published."""
    topic = topic_of(service)
    if topic not in log.topics([topic]):
        return []
    changes: list[Change] = []
    for _, value in (pair for records in read_all(log, TopicPartition(topic, 0)) for pair in records.pairs()):
        if value is None:
            continue
        raw: dict[str, Any] = json.loads(value)
        version = raw.pop("v")
        if version > FORMAT:
            raise newer("the rules topic", version, FORMAT)
        change = from_wire(Change, raw)
        if change.number == len(changes) + 1:  # the first of its number, after all of lower ones
            changes.append(change)
    return changes


def append_changes(log: Log, service: str, changes: Sequence[Change]) -> None:
    """Write changes, and see that they count: another writer may have been first."""
    pairs = [(f"{change.number:08d}-{secrets.token_hex(4)}".encode(), pack_change(change)) for change in changes]
    for _, value in pairs:
        if len(value) > MAX_BYTES - 1_024:
            raise Refused(
                "change-too-large",
                f"the change has {len(value):,} bytes, and {MAX_BYTES - 1_024:,} are the most",
                "Publish fewer rules at once, or shorten the list.",
            )
    log.append([Append(topic=topic_of(service), records=pairs, partition=0)])
    written = {change.number: pack_change(change) for change in read_changes(log, service)}
    if any(written.get(change.number) != pack_change(change) for change in changes):
        raise Refused(
            "change-overtaken",
            "someone else changed the rules at the same moment, and was first",
            "Nothing of this change counts. Look at `samovar rules history`, and do it again.",
        )
