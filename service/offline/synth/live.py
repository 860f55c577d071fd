"""Generated events without an end, for a stream that runs in real time.

The whole of it is fixed by seed, keys, rate and the moment at which it began, a block of a minute at a time: anyone who
stopped goes on at any later moment without repeating an event, from nothing but how far he had come. Events come out by
the time at which they arrive, which is up to DISORDER_MS after they happened.

What had begun in the hour before such a moment is made again and, as far as it was due, left out: an order that was
placed before a stop is paid after it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from samovar.common.wire import stored
from samovar.service.offline import generate
from samovar.service.offline.synth import fraud, sessions
from samovar.service.offline.synth import plants as synth_plants
from samovar.service.offline.synth.world import DAY, HOUR, MINUTE, SynthClock

BLOCK_MS = MINUTE
DISORDER_MS = 500
PLANT_EVERY_MS = 10_000  # a fraud and its double, or a planted visit
PLANT_LONGEST_MS = 8 * MINUTE  # where a fraud may take its time
BACK_MS = HOUR  # what began before that is not taken up again
KEYS_MOST = 1_000_000


class Arrival(NamedTuple):
    """An event and when it arrives; `ts` is the time inside the line."""

    at_ms: int
    ts: int
    line: str


@stored("kind start_ms rate keys seed first_block")
@dataclass(frozen=True)
class Recipe:
    """All that the events depend on. `start_ms` is the time of the first one; what was before `first_block` was made
    at another rate, and is not made again.
    """

    kind: str
    start_ms: int
    rate: float
    keys: int
    seed: int
    first_block: int = 0

    def at_rate(self, rate: float, from_ms: int) -> tuple[Recipe, int]:
        """The same traffic at another rate, and the moment at which that can begin."""
        block = -(-(from_ms - self.start_ms) // BLOCK_MS)
        return replace(self, rate=rate, first_block=block), self.start_ms + block * BLOCK_MS


class TrafficMaker(Protocol):
    """The lines of a kind of traffic, by their times."""

    def before(self) -> list[tuple[int, str]]:
        """What happened long before the start."""
        ...

    def planted(self, number: int) -> list[tuple[int, str]]: ...
    def honest(self, rng: np.random.Generator, first: int, events: int) -> list[tuple[int, str]]: ...


def keys_for(rate: float) -> int:
    """So many people that nobody does more than people do."""
    return int(min(KEYS_MOST, max(5_000, rate * 86_400 / fraud.EVENTS_A_USER_A_DAY)))


class SynthFeed:
    """Events of a recipe from `since_ms` on, in the order of their arrival. Gives each once."""

    def __init__(self, recipe: Recipe, since_ms: int | None = None) -> None:
        self._recipe = recipe
        self._maker = _maker(recipe)
        self._since = since_ms
        self._waiting: list[Arrival] = []
        begin = recipe.start_ms if since_ms is None else since_ms
        self._next_block = max(0, begin - recipe.start_ms) // BLOCK_MS
        if since_ms is None:
            self._add(Arrival(ts, ts, line) for ts, line in self._maker.before())
        else:
            self._catch_up()

    def due(self, until_ms: int) -> list[Arrival]:
        """All that arrives before this time and was not given yet."""
        while self._recipe.start_ms + self._next_block * BLOCK_MS < until_ms:
            self._add(self._block(self._next_block))
            self._next_block += 1
        found = []
        while self._waiting and self._waiting[0].at_ms < until_ms:
            found.append(heapq.heappop(self._waiting))
        return found

    def _catch_up(self) -> None:
        first = max(self._recipe.first_block, self._next_block - BACK_MS // BLOCK_MS)
        for number in range(first, self._next_block):
            self._add(self._block(number))

    def _add(self, arrivals: Iterator[Arrival]) -> None:
        for each in arrivals:
            if self._since is None or each.at_ms >= self._since:
                heapq.heappush(self._waiting, each)

    def _block(self, number: int) -> Iterator[Arrival]:
        """What begins in a block. Its numbers depend on nothing but the recipe and the block's own."""
        per_block = BLOCK_MS // PLANT_EVERY_MS
        plants = range(number * per_block, (number + 1) * per_block)
        planted = [line for plant in plants for line in self._maker.planted(plant)]
        yield from self._arriving(planted, number, 4)
        rng = np.random.default_rng([self._recipe.seed, 3, number])
        events = max(0, round(self._recipe.rate * BLOCK_MS / 1000) - len(planted))
        yield from self._arriving(self._maker.honest(rng, number * BLOCK_MS, events), number, 5)

    def _arriving(self, lines: list[tuple[int, str]], number: int, salt: int) -> Iterator[Arrival]:
        rng = np.random.default_rng([self._recipe.seed, salt, number])
        delays = rng.integers(0, DISORDER_MS + 1, len(lines)).tolist()
        for (ts, line), delay in zip(lines, delays, strict=True):
            yield Arrival(ts + delay, ts, line)


# ---------------------------------------------------------------- the two kinds


def _maker(recipe: Recipe) -> TrafficMaker:
    return FraudMaker(recipe) if recipe.kind == "fraud" else SessionMaker(recipe)


def _steady(start_ms: int) -> SynthClock:
    """A place in the stream is a millisecond: the rate is the same by day and by night."""
    return SynthClock(start_ms, float(DAY), np.linspace(0.0, 1.0, 25))


class FraudMaker:
    def __init__(self, recipe: Recipe) -> None:
        rng = np.random.default_rng([recipe.seed, 1])
        world = fraud.make_world(rng, recipe.keys, recipe.start_ms)
        self._world = replace(world, clock=_steady(recipe.start_ms))
        self._seed = recipe.seed

    def before(self) -> list[tuple[int, str]]:
        most = generate.MOST_SLEEPERS * len(synth_plants.KINDS)
        sleepers = generate.sleepers_of(self._world, most, PLANT_EVERY_MS)
        return generate.prologue(self._world, sleepers, self._seed)

    def planted(self, number: int) -> list[tuple[int, str]]:
        return generate.incident(self._world, number, self._seed, PLANT_EVERY_MS, PLANT_LONGEST_MS)

    def honest(self, rng: np.random.Generator, first: int, events: int) -> list[tuple[int, str]]:
        return _lines(fraud.honest(self._world, rng, first, BLOCK_MS, events))


class SessionMaker:
    def __init__(self, recipe: Recipe) -> None:
        rng = np.random.default_rng([recipe.seed, 2])
        world = sessions.make_world(rng, recipe.seed, recipe.keys, recipe.start_ms)
        self._world = replace(world, clock=_steady(recipe.start_ms))
        self._seed = recipe.seed

    def before(self) -> list[tuple[int, str]]:
        return []

    def planted(self, number: int) -> list[tuple[int, str]]:
        return generate.visits(self._world, number, self._seed, PLANT_EVERY_MS)

    def honest(self, rng: np.random.Generator, first: int, events: int) -> list[tuple[int, str]]:
        return _lines(sessions.honest(self._world, rng, first, BLOCK_MS, events))


def _lines(parts: list[fraud.Part]) -> list[tuple[int, str]]:
    return [pair for times, lines in parts for pair in zip(times.tolist(), lines, strict=True)]
