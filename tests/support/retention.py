"""Retention that takes records at the worst moment: after anyone asked where a partition begins, before it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.log import Reader, TopicPartition


@contextmanager
def retention_strikes(topic: str) -> Iterator[None]:
    """While this lasts, what has expired of a topic goes whenever somebody has begun to read it."""
    opened = EmbeddedLog.point_reader

    def point_reader(log: EmbeddedLog, positions: Mapping[TopicPartition, int], records: int = 0) -> Reader:
        if any(at.topic == topic for at in positions):
            log.compact(topic)
        return opened(log, positions, records)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(EmbeddedLog, "point_reader", point_reader)
        yield
