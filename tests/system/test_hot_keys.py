"""One key with a million events: what an event costs stays the same, and what is dropped is counted.

`pytest tests/system/test_hot_keys.py -rP` shows the microseconds an event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import thread_time

import numpy as np
import pytest

from samovar.patterns.engine.compile import Program
from samovar.patterns.engine.matcher import END_OF_TIME, MAX_EVENTS, Counters, States, step
from tests.support.matching import Options, batch_of_arrays, find, program_of

EVENTS = 1_000_000
CHUNK = 2_000
# Of a rule that is too slow for a million: enough events that for half of them the key is full. Not a limit that fails.
LEAST_EVENTS = 40_000
PATIENCE_S = 8
FEW = 100
FIRST_TIME = 1_700_000_000_000
PLACES = np.array([f"place{n:07d}".encode() for n in range(20_011)])


@dataclass(frozen=True)
class Hot:
    """A rule that holds what it can of a key, and what it must have dropped after so many events."""

    match: str
    dropped: Callable[[int], int]
    emit: str = ""

    def program(self) -> Program:
        lines = ["rule: hot", "match: |", *(f"  {line}" for line in self.match.strip().split("\n"))]
        return program_of("\n".join([*lines, f"emit: {{{self.emit}}}", ""]))


def all_but_the_newest(count: int) -> int:
    return max(0, count - MAX_EVENTS)


def half_of_them(count: int) -> int:
    """Where n < 5 holds for every other event."""
    return max(0, count // 2 - MAX_EVENTS)


def different_ones(count: int) -> int:
    """`distinct` of a session holds the first values that came, and counts the others each time."""
    places = len(PLACES)
    whole, rest = divmod(count, places)
    return whole * (places - MAX_EVENTS) + max(0, rest - MAX_EVENTS)


HISTORY = """
sequence by card with maxspan=1m
  [buy where {}]"""

RULES = {
    "bag": Hot(
        """
sequence by card with maxspan=30d
  [buy where n < 5] as probe with runs=3..
  [big where n > probe.n] as big""",
        half_of_them,
        "spent: sum(probe.n)",
    ),
    "sum": Hot("aggregate by card over 30d\n  [buy where true] having sum(n) < 0", all_but_the_newest),
    "distinct": Hot("aggregate by card over 30d\n  [buy where true] having distinct(place) < 0", all_but_the_newest),
    "min": Hot("aggregate by card over 30d\n  [buy where true] having min(n) > 1000", all_but_the_newest),
    "session": Hot(
        "session by card with gap=1h\n  [buy where true]",
        different_ones,
        "spent: sum(n), least: min(n), places: distinct(place), some: values(place)",
    ),
    "seen": Hot(HISTORY.format("seen(place, 30d)"), all_but_the_newest),
    "count": Hot(HISTORY.format("count(30d) < 3"), all_but_the_newest),
    "avg": Hot(HISTORY.format("n > 10 * avg(n, 30d)"), all_but_the_newest),
    "history's distinct": Hot(HISTORY.format("distinct(place, 30d) < 2"), all_but_the_newest),
    "middle run": Hot(
        """
sequence by card with maxspan=30d
  [new where true] as a
  [buy where true] as b with runs=2..
  [end where true] as c""",
        lambda count: max(0, count - 1 - MAX_EVENTS),
        "spent: sum(b.n)",
    ),
    "absence": Hot("sequence by card with maxspan=30d\n  [buy where true] as a\n  ![end where true]", lambda _: 0),
}


def feed(program: Program, states: States, first: int) -> float:
    """A chunk of events, ten milliseconds apart; the seconds of work that it took, whatever else the machine does."""
    numbers = np.arange(first, first + CHUNK)
    types = np.full(CHUNK, b"buy")
    if first == 0 and "new" in program.types:
        types[0] = b"new"
    columns = {"card": np.full(CHUNK, b"c1"), "n": numbers % 10, "place": PLACES[numbers % len(PLACES)]}
    batch = batch_of_arrays(program, FIRST_TIME + numbers * 10, types, columns, first)
    before = thread_time()
    step(states, batch, int(batch.time[-1]))
    return thread_time() - before


def run(program: Program, states: States, events: int) -> list[float]:
    """The microseconds an event, chunk by chunk."""
    costs: list[float] = []
    while len(costs) * CHUNK < events:
        if len(costs) * CHUNK >= LEAST_EVENTS and sum(costs) * CHUNK > PATIENCE_S * 1_000_000:
            break
        costs.append(feed(program, states, len(costs) * CHUNK) / CHUNK * 1_000_000)
    return costs


@pytest.mark.parametrize("hot", RULES.values(), ids=RULES)
def test_a_million_events_of_one_key(hot: Hot, record_property: Callable[[str, object], None]) -> None:
    program = hot.program()
    states = States(program)
    costs = run(program, states, EVENTS)
    count = len(costs) * CHUNK
    # The best of some chunks: a busy machine makes single ones slow.
    full = LEAST_EVENTS // 2 // CHUNK
    early, late = min(costs[full : full + 10]), min(costs[-10:])
    record_property("microseconds an event", round(late, 2))
    print(f"{count:,} events, microseconds an event: {early:.2f} when full, {late:.2f} in the end")  # noqa: T201
    assert late < 4 * early + 0.5
    assert told(states) == hot.dropped(count)
    assert states.live() <= 2
    step(states, batch_of_arrays(program, np.empty(0, np.int64), np.empty(0, "S3"), {}), END_OF_TIME)
    assert states.live() == 0


def told(states: States) -> int:
    counters: Counters = states.counters(0)
    assert counters.dropped_partials == 0
    return counters.dropped_events + states.dropped_history()


@pytest.mark.parametrize("hot", RULES.values(), ids=RULES)
def test_an_event_costs_the_same_however_much_is_held(hot: Hot) -> None:
    """With a hundred events per key, and with ten thousand: what is held is not gone through for each event."""
    program = hot.program()
    few, many = (run(program, States(program, max_events=most), LEAST_EVENTS) for most in (FEW, MAX_EVENTS))
    assert min(many[-10:]) < 10 * min(few[-10:]) + 1


@pytest.mark.parametrize("ending", ["", "\n  ![end where true] with within=1s"], ids=["match", "waiting absence"])
def test_a_full_bag_is_told_whole(ending: str) -> None:
    """An event that completes the match and enters the bag as well pushes nothing out of what the match lists."""
    rule = Hot(
        f"sequence with maxspan=1m\n  [any where true] as a with runs=2..\n  [big where true] as b{ending}",
        lambda _: 0,
        "opening: first(a.place), places: distinct(a.place)",
    )
    events = [{"type": "buy", "ts": 1000 + at, "place": f"a long name of place {at}"} for at in range(3)]
    events.append({"type": "big", "ts": 1010, "place": "another long name of a place"})
    (match,) = find(rule.program(), events, Options(max_events=3))
    assert match["steps"] == {"a": [0, 1, 2], "b": [3]}
    assert match["emit"] == {"opening": "a long name of place 0", "places": 3}
