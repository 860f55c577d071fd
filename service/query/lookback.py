"""A key's records up to an alert, further back with every look, until a rule has all that it reads.

Nothing indexes records by key. The partitions that can hold them are read backwards from where the alert's own events
lie, up to a bound of records and time. Rows may be of other keys as well: the rule itself tells whose an event is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from samovar.changelog.formats.dead_letters import PREFIX
from samovar.changelog.log import Records, TopicPartition
from samovar.changelog.partitioner import key_text, partition_of
from samovar.patterns.syntax.tree import Rule, Scalar
from samovar.service.config.models import Stream
from samovar.service.query.events import Events, Place, StreamEvent
from samovar.service.query.row_filters import containing, equal
from samovar.service.topology.stages import key_paths, streams_of

FIRST_RECORDS = 5_000  # of a partition, with the first look
MOST_RECORDS = 1_000_000  # of all partitions, with all looks
MOST_ROWS = 50_000  # that may be of the key
MOST_LETTERS = 20_000
LOOK_S = 3.0
AFTER_RECORDS = 2_500  # behind the alert's last event
AFTER_MS = 60_000  # in the log, behind the alert: clocks differ
PARTS = ("topic", "partition", "offset")  # headers of a letter that say where it came from
SAMPLED = 50  # records of which one tells how old a stretch is


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A record that may be of the key."""

    stream: str
    partition: int
    offset: int
    logged_ms: int
    value: bytes

    @property
    def place(self) -> tuple[str, int, int]:
        return self.stream, self.partition, self.offset


@dataclass(frozen=True)
class LookbackResult:
    """What was found so far. `is_deep`: all that the rule usually reads is here. `is_whole`: the log has no more."""

    rows: Sequence[KeyRecord]
    records: int
    since_ms: int | None  # the event time from which on all is here, as far as it is known
    is_deep: bool
    is_whole: bool
    is_cut: bool  # the log has let go of what was before


@dataclass(frozen=True)
class LookbackRequest:
    """Whose events, for which rule, up to where: `matched` are events of the alert, `logged_ms` its time in the log."""

    rule: Rule
    key: Sequence[Scalar]
    matched: Sequence[StreamEvent]
    logged_ms: int
    since_ms: int  # event time from which on the rule needs all


@dataclass
class _Place:
    """A partition of a stream, read from `low` on."""

    stream: str
    begin: int
    low: int
    end: int
    size: int = FIRST_RECORDS
    oldest_ms: int | None = None
    is_deep: bool = False

    @property
    def is_whole(self) -> bool:
        return self.low <= self.begin

    def next(self) -> tuple[int, int]:
        return max(self.begin, self.low - self.size), self.low


@dataclass
class _Reading:
    events: Events
    wanted: LookbackRequest
    rows: list[KeyRecord] = field(default_factory=list)
    records: int = 0

    def read(self, places: Mapping[TopicPartition, _Place], patience_s: float) -> bool:
        """One look further back. Whether all of it came in time."""
        ranges = {at: place.next() for at, place in places.items()}
        sampled, deadline = set[TopicPartition](), time.monotonic() + patience_s
        for records in self.events.window(ranges, patience_s):
            at = TopicPartition(records.topic, records.partition)
            place = places[at]
            self.records += len(records)
            if at not in sampled and len(records):
                sampled.add(at)
                place.oldest_ms = self._oldest(records)
            self._take(place.stream, records)
        if time.monotonic() >= deadline:  # something may have been left out
            return False
        for at, place in places.items():
            place.low = ranges[at][0]
            place.size *= 4
            place.is_deep = place.is_whole or self._is_before(place)
        return True

    def _oldest(self, records: Records) -> int | None:
        times = [each.time for each in self.events.read(records, range(min(len(records), SAMPLED)))]
        return max((each for each in times if each is not None), default=None)

    def _is_before(self, place: _Place) -> bool:
        """Whether all records before its first are older than what is needed: none of them was late to those here."""
        slack_ms = self.events.settings.streams[place.stream].slack_ms
        return place.oldest_ms is not None and place.oldest_ms + slack_ms < self.wanted.since_ms

    def _take(self, stream: str, records: Records) -> None:
        for row in rows_for(records, self.wanted.rule, self.wanted.key, stream, self.events.settings.streams):
            value = records.value(row)
            if value is not None:
                where = stream, records.partition, int(records.offsets[row])
                self.rows.append(KeyRecord(*where, int(records.times[row]), value))


def look_back(events: Events, wanted: LookbackRequest) -> Iterator[LookbackResult]:
    """Look after look, each with all that those before it found."""
    reading, deadline = _Reading(events, wanted), time.monotonic() + LOOK_S
    places = _places(events, wanted)
    while True:
        left_s = deadline - time.monotonic()
        further = {at: place for at, place in places.items() if not place.is_whole}
        # Until the rule has what it usually reads, only where something of that is missing.
        shallow = {at: place for at, place in further.items() if not place.is_deep}
        is_read = left_s > 0 and reading.read(shallow or further, left_s)
        is_full = reading.records >= MOST_RECORDS or len(reading.rows) >= MOST_ROWS
        look = _look(reading, places.values())
        yield look
        if look.is_whole or is_full or not is_read:
            return


def _look(reading: _Reading, places: Iterable[_Place]) -> LookbackResult:
    known = [place.oldest_ms for place in places if not place.is_whole and place.oldest_ms is not None]
    return LookbackResult(
        reading.rows,
        reading.records,
        max(known, default=None),
        all(place.is_deep or place.is_whole for place in places),
        all(place.is_whole for place in places),
        any(place.is_whole and place.begin > 0 for place in places),
    )


def _places(events: Events, wanted: LookbackRequest) -> dict[TopicPartition, _Place]:
    """Where the key's records can be, and up to where they are looked for."""
    streams = events.settings.streams
    found: dict[TopicPartition, _Place] = {}
    for name in streams_of(wanted.rule, streams):
        bounds = events.places_of(streams[name].topic)
        home = home_text(wanted.rule, wanted.key, name, streams)
        for at, (begin, end) in bounds.items():
            if home is not None and at.partition != partition_of(home, len(bounds)):
                continue
            known = [each.offset for each in wanted.matched if (each.stream, each.partition) == (name, at.partition)]
            if known:
                stop = min(end, max(known) + AFTER_RECORDS)
                found[at] = _Place(name, begin, stop, stop, stop - min(known) + FIRST_RECORDS)
            else:
                stop = min(end, events.log.offset_at(at, wanted.logged_ms + AFTER_MS))
                found[at] = _Place(name, begin, stop, stop)
    return found


# ---------------------------------------------------------------- rows of a key


def home_text(rule: Rule, key: Sequence[Scalar], name: str, streams: Mapping[str, Stream]) -> bytes | None:
    """The record key of all of a key's events in a stream; None where the stream is keyed by something else."""
    stream = streams[name]
    if stream.repartition:
        return None
    for value, paths in zip(key, key_paths(rule, name, streams), strict=True):
        if paths == {stream.key}:
            return key_text(value)
    return None


def rows_for(
    records: Records, rule: Rule, key: Sequence[Scalar], name: str, streams: Mapping[str, Stream]
) -> Sequence[int]:
    """Rows that may be of a key: certainly all that are."""
    home = home_text(rule, key, name, streams)
    if home is not None:
        return [int(row) for row in equal(records.keys, home)]
    found = set(range(len(records)))
    for value, paths in zip(key, key_paths(rule, name, streams), strict=True):
        # A number can be written in many ways; a text stands in a value as it is, where nothing there is escaped.
        if paths is not None and isinstance(value, str):
            rows = set(containing(records.values, value.encode("utf-8", "surrogatepass")).tolist())
            if streams[name].format == "json":
                rows |= set(containing(records.values, b"\\").tolist())
            found &= rows
    return sorted(found)


# ---------------------------------------------------------------- what no rule saw


def set_aside(events: Events, stage: str, since_ms: int) -> set[Place]:
    """Places of the records that became late events or dead letters, since a time in the log: no rule of this stage
    took them.
    """
    log, topics = events.log, (events.settings.late.topic, events.settings.dead_letters.topic)
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    for topic in topics:
        for at, (begin, end) in events.places_of(topic).items():
            if begin < end:
                start = max(begin, log.offset_at(at, since_ms))
                ranges[at] = start, min(end, start + MOST_LETTERS)
    found: set[Place] = set()
    for records in events.window(ranges) if ranges else ():
        for row in range(len(records)):
            headers = dict(records.headers(row))
            if headers.get("samovar.stage", b"").decode() in ("", stage):
                origin, partition, offset = (headers.get(PREFIX + each, b"") for each in PARTS)
                if partition.isdigit() and offset.isdigit():
                    found.add((origin.decode(), int(partition), int(offset)))
    return found
