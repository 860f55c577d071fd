"""The journal: what a task did that its input does not tell, so that a replay can do the same. Format 1.

A record's key is the task's partition as text, its value JSON: `v` first, then `kind`, `number` (the task's entries
counted from 1), `inputs` (stream to the offset that was next when it happened), `watermark` before it, and:

    advance   stream,              the stream was idle at its end, and its event time was advanced. Without a stream: a
              max_event_time       stage was set back, and event time came up to `max_event_time` there
    idle      stream               no event ever came, and the stream no longer holds event time back
    active    stream,              an idle stream's first records came: events before `max_event_time` are late
              max_event_time
    rules     rules, params, lists the rules from here on: id, version and text of each; of a user's task none, but
                                   `task`: its id, class and version. Of published rules also `change` (its number),
                                   of each what samovar.tasks.model.plan.PublishedRule adds, `moves` (stores
                                   that go on under another name) and `warm` (rules whose history was folded, and from
                                   where). Where alerts are limited `storm`: rule to alerts and ms. Where a rule was
                                   taken out because a step went over its budget `quarantine`: the rule, its version,
                                   the key and the reason; from then on it is `quarantined` in `rules`, and not at work
                                   In the first entry behind a repartition `repartitioned`: at_ms, and how many
                                   partitions there were (from) and are (to)
    restart   stream, partition,   a stage that was away is back, and what it held is gone; `since` is the offset of
              since                the source from which on events come again
    schema    stream, schema,      from here on nobody knows the schema, and its messages are dead letters; or, `known`,
              known                it is found after all
    rewind    to, alerts, void,    the task was set back to the event time `to`: `inputs` are where it goes on from, and
              until, time_ms       entries of the numbers in `void` (first and last of each stretch) count no more. Up
                                   to `until` (stream to offset) it had been; `alerts` is skip or again

Numbers are never used again, so that a snapshot's number says whether a rewind came after it. What
`effective_entries` leaves is a journal as if what was set back had never been.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from samovar.changelog.formats.record import newer

FORMAT = 1


class EntryKind(StrEnum):
    """What an entry tells."""

    ADVANCE = "advance"
    IDLE = "idle"
    ACTIVE = "active"
    RULES = "rules"
    RESTART = "restart"
    SCHEMA = "schema"
    REWIND = "rewind"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One entry. `facts` are what its kind adds."""

    kind: str
    number: int
    inputs: Mapping[str, int]
    watermark: int | None
    facts: Mapping[str, Any] = field(default_factory=dict)


def pack_entry(entry: JournalEntry) -> bytes:
    head = {"v": FORMAT, "kind": entry.kind, "number": entry.number}
    data = {**head, "inputs": dict(entry.inputs), "watermark": entry.watermark, **entry.facts}
    return json.dumps(data, separators=(",", ":")).encode()


def unpack_entry(data: bytes) -> JournalEntry:
    raw: dict[str, Any] = json.loads(data)
    version = raw.pop("v")
    if version > FORMAT:
        raise newer("the journal", version, FORMAT)
    return JournalEntry(
        kind=raw.pop("kind"),
        number=raw.pop("number"),
        inputs=raw.pop("inputs"),
        watermark=raw.pop("watermark"),
        facts=raw,
    )


def effective_entries(entries: Iterable[JournalEntry], until: int | None = None) -> list[JournalEntry]:
    """The entries that count, up to a number. What stands before a rewind reads no further than that."""
    found: list[JournalEntry] = []
    for entry in entries:
        if until is not None and entry.number > until:
            continue
        if entry.kind == EntryKind.REWIND:
            found = [each for each in found if not is_void(each.number, entry)]
            for place, each in enumerate(found):
                inputs = {name: min(at, entry.inputs.get(name, at)) for name, at in each.inputs.items()}
                found[place] = replace(each, inputs=inputs)
        found.append(entry)
    return found


def is_void(number: int, rewind: JournalEntry) -> bool:
    return any(first <= number <= last for first, last in rewind.facts["void"])


def to_ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Numbers as first and last of each stretch.

    >>> to_ranges([3, 4, 5, 9])
    [[3, 5], [9, 9]]
    """
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def was_rewound(entries: Sequence[JournalEntry], journal: int, nexts: Mapping[str, int]) -> bool:
    """Whether a state with so many entries, at these offsets, is one that a later rewind took back."""
    later = [entry for entry in entries if entry.kind == EntryKind.REWIND and entry.number > journal]
    return any(
        is_void(journal, entry) or any(nexts.get(name, at) > at for name, at in entry.inputs.items()) for entry in later
    )
