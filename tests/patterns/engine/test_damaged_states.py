"""Stored rows that are damaged are refused, or read as something that can be worked with; nothing else happens."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.common.tunables import DEFAULTS
from samovar.patterns.engine.compile import Program
from samovar.patterns.engine.matcher import END_OF_TIME, RuleFailure, StateError, States, StepBudget, step
from tests.support.matching import arrived, program_of

RULES = {
    "runs": "sequence by card with maxspan=1h [a where n < 9] with runs=2..6 as x ![b where n > 7] [b where n > 1]",
    "waits": "sequence by card with maxspan=10m [a where true] as x ![b where n == x.n] with within=5m",
    "any": "sequence by card with maxspan=1h, overlap=any [a where true] ?[a where n > 3] with runs=2 [b where true]",
    "next": "sequence by card with maxspan=10m [a where true] with runs=2 as x next [b where true] as y",
    "aggregate": "aggregate by card over 10m with repeat=1m [any where true] having count() > 1 and max(n) > 1",
    "session": "session by card with gap=5m [any where true] having sum(n) > 10 and distinct(text) > 2",
    "window": "window by card every 10m with size=1h [any where true] having avg(n) > 1 and max(text) != null",
    "history": "sequence by card with maxspan=1m [a where seen(text, 1h) and distinct(n, 1h) > 3] [b where true]",
}  # fmt: skip
TIME = 1_700_000_000_000
EVENTS: list[dict[str, Any]] = [
    {"type": "aab"[n % 3], "ts": TIME + 1_000 * n, "card": f"c{n % 2}", "n": n % 11, "text": "long text " * (n % 4)}
    for n in range(60)
]
SMALL = replace(DEFAULTS, chunk_events=4, header_events=8, header_bytes=200)


def program(name: str) -> Program:
    return program_of(f"rule: {name}\nmatch: {RULES[name]}\nsuppress: 1m\n")


def stored(program: Program, events: list[dict[str, Any]]) -> dict[bytes, bytes]:
    states = States(program, tunables=SMALL)
    step(states, arrived(program, events), TIME)
    return states.rows()


def varint(number: int) -> bytes:
    """A whole number as native/match/pack.h writes it."""
    rest, out = number << 1 if number >= 0 else (-number << 1) - 1, bytearray()
    while rest >= 128:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*out, rest])


@pytest.mark.parametrize("number", [1 << 61, -(1 << 61), -(1 << 63), (1 << 63) - 1])
@pytest.mark.parametrize("name", ["aggregate", "runs", "session", "window", "any"])
def test_a_time_that_cannot_be_calculated_with_is_damage(name: str, number: int) -> None:
    """Every time in the header in turn: the last alert, when a window fired, where a run began, where an event was."""
    made = program(name)
    rows = stored(made, [{**EVENTS[0], "ts": TIME + k, "n": 5} for k in range(3)])
    times = {varint(TIME + k) for k in range(3)}
    found = [(row, m) for row, value in rows.items() for time in times for m in re.finditer(re.escape(time), value)]
    assert len(found) >= 3
    special = number == -(1 << 63)  # "never" is a time, where there may be none
    for row, match in found:
        damaged = rows[row][: match.start()] + varint(number) + rows[row][match.end() :]
        if special:
            use(made, rows | {row: damaged})
        else:
            with pytest.raises(StateError, match="damaged"):
                States(made).load(rows | {row: damaged})


@pytest.mark.parametrize("name", RULES)
def test_with_one_byte_changed_it_is_read_or_refused(name: str) -> None:
    made, draw, refused = program(name), random.Random(1), 0
    rows = stored(made, EVENTS)
    places = [(row, at) for row, value in rows.items() for at in range(len(value))]
    for row, at in draw.sample(places, min(len(places), 300)):
        value = bytearray(rows[row])
        value[at] ^= 1 << draw.randrange(8)
        refused += not use(made, rows | {row: bytes(value)})
    assert refused > 10


@given(data=st.data(), name=st.sampled_from(sorted(RULES)))
def test_with_bytes_changed_cut_or_added_it_is_read_or_refused(data: st.DataObject, name: str) -> None:
    made = program(name)
    rows = stored(made, EVENTS[: data.draw(st.integers(1, 60))])
    row = data.draw(st.sampled_from(sorted(rows)))
    at = data.draw(st.integers(0, len(rows[row])))
    gone = data.draw(st.integers(0, 12))
    use(made, rows | {row: rows[row][:at] + data.draw(st.binary(max_size=12)) + rows[row][at + gone :]})


def use(program: Program, rows: dict[bytes, bytes]) -> bool:
    """Whether the rows are read; if so, all that states are for is done with them."""
    states = States(program, tunables=SMALL)
    states.limit(StepBudget(event_bytes=1 << 24, event_work=10_000_000, step_bytes=1 << 24))
    try:
        states.load(rows)
    except StateError:
        return False
    try:
        step(states, arrived(program, [{**event, "ts": event["ts"] + 90_000} for event in EVENTS]), TIME + 120_000)
        states.changed_rows()
        again = States(program, tunables=SMALL)
        again.load(states.rows())
        step(again, arrived(program, []), END_OF_TIME)
        again.digest(TIME)
    except RuleFailure:
        pass
    return True
