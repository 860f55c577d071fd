"""Test data that can be scored: `samovar generate fraud|sessions`.

The same arguments give the same bytes. Lines come in order of event time, or, with `disorder_ms`, at most that much
behind the newest line before them; memory does not grow with their number. What is planted among them is told by labels
in a file of their own, one JSON object for each event that is part of something:

    line       which event: its line, counted from 0 as `samovar match` does
    kind       what it is part of, named as the rule that is for it, e.g. "card-testing"
    incident   which one, e.g. "f-000012"

In the fraud stream about one incident, and one honest double of it, begins with every 1,000 events, the kinds in
turn; one double in ten does all that a fraud does, and is honest all the same. Everyone in it has ordinary events
before it. In the session stream every bounce, abandoned cart and completed funnel is labelled, and rage clicks and bots
are planted, each with a double, in turn with every 1,000 events.
"""

from __future__ import annotations

import gzip
import heapq
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import IO, TypeAlias, cast

import numpy as np

from samovar.service.offline.synth import fraud, plants, sessions
from samovar.service.offline.synth.world import DAY, HOUR, Ints, Label, Line, Part

START_MS = 1_767_571_200_000  # 2026-01-05, a Monday, 00:00 UTC
STREAMS = ("fraud", "sessions")
SLICE = 20_000
SPACING = 1_000  # events from one incident to the next
UNLUCKY = 10  # of so many honest doubles one cannot be told from a fraud
EARLIER = 1_000  # incidents that may have begun before number 0

# An account sleeps from about a hundred days before the stream; the rule looks back a year.
SLEPT_FROM, SLEPT_TO = 110 * DAY, 100 * DAY
LAST_WAKENING = 240 * DAY
MOST_SLEEPERS = 1_000  # their prologue is held in memory

LabelledLine: TypeAlias = tuple[str, Label | None]


@dataclass(frozen=True, slots=True)
class Slice:
    """A stretch of the stream. No later slice holds an event before `end_ms`; this one may hold later ones."""

    end_ms: int
    times: Ints
    lines: list[LabelledLine]


def generate(
    kind: str, events: int, keys: int, seed: int = 1, disorder_ms: int = 0, start_ms: int = START_MS
) -> Iterator[str]:
    """JSON lines without their line ends, `events` of them."""
    for block in generate_blocks(kind, events, keys, seed, disorder_ms, start_ms):
        for line, _ in block:
            yield line


def generate_blocks(
    kind: str, events: int, keys: int, seed: int = 1, disorder_ms: int = 0, start_ms: int = START_MS
) -> Iterator[list[LabelledLine]]:
    """The same lines with their labels, many at a time."""
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
    labels: Path | None = None,
) -> None:
    """To a file (gzip where its name ends in .gz), or to standard output; labels only to a file."""
    with ExitStack() as stack:
        sink = sys.stdout.buffer if out is None else _open_output(stack, out)
        label_sink = None if labels is None else _open_output(stack, labels)
        count = 0
        for block in generate_blocks(kind, events, keys, seed, disorder_ms, start_ms):
            sink.write("".join(f"{line}\n" for line, _ in block).encode())
            if label_sink is not None:
                label_sink.write("".join(_label_lines(block, count)).encode())
            count += len(block)


def _open_output(stack: ExitStack, path: Path) -> IO[bytes]:
    raw = stack.enter_context(path.open("wb"))
    if path.suffix != ".gz":
        return raw
    # Without a name and a time in its header the file has the same bytes every time.
    packed = stack.enter_context(gzip.GzipFile("", "wb", compresslevel=5, fileobj=raw, mtime=0))
    return cast("IO[bytes]", packed)


def _label_lines(block: list[LabelledLine], first: int) -> Iterator[str]:
    for number, (_, label) in enumerate(block, first):
        if label is not None:
            yield json.dumps({"line": number, "kind": label[0], "incident": label[1]}) + "\n"


def _in_order(slices: Iterable[Slice], disorder_ms: int, seed: int) -> Iterator[list[LabelledLine]]:
    """Lines by time of arrival: event time, plus up to `disorder_ms`. What lies beyond a slice waits in a heap."""
    rng = np.random.default_rng([seed, 77])
    waiting: list[tuple[int, int, LabelledLine]] = []
    count = 0
    for part in slices:
        arrivals = part.times
        if disorder_ms:
            arrivals = arrivals + rng.integers(0, disorder_ms + 1, len(arrivals))
        due = arrivals < part.end_ms
        for place in np.flatnonzero(~due).tolist():
            heapq.heappush(waiting, (int(arrivals[place]), count + place, part.lines[place]))
        count += len(arrivals)
        earlier = []
        while waiting and waiting[0][0] < part.end_ms:
            earlier.append(heapq.heappop(waiting))
        places = np.flatnonzero(due)
        lines = [line for _, _, line in earlier]
        lines += [part.lines[place] for place in places.tolist()]
        keys = np.concatenate((np.array([arrival for arrival, _, _ in earlier], dtype=np.int64), arrivals[places]))
        yield [lines[place] for place in np.argsort(keys, kind="stable").tolist()]
    yield [heapq.heappop(waiting)[2] for _ in range(len(waiting))]


def _gather(end_ms: int, parts: list[Part], planted: list[Line]) -> Slice:
    times = [part[0] for part in parts] + [np.array([ts for ts, _, _ in planted], dtype=np.int64)]
    lines = [pair for _, texts, labels in parts for pair in zip(texts, labels, strict=True)]
    return Slice(end_ms, np.concatenate(times), lines + [(line, label) for _, line, label in planted])


# ---------------------------------------------------------------- fraud


def _fraud_slices(events: int, keys: int, seed: int, start_ms: int) -> Iterator[Slice]:
    world = fraud.make_world(np.random.default_rng([seed, 1]), keys, start_ms)
    incidents = events // (SPACING + 20)  # some of the events are the prologue
    lead_ms = max(HOUR // 2, min(DAY, (world.clock.time(events) - start_ms) // 10))
    before = prologue(world, range(incidents), seed)
    yield _gather(start_ms - SLEPT_TO, [], before)
    for first in range(0, events - len(before), SLICE):
        size = min(SLICE, events - len(before) - first)
        numbers = range(-(-first // SPACING), min(incidents, -(-(first + size) // SPACING)))
        planted = [line for number in numbers for line in incident(world, number, seed, lead_ms)]
        parts = fraud.honest(world, (seed, 3, first), first, size, size - len(planted))
        yield _gather(world.clock.time(first + size), parts, planted)


def _incident_kind(world: fraud.FraudWorld, number: int, spacing: int) -> str:
    turn, place = divmod(number, len(plants.KINDS))
    kind = plants.KINDS[place]
    late = world.clock.time(number * spacing) > world.clock.start_ms + LAST_WAKENING
    if kind == "dormant-account" and (turn >= MOST_SLEEPERS or late):
        return plants.KINDS[0]
    return kind


def _scene(
    world: fraud.FraudWorld, number: int, seed: int, start: int, longest_ms: int, *, double: bool
) -> plants.IncidentScene:
    random = Random(f"{seed}/{number}/{double}")
    honest = double and number // len(plants.KINDS) % UNLUCKY != UNLUCKY - 1
    stranger = world.population.size + 2 * (number + EARLIER) + double
    return plants.IncidentScene(
        world=world, random=random, start=start, stranger=stranger, honest=honest, longest_ms=longest_ms
    )


def incident(
    world: fraud.FraudWorld,
    number: int,
    seed: int,
    lead_ms: int,
    spacing: int = SPACING,
    longest_ms: int = plants.AS_LONG,
) -> list[Line]:
    """A planted fraud with its labels, and its double without. Both begin with `lead_ms` of ordinary life."""
    kind = _incident_kind(world, number, spacing)
    start = world.clock.time(number * spacing) + lead_ms
    lines: list[Line] = []
    for double in (False, True):
        scene = _scene(world, number, seed, start, longest_ms, double=double)
        label = None if double else (kind, f"f-{number:06d}")
        planted = plants.FRAUDS[kind](scene)
        lines += [(ts, line, label) for ts, line in planted]
        lines += [(ts, line, None) for ts, line in plants.life(kind, scene, planted, lead_ms)]
    return lines


def prologue(world: fraud.FraudWorld, numbers: range, seed: int, spacing: int = SPACING) -> list[Line]:
    """The last transfers of the accounts that wake up in these incidents, months before the stream proper."""
    start, kind = world.clock.start_ms, "dormant-account"
    sleepers = [number for number in numbers if _incident_kind(world, number, spacing) == kind]
    step = (SLEPT_FROM - SLEPT_TO) / max(1, 2 * len(sleepers))
    lines: list[Line] = []
    for place, number in enumerate(sleepers):
        for double in (False, True):
            ts = start - SLEPT_FROM + int((2 * place + double) * step)
            scene = _scene(world, number, seed, ts, plants.AS_LONG, double=double)
            lines.append((*plants.slept_since(scene, ts), None))
    return lines


# ---------------------------------------------------------------- sessions


def _session_slices(events: int, keys: int, seed: int, start_ms: int) -> Iterator[Slice]:
    world = sessions.make_world(np.random.default_rng([seed, 2]), seed, keys, start_ms)
    for first in range(0, events, SLICE):
        size = min(SLICE, events - first)
        numbers = range(-(-first // SPACING), (first + size) // SPACING)
        planted = [line for number in numbers for line in visits(world, number, seed)]
        parts = sessions.honest(world, (seed, 4, first), first, size, size - len(planted))
        yield _gather(world.clock.time(first + size), parts, planted)


def visits(world: sessions.SessionWorld, number: int, seed: int, spacing: int = SPACING) -> list[Line]:
    """A planted visit with its label, and its double without."""
    kinds = tuple(sessions.PLANTS)
    kind = kinds[number % len(kinds)]
    random = Random(f"{seed}/{number}")
    start = world.clock.time(number * spacing)
    lines: list[Line] = []
    for honest in (False, True):
        visitor = random.randrange(world.population.size)
        city = int(world.population.city_of[visitor % world.population.distinct])
        label = None if honest else (kind, f"p-{number:06d}")
        lines += sessions.planted_visit(
            kind, sessions.VisitScene(random=random, start=start, visitor=visitor, city=city, honest=honest), label
        )
    return lines
