"""A match to look at: with the events that it is made of, as they stand in the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from samovar.changelog.log import Log, TopicPartition
from samovar.service.backtest.current import read_between
from samovar.service.config.models import ServiceFile
from samovar.service.query.read import field, readable_by, rows

MAX_EVENTS = 8  # of one match


@dataclass(frozen=True)
class ExampleEvent:
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
    events: tuple[ExampleEvent, ...]
    total: int

    def to_json(self) -> dict[str, Any]:
        events = [asdict(each) for each in self.events]
        return {"match": dict(self.match), "events": events, "events_total": self.total}


def with_events(log: Log, settings: ServiceFile, matches: Iterable[Mapping[str, Any]]) -> Iterator[Example]:
    """Each match with its events, in the order of its steps; of many the first and the last."""
    readable = readable_by(settings)
    for match in matches:
        places = [(step, place) for step, listed in match["steps"].items() for place in listed]
        half = MAX_EVENTS // 2
        shown = places if len(places) <= MAX_EVENTS else [*places[:half], *places[-half:]]
        events = []
        for step, (topic, partition, offset) in shown:
            at = TopicPartition(topic, partition)
            begin, end = log.bounds([at])[at]
            found = read_between(log, at, offset, offset + 1) if begin <= offset < end else ()
            record = next((each for records in found for each in rows(records) if each.offset == offset), None)
            value = None if record is None else field("value", readable(record).value, unpack=True).get("value")
            events.append(ExampleEvent(step, topic, partition, offset, value))
        yield Example(match, tuple(events), len(places))
