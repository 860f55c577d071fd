"""What a rewind must not write twice: alerts, events on their way to other stages, records that tasks emitted.

Rows of the store and of the changelog, format 1:

    b"s" + id   an alert that was published before the rewind and may be found again; no value
    b"s"        JSON: `v` first, `inputs` (stream to offset), `watermark`: once the task is past these, all of them go.
                `topics`: other stages read them, and all that goes there from before that is there already

They are written with the rewind, taken away by the commit that finds the alert again, and so survive a crash as all
state does. A task that was never set back has none, and asks for none.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from samovar.changelog.formats.record import Position
from samovar.state.store import Change, Readable
from samovar.tasks.model.results import Counts
from samovar.tasks.rules.alert_filter import Alert

SKIP = b"s"
SKIP_END = bytes([SKIP[0] + 1])
FORMAT = 1


@dataclass(kw_only=True)
class ReplayDedupFilter:
    """What is left to be skipped. The source of truth between two commits."""

    ids: set[bytes]
    inputs: Mapping[str, int]
    watermark: int | None
    topics: frozenset[str] = frozenset()
    _found: list[bytes] = field(default_factory=list)

    @classmethod
    def of(cls, store: Readable) -> ReplayDedupFilter:
        rows = dict(store.range(SKIP, SKIP_END))
        raw = json.loads(rows.pop(SKIP, b"{}"))
        topics = frozenset(raw.get("topics", ()))
        ids = {row[1:] for row in rows}
        return cls(ids=ids, inputs=raw.get("inputs", {}), watermark=raw.get("watermark"), topics=topics)

    @property
    def is_idle(self) -> bool:
        return not self.ids and not self.inputs

    def left(self, alerts: Sequence[Alert], counts: Counts) -> list[Alert]:
        """The alerts that are to be published."""
        found: list[Alert] = []
        for alert in alerts:
            id_ = alert.id.encode()
            if id_ in self.ids:
                self.ids.discard(id_)
                self._found.append(id_)
            else:
                found.append(alert)
        counts.skipped += len(alerts) - len(found)
        return found

    def changes(self, position: Position) -> list[Change]:
        """Rows that are no longer needed at this position; all of them, where it is past the one that was."""
        found, self._found = self._found, []
        gone = [SKIP + id_ for id_ in found]
        at = {stream: each.next for stream, each in position.inputs.items()}
        has_inputs = all(at.get(stream, offset) >= offset for stream, offset in self.inputs.items())
        time = position.watermark
        has_time = self.watermark is None or (time is not None and time >= self.watermark)
        if self.inputs and has_inputs and has_time:
            gone += [SKIP, *(SKIP + id_ for id_ in sorted(self.ids))]
            self.ids, self.inputs, self.watermark, self.topics = set(), {}, None, frozenset()
        return [(row, None) for row in gone]

    def written_up_to(self, stream: str, topic: str) -> int:
        """The offset before which all that goes to a topic is there."""
        return self.inputs.get(stream, 0) if topic in self.topics else 0

    def furthest(self, inputs: Mapping[str, int], watermark: int | None) -> tuple[dict[str, int], int | None]:
        """Up to where all was written: as far as the task had been before an earlier rewind, too."""
        offsets = {name: max(at, self.inputs.get(name, at)) for name, at in inputs.items()}
        times = [each for each in (watermark, self.watermark) if each is not None]
        return offsets, max(times, default=None)


def skip_rows(
    ids: Collection[bytes], inputs: Mapping[str, int], watermark: int | None, topics: Collection[str] = ()
) -> list[tuple[bytes, bytes]]:
    """The rows that a rewind writes; none where there is nothing to skip."""
    if not ids and not topics:
        return []
    until = {"v": FORMAT, "inputs": dict(inputs), "watermark": watermark}
    until |= {"topics": sorted(topics)} if topics else {}
    return [(SKIP, json.dumps(until, separators=(",", ":")).encode()), *((SKIP + id_, b"") for id_ in sorted(ids))]


def rows_between(wanted: Iterable[tuple[bytes, bytes]], there: Readable) -> list[Change]:
    """What makes the rows of a changelog's image those that are wanted."""
    old = dict(there.range(SKIP, SKIP_END))
    changes: list[Change] = [(row, value) for row, value in wanted if old.pop(row, None) != value]
    return changes + [(row, None) for row in old]


def dedup_rows(there: Readable) -> list[Change]:
    """The rows of one store, for another that takes its place: a fold of the source knows nothing of them."""
    return list(there.range(SKIP, SKIP_END))
