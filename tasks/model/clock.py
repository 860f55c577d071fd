"""Clocks. Tasks ask one of these and never the system, so that a test can set the time."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """`steady_ms` never goes back and has no meaning but in differences; `wall_ms` is the time of day."""

    def steady_ms(self) -> int: ...
    def wall_ms(self) -> int: ...
    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Let so much time pass, or less where it is told to stop meanwhile."""


class SystemClock:
    """The machine's own."""

    def steady_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def wait(self, seconds: float, stop: threading.Event) -> None:
        stop.wait(seconds)


SYSTEM_CLOCK = SystemClock()


@dataclass
class SetClock:
    """Stands still until it is moved, or waited for."""

    now_ms: int = 1_700_000_000_000

    def steady_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def wait(self, seconds: float, stop: threading.Event) -> None:
        if not stop.is_set():
            self.pass_ms(int(seconds * 1000))

    def pass_ms(self, ms: int) -> None:
        assert ms >= 0, ms
        self.now_ms += ms
