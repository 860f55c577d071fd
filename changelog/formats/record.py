r"""What a changelog record and a row of a task's store are. Format 1.

A record's key and value are a row of the store as it is, so that a restore copies bytes. The first byte of a key says
what it is:

    b"r" + row key     a row of a rule's or history function's state; value as in native/match/rows.cpp
    b"p"               the task's position (`Position`), JSON; the last changelog record of every commit
    b"q" + ...         an event that waited for event time when the service was repartitioned: formats/waiting.py
    b"u" + ...         a row of a user's store, or one of its task's timers: samovar.state.stack, tasks/user/timers.py
    b"s" + ...         an alert that must not be published twice after a rewind: samovar.tasks.rules.replay_dedup
    b"v" + rule        how many alerts a rule raised lately, where that is limited: samovar.tasks.rules.rate_limiter
    b"w"               the rules at work, where they were published: samovar.tasks.rules.migration

Rows that are local to a store and never logged:

    b"l"               which changelog this store follows, and up to where (`ChangelogCheckpoint`), JSON
    b"t" + time + key  an index of deadlines: 8 bytes of time that sort as numbers do, then the key's bytes; no value
    b"i"               how far that index is: empty where it has an entry for every row with a deadline, else the first
                       row that it does not have yet; a small store has no index
    b"x" + ...         indexes of a user's stores and timers; b"x" alone: a hash of the position that they fit

A value of None deletes the row. JSON begins with "v", its format. A format above ours is refused, never guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from samovar.common.errors import Refused
from samovar.common.wire import from_wire, stored, to_wire
from samovar.state.digest import varint
from samovar.state.store import Change

FORMAT = 1
ROW_FORMAT = 1  # of native/match/rows.cpp
ROW, POSITION, USER, CHECKPOINT, DEADLINE, INDEXED = b"r", b"p", b"u", b"l", b"t", b"i"
STORM, BOOK, WAITING = b"v", b"w", b"q"
UNKNOWN_SINCE = -1
FORMATS = {"row": ROW_FORMAT, "position": FORMAT}  # as a snapshot's manifest says of its rows
T = TypeVar("T")
NO_DEADLINE = b"\xff" * 8
HEADER_KIND = 0


class SourcePartitionPosition(NamedTuple):
    """A source partition of a repartition topic, as a task knows it (samovar.changelog.formats.forwarded)."""

    partition: int
    max_event_time: int | None  # event time, of an idle one what it told last; None: nothing is known yet
    idle: bool
    next: int  # offset of the source: events before it have come
    since: int  # from where on they came without a break, or UNKNOWN_SINCE


class UnknownSchema(NamedTuple):
    """A schema that nobody knew in a stretch of an input: its messages there were dead letters, and stay that."""

    schema: int
    since: int  # offset
    until: int | None  # None: it is not known yet


class EmittedWatermark(NamedTuple):
    """What a task told a repartition topic last, and from which source offset on it forwards (or UNKNOWN_SINCE)."""

    since: int
    max_event_time: int | None  # event time; None: nothing yet
    idle: bool


@stored("topic topic_id next replay_from max_event_time advances idle parts activations unknown placing")
@dataclass(frozen=True, slots=True, kw_only=True)
class InputPosition:
    """Where a task stands in one input partition.

    Records before `next` were taken; those from `replay_from` on are read again after a crash, because some of them
    wait for event time. `max_event_time` is the greatest before `replay_from` (None: no event yet); `advances` are
    later points at which it was advanced without an event: (offset, max_event_time). `idle`: it no longer holds event
    time back, since no event ever came. Of a repartition topic, `parts` are its source partitions before `replay_from`,
    and `activations` the later points at which an idle one became active again: (offset, partition, max_event_time).
    `unknown` are the schemas that nobody knows yet, or did not at some place from `replay_from` on. `placing` are the
    offsets at which the check of records' partitions was turned on and off, in turn (samovar.tasks.input.placement).
    """

    topic: str
    topic_id: str
    next: int
    replay_from: int
    max_event_time: int | None = None
    advances: tuple[tuple[int, int], ...] = ()
    idle: bool = False
    parts: tuple[SourcePartitionPosition, ...] = ()
    activations: tuple[tuple[int, int, int], ...] = ()
    unknown: tuple[UnknownSchema, ...] = ()
    placing: tuple[int, ...] = ()


@stored("at_ms partitions changelogs inputs")
@dataclass(frozen=True, slots=True)
class RepartitionCut:
    """When the state was last rewritten for another number of partitions, from how many, and where inputs stood then.

    `changelogs` are the ids of the changelog topics that had it before: a store that follows one of them is replaced.
    """

    at_ms: int
    partitions: int
    changelogs: tuple[str, ...]
    inputs: Mapping[str, int]


@stored(
    "watermark inputs streams rules journal forwards ruleset_change changelog service journal_id rewinding"
    " repartitioned"
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What a task's state stands for: input up to here, event time, rules, and journal entries written so far.

    `forwards` are the repartition topics that the task writes, `ruleset_change` the change of published rules that it
    took last, `changelog` the id of the changelog topic that has all of the state: in another one this is a part of it.
    `service` is whose state it is: nobody else may go on with it.
    """

    watermark: int | None
    inputs: Mapping[str, InputPosition]  # by stream
    streams: tuple[str, ...]  # in the order of their numbers, which stored states use
    rules: Mapping[str, str]  # id to version
    journal: int = 0
    forwards: Mapping[str, EmittedWatermark] = field(default_factory=dict)
    ruleset_change: int = 0
    changelog: str = ""
    service: str = ""  # of an early version: unknown
    journal_id: str = ""  # of the topic that has the entries; also unknown there
    rewinding: bool = False  # a rewind has changed some of the rows, and stands for this until it is done
    repartitioned: RepartitionCut | None = None


@stored("topic topic_id partition partitions next time_ms")
@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogCheckpoint:
    """Which changelog a store follows. `next` is the offset after the last record that is in it."""

    topic: str
    topic_id: str
    partition: int
    partitions: int
    next: int
    time_ms: int  # log time of that last record


def pack_position(position: Position) -> bytes:
    return _json(position)


def refuse_newer(formats: Mapping[str, int], what: str) -> None:
    """Formats as a manifest names them, against those that are known here."""
    for name, version in formats.items():
        if version > FORMATS.get(name, 0):
            raise newer(f"{what} ({name})", version, FORMATS.get(name, 0))


def unpack_position(data: bytes) -> Position:
    return _read(Position, data, "a task's position")


def refuse_others(position: Position | None, service: str, where: str) -> None:
    """Refuse the state of another service: two that write one changelog, or one folder, destroy each other's."""
    if position is not None and position.service not in ("", service):
        raise Refused(
            "changelog-foreign",
            f"{where} belongs to the service `{position.service}`, and this is `{service}`",
            "Give each service its own `changelog` and `journal` topics and its own `state` folder: leave them out, and"
            " they are named after it. A service that was renamed goes on under its old name.",
        )


def pack_checkpoint(checkpoint: ChangelogCheckpoint) -> bytes:
    return _json(checkpoint)


def unpack_checkpoint(data: bytes) -> ChangelogCheckpoint:
    return _read(ChangelogCheckpoint, data, "the store's own position")


def _json(record: Position | ChangelogCheckpoint) -> bytes:
    return json.dumps({"v": FORMAT, **to_wire(record)}, separators=(",", ":")).encode()


def _read(kind: type[T], data: bytes, what: str) -> T:
    try:
        raw: dict[str, Any] = json.loads(data)
        version = int(raw.pop("v"))
        if version <= FORMAT:
            return from_wire(kind, raw)
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(
            "state-damaged", f"{what} cannot be read", "Run `samovar restore` to rebuild the store.", str(error)
        ) from error
    raise newer(what, version, FORMAT)


def newer(what: str, version: int, known: int) -> Refused:
    """How everything that reads a stored format refuses what a newer version wrote."""
    return Refused(
        "format-newer",
        f"{what} has format {version}, and this version of Samovar reads formats up to {known}",
        "Run the version that wrote it, or a newer one.",
    )


def unreadable_rows(values: Iterable[bytes]) -> Refused:
    """Why rows of rules' states could not be read. A row begins with its format, a small number."""
    found = max((value[0] for value in values if value), default=0)
    if found > ROW_FORMAT:
        return newer("a row of a rule's state", found, ROW_FORMAT)
    return Refused("state-damaged", "the state of a rule cannot be read", "Run `samovar restore` to rebuild the store.")


def deadline_rows(changes: Iterable[Change]) -> list[Change]:
    """Index rows for the headers among changed rows: a restore has no one else to ask for them."""
    return [(index, b"") for index, _ in deadlines_in(changes)]


def deadlines_in(changes: Iterable[Change]) -> Iterator[tuple[bytes, bytes]]:
    """Index rows for the headers among changed rows, each with the row that it is for."""
    for row, value in changes:
        if value is None or row[:1] != ROW:
            continue
        key, rest = _counted(row, 1)
        _, rest = _counted(row, rest)
        if len(row) == rest + 1 and row[rest] == HEADER_KIND and value[1:9] != NO_DEADLINE:
            yield DEADLINE + value[1:9] + key, row


def row_parts(row: bytes) -> tuple[bytes, str, int, int]:
    """Of a row's key: the key's bytes, the store's name, 0 for a header or 1 for a chunk, and its number."""
    key, rest = _counted(row, 1)
    name, rest = _counted(row, rest)
    return key, name.decode(), row[rest], int.from_bytes(row[rest + 1 :], "big")


def renamed_row(row: bytes, name: str) -> bytes:
    """A row's key with another name of its store."""
    key, rest = _counted(row, 1)
    _, rest = _counted(row, rest)
    return store_prefix(key, name) + row[rest:]


def key_prefix(key: bytes) -> bytes:
    """What the keys of all rows of a key begin with."""
    return ROW + varint(len(key)) + key


def store_prefix(key: bytes, name: str) -> bytes:
    """What the keys of all rows begin with that a key has in one store."""
    data = name.encode()
    return key_prefix(key) + varint(len(data)) + data


def _counted(data: bytes, at: int) -> tuple[bytes, int]:
    """Bytes with their length in front; and where they end."""
    size = shift = 0
    while True:
        byte = data[at]
        at += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return data[at : at + size], at + size
        shift += 7
