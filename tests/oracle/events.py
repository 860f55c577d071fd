"""Events as the language sees them: a place in the order, a type, a time, and fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True, eq=False)
class Event:
    """One line of the input. Two events are the same only if they are the same line."""

    line: int
    time: int
    type: str
    fields: Mapping[str, Any]

    @property
    def place(self) -> tuple[int, int]:
        """Events are taken in the order of their time and, at one time, of their line."""
        return (self.time, self.line)


def read_events(lines: Iterable[Mapping[str, Any] | None], type_field: str, time_field: str) -> list[Event]:
    """The good lines in the order they stand. A bad or blank line is passed over and keeps its number."""
    events = []
    for line, fields in enumerate(lines):
        if fields is None:
            continue
        time, kind = read_time(fields.get(time_field)), fields.get(type_field)
        if time is not None and isinstance(kind, str):
            events.append(Event(line, time, kind, fields))
    return events


def read_time(value: object) -> int | None:
    """Epoch ms (a fraction is cut) or ISO 8601, UTC where it names no zone. Quoted digits are no time."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return int(value)
    if not isinstance(value, str) or value.isdigit():
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400_000) + since.seconds * 1000 + since.microseconds // 1000


def in_order(arrived: Sequence[Event], slack_ms: int | None) -> tuple[list[Event], list[int]]:
    """The events in the order of their places, and the lines that came too late.

    Without slack any disorder is repaired. With it, an event is late when it is behind the largest time that came
    before it, less the slack.
    """
    kept, late = [], []
    max_event_time: int | None = None
    for event in arrived:
        if slack_ms is not None and max_event_time is not None and event.time < max_event_time - slack_ms:
            late.append(event.line)
            continue
        kept.append(event)
        max_event_time = event.time if max_event_time is None else max(max_event_time, event.time)
    return sorted(kept, key=lambda event: event.place), late
