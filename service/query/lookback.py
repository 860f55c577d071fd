"""A key's records up to an alert, further back with every look, until a rule has all that it reads.

Nothing indexes records by key. The partitions that can hold them are read backwards from where the alert's own events
lie, up to a bound of records and time. Rows may be of other keys as well: the rule itself tells whose an event is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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
    """A record that may be of the key. Its place is a stream, a partition and an offset."""

    place: Place
    logged: int
    value: bytes


@dataclass(frozen=True, kw_only=True)
class LookbackResult:
    """What was found so far. `is_deep`: all that the rule usually reads is here. `is_whole`: the log has no more."""

    rows: Sequence[KeyRecord]
    records: int
    since_ms: int | None  # the event time from which on all is here, as far as it is known
    is_deep: bool
    is_whole: bool
    is_cut: bool  # the log has let go of what was before


@dataclass(kw_only=True)
class _Place:
    """A partition of a stream, read from `low` on."""

    stream: str
    begin: int
    low: int
    size: int = FIRST_RECORDS  # of the next look
    oldest_ms: int | None = None
    is_deep: bool = False

    @property
    def is_whole(self) -> bool:
        return self.low <= self.begin


def look_back(
    events: Events, rule: Rule, key: Sequence[Scalar], matched: Sequence[StreamEvent], logged_ms: int, since_ms: int
) -> Iterator[LookbackResult]:
    """Look after look, each with all that those before it found. `matched` are events of the alert, `logged_ms` is its
    time in the log, `since_ms` the event time from which on the rule needs all.
    """
    streams, rows, records = events.settings.streams, list[KeyRecord](), 0
    places, deadline = _places(events, rule, key, matched, logged_ms), time.monotonic() + LOOK_S
    while True:
        further = {at: place for at, place in places.items() if not place.is_whole}
        # Until the rule has what it usually reads, only where something of that is missing.
        due = {at: place for at, place in further.items() if not place.is_deep} or further
        ranges = {at: (max(place.begin, place.low - place.size), place.low) for at, place in due.items()}
        sampled, patience_s = set[TopicPartition](), deadline - time.monotonic()
        for batch in events.window(ranges, patience_s) if patience_s > 0 else ():
            at = TopicPartition(batch.topic, batch.partition)
            name = due[at].stream
            records += len(batch)
            if at not in sampled and len(batch):
                sampled.add(at)
                times = [each.time for each in events.read(batch, range(min(len(batch), SAMPLED)))]
                due[at].oldest_ms = max((each for each in times if each is not None), default=None)
            for row in rows_for(batch, rule, key, name, streams):
                if (value := batch.value(row)) is not None:
                    place = name, batch.partition, int(batch.offsets[row])
                    rows.append(KeyRecord(place, int(batch.times[row]), value))
        is_read = time.monotonic() < deadline  # else something may have been left out
        for at, looked in due.items() if is_read else ():
            looked.low = ranges[at][0]
            looked.size *= 4
            # Whether all records before its first are older than what is needed: none of them was late to those here.
            slack_ms = streams[looked.stream].slack_ms
            is_old = looked.oldest_ms is not None and looked.oldest_ms + slack_ms < since_ms
            looked.is_deep = looked.is_whole or is_old
        known = [each.oldest_ms for each in places.values() if not each.is_whole and each.oldest_ms is not None]
        is_whole = all(each.is_whole for each in places.values())
        yield LookbackResult(
            rows=rows,
            records=records,
            since_ms=max(known, default=None),
            is_deep=all(each.is_deep or each.is_whole for each in places.values()),
            is_whole=is_whole,
            is_cut=any(each.is_whole and each.begin > 0 for each in places.values()),
        )
        if is_whole or not is_read or records >= MOST_RECORDS or len(rows) >= MOST_ROWS:
            return


def _places(
    events: Events, rule: Rule, key: Sequence[Scalar], matched: Sequence[StreamEvent], logged_ms: int
) -> dict[TopicPartition, _Place]:
    """Where the key's records can be, and up to where they are looked for."""
    streams = events.settings.streams
    found: dict[TopicPartition, _Place] = {}
    for name in streams_of(rule, streams):
        bounds = events.places_of(streams[name].topic)
        home = home_text(rule, key, name, streams)
        for at, (begin, end) in bounds.items():
            if home is not None and at.partition != partition_of(home, len(bounds)):
                continue
            known = [each.offset for each in matched if (each.stream, each.partition) == (name, at.partition)]
            if known:
                stop = min(end, max(known) + AFTER_RECORDS)
                found[at] = _Place(stream=name, begin=begin, low=stop, size=stop - min(known) + FIRST_RECORDS)
            else:
                found[at] = _Place(
                    stream=name, begin=begin, low=min(end, events.log.offset_at(at, logged_ms + AFTER_MS))
                )
    return found


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


def places_aside(events: Events, stage: str, since_ms: int) -> set[Place]:
    """Streams' records that became late events or dead letters, since a time in the log: no rule of this stage took
    them.
    """
    settings, ranges = events.settings, dict[TopicPartition, tuple[int, int]]()
    for topic in (settings.late.topic, settings.dead_letters.topic):
        for at, (begin, end) in events.places_of(topic).items():
            if begin < end:
                start = max(begin, events.log.offset_at(at, since_ms))
                ranges[at] = start, min(end, start + MOST_LETTERS)
    names = {stream.topic: name for name, stream in settings.streams.items()}
    found: set[Place] = set()
    for records in events.window(ranges):
        for row in range(len(records)):
            headers = dict(records.headers(row))
            if headers.get("samovar.stage", b"").decode() in ("", stage):
                origin, partition, offset = (headers.get(PREFIX + each, b"") for each in PARTS)
                if partition.isdigit() and offset.isdigit():
                    found.add((names.get(origin.decode(), ""), int(partition), int(offset)))
    return found
