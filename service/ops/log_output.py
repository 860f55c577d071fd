"""What a container says while it runs: lines for people, each with its time (ISO 8601, UTC), or with `--log json` an
object per line:

    {"time": ISO 8601, "level": "info" | "warning" | "error", "service", "container": slot, "event", "text", ...facts}

`event` is one of: started, tasks, progress, restart, store-held, note, refused, stopped, and kafka for what the Kafka
client says.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import IO, TypeAlias

from samovar.tasks.model.log_events import LogEvent

FORMS = ("text", "json")
KAFKA = "samovar.kafka"

Tell: TypeAlias = Callable[[str], None]


def make_logger(form: str, out: IO[str], service: str, slot: int) -> Tell:
    """Says lines in a form."""

    def say(text: str) -> None:
        now_s = time.time()
        print(json_line(text, service, slot, now_s) if form == "json" else stamped(text, now_s), file=out, flush=True)

    return say


def timestamp_text(at_s: float) -> str:
    """
    >>> timestamp_text(1_767_607_200.0004)
    '2026-01-05T10:00:00.000Z'
    """
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def stamped(text: str, at_s: float) -> str:
    """A line of a text log."""
    return f"{timestamp_text(at_s)} {text}"


class StampedFormatter(logging.Formatter):
    """The same for what libraries log."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802 - its name
        return timestamp_text(record.created)


def json_line(text: str, service: str, slot: int, at_s: float) -> str:
    """One object. Facts never hide what every line has."""
    event, level, facts = (text.event, text.level, text.facts) if isinstance(text, LogEvent) else ("note", "info", {})
    moment = timestamp_text(at_s)
    head = {"time": moment, "level": level, "service": service, "container": slot, "event": event, "text": str(text)}
    return json.dumps({**facts, **head} if facts.keys() & head.keys() else {**head, **facts}, default=str)


class _Handler(logging.Handler):
    """What a library logs, as lines of ours."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else "warning"
        self._tell(LogEvent(record.getMessage(), "kafka", level, logger=record.name))


@contextmanager
def forward_kafka_logs(tell: Tell) -> Iterator[None]:
    """While this lasts, what the Kafka client logs is told as all else is."""
    logger, handler = logging.getLogger(KAFKA), _Handler(tell)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
