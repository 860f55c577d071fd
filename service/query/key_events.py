"""A key's events: newest first and page by page, further back with every look; and those about an alert's own.

Nothing indexes events by key: the newest records of the key's partition are looked through, up to a bound of records
and time. How far a look came is a text that the next one begins with:

    STREAM/PARTITION:OFFSET,...     records before these offsets; a partition that is not named has none left

Of a partition a page has all events of the key down to its mark, so that no event is on two pages or on none, however
times in the log and in events stand to each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from samovar.changelog.log import Records, TopicPartition
from samovar.changelog.partitioner import partition_of
from samovar.common.errors import Refused
from samovar.service.query.events import READ_RECORDS, Events, StreamEvent, is_of, may_have
from samovar.service.query.row_filters import rows_of
from samovar.service.topology.topics import counted_topics, partitions_of

SCAN_RECORDS = 200_000  # of a partition
SCAN_S = 1.5
NEAR_MS = 60_000  # in the log, before and after
NEAR_RECORDS = 5_000  # about a place, at most
Marks = Mapping[tuple[str, int], int]  # by stream and partition, the offset before which it goes on


@dataclass
class ScanProgress:
    """What was looked through. `older` are the marks where records are left; none: the first kept record was seen."""

    records: int = 0
    since_ms: int | None = None
    older: dict[tuple[str, int], int] = field(default_factory=dict)

    def add(self, records: Records) -> None:
        self.records += len(records)
        if len(records):
            first = int(records.times[0])
            self.since_ms = first if self.since_ms is None else min(self.since_ms, first)

    def data(self) -> dict[str, Any]:
        marks = ",".join(f"{stream}/{partition}:{offset}" for (stream, partition), offset in self.older.items())
        return {"records": self.records, "since": self.since_ms, "complete": not self.older, "older": marks or None}


def events_of_key(
    events: Events,
    key: str,
    fields: Collection[str],
    limit: int,
    before: Marks | None = None,
    hides: Callable[[str, str], bool] | None = None,
) -> tuple[list[StreamEvent], ScanProgress]:
    """Events of a key, newest first: those whose record key it is, or that have it in one of these fields. It is not
    compared with what `hides` says of a stream and field.
    """
    scanned, found = ScanProgress(), dict[tuple[str, int], list[StreamEvent]]()
    text, deadline = key.encode("utf-8", "surrogatepass"), time.monotonic() + SCAN_S
    for name, stream in events.settings.streams.items():
        others = [path for path in fields if path != stream.key and may_have(stream, path)]
        others = [path for path in others if hides is None or not hides(name, path)]
        by_key = hides is None or not hides(name, stream.key)  # whether it is compared with the records' own keys
        if not by_key and not others:
            continue
        paths = (stream.key, *others) if by_key else others
        places = _places(events, name, None if others else text, before)
        own: dict[tuple[str, int], list[StreamEvent]] = {(name, at.partition): [] for at in places}
        ends = {at: end for at, (_, end) in places.items()}
        back, most = READ_RECORDS, SCAN_RECORDS // max(len(places), 1)
        while ends and sum(map(len, own.values())) < limit:
            starts = {at: max(places[at][0], places[at][1] - back) for at in ends}
            for records in events.window({at: (starts[at], ends[at]) for at in ends}):
                scanned.add(records)
                read = events.read(records, rows_of(records, text, by_value=bool(others)))
                own[name, records.partition] += [each for each in read if is_of(each, key, paths, by_key=by_key)]
            ends = {at: start for at, start in starts.items() if start > places[at][0]}
            back *= 4
            if back > most or time.monotonic() > deadline:
                break
        scanned.older |= {(name, at.partition): end for at, end in ends.items()}
        found |= own
    return sorted(_newest(found, limit, scanned), key=_age, reverse=True), scanned


def _places(
    events: Events, stream: str, home: bytes | None, before: Marks | None
) -> Mapping[TopicPartition, tuple[int, int]]:
    """Where the key's records can be, and between which offsets. `home` is what they are placed by, if anything."""
    settings = events.settings
    places = events.places_of(settings.streams[stream].topic)
    if home is not None and not settings.streams[stream].repartition:
        # Where the topic has grown, older records are where the number before placed them.
        known = partitions_of(settings, events.log.topics(counted_topics(settings)))
        homes = {partition_of(home, count) for count in (known, len(places)) if count}
        places = {at: bounds for at, bounds in places.items() if at.partition in homes}
    if before is None:
        return places
    marked = {at: (begin, min(end, before.get((stream, at.partition), begin))) for at, (begin, end) in places.items()}
    return {at: (begin, end) for at, (begin, end) in marked.items() if begin < end}


def _newest(found: Mapping[tuple[str, int], list[StreamEvent]], limit: int, scanned: ScanProgress) -> list[StreamEvent]:
    """The newest of all places, from each its newest records; where some are left over, its mark is the last taken."""
    left = {place: sorted(events, key=lambda event: event.offset) for place, events in found.items()}
    page: list[StreamEvent] = []
    while len(page) < limit and any(left.values()):
        place = max((each for each in left if left[each]), key=lambda each: _age(left[each][-1]))
        page.append(left[place].pop())
    last = {(event.stream, event.partition): event.offset for event in page}
    for place, events in left.items():
        if events:
            scanned.older[place] = last.get(place, events[-1].offset + 1)
    return page


def _age(event: StreamEvent) -> tuple[int, int, int]:
    return event.time or 0, event.logged, event.offset


def marks_of(text: str) -> dict[tuple[str, int], int]:
    """The marks of `ScanProgress.data()`.

    >>> marks_of("purchase/3:1200,login/0:7")
    {('purchase', 3): 1200, ('login', 0): 7}
    """
    found: dict[tuple[str, int], int] = {}
    for part in text.split(","):
        place, _, offset = part.rpartition(":")
        stream, _, partition = place.rpartition("/")
        numbers = (partition, offset)
        if not stream or not all(each.isascii() and each.isdigit() and len(each) < 19 for each in numbers):
            hint = "Give `scanned.older` of the answer before, as it is; leave it out for the newest events."
            raise Refused("bad-mark", f"`{part[:80]}` is not a place to go on from", hint)
        found[stream, int(partition)] = int(offset)
    return found


def events_near(
    events: Events, text: bytes, fields: Collection[str], matched: Sequence[StreamEvent]
) -> list[StreamEvent]:
    """Events of a key that lie in the log about where these lie, in all streams."""
    key, found = text.decode("utf-8", "replace"), list[StreamEvent]()
    for name, stream in events.settings.streams.items():
        others = [path for path in fields if path != stream.key and may_have(stream, path)]
        is_home = not others and not stream.repartition  # the key is always in its own partition
        known: dict[int, tuple[int, int]] = {}  # by partition, the first and the last offset
        for event in matched:
            if event.stream == name:
                low, high = known.get(event.partition, (event.offset, event.offset))
                known[event.partition] = min(low, event.offset), max(high, event.offset)
        held = _in_memory(events, stream.topic, text, known) if is_home else None
        if held is None:
            held = events.window(_ranges(events, stream.topic, text if is_home else None, known, matched))
        for records in held:
            rows = rows_of(records, text, by_value=bool(others))
            found += [each for each in events.read(records, rows) if is_of(each, key, (stream.key, *others))]
    return found


def _in_memory(events: Events, topic: str, text: bytes, known: dict[int, tuple[int, int]]) -> Iterable[Records] | None:
    """None where not all that is wanted is in memory."""
    tail = events.tail
    count = 0 if tail is None else tail.partitions(topic)
    home = partition_of(text, count) if count else 0
    if tail is None or known.keys() != {home}:
        return None
    kept, (begin, end) = tail.kept(TopicPartition(topic, home)), _about(known[home])
    return kept.between(begin, end) if kept.has(max(begin, 0), known[home][1] + 1) else None


def _ranges(
    events: Events, topic: str, home: bytes | None, known: dict[int, tuple[int, int]], matched: Sequence[StreamEvent]
) -> dict[TopicPartition, tuple[int, int]]:
    """Offsets about those that are known; in partitions where none is, of a time in the log, which takes asking for."""
    bounds = events.bounds(topic, {TopicPartition(topic, each): last for each, (_, last) in known.items()})
    found: dict[TopicPartition, tuple[int, int]] = {}
    for at, (first, last) in bounds.items():
        if home is not None and at.partition != partition_of(home, len(bounds)):
            continue
        if at.partition in known:
            begin, end = _about(known[at.partition])
        else:
            begin = events.log.offset_at(at, min(event.logged for event in matched) - NEAR_MS)
            end = events.log.offset_at(at, max(event.logged for event in matched) + NEAR_MS)
            end = min(end, begin + NEAR_RECORDS)
        found[at] = max(begin, first), min(end, last)
    return found


def _about(known: tuple[int, int]) -> tuple[int, int]:
    """
    >>> _about((10_000, 10_100)), _about((10_000, 90_000))
    ((7550, 12550), (86250, 91250))
    """
    room = max(NEAR_RECORDS - (known[1] - known[0]), NEAR_RECORDS // 2) // 2
    return max(known[0] - room, known[1] - NEAR_RECORDS + room), known[1] + room
