"""Topics that were just made. Brokers learn of a topic one after the other: one that says it is not there may only be
behind the others.
"""

from __future__ import annotations

import time
from collections.abc import Collection

LAG_S = 10.0  # until every broker must know a topic that one of them knows


class RecentTopics:
    """The source of truth for since when a topic is known to be there."""

    def __init__(self) -> None:
        self._first_seen: dict[str, float] = {}

    def saw(self, names: Collection[str]) -> None:
        now = time.monotonic()
        for name in names:
            self._first_seen.setdefault(name, now)

    def lost(self, names: Collection[str]) -> None:
        for name in names:
            self._first_seen.pop(name, None)

    def among(self, names: Collection[str]) -> list[str]:
        """Those that some broker may not know yet."""
        now = time.monotonic()
        return [name for name in names if now - self._first_seen.get(name, -LAG_S) < LAG_S]
