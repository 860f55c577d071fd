"""Test data that can be scored: `samovar generate fraud|sessions`.

The same arguments give the same bytes. Lines come in order of event time, or, with `disorder_ms`, at most that much
behind the newest line before them; memory does not grow with their number. A planted event carries two more fields,
which no schema of the examples names and no rule can therefore read:

    fraud_kind   what it is part of, named as the rule that is for it, e.g. "card-testing"
    fraud_id     which incident, e.g. "f-000012"

In the fraud stream about one incident, and one honest double of it, begins with every 1,000 events, the kinds in
turn; one double in ten does all that a fraud does, and is honest all the same. In the session stream every bounce,
abandoned cart and completed funnel is labelled, and rage clicks and bots are planted, each with a double, in turn with
every 1,000 events.
"""

from __future__ import annotations

import gzip
import heapq
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import IO

import numpy as np

from samovar.service.offline.synth import fraud, plants, sessions
from samovar.service.offline.synth.world import DAY, Ints

START_MS = 1_767_571_200_000  # 2026-01-05, a Monday, 00:00 UTC
STREAMS = ("fraud", "sessions")
SLICE = 20_000
SPACING = 1_000  # events from one incident to the next
UNLUCKY = 10  # of so many honest doubles one cannot be told from a fraud

# An account sleeps from about a hundred days before the stream; the rule looks back a year.
SLEPT_FROM, SLEPT_TO = 110 * DAY, 100 * DAY
LAST_WAKENING = 240 * DAY
MOST_SLEEPERS = 1_000  # their prologue is held in memory


@dataclass(frozen=True, slots=True)
class Slice:
    """A stretch of the stream. No later slice holds an event before `end_ms`; this one may hold later ones."""

    end_ms: int
    times: Ints
    lines: list[str]


def generate(
    kind: str, events: int, keys: int, seed: int = 1, disorder_ms: int = 0, start_ms: int = START_MS
) -> Iterator[str]:
    """JSON lines without their line ends, `events` of them."""
    for block in generate_blocks(kind, events, keys, seed, disorder_ms, start_ms):
        yield from block


def generate_blocks(
    kind: str, events: int, keys: int, seed: int = 1, disorder_ms: int = 0, start_ms: int = START_MS
) -> Iterator[list[str]]:
    """The same lines, many at a time."""
    if kind not in STREAMS:
        raise ValueError(f"unknown stream {kind!r}: choose one of {', '.join(STREAMS)}")
    if events < 0 or keys < 1 or disorder_ms < 0:
        raise ValueError("events and disorder must not be negative, and keys must be at least 1")
    make = _fraud_slices if kind == "fraud" else _session_slices
    return _in_order(make(events, keys, seed, start_ms), disorder_ms, seed)


def write(
    kind: str,
    events: int,
    keys: int,
    seed: int = 1,
    disorder_ms: int = 0,
    start_ms: int = START_MS,
    out: Path | None = None,
) -> None:
    """To a file (gzip where its name ends in .gz), or to standard output."""
    blocks = generate_blocks(kind, events, keys, seed, disorder_ms, start_ms)
    if out is None:
        _write_to(sys.stdout.buffer, blocks)
    elif out.suffix == ".gz":
        # Without a name and a time in its header the file has the same bytes every time.
        with out.open("wb") as raw, gzip.GzipFile("", "wb", compresslevel=5, fileobj=raw, mtime=0) as packed:
            _write_to(packed, blocks)
    else:
        with out.open("wb") as raw:
            _write_to(raw, blocks)


def _write_to(sink: IO[bytes] | gzip.GzipFile, blocks: Iterable[list[str]]) -> None:
    for block in blocks:
        if block:
            sink.write(("\n".join(block) + "\n").encode())


def _in_order(slices: Iterable[Slice], disorder_ms: int, seed: int) -> Iterator[list[str]]:
    """Lines by time of arrival: event time, plus up to `disorder_ms`. What lies beyond a slice waits in a heap."""
    rng = np.random.default_rng([seed, 77])
    waiting: list[tuple[int, int, str]] = []
    count = 0
    for part in slices:
        arrivals = part.times
        if disorder_ms:
            arrivals = arrivals + rng.integers(0, disorder_ms + 1, len(arrivals))
        due = arrivals < part.end_ms
        for place in np.flatnonzero(~due).tolist():
            heapq.heappush(waiting, (int(arrivals[place]), count + place, part.lines[place]))
        count += len(arrivals)
        earlier = _take_due(waiting, part.end_ms)
        places = np.flatnonzero(due)
        lines = [line for _, _, line in earlier]
        lines += [part.lines[place] for place in places.tolist()]
        keys = np.concatenate((np.array([arrival for arrival, _, _ in earlier], dtype=np.int64), arrivals[places]))
        yield [lines[place] for place in np.argsort(keys, kind="stable").tolist()]
    yield [heapq.heappop(waiting)[2] for _ in range(len(waiting))]


def _take_due(waiting: list[tuple[int, int, str]], end_ms: int) -> list[tuple[int, int, str]]:
    due = []
    while waiting and waiting[0][0] < end_ms:
        due.append(heapq.heappop(waiting))
    return due


def _gather(end_ms: int, parts: list[tuple[Ints, list[str]]], planted: list[tuple[int, str]]) -> Slice:
    times = [part[0] for part in parts]
    lines = [line for part in parts for line in part[1]]
    times.append(np.array([ts for ts, _ in planted], dtype=np.int64))
    return Slice(end_ms, np.concatenate(times), lines + [line for _, line in planted])


# ---------------------------------------------------------------- fraud


def _fraud_slices(events: int, keys: int, seed: int, start_ms: int) -> Iterator[Slice]:
    rng = np.random.default_rng([seed, 1])
    world = fraud.make_world(rng, keys, start_ms)
    incidents = events // (SPACING + 20)  # some of the events are the prologue
    sleepers = sleepers_of(world, incidents)
    yield _gather(start_ms - SLEPT_TO, [], prologue(world, sleepers, seed))
    honest_from = 2 * len(sleepers)
    for first in range(0, events - honest_from, SLICE):
        size = min(SLICE, events - honest_from - first)
        numbers = range(-(-first // SPACING), min(incidents, -(-(first + size) // SPACING)))
        planted = [line for number in numbers for line in incident(world, number, seed)]
        parts = fraud.honest(world, rng, first, size, size - len(planted))
        yield _gather(world.clock.time(first + size), parts, planted)


def _fraud_kind(world: fraud.FraudWorld, number: int, spacing: int = SPACING) -> str:
    turn, place = divmod(number, len(plants.KINDS))
    kind = plants.KINDS[place]
    late = world.clock.time(number * spacing) > world.clock.start_ms + LAST_WAKENING
    if kind == "dormant-account" and (turn >= MOST_SLEEPERS or late):
        return plants.KINDS[0]
    return kind


def sleepers_of(world: fraud.FraudWorld, incidents: int, spacing: int = SPACING) -> list[int]:
    """The incidents, by number, in which an account wakes up."""
    kinds = plants.KINDS
    numbers = range(kinds.index("dormant-account"), incidents, len(kinds))[:MOST_SLEEPERS]
    return [number for number in numbers if _fraud_kind(world, number, spacing) == "dormant-account"]


def _scene(
    world: fraud.FraudWorld,
    number: int,
    seed: int,
    *,
    double: bool,
    spacing: int = SPACING,
    longest_ms: int = plants.AS_LONG,
) -> plants.IncidentScene:
    random = Random(f"{seed}/{number}/{double}")
    honest = double and number // len(plants.KINDS) % UNLUCKY != UNLUCKY - 1
    stranger = world.population.size + 2 * number + double
    return plants.IncidentScene(world, random, world.clock.time(number * spacing), stranger, honest, longest_ms)


def incident(
    world: fraud.FraudWorld,
    number: int,
    seed: int,
    spacing: int = SPACING,
    longest_ms: int = plants.AS_LONG,
) -> list[tuple[int, str]]:
    """A planted fraud with its labels, and its double without."""
    kind = _fraud_kind(world, number, spacing)
    plant = plants.FRAUDS[kind]
    suffix = sessions.label(kind, f"f-{number:06d}") + "}"
    scenes = [
        _scene(world, number, seed, double=double, spacing=spacing, longest_ms=longest_ms) for double in (False, True)
    ]
    return [(ts, line[:-1] + suffix) for ts, line in plant(scenes[0])] + plant(scenes[1])


def prologue(world: fraud.FraudWorld, sleepers: list[int], seed: int) -> list[tuple[int, str]]:
    """The last transfers of the accounts that will wake up, months before the stream proper."""
    start = world.clock.start_ms
    step = (SLEPT_FROM - SLEPT_TO) / max(1, 2 * len(sleepers))
    lines = []
    for place, number in enumerate(sleepers):
        for double in (False, True):
            ts = start - SLEPT_FROM + int((2 * place + double) * step)
            lines.append(plants.slept_since(_scene(world, number, seed, double=double), ts))
    return lines


# ---------------------------------------------------------------- sessions


def _session_slices(events: int, keys: int, seed: int, start_ms: int) -> Iterator[Slice]:
    rng = np.random.default_rng([seed, 2])
    world = sessions.make_world(rng, seed, keys, start_ms)
    for first in range(0, events, SLICE):
        size = min(SLICE, events - first)
        numbers = range(-(-first // SPACING), (first + size) // SPACING)
        planted = [line for number in numbers for line in visits(world, number, seed)]
        parts = sessions.honest(world, rng, first, size, size - len(planted))
        yield _gather(world.clock.time(first + size), parts, planted)


def visits(world: sessions.SessionWorld, number: int, seed: int, spacing: int = SPACING) -> list[tuple[int, str]]:
    """A planted visit with its label, and its double without."""
    kinds = tuple(sessions.PLANTS)
    kind = kinds[number % len(kinds)]
    random = Random(f"{seed}/{number}")
    start = world.clock.time(number * spacing)
    lines = []
    for honest in (False, True):
        visitor = random.randrange(world.population.size)
        city = int(world.population.city_of[visitor])
        suffix = "" if honest else sessions.label(kind, f"p-{number:06d}")
        scene = sessions.VisitScene(random, start, visitor, city, suffix, honest)
        lines += sessions.PLANTS[kind](scene)
    return lines
