"""What is planted in the fraud stream: one function a kind of fraud, each with an honest double that looks alike.

A function gives the lines of one incident. With `honest=True` it stays just below what makes it a fraud: one
purchase fewer, the user's own device, a payment at the last minute. `life` is what people do before and after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import asin, cos, radians, sin, sqrt
from random import Random
from typing import TypeAlias

from samovar.service.offline.synth.fraud import (
    CANCEL,
    LOGIN,
    ORDER,
    PURCHASE,
    REFUND,
    TRANSFER,
    FraudWorld,
    home_ip,
    order_id,
)
from samovar.service.offline.synth.world import CITIES, DAY, HOUR, MINUTE

Text: TypeAlias = tuple[int, str]
AS_LONG = 1 << 60  # an incident may take as long as it does


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentScene:
    """Where an incident happens. `stranger` is a user whom the honest stream never shows; no two scenes share one,
    so names of orders, devices and accounts are made from it. With `longest_ms` a fraud that may take hours is over
    sooner, so that one who watches live traffic sees its end. `people` are those who turned out to be part of it.
    """

    world: FraudWorld
    random: Random
    start: int
    stranger: int
    honest: bool
    longest_ms: int = AS_LONG
    people: list[int] = field(default_factory=list)

    def victim(self) -> int:
        return self.known(self.random.randrange(self.world.population.size))

    def known(self, user: int) -> int:
        """One who has a life besides."""
        self.people.append(user)
        return user

    def spread(self, count: int, within: int) -> list[int]:
        """Ascending times from the start, not beyond `within`."""
        within = self.at_most(within)
        return [self.start, *sorted(self.start + self.random.randrange(1, within) for _ in range(count - 1))]

    def at_most(self, ms: int) -> int:
        return min(ms, self.longest_ms)

    def cents(self, low: int, high: int) -> int:
        return self.random.randrange(low * 100, high * 100)

    def attacker_ip(self) -> str:
        return home_ip(16 * self.stranger + 1, self.stranger % len(CITIES))

    def purchase(self, ts: int, user: int, cents: int, *, city: int | None = None, merchant: int | None = None) -> Text:
        """In a shop of that city, else online."""
        place = self.random.randrange(len(CITIES)) if city is None else city
        chosen = self.world.merchant(place, self.random.randrange(50)) if merchant is None else merchant
        parts = self.world.online if city is None else self.world.in_shop
        return ts, PURCHASE % (ts, user * 2, user, cents // 100, cents % 100, chosen, parts[chosen % len(parts)])

    def login(self, ts: int, user: int, ok: bool, device: str, *, ip: str, country: str) -> Text:
        return ts, LOGIN % (ts, user, "true" if ok else "false", device, ip, country)

    def own_login(self, ts: int, user: int, ok: bool = True) -> Text:
        """With the user's first device, from home."""
        city = self.home(user)
        return self.login(ts, user, ok, f"d{user:07d}-0", ip=home_ip(user, city), country=CITIES[city].country)

    def foreign_login(self, ts: int, user: int, ok: bool) -> Text:
        """With the attacker's device, from his address."""
        country = CITIES[self.stranger % len(CITIES)].country
        return self.login(ts, user, ok, f"d{self.stranger:07d}-1", ip=self.attacker_ip(), country=country)

    def transfer(self, ts: int, user: int, cents: int, to: str) -> Text:
        return ts, TRANSFER % (ts, user, cents // 100, cents % 100, to)

    def order(self, kind: str, ts: int, user: int, cents: int) -> Text:
        return ts, ORDER % (kind, ts, self.order_id(), user, cents // 100, cents % 100)

    def order_id(self) -> str:
        return order_id(-1 - self.stranger)  # the others' numbers are not negative

    def receiver(self) -> str:
        return f"a{8 * self.stranger:08d}"

    def home(self, user: int) -> int:
        population = self.world.population
        return int(population.city_of[user % population.distinct])


def card_testing(scene: IncidentScene) -> list[Text]:
    user = scene.victim()
    probes = 2 if scene.honest else scene.random.randrange(3, 7)
    times = scene.spread(probes + 1, 9 * MINUTE)
    small = [scene.purchase(ts, user, scene.random.randrange(50, 199)) for ts in times[:-1]]
    return [*small, scene.purchase(times[-1], user, scene.cents(220, 1500))]


def impossible_travel(scene: IncidentScene) -> list[Text]:
    user = scene.victim()
    here = scene.home(user)
    far = [city for city in range(len(CITIES)) if 900 < _km(here, city) < 4000] or [
        city for city in range(len(CITIES)) if _km(here, city) >= 4000
    ]
    there = scene.random.choice(far)
    kmh = scene.random.uniform(700, 850) if scene.honest else scene.random.uniform(1200, 6000)
    hours = _km(here, there) / kmh
    later = scene.start + (int(hours * HOUR) if scene.honest else scene.at_most(int(min(hours, 5.0) * HOUR)))
    return [
        scene.purchase(scene.start, user, scene.cents(10, 80), city=here),
        scene.purchase(later, user, scene.cents(50, 190), city=there),
    ]


def velocity_count(scene: IncidentScene) -> list[Text]:
    user = scene.victim()
    count = scene.random.randrange(8, 11) if scene.honest else scene.random.randrange(11, 16)
    return [scene.purchase(ts, user, scene.cents(5, 60)) for ts in scene.spread(count, 9 * MINUTE)]


def velocity_sum(scene: IncidentScene) -> list[Text]:
    user = scene.victim()
    each = (500, 750) if scene.honest else (900, 1400)
    return [scene.purchase(ts, user, scene.cents(*each)) for ts in scene.spread(6, 12 * HOUR)]


def account_takeover(scene: IncidentScene) -> list[Text]:
    user = scene.victim()
    times = scene.spread(6, 40 * MINUTE)
    login = scene.own_login if scene.honest else scene.foreign_login
    known = [scene.own_login(scene.start, user)] if scene.honest else []
    failures = [login(ts, user, ok=False) for ts in times[:4]]
    theft = scene.transfer(times[5], user, scene.cents(500, 4000), scene.receiver())
    return [*known, *failures, login(times[4], user, ok=True), theft]


def dormant_account(scene: IncidentScene) -> list[Text]:
    """The wakening; the last transfer before the long sleep is in the prologue."""
    cents = scene.cents(200, 1000) if scene.honest else scene.cents(1100, 8000)
    later = scene.start + scene.random.randrange(MINUTE, 10 * MINUTE)
    user = scene.known(scene.stranger)
    return [scene.own_login(scene.start, user), scene.transfer(later, user, cents, scene.receiver())]


def structuring(scene: IncidentScene) -> list[Text]:
    user = scene.victim()
    times = scene.spread(scene.random.randrange(3, 6), 20 * HOUR)
    sums = [scene.cents(9_050, 10_000) for _ in times]
    if scene.honest:  # two just below, the others where nobody hides
        sums[2:] = [scene.cents(10_000, 12_000) for _ in sums[2:]]
    return [scene.transfer(ts, user, cents, scene.receiver()) for ts, cents in zip(times, sums, strict=True)]


def card_farm(scene: IncidentScene) -> list[Text]:
    merchant = scene.random.randrange(scene.world.merchants)
    cards = scene.random.randrange(4, 7) if scene.honest else scene.random.randrange(9, 15)
    users = [scene.victim() for _ in range(cards)]
    times = scene.spread(12 if scene.honest else cards, 9 * MINUTE)
    return [
        scene.purchase(ts, users[place % cards], scene.random.randrange(50, 199), merchant=merchant)
        for place, ts in enumerate(times)
    ]


def refund_abuse(scene: IncidentScene) -> list[Text]:
    user = scene.victim()
    sums, day = [scene.cents(120, 350) for _ in range(5)], scene.at_most(3 * DAY) // 3
    bought = [scene.purchase(ts, user, cents) for ts, cents in zip(scene.spread(5, day), sums, strict=True)]
    back = sums[:3] if scene.honest else sums
    lines = []
    for cents in back:
        ts = scene.start + scene.random.randrange(day, 3 * day)
        merchant = scene.random.randrange(scene.world.merchants)
        lines.append((ts, REFUND % (ts, user * 2, user, cents // 100, cents % 100, merchant)))
    return [*bought, *lines]


def country_hopping(scene: IncidentScene) -> list[Text]:
    user = scene.victim()
    home = CITIES[scene.home(user)].country
    others = sorted({city.country for city in CITIES} - {home})
    abroad = scene.random.sample(others, 1 if scene.honest else scene.random.randrange(2, 5))
    countries = [home, *abroad] * (2 if scene.honest else 1)
    times = scene.spread(len(countries), 5 * HOUR)
    return [
        scene.login(ts, user, ok=True, device=f"d{user:07d}-0", ip=scene.attacker_ip(), country=country)
        for ts, country in zip(times, countries, strict=True)
    ]


def password_spray(scene: IncidentScene) -> list[Text]:
    users = scene.random.randrange(6, 10) if scene.honest else scene.random.randrange(11, 20)
    names = [scene.victim() for _ in range(users)]
    times = scene.spread(users, 9 * MINUTE)
    return [scene.foreign_login(ts, user, ok=False) for ts, user in zip(times, names, strict=True)]


def payment_without_login(scene: IncidentScene) -> list[Text]:
    user, cents = scene.known(scene.stranger), scene.cents(60, 900)
    paid = scene.start + max(5 * MINUTE, scene.at_most(23 * HOUR if scene.honest else 25 * HOUR))
    # Where a day is too long to wait for, the thief never logged in.
    known = [scene.own_login(scene.start, user)] if scene.honest or scene.longest_ms > DAY else []
    return [
        *known,
        scene.order("order", paid - 5 * MINUTE, user, cents),
        scene.order("payment", paid, user, cents),
    ]


def order_unpaid(scene: IncidentScene) -> list[Text]:
    user, cents = scene.victim(), scene.cents(25, 600)
    placed = scene.start + 2 * MINUTE
    lines = [scene.own_login(scene.start, user), scene.order("order", placed, user, cents)]
    if not scene.honest:
        return lines
    if scene.random.random() < 0.5:
        ts = placed + 59 * MINUTE
        return [*lines, (ts, CANCEL % (ts, scene.order_id(), user))]
    return [*lines, scene.order("payment", placed + 59 * MINUTE, user, cents)]


def mule_account(scene: IncidentScene) -> list[Text]:
    senders = scene.random.randrange(3, 6) if scene.honest else scene.random.randrange(7, 12)
    times = scene.spread(senders, 20 * HOUR)
    return [scene.transfer(ts, scene.victim(), scene.cents(110, 900), scene.receiver()) for ts in times]


def slept_since(scene: IncidentScene, ts: int) -> Text:
    """The last transfer from an account that `dormant_account` will wake."""
    return scene.transfer(ts, scene.stranger, scene.cents(20, 200), scene.receiver())


def life(kind: str, scene: IncidentScene, lines: list[Text], lead_ms: int) -> list[Text]:
    """What the people of an incident do in the time `lead_ms` before it, and most of them after it, as people do.

    Nothing of it makes or spoils a fraud: small sums, at home or online, on known devices. After an incident all buy
    online, because the last shop may be far from home, and some time lies between, for rules that count minutes.
    """
    random, gap = scene.random, lead_ms // 3
    begin, end = scene.start - lead_ms, max(ts for ts, _ in lines) + gap
    most = 4 if len(scene.people) < 4 else 2
    found: list[Text] = []
    for user in scene.people:
        for place in range(random.randrange(most // 2, most + 1)):
            ts = begin + random.randrange(lead_ms - gap)
            if place and random.random() < 0.4 and kind != "payment-without-login":
                found.append(scene.own_login(ts, user))
            else:
                found.append(scene.purchase(ts, user, scene.cents(5, 60), city=scene.home(user)))
        for _ in range(random.randrange(most)):
            found.append(scene.purchase(end + random.randrange(lead_ms), user, scene.cents(5, 60)))
    if kind == "mule-account":  # a friend has always paid into it
        for ts in sorted(begin + random.randrange(lead_ms - gap) for _ in range(2)):
            friend, cents = scene.stranger, scene.cents(5, 60)
            found += [scene.own_login(ts, friend), scene.transfer(ts + 9_000, friend, cents, scene.receiver())]
    return found


def _km(here: int, there: int) -> float:
    one, two = CITIES[here], CITIES[there]
    lat, lon = radians(two.lat - one.lat), radians(two.lon - one.lon)
    part = sin(lat / 2) ** 2 + cos(radians(one.lat)) * cos(radians(two.lat)) * sin(lon / 2) ** 2
    return 2 * 6371.0088 * asin(sqrt(part))


Plant: TypeAlias = Callable[[IncidentScene], list[Text]]

# In this order they take turns. A kind is named as the rule of examples/fraud that is for it.
FRAUDS: dict[str, Plant] = {
    "card-testing": card_testing,
    "impossible-travel": impossible_travel,
    "velocity-count": velocity_count,
    "velocity-sum": velocity_sum,
    "account-takeover": account_takeover,
    "dormant-account": dormant_account,
    "structuring": structuring,
    "card-farm": card_farm,
    "refund-abuse": refund_abuse,
    "country-hopping": country_hopping,
    "password-spray": password_spray,
    "payment-without-login": payment_without_login,
    "order-unpaid": order_unpaid,
    "mule-account": mule_account,
}
KINDS = tuple(FRAUDS)
