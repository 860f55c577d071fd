"""From a sample of keys to all: how many alerts there are, with an interval that says how sure that is.

Keys are chosen by their hashes, each with the same chance p, and a key's alerts are counted exactly: a cluster sample.
The estimate is the sum over the sampled keys divided by p (Horvitz and Thompson). Alerts are few and unevenly spread
over keys, so that the normal interval is wrong where it matters. This one is of a weighted sum of Poisson counts (Fay
and Feuer 1997): of keys with so many alerts each there are about as many as a Poisson process gives, and each counts
its alerts divided by p. It is wide where one key has many of them, and goes up from 0 where none was found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A count over all keys, and the interval around it; of a sample of all keys it is the count itself."""

    count: int
    low: int
    high: int


def estimate(per_key: Iterable[int], share: float) -> Estimate:
    """From the counts of the sampled keys that have any, and the share of keys that were sampled.

    >>> estimate([2, 1, 1], 1.0)
    Estimate(count=4, low=4, high=4)
    >>> estimate([2, 1, 1], 0.01)
    Estimate(count=400, low=70, high=1356)
    >>> estimate([], 0.01)
    Estimate(count=0, low=0, high=366)
    """
    counts = [count for count in per_key if count]
    found = sum(counts)
    if share >= 1:
        return Estimate(found, found, found)
    total = found / share
    # Of a large sample little is left to be unsure of.
    variance = sum(count * count for count in counts) * (1 - share) / share**2
    heaviest = max(counts, default=1) / share
    low, high = 0.0, _gamma((total + heaviest), variance + heaviest**2 * (1 - share), 0.5 + LEVEL / 2)
    if found:
        low = _gamma(total, variance, 0.5 - LEVEL / 2)
    return Estimate(round(total), max(found, int(low)), max(found, -int(-high // 1)))


def _gamma(mean: float, variance: float, quantile: float) -> float:
    """A quantile of the gamma distribution, by Wilson and Hilferty's cube root."""
    ninth = variance / (9 * mean * mean)
    return float(mean * max(0.0, 1 - ninth + NormalDist().inv_cdf(quantile) * ninth**0.5) ** 3)
