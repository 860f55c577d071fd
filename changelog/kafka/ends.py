"""Whether the log was there all the while that a partition stood at its end: asked again and again, next to the reader.

The client tells an end once, and then nothing: neither that no record came, nor that the broker is away. What stands
at its end because the log cannot be reached is not idle, for nobody could write either. So the end is asked for; looks
that succeed in short succession and find the same end are one stretch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from confluent_kafka import KafkaException

from samovar.changelog.log import TopicPartition

LOOK_S = 0.5  # between two looks
FRESH_S = 1.5  # for which a look says something
BREAK_S = 3.0  # without one that succeeded, a stretch is over

AskEnds = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, int]]


class EndOffset(NamedTuple):
    """The last look at a partition that succeeded. `asked_s` is when it was asked for: it says nothing of later."""

    stretch: int
    end: int
    asked_s: float


class EndWatch:
    """The source of truth for what the log said about the ends of partitions. A thread of its own asks."""

    def __init__(self, ask: AskEnds, now_s: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._now_s = ask, now_s
        self._wanted: frozenset[TopicPartition] = frozenset()
        self._looks: dict[TopicPartition, EndOffset] = {}
        self._told: dict[TopicPartition, float] = {}
        self._stretches = count(1)
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, partitions: Collection[TopicPartition]) -> None:
        """Ask about these from now on."""
        self._wanted = frozenset(partitions)
        if self._wanted and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ends", daemon=True)
            self._thread.start()

    def standing(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Those of the partitions that end where they are read, by looks since this was last asked; their stretches."""
        found: dict[TopicPartition, int] = {}
        now_s = self._now_s()
        for at, position in positions.items():
            look = self._looks.get(at)
            if look is None or look.end != position or now_s - look.asked_s > FRESH_S:
                continue
            if look.asked_s > self._told.get(at, -1.0):
                self._told[at] = look.asked_s
                found[at] = look.stretch
        return found

    def refresh(self) -> None:
        """Ask once. A look that fails says nothing."""
        wanted, asked_s = self._wanted, self._now_s()
        if not wanted:
            return
        with suppress(KafkaException):
            for at, end in self._ask(wanted).items():
                before = self._looks.get(at)
                is_same = before is not None and before.end == end and asked_s - before.asked_s <= BREAK_S
                stretch = before.stretch if before is not None and is_same else next(self._stretches)
                self._looks[at] = EndOffset(stretch, end, asked_s)

    def _run(self) -> None:
        while not self._closed.wait(LOOK_S):
            self.refresh()

    def close(self) -> None:
        """It may still wait for an answer, and ends after it."""
        self._closed.set()
