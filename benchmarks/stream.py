"""The benchmark stream: purchases of many cards, ascending times, the same for the same seed.

Two million events of 50,000 cards are workload W1: a fifth of the purchases are below 2, and 15,262 times three or more
of them are followed by one above 200 within ten minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

COUNTRIES = ("US", "GB", "DE", "FR", "IN", "SG", "BR", "JP")
START_MS = 1_700_000_000_000
SMALL_SHARE = 0.2
ROWS_A_WRITE = 100_000

W1 = """
rule: w1
match: |
  sequence by card with maxspan=10m
    [purchase where amount < 2] as probe with runs=3..
    [purchase where amount > 200] as big
"""

LISTED = """
rule: listed
match: |
  sequence by card with maxspan=10m
    [purchase where amount < 2 and card not in $blocked] as probe with runs=3..
    [purchase where amount > 200 and card not in $blocked] as big
lists: {blocked: []}
"""

W2 = """
rule: w2
match: session by card with gap=30s [purchase where true]
emit: {spent: sum(amount)}
"""


@dataclass(frozen=True)
class Purchases:
    card: NDArray[np.int64]
    amount: NDArray[np.float64]
    country: NDArray[np.int64]
    time: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.card)


def purchases(events: int, cards: int = 50_000, seed: int = 7) -> Purchases:
    rng = np.random.default_rng(seed)
    card = rng.integers(0, cards, events)
    amount = np.round(rng.lognormal(3, 1.5, events), 2)
    small = rng.random(events) < SMALL_SHARE
    amount[small] = np.round(rng.random(int(small.sum())) * 2, 2)
    country = rng.integers(0, len(COUNTRIES), events)
    return Purchases(card, amount, country, START_MS + np.cumsum(rng.integers(0, 5, events)))


def distinct(cards: int, within_ms: int = 400_000) -> Purchases:
    """One small purchase of each of so many cards, soon enough after each other that W1 has to hold all of them."""
    card = np.random.default_rng(11).permutation(cards)
    times = START_MS + np.arange(cards, dtype=np.int64) * within_ms // cards
    return Purchases(card, np.ones(cards), card % len(COUNTRIES), times)


def card_name(card: int) -> str:
    return f"card-{card:06d}"


def lines(stream: Purchases, start: int, stop: int) -> Iterator[str]:
    """Rows as JSON, about 108 bytes each."""
    columns = stream.card, stream.amount, stream.country, stream.time
    for card, amount, country, time in zip(*(column[start:stop].tolist() for column in columns), strict=True):
        yield (
            f'{{"card":"{card_name(card)}","amount":{amount},"merchant":"m-{card * 7 % 5000:04d}",'
            f'"country":"{COUNTRIES[country]}","type":"purchase","ts":{time}}}\n'
        )


def write_lines(stream: Purchases, path: Path) -> None:
    with path.open("w") as out:
        for start in range(0, len(stream), ROWS_A_WRITE):
            out.writelines(lines(stream, start, start + ROWS_A_WRITE))


def many_rules(count: int) -> list[str]:
    """Rules as a team has them: each looks at one country and its own limits, so few events concern it."""
    return [_rule(number) for number in range(count)]


def _rule(number: int) -> str:
    country = COUNTRIES[number % len(COUNTRIES)]
    small, big, most = 1 + number % 3, 150 + 10 * (number % 20), 4 + number % 5
    forms = (
        f"""sequence by card with maxspan=10m
    [purchase where amount < {small} and country == "{country}"] as probe with runs=2..
    [purchase where amount > {big} and country == "{country}"] as big""",
        f"""aggregate by card over 10m [purchase where country == "{country}" and amount > {big}]
    having count() >= {most}""",
        f"""sequence by card with maxspan=5m
    [purchase where amount > {big} and country == "{country}"] as first
    [purchase where amount > 2 * first.amount and country != first.country] as second""",
        f"""aggregate by merchant over 5m [purchase where amount < {small} and country == "{country}"]
    having sum(amount) > {5 * most}""",
    )
    return f"rule: r-{number:03d}\nmatch: |\n  {forms[number % len(forms)]}\n"
