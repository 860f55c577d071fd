"""The web stream: visits of people and machines to a shop.

A visit follows one of some hundred shapes (which events, in which order), made once from the seed; a block of visits
is then laid out with array arithmetic. Every visit that a rule of examples/sessions is for has a label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from samovar.service.offline.synth.world import (
    CITIES,
    MINUTE,
    Ints,
    Label,
    Line,
    Part,
    Population,
    SynthClock,
    make_clock,
    make_population,
    skewed,
)

EVENTS_A_VISITOR_A_DAY = 6.0
PRODUCTS = 500
LONGEST_PAUSE = 20 * MINUTE

VIEW, PRODUCT, CLICK, AGAIN, CART, CHECKOUT, PAY = range(7)
# Typical pause before each of them, in ms. AGAIN is a second click right after the first.
PAUSES = np.array([15_000.0, 12_000.0, 5_000.0, 180.0, 10_000.0, 20_000.0, 40_000.0])

PAGES = ("/", "/sale", "/list/shoes", "/list/bags", "/list/coats", "/search", "/help", "/account", "/stores")
REFERRERS = ("direct", "search", "ads", "mail", "social")
ELEMENTS = ("menu", "search", "photo", "size", "buy", "more", "map", "close")

VIEW_LINE = '{"type":"view","ts":%d,"visitor":"v%07d","page":"%s","referrer":"%s","country":"%s"}'
CLICK_LINE = '{"type":"click","ts":%d,"visitor":"v%07d","page":"%s","element":"%s","x":%d,"y":%d}'
CART_LINE = '{"type":"cart","ts":%d,"visitor":"v%07d","sku":"s%04d","price":%d.%02d}'
CHECKOUT_LINE = '{"type":"checkout","ts":%d,"visitor":"v%07d","total":%d.%02d}'
PAY_LINE = '{"type":"pay","ts":%d,"visitor":"v%07d","amount":%d.%02d}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Shape n is the stretch of `codes` from first[n], length[n] long; `factor` is how often the price is owed."""

    kinds: list[str | None]
    first: Ints
    length: Ints
    codes: Ints
    factor: Ints


@dataclass(frozen=True, slots=True)
class SessionWorld:
    population: Population
    clock: SynthClock
    shapes: Shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class Visits:
    """A block of visits, laid out: one row per event."""

    times: Ints
    codes: Ints
    visitors: Ints
    cents: Ints
    items: Ints
    cities: Ints
    labels: Sequence[Label | None]


def make_world(rng: np.random.Generator, seed: int, keys: int, start_ms: int) -> SessionWorld:
    population = make_population(rng, keys)
    clock = make_clock(population, start_ms, keys * EVENTS_A_VISITOR_A_DAY)
    return SessionWorld(population, clock, _make_shapes(Random(f"shapes/{seed}")))


def honest(
    world: SessionWorld, seed: Sequence[int], first: int, size: int, events: int, since_ms: int = 0
) -> list[Part]:
    """Exactly `events` events of visits that begin on the places from `first` to `first + size`, without those before
    `since_ms`.
    """
    rng = np.random.default_rng(seed)
    chosen = _choose(world.shapes, rng, events)
    starts = world.clock.times(first + rng.random(len(chosen)) * size)
    return [_part(_lay_out(world, rng, chosen, starts, first), rng, since_ms)]


def _make_shapes(random: Random) -> Shapes:
    shapes: list[tuple[str | None, list[int]]] = [("bounce", [VIEW])] * 60
    for _ in range(70):
        shapes.append((None, _browse(random, 2, 14)))
    for _ in range(15):
        shapes.append((None, [*_browse(random, 2, 6), CLICK, *[AGAIN] * random.randrange(1, 4)]))
    for _ in range(30):
        end = [CHECKOUT] if random.random() < 0.4 else []
        shapes.append(("cart-abandoned", [*_browse(random, 1, 8), *_fill(random), *end]))
    for _ in range(15):
        shapes.append(("funnel-completed", [*_browse(random, 1, 8), *_fill(random), CHECKOUT, PAY]))
    codes = [code for _, shape in shapes for code in shape]
    factors = [shape.count(CART) if code in (CHECKOUT, PAY) else 1 for _, shape in shapes for code in shape]
    length = np.array([len(shape) for _, shape in shapes])
    first = np.concatenate(([0], np.cumsum(length)[:-1]))
    return Shapes(
        kinds=[kind for kind, _ in shapes], first=first, length=length, codes=np.array(codes), factor=np.array(factors)
    )


def _browse(random: Random, least: int, most: int) -> list[int]:
    return [VIEW, *random.choices((VIEW, PRODUCT, CLICK), (3, 4, 3), k=random.randrange(least, most + 1))]


def _fill(random: Random) -> list[int]:
    return [code for _ in range(random.randrange(1, 4)) for code in (PRODUCT, CART)]


def _choose(shapes: Shapes, rng: np.random.Generator, events: int) -> Ints:
    """Shapes whose lengths add up to `events`: as many as fit, the rest are visits of one view (shape 0)."""
    chosen = rng.integers(0, len(shapes.length), events)
    fitting = int(np.searchsorted(np.cumsum(shapes.length[chosen]), events, side="right"))
    left = events - int(shapes.length[chosen[:fitting]].sum())
    return np.concatenate((chosen[:fitting], np.zeros(left, dtype=np.int64)))


def _lay_out(world: SessionWorld, rng: np.random.Generator, chosen: Ints, starts: Ints, first: int) -> Visits:
    shapes = world.shapes
    lengths = shapes.length[chosen]
    begins = np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.int64)
    visit = np.repeat(np.arange(len(chosen)), lengths)
    row = np.arange(len(visit)) - begins[visit] + shapes.first[chosen][visit]
    codes = shapes.codes[row]
    pauses = np.minimum(PAUSES[codes] * np.exp(rng.normal(0.0, 0.6, len(codes))), LONGEST_PAUSE)
    passed = np.cumsum(pauses.astype(np.int64))
    prices = np.exp(rng.normal(3.6, 0.7, len(chosen))) * 100
    cents = np.clip(prices.astype(np.int64), 150, 90_000)[visit] * shapes.factor[row]
    kinds = [shapes.kinds[shape] for shape in chosen.tolist()]
    labels = [None if kind is None else (kind, f"s-{first + place:09d}") for place, kind in enumerate(kinds)]
    visitors = world.population.active(rng, starts)[visit]
    return Visits(
        times=starts[visit] + passed - passed[begins][visit],
        codes=codes,
        visitors=visitors,
        cents=cents,
        items=skewed(rng, np.full(len(chosen), PRODUCTS))[visit],
        cities=world.population.homes(visitors),
        labels=[labels[place] for place in visit.tolist()],
    )


def _part(visits: Visits, rng: np.random.Generator, since_ms: int = 0) -> Part:
    """The rows as text. Draws that only one type needs are made for all rows: the arrays stay aligned."""
    count = len(visits.times)
    pages = rng.integers(0, len(PAGES), count)
    spots = rng.integers(0, len(ELEMENTS), count)
    shifts = rng.integers(-8, 9, count)
    again = np.flatnonzero(visits.codes == AGAIN)
    for place in again.tolist():  # in order, so that a third click lies on the first as well
        spots[place], pages[place] = spots[place - 1], pages[place - 1]
    chosen = np.flatnonzero(visits.times >= since_ms)
    columns = (
        visits.codes,
        visits.times,
        visits.visitors,
        visits.cents,
        visits.items,
        visits.cities,
        pages,
        spots,
        shifts,
    )
    lines = [_line(*row) for row in zip(*(column[chosen].tolist() for column in columns), strict=True)]
    return visits.times[chosen], lines, [visits.labels[place] for place in chosen.tolist()]


def _line(code: int, ts: int, visitor: int, cents: int, item: int, city: int, page: int, spot: int, shift: int) -> str:
    if code in (CLICK, AGAIN):
        return click_line(ts, visitor, page, spot, shift)
    if code == VIEW:
        return view_line(ts, visitor, PAGES[page], city)
    if code == PRODUCT:
        return view_line(ts, visitor, f"/product/{item}", city)
    if code == CART:
        return CART_LINE % (ts, visitor, item, cents // 100, cents % 100)
    template = CHECKOUT_LINE if code == CHECKOUT else PAY_LINE
    return template % (ts, visitor, cents // 100, cents % 100)


def view_line(ts: int, visitor: int, page: str, city: int) -> str:
    return VIEW_LINE % (ts, visitor, page, REFERRERS[visitor % 5], CITIES[city].country)


def click_line(ts: int, visitor: int, page: int, spot: int, shift: int) -> str:
    return CLICK_LINE % (ts, visitor, PAGES[page], ELEMENTS[spot], 100 + 110 * spot + shift, 300 + shift)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitScene:
    """Where a visit is planted."""

    random: Random
    start: int
    visitor: int
    city: int
    honest: bool


def rage_clicks(scene: VisitScene) -> list[tuple[int, str]]:
    """Quick clicks on one spot; the honest double swipes along a photo."""
    random = scene.random
    page, spot, step = random.randrange(len(PAGES)), 2 if scene.honest else 4, 40 if scene.honest else 1
    times = sorted(scene.start + number * random.randrange(150, 250) for number in range(random.randrange(6, 9)))
    return [(ts, click_line(ts, scene.visitor, page, spot, number * step)) for number, ts in enumerate(times)]


def bot_pace(scene: VisitScene) -> list[tuple[int, str]]:
    """A machine calls product after product; the honest double opens some pages in tabs."""
    views = scene.random.randrange(5, 10) if scene.honest else scene.random.randrange(15, 40)
    lines, ts = [], scene.start
    for number in range(views):
        page = f"/product/{(scene.visitor + number) % PRODUCTS}"
        lines.append((ts, view_line(ts, scene.visitor, page, scene.city)))
        ts += scene.random.randrange(60, 350)
    return lines


def planted_visit(kind: str, scene: VisitScene, label: Label | None) -> list[Line]:
    """The visitor looks round at leisure first, from the start of the scene on."""
    lines: list[Line] = []
    ts = scene.start
    for _ in range(scene.random.randrange(2, 5)):
        page = scene.random.choice(PAGES)
        lines.append((ts, view_line(ts, scene.visitor, page, scene.city), None))
        ts += scene.random.randrange(4_000, 30_000)
    return lines + [(when, line, label) for when, line in PLANTS[kind](replace(scene, start=ts))]


PLANTS = {"rage-clicks": rage_clicks, "bot-pace": bot_pace}
KINDS = ("bounce", "cart-abandoned", "funnel-completed", *PLANTS)
