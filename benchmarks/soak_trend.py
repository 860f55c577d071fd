"""Whether a measure grows over a long run: a line through its samples, and how sure it is.

The line is Theil and Sen's: its slope is the median of the slopes between any two samples, so that the spikes of
rebalances do not tilt it. Its bounds hold the true slope in 95 of 100 runs, if samples do not depend on each other;
those that do, as of a store that is compacted now and then, make them somewhat too narrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

HOUR_S = 3_600.0
SURE = 1.96  # standard deviations on each side: 95 of 100
LEAST_SAMPLES = 8

Verdict = Literal["flat", "grows", "open"]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Measure:
    """What is sampled. It may grow by this share of itself per hour, or by `floor` units, whichever is more."""

    name: str
    unit: str
    share: float
    floor: float


@dataclass(frozen=True)
class Trend:
    """A measure over a run; slopes are per hour."""

    measure: Measure
    median: float
    start: float  # of the line, at the first sample that counts
    end: float
    slope: float
    low: float
    high: float

    @property
    def tolerance(self) -> float:
        return max(self.measure.share * abs(self.median), self.measure.floor)

    @property
    def verdict(self) -> Verdict:
        """Flat where even the upper bound is tolerated, growing where the lower bound is not; else open: too short."""
        if self.high <= self.tolerance:
            return "flat"
        return "grows" if self.low > self.tolerance else "open"

    @property
    def share_per_hour(self) -> float | None:
        return self.slope / self.median if self.median else None


def fit(measure: Measure, times_s: Sequence[float], values: Sequence[float]) -> Trend | None:
    """None where there are too few samples to say anything."""
    known = [(at, value) for at, value in zip(times_s, values, strict=True) if not np.isnan(value)]
    if len(known) < LEAST_SAMPLES:
        return None
    at, value = np.array(known, np.float64).T
    slopes = slopes_between(at, value)
    slope, median = float(np.median(slopes)), float(np.median(value))
    low, high = bounds_of(slopes, len(at))
    base = float(np.median(value - slope * at))
    start, end = float(base + slope * at[0]), float(base + slope * at[-1])
    return Trend(measure, median, start, end, slope * HOUR_S, low * HOUR_S, high * HOUR_S)


def slopes_between(at: Floats, value: Floats) -> Floats:
    """Of any two samples, in ascending order."""
    first, second = np.triu_indices(len(at), 1)
    return np.sort((value[second] - value[first]) / (at[second] - at[first]))


def bounds_of(slopes: Floats, samples: int) -> tuple[float, float]:
    """By the variance of Kendall's rank correlation, as Sen has it."""
    spread = SURE * np.sqrt(samples * (samples - 1) * (2 * samples + 5) / 18)
    last = len(slopes) - 1
    low, high = (len(slopes) - spread) / 2, (len(slopes) + spread) / 2
    return float(slopes[max(int(low), 0)]), float(slopes[min(int(np.ceil(high)), last)])
