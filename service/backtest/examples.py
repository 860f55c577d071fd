"""A match to look at: with the events that it is made of, as they stand in the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from samovar.changelog.log import Log, TopicPartition
from samovar.service.backtest.current import read_between
from samovar.service.config.models import ServiceFile
from samovar.service.query.read import TopicRecord, field, readable_by, rows

EVENTS_SHOWN = 8  # of one match


@dataclass(frozen=True)
class ShownEvent:
    """An event of a match. `value` is None where the log no longer has it."""

    step: str
    topic: str
    partition: int
    offset: int
    value: Any


@dataclass(frozen=True)
class Example:
    """A match, some of its events, and how many it has in all."""

    match: Mapping[str, Any]
    events: tuple[ShownEvent, ...]
    total: int

    def to_json(self) -> dict[str, Any]:
        events = [
            {"step": each.step, "topic": each.topic, "partition": each.partition, "offset": each.offset}
            | {"value": each.value}
            for each in self.events
        ]
        return {"match": dict(self.match), "events": events, "events_total": self.total}


def with_events(log: Log, settings: ServiceFile, matches: Iterable[Mapping[str, Any]]) -> Iterator[Example]:
    """Each match with its events, in the order of its steps; of many the first and the last."""
    readable = readable_by(settings)
    for match in matches:
        places = [(step, place) for step, listed in match["steps"].items() for place in listed]
        half = EVENTS_SHOWN // 2
        shown = places if len(places) <= EVENTS_SHOWN else [*places[:half], *places[-half:]]
        events = []
        for step, (topic, partition, offset) in shown:
            record = _record(log, TopicPartition(topic, partition), offset)
            value = None if record is None else field("value", readable(record).value, unpack=True).get("value")
            events.append(ShownEvent(step, topic, partition, offset, value))
        yield Example(match, tuple(events), len(places))


def _record(log: Log, at: TopicPartition, offset: int) -> TopicRecord | None:
    begin, end = log.bounds([at])[at]
    if not begin <= offset < end:
        return None
    for records in read_between(log, at, offset, offset + 1):
        for record in rows(records):
            if record.offset == offset:
                return record
    return None
