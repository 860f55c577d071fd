"""Ten million events of a million keys, and when their time is over nothing is left of them: no state, no memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from samovar.native.kernel import Batch
from samovar.patterns.engine.compile import Program
from samovar.patterns.engine.matcher import END_OF_TIME, States, step
from tests.support.matching import arrived, batch_of_arrays, in_order, program_of

KEYS = 1_000_000
EVENTS = 10_000_000
ROUNDS = 5
CHUNK = 100_000
FIRST_TIME = 1_700_000_000_000
MEGABYTE = 1 << 20

# A span that ends for everything that holds something: runs, windows, sessions, histories, absences, suppression.
RULES = (
    """
rule: sequence
match: |
  sequence by card with maxspan=10m
    ![out where true] with for=5m
    [log where not seen(place, 10m)] as a
    [buy where n > 6] as b
suppress: 20m
""",
    """
rule: aggregate
match: |
  aggregate by card over 5m
    [buy where true]
    having sum(n) > 16
suppress: 30m
""",
    """
rule: session
match: |
  session by card with gap=5m
    [out where true]
    having count() > 2
""",
)


def resident_bytes() -> int:
    """What the process holds in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def events_of_round(program: Program, number: int, cards: np.ndarray[tuple[int], np.dtype[np.bytes_]]) -> list[Batch]:
    """Two events per key, in random order over ten minutes; an hour lies between the rounds."""
    rng = np.random.default_rng(number)
    count = EVENTS // ROUNDS
    batches = []
    for first in range(0, count, CHUNK):
        place = np.arange(first, first + CHUNK)
        batches.append(
            batch_of_arrays(
                program,
                FIRST_TIME + number * 3_600_000 + place * 600_000 // count,
                np.array([b"log", b"buy", b"buy", b"out"])[rng.integers(0, 4, CHUNK)],
                {
                    "card": cards[rng.integers(0, KEYS, CHUNK)],
                    "place": np.array([b"here", b"away"])[rng.integers(0, 2, CHUNK)],
                    "n": rng.integers(0, 10, CHUNK),
                },
                first,
            )
        )
    return batches


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_nothing_is_left_when_event_time_has_passed() -> None:
    program = program_of(*RULES)
    cards = np.array([f"card-{n:07d}".encode() for n in range(KEYS)])
    states = States(program)
    nothing = Batch(len(program.fields))
    resident: list[int] = []
    for number in range(ROUNDS):
        for batch in events_of_round(program, number, cards):
            step(states, batch, int(batch.time[-1]))
        assert states.live() > KEYS
        # Forty minutes later, which is before the next round, nothing can matter any more.
        step(states, nothing, int(batch.time[-1]) + 2_400_000)
        assert states.live() == 0
        assert states.rows() == {}
        resident.append(resident_bytes())
    assert all(states.counters(rule).matches > 1000 for rule in range(len(RULES)))
    assert max(resident[1:]) < resident[0] * 1.2 + 50 * MEGABYTE, [size // MEGABYTE for size in resident]


def test_what_is_noted_as_changed_is_bounded_by_the_keys() -> None:
    """A store that is written seldom: a key that goes and comes and goes is one deletion, not many."""
    program = program_of(*RULES)
    states = States(program)
    for number in range(50):
        events = [
            {"type": "buy", "ts": FIRST_TIME + number * 7_200_000, "card": f"c{key}", "n": 1, "place": "here"}
            for key in range(10)
        ]
        step(states, in_order(arrived(program, events)), FIRST_TIME + number * 7_200_000 + 3_600_000)
        if number == 0:
            states.changed_rows()
    assert states.live() == 0
    assert len(states.changed_rows()) <= 10 * 2 * len(RULES)


@pytest.mark.parametrize("overlap", ["latest", "all", "any"])
def test_every_way_of_a_sequence_ends(overlap: str) -> None:
    """Runs, bags, groups, waiting absences: all are gone at the end of time, and also when only their span is over."""
    text = f"""
rule: r
match: |
  sequence by card with maxspan=10s, overlap={overlap}
    ![out where true] with for=3s
    [log where true] as a with runs=2..3
    ?[buy where n > 1] as b with runs=2
    unordered {{ [buy where n > 2] as c  [buy where n > 3] as d }}
    ![end where true] with within=2s
suppress: 1m
"""
    program = program_of(text)
    rng = np.random.default_rng(3)
    events = [
        {"type": str(rng.choice(["log", "buy", "buy", "out"])), "ts": int(t) * 300, "card": int(t) % 7, "n": int(t) % 5}
        for t in rng.integers(0, 2000, 3000)
    ]
    states = States(program)
    batch = in_order(arrived(program, events))
    step(states, batch, int(batch.time[-1]))
    assert states.live() > 3
    step(states, Batch(len(program.fields)), int(batch.time[-1]) + 75_000)
    assert states.live() == 0
    step(states, Batch(len(program.fields)), END_OF_TIME)
    assert (states.live(), states.counters(0).live_partials) == (0, 0)
