r"""What a changelog record and a row of a task's store are. Format 1.

A record's key and value are a row of the store as it is, so that a restore copies bytes. The first byte of a key says
what it is:

    b"r" + row key     a row of a rule's or history function's state; value as in patterns/kernel/rows.cpp
    b"p"               the task's position (`Position`), JSON; the last changelog record of every commit
    b"u" + ...         a row of a user's store

Rows that are local to a store and never logged:

    b"l"               which changelog this store follows, and up to where (`Following`), JSON
    b"t" + time + key  an index of deadlines: 8 bytes of time that sort as numbers do, then the key's bytes; no value
    b"i"               that index has an entry for every row with a deadline; a small store has no index

A value of None deletes the row. JSON begins with "v", its format. A format above ours is refused, never guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from samovar.changelog.errors import Refused
from samovar.state.digest import varint
from samovar.state.store import Change

FORMAT = 1
ROW, POSITION, USER, FOLLOWING, DEADLINE, INDEXED = b"r", b"p", b"u", b"l", b"t", b"i"
NO_DEADLINE = b"\xff" * 8
HEADER_KIND = 0


@dataclass(frozen=True, slots=True)
class Input:
    """Where a task stands in one input partition.

    Records before `next` were taken; those from `safe` on are read again after a crash, because some of them wait for
    event time. `largest` is the largest event time before `safe` (None: no event yet); `raises` are later points at
    which it was raised without an event: (offset, largest). `silent`: it holds event time back no more, since no event
    ever came.
    """

    topic: str
    topic_id: str
    next: int
    safe: int
    largest: int | None = None
    raises: tuple[tuple[int, int], ...] = ()
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Position:
    """What a task's state stands for: input up to here, event time, rules, and journal entries written so far."""

    watermark: int | None
    inputs: Mapping[str, Input]  # by stream
    streams: tuple[str, ...]  # in the order of their numbers, which stored states use
    rules: Mapping[str, str]  # id to version
    journal: int = 0


@dataclass(frozen=True, slots=True)
class Following:
    """Which changelog a store follows. `next` is the offset after the last record that is in it."""

    topic: str
    topic_id: str
    partition: int
    partitions: int
    next: int
    time_ms: int  # log time of that last record


def pack_position(position: Position) -> bytes:
    return _json({"v": FORMAT, **_named(position)})


def unpack_position(data: bytes) -> Position:
    raw = _fields(data, "a task's position")
    inputs = {name: _input(each) for name, each in raw["inputs"].items()}
    return Position(raw["watermark"], inputs, tuple(raw["streams"]), raw["rules"], raw["journal"])


def _input(raw: dict[str, Any]) -> Input:
    return Input(**{**raw, "raises": tuple((offset, largest) for offset, largest in raw["raises"])})


def pack_following(following: Following) -> bytes:
    return _json({"v": FORMAT, **_named(following)})


def unpack_following(data: bytes) -> Following:
    raw = _fields(data, "the store's own position")
    raw.pop("v")
    return Following(**raw)


def _named(record: Position | Input | Following) -> dict[str, Any]:
    """Its fields by name, as they are: `asdict` copies them all, and this is done for every commit of every task."""
    return {name: getattr(record, name) for name in record.__slots__}


def _json(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":"), default=_named).encode()


def _fields(data: bytes, what: str) -> dict[str, Any]:
    try:
        raw: dict[str, Any] = json.loads(data)
        version = int(raw["v"])
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(
            "state-damaged", f"{what} cannot be read", "Run `samovar restore` to rebuild the store.", str(error)
        ) from error
    if version > FORMAT:
        raise Refused(
            "format-newer",
            f"{what} has format {version}, and this version of Samovar reads formats up to {FORMAT}",
            "Run the version that wrote it, or a newer one.",
        )
    return raw


def deadline_rows(changes: Iterable[Change]) -> list[Change]:
    """Index rows for the headers among changed rows: a restore has no one else to ask for them."""
    return [(DEADLINE + value[1:9] + key, b"") for key, value in _headers(changes) if value[1:9] != NO_DEADLINE]


def _headers(changes: Iterable[Change]) -> Iterable[tuple[bytes, bytes]]:
    for row, value in changes:
        if value is None or row[:1] != ROW:
            continue
        key, rest = _counted(row, 1)
        _, rest = _counted(row, rest)
        if len(row) == rest + 1 and row[rest] == HEADER_KIND:
            yield key, value


def row_parts(row: bytes) -> tuple[bytes, str, int, int]:
    """Of a row's key: the key's bytes, the store's name, 0 for a header or 1 for a chunk, and its number."""
    key, rest = _counted(row, 1)
    name, rest = _counted(row, rest)
    return key, name.decode(), row[rest], int.from_bytes(row[rest + 1 :], "big")


def key_prefix(key: bytes) -> bytes:
    """What the keys of all rows of a key begin with."""
    return ROW + varint(len(key)) + key


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
