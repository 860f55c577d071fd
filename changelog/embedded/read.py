"""Reading the embedded log: many partitions at once, from positions, waiting for what comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from samovar.changelog.batches import RecordBlock, joined, nothing_up_to, rows_between
from samovar.changelog.embedded.file import connect, damaged, failing, missing, reading
from samovar.changelog.embedded.segment import DamagedSegmentError, SegmentInfo, unpack
from samovar.changelog.log import Records, TopicPartition
from samovar.common.errors import Refused
from samovar.common.tunables import DEFAULTS

# Between two looks at a quiet file: a sixteenth of the time it has been quiet for, within these.
_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.001, 0.02

_SEGMENTS = (
    "SELECT first, next, time, data FROM segment WHERE topic = :topic AND partition = :partition AND first >= "
    "(SELECT coalesce(max(first), 0) FROM segment WHERE topic = :topic AND partition = :partition AND first <= :at) "
    "ORDER BY first"
)


@dataclass(kw_only=True)
class ReadPlace:
    """Where a partition is read next. `rest` is what was unpacked and not given out yet."""

    number: int
    position: int | None
    end: int | None = None  # at the last look
    paused: bool = False
    rest: RecordBlock | None = None

    @property
    def is_read(self) -> bool:
        return self.position is not None and not self.paused


class ReadCursor:
    """The source of truth for what a reader or member has been given. Owns a connection."""

    def __init__(self, path: Path, fetch_bytes: int = DEFAULTS.fetch_bytes) -> None:
        self.path = path
        self._fetch_bytes = fetch_bytes
        with failing(path):
            self.connection = connect(path)
        self.places: dict[TopicPartition, ReadPlace] = {}
        self._turn = 0
        self._version = -1
        self._quiet_since = time.monotonic()

    def close(self) -> None:
        self.connection.close()

    def place(self, at: TopicPartition) -> ReadPlace:
        if at not in self.places:
            raise ValueError(f"{at} is not read here")
        return self.places[at]

    def position(self, at: TopicPartition) -> int:
        position = self.place(at).position
        if position is None:
            raise ValueError(f"{at} has no position before it is sought")
        return position

    def seek(self, at: TopicPartition, offset: int) -> None:
        place = self.place(at)
        place.position, place.rest = offset, None
        self.look_again()

    def look_again(self) -> None:
        """Something changed that the file's version does not tell: what is read, or a write of our own."""
        self._version = -1
        self._quiet_since = time.monotonic()

    def poll(self, max_records: int, timeout_s: float, each_turn: Callable[[], None] = lambda: None) -> list[Records]:
        deadline = time.monotonic() + timeout_s
        while True:
            each_turn()
            with failing(self.path):
                (version,) = self.connection.execute("PRAGMA data_version").fetchone()
            found = [] if version == self._version else self.fetch(max_records)
            if found:
                self.look_again()
                return found
            self._version = version
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return []
            quiet_s = time.monotonic() - self._quiet_since
            time.sleep(min(left_s, max(_SHORTEST_WAIT_S, min(_LONGEST_WAIT_S, quiet_s / 16))))

    def fetch(self, max_records: int) -> list[Records]:
        """What is there now, of all partitions in turn."""
        found: list[Records] = []
        left, left_bytes = max_records, self._fetch_bytes
        with reading(self.connection, self.path):
            self._look_at_ends()
            asked = [at for at, place in self.places.items() if place.is_read]
            self._turn += 1
            for number in range(len(asked)):
                at = asked[(number + self._turn) % len(asked)]
                if left <= 0 or left_bytes <= 0:
                    break
                records, size = self._next_of(at, -(-left // (len(asked) - number)), left_bytes)
                if records is not None:
                    found.append(records)
                    left, left_bytes = left - len(records), left_bytes - size
        return found

    def _look_at_ends(self) -> None:
        for at, place in self.places.items():
            row = self.connection.execute(
                "SELECT begin, end FROM partition WHERE topic = ? AND partition = ?", (place.number, at.partition)
            ).fetchone()
            if row is None:
                raise missing(at.topic)
            begin, place.end = row
            if not place.is_read or place.rest is not None or place.position is None:
                continue
            if place.position < begin:
                raise Refused(
                    "offset-gone",
                    f"{at} is to be read from offset {place.position}, and begins at {begin}",
                    "Retention has removed what is between. Run it again: it begins with what is there now, or says"
                    " what it lacks.",
                )
            if place.position > place.end:
                raise Refused(
                    "offset-beyond-end",
                    f"{at} is to be read from offset {place.position}, and ends at {place.end}",
                    "The log is not the one that this offset was kept for. Put the right log back, or set the offset"
                    " again.",
                )

    def _next_of(self, at: TopicPartition, quota: int, quota_bytes: int) -> tuple[RecordBlock | None, int]:
        place = self.place(at)
        position, end = place.position, place.end
        assert position is not None
        assert end is not None
        if position >= end:
            return None, 0
        parts, count, size, rest = list[RecordBlock](), 0, 0, None
        for part in self._parts(at, place, position):
            rest = part
            if count >= quota or size >= quota_bytes:
                break
            taken = min(len(part), quota - count)
            rest = None
            if taken < len(part):
                rest = rows_between(part, taken, len(part), part.next)
                part = rows_between(part, 0, taken, int(rest.offsets[0]))
            parts.append(part)
            count, size = count + taken, size + _bytes(part)
            if rest is not None:
                break
        else:
            parts.append(nothing_up_to(*at, end))  # past a gap at the end
        place.rest, place.position = rest, parts[-1].next
        return joined(parts), size

    def _parts(self, at: TopicPartition, place: ReadPlace, position: int) -> Iterator[RecordBlock]:
        """The segments from a position on, the first one from its row on."""
        if place.rest is not None:
            yield place.rest
            position = place.rest.next
        where = {"topic": place.number, "partition": at.partition, "at": position}
        for *standing, data in self.connection.execute(_SEGMENTS, where):
            part = unpacked(self.path, SegmentInfo(*at, *standing), data)
            if part.next <= position:
                continue
            start = int(np.searchsorted(part.offsets, position))
            yield rows_between(part, start, len(part), part.next) if start else part


def unpacked(path: Path, standing: SegmentInfo, data: bytes) -> RecordBlock:
    try:
        return unpack(standing, data)
    except DamagedSegmentError as error:
        where = f"{standing.topic}/{standing.partition}, offsets from {standing.first}"
        raise damaged(path, f"{where}: {error}") from error


def _bytes(part: RecordBlock) -> int:
    if len(part) == 0:
        return 0
    return int(part.values.ends[-1] - part.values.starts[0] + part.keys.ends[-1] - part.keys.starts[0])
