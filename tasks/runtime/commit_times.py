"""How long commits took, as a histogram."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass
class CommitTimes:
    """Counts by upper bound, the last one for what is above all of them."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bound and how many were not above it, as Prometheus counts."""
        found, total = [], 0
        for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], list(self.counts), strict=True):
            total += count
            found.append((bound, float(total)))
        return found
