"""A line on the terminal that says how far a long command is."""

from __future__ import annotations

import time
from typing import IO

PATIENCE_S = 1.0  # what is over sooner shows nothing
EVERY_S = 0.2


class Progress:
    """Rate, percent and time left, on one line that is written over. Silent where no person is watching."""

    def __init__(self, err: IO[str], *, quiet: bool = False) -> None:
        self._err = err
        self._wanted = err.isatty() and not quiet
        self._begun = self._told = time.monotonic()
        self._shown = False

    def reading(self, events: int, fraction: float | None) -> None:
        if self._is_due():
            spent = self._told - self._begun
            parts = [f"{events:,} events", f"{events / spent:,.0f}/s"]
            if fraction:
                parts += [f"{fraction:.0%}", f"{spent / fraction - spent:.0f} s left"]
            self._show(", ".join(parts))

    def matching(self, events: int) -> None:
        if self._is_due():
            self._show(f"matching {events:,} events")

    def clear(self) -> None:
        if self._shown:
            self._err.write("\r\x1b[K")
            self._err.flush()
            self._shown = False

    def _is_due(self) -> bool:
        now = time.monotonic()
        if not self._wanted or now - self._begun < PATIENCE_S or now - self._told < EVERY_S:
            return False
        self._told = now
        return True

    def _show(self, text: str) -> None:
        self._err.write(f"\r\x1b[K{text}")
        self._err.flush()
        self._shown = True
