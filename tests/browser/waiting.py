"""Waiting for a condition, with a word about what was waited for where it does not come."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 60.0


def wait_for(ask: Callable[[], T | None], what: str, words: Path | None = None) -> T:
    """The first answer that is not empty."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            found = ask()
        except OSError:
            found = None
        if found:
            return found
        time.sleep(0.1)
    said = "" if words is None else f"\n{words.read_text('utf-8', 'replace')}"
    raise AssertionError(f"waited {PATIENCE_S:.0f} s for {what}{said}")
