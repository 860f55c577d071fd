"""The honest part of the fraud stream: purchases, logins, transfers, orders, refunds of people with habits.

Lines are built by hand from templates, a block at a time: a dictionary and a JSON encoder for each event would be
ten times slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from samovar.service.offline.synth.world import (
    CITIES,
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    Floats,
    Ints,
    Part,
    Population,
    SynthClock,
    make_clock,
    make_population,
    scatter,
    skewed,
)

EVENTS_A_USER_A_DAY = 2.0
BILLERS = ("biller-power", "biller-water", "biller-phone", "biller-tax")

# Name, and mean and deviation of the logarithm of the amount.
CATEGORIES = (
    ("grocery", 3.3, 0.7),
    ("coffee", 1.5, 0.45),
    ("fuel", 3.9, 0.35),
    ("restaurant", 3.4, 0.6),
    ("fashion", 4.0, 0.7),
    ("electronics", 5.0, 0.8),
    ("travel", 5.5, 0.8),
    ("digital", 2.3, 0.8),
    ("pharmacy", 2.9, 0.7),
    ("transit", 1.4, 0.5),
)

PURCHASE = '{"type":"purchase","ts":%d,"card":"c%07d","user":"u%07d","amount":%d.%02d,"merchant":"m%06d",%s}'
REFUND = '{"type":"refund","ts":%d,"card":"c%07d","user":"u%07d","amount":%d.%02d,"merchant":"m%06d"}'
LOGIN = '{"type":"login","ts":%d,"user":"u%07d","ok":%s,"device":"%s","ip":"%s","country":"%s"}'
TRANSFER = '{"type":"transfer","ts":%d,"user":"u%07d","amount":%d.%02d,"to":"%s"}'
ORDER = '{"type":"%s","ts":%d,"order_id":"%s","user":"u%07d","amount":%d.%02d}'
CANCEL = '{"type":"cancel","ts":%d,"order_id":"%s","user":"u%07d"}'

Texts: TypeAlias = tuple[Ints, list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FraudWorld:
    population: Population
    clock: SynthClock
    merchants_a_city: int
    merchants: int  # beyond len(in_shop) they repeat under other names
    in_shop: list[str]  # the merchant's part of a purchase line, by merchant number
    online: list[str]
    log_mean: Floats
    log_deviation: Floats

    def merchant(self, city: int, rank: int) -> int:
        return city + len(CITIES) * (rank % self.merchants_a_city)


def make_world(rng: np.random.Generator, keys: int, start_ms: int) -> FraudWorld:
    population = make_population(rng, keys)
    clock = make_clock(population, start_ms, keys * EVENTS_A_USER_A_DAY)
    a_city = max(4, population.distinct // (20 * len(CITIES)))
    total = a_city * len(CITIES)
    kinds = rng.integers(0, len(CATEGORIES), total)
    shifts = np.round(rng.normal(0.0, 0.05, (total, 2)), 4).tolist()
    cities = [CITIES[number % len(CITIES)] for number in range(total)]
    heads = [
        f'"category":"{CATEGORIES[kind][0]}","country":"{city.country}"'
        for kind, city in zip(kinds.tolist(), cities, strict=True)
    ]
    places = [
        f'"lat":{city.lat + north:.4f},"lon":{city.lon + east:.4f}'
        for city, (north, east) in zip(cities, shifts, strict=True)
    ]
    return FraudWorld(
        population=population,
        clock=clock,
        merchants_a_city=a_city,
        merchants=total * (population.size // population.distinct),
        in_shop=[f'"channel":"pos",{head},{place}' for head, place in zip(heads, places, strict=True)],
        online=[f'"channel":"online",{head}' for head in heads],
        log_mean=np.array([CATEGORIES[kind][1] for kind in kinds]),
        log_deviation=np.array([CATEGORIES[kind][2] for kind in kinds]),
    )


def honest(world: FraudWorld, seed: Sequence[int], first: int, size: int, events: int, since_ms: int = 0) -> list[Part]:
    """Exactly `events` honest events, whose stories begin on the places from `first` to `first + size`. Stories that
    are over before `since_ms` may be left out.
    """
    counts = [int(events * story.share) for story in STORIES[1:]]
    in_shop = events - sum(count * story.events for count, story in zip(counts, STORIES[1:], strict=True))
    end_ms = world.clock.time(first + size)
    parts: list[Part] = []
    for number, (story, count) in enumerate(zip(STORIES, (in_shop, *counts), strict=True)):
        if end_ms + story.longest_ms >= since_ms:
            rng = np.random.default_rng([*seed, number])
            times = world.clock.times(first + rng.random(count) * size)
            parts += ((when, lines, [None] * count) for when, lines in story.make(world, rng, times, 4 * first))
    return parts


def whereabouts(population: Population, users: Ints, times: Ints) -> Ints:
    """The city where each user is: at home, or for one day in fifty in the region (CITIES goes round the world).

    A day begins at four in the night, when few are awake to be caught in two places.
    """
    homes = population.homes(users)
    offsets = np.array([city.utc_hours for city in CITIES])[homes]
    days = (times + (offsets - 4) * HOUR) // DAY
    chance = scatter(users * 100_003 + days, 17)
    nearby = (homes + chance // 50 % 7 - 3) % len(CITIES)
    return np.where(chance % 50 == 0, nearby, homes)


def home_ip(user: int, city: int) -> str:
    """Most have an address of their own; every sixteenth sits in an office of fifty behind one address."""
    number = user // 50 + 70_001 if user % 16 == 0 else user
    mixed = number * 2_654_435_761 % 2**24
    return f"{CITIES[city].octet}.{mixed >> 16}.{mixed >> 8 & 255}.{mixed & 255}"


def order_id(number: int) -> str:
    """Numbers that follow each other have names that do not."""
    return f"o{number * 0x9E3779B97F4A7C15 % 2**40:010x}"


def _cents(rng: np.random.Generator, means: Floats, deviations: Floats, most: int) -> Ints:
    amounts = np.exp(rng.normal(means, deviations)) * 100
    return np.clip(amounts.astype(np.int64), 50, most)


def _cards(rng: np.random.Generator, users: Ints) -> Ints:
    """Everyone has a card, every third a second one, rarely used."""
    second: Ints = ((users % 3 == 0) & (rng.random(len(users)) < 0.2)).astype(np.int64)
    return users * 2 + second


def _purchases(world: FraudWorld, rng: np.random.Generator, times: Ints, _: int, *, at_home: bool) -> list[Texts]:
    users = world.population.active(rng, times)
    anywhere = rng.integers(0, len(CITIES), len(times))
    cities = whereabouts(world.population, users, times) if at_home else anywhere
    ranks = skewed(rng, np.full(len(times), world.merchants_a_city), world.population.evenness)
    merchants = cities + len(CITIES) * ranks
    cents = _cents(rng, world.log_mean[merchants], world.log_deviation[merchants], 400_000)
    distinct = len(world.in_shop)
    named = merchants + distinct * rng.integers(0, world.merchants // distinct, len(times))
    parts = world.in_shop if at_home else world.online
    rows = zip(
        times.tolist(),
        _cards(rng, users).tolist(),
        users.tolist(),
        (cents // 100).tolist(),
        (cents % 100).tolist(),
        named.tolist(),
        [parts[merchant] for merchant in merchants.tolist()],
        strict=True,
    )
    return [(times, [PURCHASE % row for row in rows])]


def _refunds(world: FraudWorld, rng: np.random.Generator, times: Ints, _: int) -> list[Texts]:
    users = world.population.active(rng, times)
    cents = _cents(rng, np.full(len(times), 3.6), np.full(len(times), 0.8), 100_000)
    rows = zip(
        times.tolist(),
        _cards(rng, users).tolist(),
        users.tolist(),
        (cents // 100).tolist(),
        (cents % 100).tolist(),
        rng.integers(0, world.merchants, len(times)).tolist(),
        strict=True,
    )
    return [(times, [REFUND % row for row in rows])]


def _login_lines(world: FraudWorld, rng: np.random.Generator, times: Ints, users: Ints, ok: str) -> list[str]:
    cities = whereabouts(world.population, users, times)
    second = (rng.random(len(times)) < 0.15).tolist()
    rows = zip(times.tolist(), users.tolist(), second, cities.tolist(), strict=True)
    return [
        LOGIN % (ts, user, ok, f"d{user:07d}-{int(other)}", home_ip(user, city), CITIES[city].country)
        for ts, user, other, city in rows
    ]


def _logins(world: FraudWorld, rng: np.random.Generator, times: Ints, _: int) -> list[Texts]:
    return [(times, _login_lines(world, rng, times, world.population.active(rng, times), "true"))]


def _typos(world: FraudWorld, rng: np.random.Generator, times: Ints, _: int) -> list[Texts]:
    users = world.population.active(rng, times)
    later = times + rng.integers(5 * SECOND, 40 * SECOND, len(times))
    return [
        (times, _login_lines(world, rng, times, users, "false")),
        (later, _login_lines(world, rng, later, users, "true")),
    ]


def _transfers(world: FraudWorld, rng: np.random.Generator, times: Ints, _: int) -> list[Texts]:
    users = world.population.active(rng, times)
    later = times + rng.integers(20 * SECOND, 5 * MINUTE, len(times))
    cents = _cents(rng, np.full(len(times), 4.5), np.full(len(times), 1.0), 800_000)
    payees = rng.integers(0, 12, len(times))  # eight friends each, and the billers that everybody pays
    rows = zip(
        later.tolist(),
        users.tolist(),
        (cents // 100).tolist(),
        (cents % 100).tolist(),
        payees.tolist(),
        strict=True,
    )
    lines = [
        TRANSFER % (ts, user, whole, rest, BILLERS[payee - 8] if payee >= 8 else f"a{user * 8 + payee:08d}")
        for ts, user, whole, rest, payee in rows
    ]
    return [(times, _login_lines(world, rng, times, users, "true")), (later, lines)]


def _orders(world: FraudWorld, rng: np.random.Generator, times: Ints, number: int, *, paid: bool) -> list[Texts]:
    users = world.population.active(rng, times)
    ordered = times + rng.integers(30 * SECOND, 10 * MINUTE, len(times))
    settled = ordered + rng.integers(20 * SECOND, 30 * MINUTE, len(times))
    cents = _cents(rng, np.full(len(times), 4.0), np.full(len(times), 0.7), 400_000)
    names = [order_id(number + 2 * place + paid) for place in range(len(times))]
    columns = (names, users.tolist(), (cents // 100).tolist(), (cents % 100).tolist())
    parts = [
        (times, _login_lines(world, rng, times, users, "true")),
        (ordered, [ORDER % ("order", *row) for row in zip(ordered.tolist(), *columns, strict=True)]),
    ]
    if paid:
        lines = [ORDER % ("payment", *row) for row in zip(settled.tolist(), *columns, strict=True)]
    else:
        lines = [CANCEL % row for row in zip(settled.tolist(), names, users.tolist(), strict=True)]
    return [*parts, (settled, lines)]


class Story(NamedTuple):
    """What people do: its share of all honest events, how many events it has, and how long it takes at most."""

    share: float
    events: int
    longest_ms: int
    make: Callable[[FraudWorld, np.random.Generator, Ints, int], list[Texts]]


# The first one, purchases in a shop, takes what the others leave. Transfers and orders bring their login with them.
STORIES = (
    Story(0.0, 1, 0, partial(_purchases, at_home=True)),
    Story(0.17, 1, 0, partial(_purchases, at_home=False)),
    Story(0.06, 1, 0, _logins),
    Story(0.01, 2, 40 * SECOND, _typos),
    Story(0.05, 2, 5 * MINUTE, _transfers),
    Story(0.04, 3, 40 * MINUTE, partial(_orders, paid=True)),
    Story(0.002, 3, 40 * MINUTE, partial(_orders, paid=False)),
    Story(0.015, 1, 0, _refunds),
)
