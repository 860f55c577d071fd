"""Events of a key that lie in the log about where others lie: what else happened when an alert was raised."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from samovar.changelog.log import Records, TopicPartition
from samovar.changelog.partitioner import partition_of
from samovar.service.query.events import Events, StreamEvent, is_of, may_have
from samovar.service.query.row_filters import rows_of

NEAR_MS = 60_000  # in the log, before and after
NEAR_RECORDS = 5_000  # about a place, at most


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
