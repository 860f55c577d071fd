"""A key's events, newest first and page by page, further back with every look.

Nothing indexes events by key: the newest records of the key's partition are looked through, up to a bound of records
and time. How far a look came is a text that the next one begins with:

    STREAM/PARTITION:OFFSET,...     records before these offsets; a partition that is not named has none left

Of a partition a page has all events of the key down to its mark, so that no event is on two pages or on none, however
times in the log and in events stand to each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
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
