"""Events out of the streams' topics, for people: by their places, and the newest.

Those of a key are found by samovar.service.query.key_events, page by page; those about others by
samovar.service.query.key_events.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from samovar.changelog.cursors import RecordSlice, available_reader
from samovar.changelog.log import Bounds, Log, Reader, Records, TopicPartition
from samovar.common.errors import Refused
from samovar.patterns.engine.decode import RefusedError, time_of
from samovar.service.config.models import ServiceFile, Stream
from samovar.service.query.read import unpacked
from samovar.service.query.row_filters import NEAR, parts_of, rounds, rows_at
from samovar.service.query.tailing_reader import TailingReader
from samovar.service.topology.encoding import avro_of

Place: TypeAlias = tuple[str, int, int]  # topic, partition, offset

READ_RECORDS = 20_000
POLL_S = 0.05
PATIENCE_S = 3.0
READERS = 2  # of one question
KNOWN = 5_000  # events that are remembered: a place in the log never holds another one
FRESH_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """A record of a stream. `time` is None, and `event` no object, where it is not an event."""

    stream: str
    partition: int
    offset: int
    logged: int
    key: bytes | None
    value: bytes | None
    time: int | None
    type: str
    event: Any

    @property
    def place(self) -> tuple[str, int, int]:
        return self.stream, self.partition, self.offset

    def data(self) -> dict[str, Any]:
        where = {"stream": self.stream, "partition": self.partition, "offset": self.offset}
        return where | {"time": self.time, "logged": self.logged, "type": self.type, "event": self.event}


@dataclass(kw_only=True)
class Events:
    """Reads the streams of a service."""

    settings: ServiceFile
    log: Log
    tail: TailingReader | None = None  # what is in memory is not read again
    _decoders: dict[str, Any] = field(default_factory=dict)
    _known: OrderedDict[Place, StreamEvent] = field(default_factory=OrderedDict)
    _seen: dict[str, tuple[float, Mapping[TopicPartition, Bounds]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2 * READERS, "events"))

    def close(self) -> None:
        self._pool.shutdown()
        if self.tail is not None:
            self.tail.close()

    def at(self, places: Iterable[Place]) -> dict[Place, StreamEvent]:
        """The events at these places (topic, partition, offset), as far as the log still has them."""
        topics = {stream.topic for stream in self.settings.streams.values()}
        asked = [place for place in dict.fromkeys(places) if place[0] in topics]
        with self._lock:
            found = {place: self._known[place] for place in asked if place in self._known}
        wanted: dict[TopicPartition, list[int]] = {}
        for topic, partition, offset in asked:
            if (topic, partition, offset) not in found:
                wanted.setdefault(TopicPartition(topic, partition), []).append(offset)
        if self.tail is not None and wanted:
            self.tail.ask()
            found |= self._in_memory(self.tail, wanted)
        present: dict[TopicPartition, list[int]] = {}
        for at, offsets in wanted.items():
            begin, end = self.bounds(at.topic, {at: max(offsets)}).get(at, Bounds(0, 0))
            if kept := sorted(each for each in offsets if begin <= each < end):
                present[at] = kept
        return found | self._read(present) if present else found

    def _in_memory(self, tail: TailingReader, wanted: dict[TopicPartition, list[int]]) -> dict[Place, StreamEvent]:
        """Those that need not be read; they are wanted no longer."""
        found: dict[Place, StreamEvent] = {}
        for at, offsets in list(wanted.items()):
            kept = tail.kept(at)
            here = sorted(each for each in offsets if kept.has(each, each + 1))
            for records in kept.between(here[0], here[-1] + 1) if here else ():
                for event in self.read(records, rows_at(records, here)):
                    found[*at, event.offset] = event
            wanted[at] = [each for each in offsets if each not in here]
            if not wanted[at]:
                del wanted[at]
        return found

    def _read(self, wanted: Mapping[TopicPartition, Sequence[int]]) -> dict[Place, StreamEvent]:
        """Places far from each other are a fetch each: a few readers share them."""
        first, *others = parts_of(wanted, READERS)
        waiting = [self._pool.submit(self._read_part, part) for part in others]
        found = self._read_part(first)
        for each in waiting:
            found |= each.result()
        with self._lock:
            self._known |= found
            while len(self._known) > KNOWN:
                self._known.popitem(last=False)
        return found

    def _read_part(self, wanted: Mapping[TopicPartition, Sequence[int]]) -> dict[Place, StreamEvent]:
        found: dict[Place, StreamEvent] = {}
        with closing(available_reader(self.log, {at: offsets[0] for at, offsets in wanted.items()}, NEAR)) as reader:
            deadline = time.monotonic() + PATIENCE_S
            for ranges in rounds(wanted):
                for at, (start, _) in ranges.items():
                    reader.seek(at, start)
                for records in _until(reader, ranges, deadline):
                    at = TopicPartition(records.topic, records.partition)
                    for event in self.read(records, rows_at(records, wanted[at])):
                        found[*at, event.offset] = event
        return found

    def bounds(self, topic: str, known: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Bounds]:
        """Of all partitions of a topic, as they were a moment ago; asked again where one is known to be longer."""
        at_s, found = self._seen.get(topic, (0.0, {}))
        is_fresh = time.monotonic() - at_s <= FRESH_S
        if not is_fresh or any(at not in found or offset >= found[at].end for at, offset in known.items()):
            at_s = time.monotonic()
            try:
                found = self.log.bounds(found) if found else self.places_of(topic)
            except Refused:  # the topic was made again, with other partitions
                found = self.places_of(topic)
            self._seen[topic] = at_s, found
        return found

    def newest(self, stream: str, limit: int) -> list[StreamEvent]:
        """The newest events of a stream, newest first by log time."""
        places = self.places_of(self.settings.streams[stream].topic)
        found: list[StreamEvent] = []
        for records in self.window({at: (max(begin, end - limit), end) for at, (begin, end) in places.items()}):
            found += self.read(records, range(len(records)))
        return sorted(found, key=lambda event: (event.logged, event.offset), reverse=True)[:limit]

    def places_of(self, topic: str) -> Mapping[TopicPartition, Bounds]:
        found = self.log.topics([topic]).get(topic)
        partitions = 0 if found is None else found.partitions
        return self.log.bounds([TopicPartition(topic, number) for number in range(partitions)]) if partitions else {}

    def window(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], patience_s: float = PATIENCE_S
    ) -> Iterator[Records]:
        """Records from one offset up to another, of several partitions. What does not come in time is left out."""
        starts = {at: start for at, (start, stop) in ranges.items() if start < stop}
        if not starts:
            return
        most = max(ranges[at][1] - start for at, start in starts.items())
        with closing(available_reader(self.log, starts, most if most <= READ_RECORDS else None)) as reader:
            yield from _until(reader, {at: ranges[at] for at in starts}, time.monotonic() + patience_s)

    def read(self, records: Records, rows: Iterable[int]) -> Iterator[StreamEvent]:
        name = next(name for name, stream in self.settings.streams.items() if stream.topic == records.topic)
        offsets, times = records.offsets, records.times
        for row in rows:
            place = name, records.partition, int(offsets[row])
            yield self.event(place, int(times[row]), records.key(row), records.value(row))

    def event(self, place: Place, logged: int, key: bytes | None, value: bytes | None) -> StreamEvent:
        """A record of a stream, decoded. Its place is told by the stream's name, not its topic's."""
        name, stream, data = place[0], self.settings.streams[place[0]], None
        if value is not None and stream.format == "avro":
            if name not in self._decoders:
                self._decoders[name] = avro_of(stream).decoder((), stream.time, stream.type)
            text = self._decoders[name].json(value)
            data = unpacked(text) if isinstance(text, str) else None
        elif value is not None:
            data = unpacked(value.decode("utf-8", "replace"))
        moment = value_at(data, stream.time)
        try:
            time_ms = None if moment is None else time_of(moment)
        except (RefusedError, ValueError, OverflowError):
            time_ms = None
        type = name if stream.type is None else value_at(data, stream.type)
        return StreamEvent(
            stream=name,
            partition=place[1],
            offset=place[2],
            logged=logged,
            key=key,
            value=value,
            time=time_ms,
            type=type if isinstance(type, str) else "?",
            event=data,
        )


def _until(reader: Reader, ranges: Mapping[TopicPartition, tuple[int, int]], deadline: float) -> Iterator[Records]:
    """Records of these ranges, whose starts the reader is at."""
    open_ = {at: stop for at, (_, stop) in ranges.items()}
    while open_ and time.monotonic() < deadline:
        left = sum(stop - reader.position(at) for at, stop in open_.items())
        for records in reader.poll(min(left, READ_RECORDS), POLL_S):
            at = TopicPartition(records.topic, records.partition)
            if at in open_:
                rows = int(np.searchsorted(records.offsets, open_[at]))
                yield records if rows == len(records) else RecordSlice(records, 0, rows, open_[at])
        open_ = {at: stop for at, stop in open_.items() if reader.position(at) < stop}


def value_at(event: Any, path: str) -> Any:
    """The value of a dotted field; None where it has none."""
    if not isinstance(event, dict):
        return None
    if path in event:
        return event[path]
    head, _, rest = path.partition(".")
    return value_at(event.get(head), rest) if rest else None


def may_have(stream: Stream, path: str) -> bool:
    """Whether events of a stream can have a field, as far as its schema tells."""
    return stream.fields is None or path in json.dumps(stream.fields)


def is_of(event: StreamEvent, key: str, fields: Sequence[str], *, by_key: bool = True) -> bool:
    """Whether a key is an event's record key, or stands in one of these fields."""
    if by_key and event.key == key.encode("utf-8", "surrogatepass"):
        return True
    return any(_text(value_at(event.event, path)) == key for path in fields)


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return None if value is None or isinstance(value, dict | list) else str(value)
