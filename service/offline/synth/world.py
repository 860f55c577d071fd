"""Who lives in the generated world, where, and when they are awake. Shared by the fraud and the session stream.

A label says what an event is part of: a kind, named as the rule that is for it ("card-testing"), and which incident of
it ("f-000012"). Labels go next to the lines, never into them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Label: TypeAlias = tuple[str, str]  # kind and incident
Line: TypeAlias = tuple[int, str, Label | None]  # event time, JSON, label
Part: TypeAlias = tuple[Ints, list[str], Sequence[Label | None]]  # the same by columns

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

DISTINCT_MOST = 1_000_000  # people whose homes and habits are held in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class City:
    country: str
    lat: float
    lon: float
    utc_hours: int
    weight: float
    octet: int  # first number of the addresses given out there


CITIES = (
    City(country="US", lat=40.71, lon=-74.01, utc_hours=-5, weight=9.0, octet=23),
    City(country="US", lat=41.88, lon=-87.63, utc_hours=-6, weight=5.0, octet=24),
    City(country="US", lat=34.05, lon=-118.24, utc_hours=-8, weight=6.0, octet=50),
    City(country="US", lat=29.76, lon=-95.37, utc_hours=-6, weight=4.0, octet=66),
    City(country="CA", lat=43.65, lon=-79.38, utc_hours=-5, weight=3.0, octet=99),
    City(country="MX", lat=19.43, lon=-99.13, utc_hours=-6, weight=4.0, octet=187),
    City(country="BR", lat=-23.55, lon=-46.63, utc_hours=-3, weight=6.0, octet=177),
    City(country="AR", lat=-34.60, lon=-58.38, utc_hours=-3, weight=2.0, octet=181),
    City(country="GB", lat=51.51, lon=-0.13, utc_hours=0, weight=6.0, octet=81),
    City(country="FR", lat=48.86, lon=2.35, utc_hours=1, weight=5.0, octet=90),
    City(country="DE", lat=52.52, lon=13.41, utc_hours=1, weight=4.0, octet=84),
    City(country="DE", lat=48.14, lon=11.58, utc_hours=1, weight=3.0, octet=91),
    City(country="NL", lat=52.37, lon=4.90, utc_hours=1, weight=2.0, octet=145),
    City(country="ES", lat=40.42, lon=-3.70, utc_hours=1, weight=3.0, octet=88),
    City(country="IT", lat=41.90, lon=12.50, utc_hours=1, weight=3.0, octet=79),
    City(country="PL", lat=52.23, lon=21.01, utc_hours=1, weight=2.0, octet=83),
    City(country="TR", lat=41.01, lon=28.98, utc_hours=3, weight=3.0, octet=78),
    City(country="NG", lat=6.52, lon=3.38, utc_hours=1, weight=3.0, octet=105),
    City(country="ZA", lat=-26.20, lon=28.05, utc_hours=2, weight=2.0, octet=41),
    City(country="AE", lat=25.20, lon=55.27, utc_hours=4, weight=2.0, octet=94),
    City(country="IN", lat=19.08, lon=72.88, utc_hours=5, weight=6.0, octet=49),
    City(country="SG", lat=1.35, lon=103.82, utc_hours=8, weight=2.0, octet=119),
    City(country="JP", lat=35.68, lon=139.69, utc_hours=9, weight=5.0, octet=126),
    City(country="AU", lat=-33.87, lon=151.21, utc_hours=10, weight=3.0, octet=101),
)

# How busy people are at each local hour, from midnight on.
AWAKE = (
    0.25, 0.15, 0.10, 0.08, 0.08, 0.15, 0.40, 0.80, 1.10, 1.20, 1.30, 1.45,
    1.70, 1.55, 1.35, 1.35, 1.50, 1.80, 2.00, 1.90, 1.70, 1.40, 0.95, 0.50,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SynthClock:
    """Places in the stream (event 0, 1, 2, ...) to event time: quick where many are awake, slow at night."""

    start_ms: int
    events_a_day: float
    busy_at: Floats  # 25 shares of a day's events, from 0 to 1, hour by hour from the start

    def times(self, places: Floats) -> Ints:
        days, part = np.divmod(places / self.events_a_day, 1.0)
        hours = np.interp(part, self.busy_at, np.arange(25.0))
        passed: Ints = (days * DAY + hours * HOUR).astype(np.int64)
        return self.start_ms + passed

    def time(self, place: float) -> int:
        return int(self.times(np.array([place]))[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """The keys of the stream: numbers 0 to size, each at home in a city, few very active and many rarely seen.

    Beyond DISTINCT_MOST people repeat: n lives where n - distinct does, and is as active. So many do so much together
    that the busiest would do more than people do: they are less unlike then.
    """

    size: int
    distinct: int
    city_of: Ints
    by_city: Ints  # the distinct numbers, those of city 0 first, most active first within a city
    first_of: Ints  # where in by_city each city begins
    count_of: Ints
    shares: Floats  # by UTC hour: cumulative share of each city in what happens

    def active(self, rng: np.random.Generator, times: Ints) -> Ints:
        """Who acts at each of these times: a city by its local hour, then a person by activity."""
        draws = rng.random(len(times))
        cities = (draws[:, None] > self.shares[times // HOUR % 24]).sum(axis=1)
        counts = self.count_of[cities]
        people: Ints = self.by_city[self.first_of[cities] + skewed(rng, counts, self.evenness)]
        people += self.distinct * rng.integers(0, self.size // self.distinct, len(times))
        return people

    @property
    def evenness(self) -> float:
        return 1 / 200 if self.size == self.distinct else 1 / 10

    def homes(self, people: Ints) -> Ints:
        cities: Ints = self.city_of[people % self.distinct]
        return cities


def skewed(rng: np.random.Generator, counts: Ints, evenness: float = 1 / 200) -> Ints:
    """For each count n a number below n, small ones far more often: Zipf-like, with the top not a fixed monster.

    The density falls as (rank + q) ** -0.8 with q in proportion to n, so the busiest of any n is about 20 times as
    busy as the average; with an evenness of 1/10, three times.
    """
    power = 0.2
    q = np.maximum(counts * evenness, 0.5)
    low, high = q**power, (counts + q) ** power
    ranks = (low + rng.random(len(counts)) * (high - low)) ** (1.0 / power) - q
    chosen: Ints = np.clip(ranks.astype(np.int64), 0, counts - 1)
    return chosen


def scatter(values: Ints, salt: int) -> Ints:
    """A fixed pseudo-random number (below 2**31) for each value: choices that must be the same every time."""
    mixed = (values.astype(np.uint64) + np.uint64(salt)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    result: Ints = (mixed >> np.uint64(33)).astype(np.int64)
    return result


def make_population(rng: np.random.Generator, size: int) -> Population:
    copies = -(-size // DISTINCT_MOST)
    distinct = size // copies
    weights = np.array([city.weight for city in CITIES])
    city_of = rng.choice(len(CITIES), size=distinct, p=weights / weights.sum()).astype(np.int64)
    order = rng.permutation(distinct)
    by_city = order[np.argsort(city_of[order], kind="stable")]
    count_of = np.bincount(city_of, minlength=len(CITIES)).astype(np.int64)
    first_of = np.concatenate(([0], np.cumsum(count_of)[:-1]))
    shares = np.cumsum(activity(count_of), axis=1)
    shares = shares / shares[:, -1:]
    return Population(
        size=copies * distinct,
        distinct=distinct,
        city_of=city_of,
        by_city=by_city,
        first_of=first_of,
        count_of=count_of,
        shares=shares,
    )


def make_clock(population: Population, start_ms: int, events_a_day: float) -> SynthClock:
    by_hour = np.roll(activity(population.count_of).sum(axis=1), -(start_ms // HOUR % 24))
    return SynthClock(start_ms, events_a_day, np.concatenate(([0.0], np.cumsum(by_hour) / by_hour.sum())))


def activity(count_of: Ints) -> Floats:
    """UTC hour x city: how much happens there."""
    utc = np.arange(24)
    awake = np.array(AWAKE)
    return np.stack(
        [awake[(utc + city.utc_hours) % 24] * count for city, count in zip(CITIES, count_of, strict=True)], axis=1
    )
