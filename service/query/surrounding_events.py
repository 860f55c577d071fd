"""Events of a key that lie in the log about where others lie: what else happened when an alert was raised."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from samovar.changelog.log import Bounds, Records, TopicPartition
from samovar.changelog.partitioner import partition_of
from samovar.service.config.models import Stream
from samovar.service.query.events import Events, StreamEvent, is_of, may_have
from samovar.service.query.row_filters import rows_of

NEAR_MS = 60_000  # in the log, before and after
NEAR_RECORDS = 5_000  # about a place, at most
Spans = Mapping[int, tuple[int, int]]  # by partition


def events_near(
    events: Events, text: bytes, fields: Collection[str], matched: Sequence[StreamEvent]
) -> list[StreamEvent]:
    """Events of a key that lie in the log about where these lie, in all streams."""
    key, found = text.decode("utf-8", "replace"), list[StreamEvent]()
    for name, stream in events.settings.streams.items():
        others = [path for path in fields if path != stream.key and may_have(stream, path)]
        known = _spans((event.partition, event.offset) for event in matched if event.stream == name)
        is_home = not others and not stream.repartition
        held = _in_memory(events, stream.topic, text, known) if is_home else None
        for records in held if held is not None else _in_log(events, stream, text, known, matched, is_home=is_home):
            rows = rows_of(records, text, by_value=bool(others))
            found += [each for each in events.read(records, rows) if is_of(each, key, (stream.key, *others))]
    return found


def _in_memory(events: Events, topic: str, text: bytes, known: Spans) -> Iterable[Records] | None:
    """Of a key that is always in its own partition; None where not all that is wanted is in memory."""
    tail = events.tail
    count = 0 if tail is None else tail.partitions(topic)
    home = partition_of(text, count) if count else 0
    if tail is None or known.keys() != {home}:
        return None
    kept, (begin, end) = tail.kept(TopicPartition(topic, home)), _about_known(known[home])
    return kept.between(begin, end) if kept.has(max(begin, 0), known[home][1] + 1) else None


def _in_log(
    events: Events, stream: Stream, text: bytes, known: Spans, matched: Sequence[StreamEvent], *, is_home: bool
) -> Iterable[Records]:
    places = events.bounds(stream.topic, {TopicPartition(stream.topic, each): known[each][1] for each in known})
    if is_home and places:
        home = partition_of(text, len(places))
        places = {at: bounds for at, bounds in places.items() if at.partition == home}
    first = min(event.logged for event in matched) - NEAR_MS
    last = max(event.logged for event in matched) + NEAR_MS
    about = {at: _about(events, at, bounds, known.get(at.partition), first, last) for at, bounds in places.items()}
    return events.window(about)


def _about(
    events: Events, at: TopicPartition, bounds: Bounds, known: tuple[int, int] | None, first: int, last: int
) -> tuple[int, int]:
    """Offsets about those that are known; where none is, of a time in the log, which takes asking for."""
    if known is None:
        begin, end = events.log.offset_at(at, first), events.log.offset_at(at, last)
        end = min(end, begin + NEAR_RECORDS)
    else:
        begin, end = _about_known(known)
    return max(begin, bounds.begin), min(end, bounds.end)


def _about_known(known: tuple[int, int]) -> tuple[int, int]:
    """
    >>> _about_known((10_000, 10_100)), _about_known((10_000, 90_000))
    ((7550, 12550), (86250, 91250))
    """
    room = max(NEAR_RECORDS - (known[1] - known[0]), NEAR_RECORDS // 2) // 2
    return max(known[0] - room, known[1] - NEAR_RECORDS + room), known[1] + room


def _spans(places: Iterable[tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """The first and the last offset of each partition."""
    found: dict[int, tuple[int, int]] = {}
    for partition, offset in places:
        low, high = found.get(partition, (offset, offset))
        found[partition] = min(low, offset), max(high, offset)
    return found
