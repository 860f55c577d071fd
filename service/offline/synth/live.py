"""Generated events without an end, for a stream that runs in real time.

The whole of it is fixed by seed, keys, the moment at which it began, and its rates, a block at a time: anyone who
stopped goes on at any later moment without repeating an event, from nothing but how far he had come. Events come out by
the time at which they arrive, which is up to DISORDER_MS after they happened.

What had begun before such a moment is made again and, as far as it was due, left out: an order that was placed before a
stop is paid after it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import NamedTuple, Protocol

import numpy as np

from samovar.common.wire import stored
from samovar.service.offline import generate
from samovar.service.offline.synth import fraud, sessions
from samovar.service.offline.synth import plants as synth_plants
from samovar.service.offline.synth.world import DAY, HOUR, MINUTE, SECOND, Label, Line, Part, SynthClock, scatter

BLOCK_EVENTS = 20_000  # a block is a minute, at high rates as long as so many events take
DISORDER_MS = 500
PLANT_EVERY_MS = 10_000  # a fraud and its double, or a planted visit
PLANT_LEAD_MS = 30 * MINUTE  # of ordinary life before a fraud
PLANT_LONGEST_MS = 8 * MINUTE  # where a fraud may take its time
PLANT_RATE = 3.0  # events per second of all that is planted
PLANT_BACK_MS = 2 * HOUR  # with its lead and what follows, a plant is over after that
KEYS_MOST = 20_000_000


class Arrival(NamedTuple):
    """An event and when it arrives; `ts` is the time inside the line."""

    at_ms: int
    ts: int
    line: str
    label: Label | None


@stored("from_ms rate")
@dataclass(frozen=True)
class Stretch:
    """From when on events come at a rate."""

    from_ms: int
    rate: float

    @property
    def block_ms(self) -> int:
        return int(min(MINUTE, max(SECOND, BLOCK_EVENTS / self.rate * 1_000)))

    @property
    def block_events(self) -> int:
        """Honest events in a block: what plants leave of the rate, half of it at least."""
        return round(max(self.rate - PLANT_RATE, self.rate / 2) * self.block_ms / 1_000)


@stored("kind keys seed stretches")
@dataclass(frozen=True)
class Recipe:
    """All that the events depend on. A stretch but the last ends at the end of a block, where the next one begins."""

    kind: str
    keys: int
    seed: int
    stretches: tuple[Stretch, ...]

    @property
    def start_ms(self) -> int:
        return self.stretches[0].from_ms

    def rate_at(self, ms: int) -> float:
        return next((each.rate for each in reversed(self.stretches) if each.from_ms <= ms), self.stretches[0].rate)

    def at_rate(self, rate: float, from_ms: int) -> Recipe:
        """The same traffic at another rate, from the end of the block on that holds this moment."""
        last = self.stretches[-1]
        blocks = -(-max(0, from_ms - last.from_ms) // last.block_ms)
        return replace(self, stretches=(*self.stretches, Stretch(last.from_ms + blocks * last.block_ms, rate)))

    def blocks(self, since_ms: int) -> Iterator[tuple[int, Stretch]]:
        """Where each block begins, from the one on that holds this moment, and the stretch of which it is."""
        ends = [*(each.from_ms for each in self.stretches[1:]), 1 << 62]
        for stretch, end_ms in zip(self.stretches, ends, strict=True):
            skipped = max(0, since_ms - stretch.from_ms) // stretch.block_ms
            for begin_ms in range(stretch.from_ms + skipped * stretch.block_ms, end_ms, stretch.block_ms):
                yield begin_ms, stretch


class TrafficMaker(Protocol):
    """The lines of a kind of traffic. `back_ms` is how long what people begin may take."""

    back_ms: int

    def before(self) -> list[Line]:
        """What happened long before the start."""
        ...

    def planted(self, number: int) -> list[Line]: ...
    def honest(self, begin_ms: int, stretch: Stretch, since_ms: int) -> list[Part]:
        """What begins in a block, as far as it may not be over at `since_ms`."""
        ...


def keys_for(rate: float) -> int:
    """So many people that nobody does more than people do."""
    return int(min(KEYS_MOST, max(5_000, rate * 86_400 / fraud.EVENTS_A_USER_A_DAY)))


class SynthFeed:
    """Events of a recipe from `since_ms` on, in the order of their arrival. Gives each once."""

    def __init__(self, recipe: Recipe, since_ms: int | None = None) -> None:
        self._start = recipe.start_ms
        self._maker: TrafficMaker = FraudMaker(recipe) if recipe.kind == "fraud" else SessionMaker(recipe)
        self._since = 0 if since_ms is None else since_ms
        self._waiting: dict[int, list[Arrival]] = defaultdict(list)  # by the second of their arrival
        # Plants have numbers by their time; the first ones began before the traffic did.
        self._plant = -PLANT_LEAD_MS // PLANT_EVERY_MS
        if since_ms is None:
            self._add_lines(self._maker.before())
        else:
            self._plant = max(self._plant, (since_ms - recipe.start_ms - PLANT_BACK_MS) // PLANT_EVERY_MS)
        self._blocks = recipe.blocks(self._since - self._maker.back_ms)
        self._block = next(self._blocks)

    def due(self, until_ms: int) -> list[Arrival]:
        """All that arrives before this time and was not given yet."""
        while self._start + self._plant * PLANT_EVERY_MS < until_ms:
            self._add_lines(self._maker.planted(self._plant))
            self._plant += 1
        while self._block[0] < until_ms:
            for part in self._maker.honest(*self._block, self._since - DISORDER_MS):
                self._add(part)
            self._block = next(self._blocks)
        found: list[Arrival] = []
        for second in sorted(each for each in self._waiting if each * SECOND < until_ms):
            arrivals = self._waiting.pop(second)
            arrivals.sort(key=itemgetter(0))
            if (second + 1) * SECOND > until_ms:
                later = [each for each in arrivals if each.at_ms >= until_ms]
                if later:
                    self._waiting[second] = later
                    arrivals = arrivals[: -len(later)]
            found += arrivals
        return found

    def _add_lines(self, lines: list[Line]) -> None:
        times = np.array([ts for ts, _, _ in lines], dtype=np.int64)
        self._add((times, [line for _, line, _ in lines], [label for _, _, label in lines]))

    def _add(self, part: Part) -> None:
        times, lines, labels = part
        arrivals = (times + scatter(times, 5) % (DISORDER_MS + 1)).tolist()
        waiting, since = self._waiting, self._since
        for arrival in map(Arrival, arrivals, times.tolist(), lines, labels):
            if arrival[0] >= since:
                waiting[arrival[0] // SECOND].append(arrival)


# ---------------------------------------------------------------- the two kinds


def _steady(start_ms: int) -> SynthClock:
    """A place in the stream is a millisecond: the rate is the same by day and by night."""
    return SynthClock(start_ms, float(DAY), np.linspace(0.0, 1.0, 25))


class FraudMaker:
    back_ms = max(story.longest_ms for story in fraud.STORIES)

    def __init__(self, recipe: Recipe) -> None:
        world = fraud.make_world(np.random.default_rng([recipe.seed, 1]), recipe.keys, recipe.start_ms)
        self._world = replace(world, clock=_steady(recipe.start_ms))
        self._seed = recipe.seed

    def before(self) -> list[Line]:
        numbers = range(-PLANT_LEAD_MS // PLANT_EVERY_MS, generate.MOST_SLEEPERS * len(synth_plants.KINDS))
        return generate.prologue(self._world, numbers, self._seed, PLANT_EVERY_MS)

    def planted(self, number: int) -> list[Line]:
        return generate.incident(self._world, number, self._seed, PLANT_LEAD_MS, PLANT_EVERY_MS, PLANT_LONGEST_MS)

    def honest(self, begin_ms: int, stretch: Stretch, since_ms: int) -> list[Part]:
        first = begin_ms - self._world.clock.start_ms
        size, events = stretch.block_ms, stretch.block_events
        return fraud.honest(self._world, (self._seed, 3, first), first, size, events, since_ms)


class SessionMaker:
    back_ms = 10 * MINUTE  # few visits are longer

    def __init__(self, recipe: Recipe) -> None:
        world = sessions.make_world(np.random.default_rng([recipe.seed, 2]), recipe.seed, recipe.keys, recipe.start_ms)
        self._world = replace(world, clock=_steady(recipe.start_ms))
        self._seed = recipe.seed

    def before(self) -> list[Line]:
        return []

    def planted(self, number: int) -> list[Line]:
        return generate.visits(self._world, number, self._seed, PLANT_EVERY_MS)

    def honest(self, begin_ms: int, stretch: Stretch, since_ms: int) -> list[Part]:
        first = begin_ms - self._world.clock.start_ms
        size, events = stretch.block_ms, stretch.block_events
        return sessions.honest(self._world, (self._seed, 3, first), first, size, events, since_ms)
