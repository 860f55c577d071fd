"""A line for people that carries its facts for machines.

A container tells lines of text, and anyone who only prints them need not know more. Where logs are to be JSON, a
`LogEvent` says which event it is, how bad, and its numbers one by one.
"""

from __future__ import annotations

from collections.abc import Mapping


class LogEvent(str):
    """Text with an event's name, a level (info, warning, error) and facts.

    >>> stopped = LogEvent("container 0 stopped", "stopped", events=3)
    >>> stopped, stopped.event, stopped.level, stopped.facts
    ('container 0 stopped', 'stopped', 'info', {'events': 3})
    """

    __slots__ = ("event", "facts", "level")
    event: str
    level: str
    facts: Mapping[str, object]

    def __new__(cls, text: str, event: str, level: str = "info", **facts: object) -> LogEvent:
        made = super().__new__(cls, text)
        made.event, made.level, made.facts = event, level, facts
        return made
