"""How an alert of a running service is shown on a terminal: what was found, for whom, and the events that did it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from samovar.changelog.log import Log, TopicPartition
from samovar.patterns.follow import iso_time
from samovar.patterns.syntax import Rule

SHOWN_EVENTS = 3  # of an alert
COLOURS = {"critical": "bold red", "high": "red", "medium": "yellow", "low": "cyan", "info": "dim"}
MARGIN = " " * 9
HIDDEN = ("type", "ts", "fraud_kind", "fraud_id")
READ_S = 5.0


def show_alert(console: Console, rule: Rule, alert: Mapping[str, Any], events: Sequence[tuple[str, str]]) -> None:
    """`events` are the first matched ones: the step that each filled, and the event."""
    colour = COLOURS[rule.severity]
    head = f"[{colour}]{rule.severity:8}[/{colour}] [bold]{rule.id}[/bold] {escape(key_text(alert))}  "
    console.print(head + iso_time(alert["at"]), highlight=False, soft_wrap=True)
    console.print(MARGIN + escape(alert.get("message") or rule.title), highlight=False, soft_wrap=True)
    for step, line in events:
        text = escape(f"{step}: {event_text(line)}")
        console.print(f"{MARGIN}[dim]{text}[/dim]", highlight=False, soft_wrap=True)
    more = count_of(alert) - len(events)
    if more > 0:
        console.print(f"{MARGIN}[dim]and {more} more events[/dim]", highlight=False)


def show_line(console: Console, rule: Rule, alert: Mapping[str, Any]) -> None:
    """An alert in one line."""
    colour = COLOURS[rule.severity]
    text = escape(alert.get("message") or rule.title)
    head = f"[{colour}]{rule.severity:8}[/{colour}] [bold]{rule.id}[/bold] {escape(key_text(alert))}: {text}"
    console.print(head, highlight=False, soft_wrap=True)


def key_text(alert: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in alert["key"].items())


def count_of(alert: Mapping[str, Any]) -> int:
    """How many events matched; of very many, the alert names only some."""
    total: Mapping[str, int] = alert.get("total", {})
    return sum(total.get(step, len(places)) for step, places in alert["steps"].items())


def event_text(line: str) -> str:
    event = json.loads(line)
    fields = ", ".join(f"{name}={value}" for name, value in event.items() if name not in HIDDEN)
    return f"{event['type']} {fields}" if "type" in event else fields


def events_of(log: Log, alert: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The first matched events, read back from where the alert says that they are."""
    places = [(step, place) for step, taken in alert["steps"].items() for place in taken]
    return [(step, line) for step, place in places[:SHOWN_EVENTS] for line in _read(log, *place)]


def _read(log: Log, topic: str, partition: int, offset: int) -> Iterator[str]:
    reader = log.reader({TopicPartition(topic, partition): offset})
    try:
        for records in reader.poll(1, READ_S)[:1]:
            if len(records) and int(records.offsets[0]) == offset:
                yield (records.value(0) or b"{}").decode()
    finally:
        reader.close()
