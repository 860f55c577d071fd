"""The journal: what a task did that its input does not tell, so that a replay can do the same. Format 1.

A record's key is the task's partition as text, its value JSON: `v` first, then `kind`, `number` (the task's entries
counted from 1), `inputs` (stream to the offset that was next when it happened), `watermark` before it, and:

    advance   stream, largest      the stream was idle at its end, and its event time was raised
    silent    stream               no event ever came, and the stream holds event time back no more
    joined    stream, largest      a silent stream's first records came: events before `largest` are late
    rules     rules, params, lists the rules from here on: id, version and text of each
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from samovar.changelog.errors import Refused

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. `facts` are what its kind adds."""

    kind: str
    number: int
    inputs: Mapping[str, int]
    watermark: int | None
    facts: Mapping[str, Any] = field(default_factory=dict)


def pack_entry(entry: Entry) -> bytes:
    head = {"v": FORMAT, "kind": entry.kind, "number": entry.number}
    data = {**head, "inputs": dict(entry.inputs), "watermark": entry.watermark, **entry.facts}
    return json.dumps(data, separators=(",", ":")).encode()


def unpack_entry(data: bytes) -> Entry:
    raw: dict[str, Any] = json.loads(data)
    if raw.pop("v") > FORMAT:
        raise Refused(
            "format-newer",
            "the journal was written by a newer version of Samovar",
            "Run the version that wrote it, or a newer one.",
        )
    return Entry(raw.pop("kind"), raw.pop("number"), raw.pop("inputs"), raw.pop("watermark"), raw)
