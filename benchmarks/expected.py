"""What the workloads must give, worked out from the columns in the plainest way: neither side is its own judge."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from benchmarks.stream import Purchases, card_name

SPAN_MS = 600_000
PROBES = 3
GAP_MS = 30_000


class Alert(NamedTuple):
    card: str
    at: int
    probes: int


class Session(NamedTuple):
    card: str
    start: int
    end: int
    events: int
    cents: int


def card_testing(stream: Purchases) -> set[Alert]:
    """W1: small purchases count for ten minutes, and a match uses them up."""
    matter = np.flatnonzero((stream.amount < 2) | (stream.amount > 200))
    columns = (column[matter].tolist() for column in (stream.card, stream.amount, stream.time))
    probes: dict[int, list[int]] = defaultdict(list)
    found = set()
    for card, amount, time in zip(*columns, strict=True):
        held = [probe for probe in probes[card] if time - probe <= SPAN_MS]
        if amount < 2:
            held.append(time)
        elif len(held) >= PROBES:
            found.add(Alert(card_name(card), time, len(held)))
            held = []
        probes[card] = held
    return found


def sessions(stream: Purchases) -> set[Session]:
    """W2: all sessions, also those that the end of the input leaves open."""
    order = np.argsort(stream.card, kind="stable")
    card, time, amount = stream.card[order], stream.time[order], stream.amount[order]
    begins = np.flatnonzero(np.r_[True, (np.diff(card) != 0) | (np.diff(time) > GAP_MS)])
    last = np.r_[begins[1:], len(card)] - 1
    cents = np.rint(np.add.reduceat(amount, begins) * 100).astype(np.int64)
    columns = (column.tolist() for column in (card[begins], time[begins], time[last], last - begins + 1, cents))
    return {Session(card_name(one), *others) for one, *others in zip(*columns, strict=True)}
