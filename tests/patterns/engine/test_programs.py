"""A program comes to the kernel as numbers. Whatever numbers they are, it is run, or refused with a reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.native.opcodes import AGGREGATES, OPS, OPS_BY_WORD
from samovar.patterns.engine.compile import Program
from samovar.patterns.engine.matcher import (
    END_OF_TIME,
    BatchTooLarge,
    ProgramError,
    RuleFailure,
    States,
    StepBudget,
    step,
)
from samovar.patterns.syntax.functions import FUNCTIONS
from tests.support.matching import arrived, program_of

SEQUENCE = """\
rule: probe-then-buy
match: |
  sequence by card with maxspan=10m
    [purchase where amount < 5 and count(1h) < 9] with runs=2..4 as probe
    ![refund where amount > 100]
    [purchase where amount > 2 * avg(probe.amount) and country in ("DE", "FR")] as buy
emit:
  spent: sum(probe.amount)
  seen: country
message: "{card} paid {buy.amount}"
"""
FORMS = (
    "rule: often\nmatch: aggregate by card over 10m [purchase where amount > 1] having sum(amount) > 10\n",
    "rule: visit\nmatch: session by card with gap=5m [purchase where true] having count() > 1\n",
    "rule: hourly\nmatch: window by card every 10m with size=1h [purchase where true] having max(amount) > 1\n",
)
EVENTS: list[dict[str, Any]] = [
    {"type": kind, "ts": 1_700_000_000_000 + 20_000 * n, "card": f"c{n % 3}", "amount": n % 40, "country": "DE"}
    for n, kind in enumerate(["purchase", "purchase", "purchase", "refund"] * 10)
]


@pytest.fixture(scope="module")
def program() -> Program:
    return program_of(SEQUENCE, *FORMS)


def test_a_program_that_is_cut_short_is_refused_wherever_it_is_cut(program: Program) -> None:
    for size in range(len(program.words)):
        with pytest.raises(ProgramError, match="the compiled rules are not a program that the kernel can run"):
            States(replace(program, words=program.words[:size]))


def test_more_behind_the_end_is_refused(program: Program) -> None:
    with pytest.raises(ProgramError, match="there is more behind its end"):
        States(replace(program, words=(*program.words, 0)))


def test_a_text_outside_the_program_is_refused(program: Program) -> None:
    with pytest.raises(ProgramError, match="a text lies outside the program"):
        States(replace(program, text=program.text[:-1]))


@pytest.mark.parametrize("value", [-1, -2, 1, 7, 63, 64, 1_000, 2**31, 2**40, 2**62, -(2**63)])
def test_with_one_number_changed_it_is_run_or_refused(program: Program, value: int) -> None:
    refused = 0
    for place in range(len(program.words)):
        refused += not runs(program, {place: value})
    assert refused > len(program.words) / 4


@given(data=st.data())
def test_with_some_numbers_changed_it_is_run_or_refused(program: Program, data: st.DataObject) -> None:
    places = st.integers(0, len(program.words) - 1)
    numbers = st.integers(-2, 70) | st.sampled_from([2**31 - 1, 2**60, -(2**63), 2**63 - 1])
    runs(program, data.draw(st.dictionaries(places, numbers, min_size=1, max_size=4)))


def test_a_batch_of_another_program_is_refused(program: Program) -> None:
    other = program_of(FORMS[1])
    with pytest.raises(ValueError, match="a batch with fewer columns than the 3 fields of the program"):
        step(States(program), arrived(other, EVENTS), 0)


def test_the_table_of_operators_has_those_of_the_language() -> None:
    assert list(OPS.values()) == list(range(len(OPS)))
    assert {"==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%"} <= OPS_BY_WORD.keys()
    in_python = {"number", "string", "cidr"}
    assert FUNCTIONS.keys() - OPS_BY_WORD.keys() == in_python
    assert AGGREGATES["count"] == 0


def runs(program: Program, changes: dict[int, int]) -> bool:
    """Whether a program with these numbers in place of others is run; any result will do."""
    words = tuple(changes.get(place, word) for place, word in enumerate(program.words))
    try:
        states = States(replace(program, words=words), max_partials=20, max_events=20)
    except ProgramError:
        return False
    states.limit(StepBudget(event_bytes=1 << 20, event_work=1_000_000, step_bytes=1 << 20))
    try:
        step(states, arrived(program, EVENTS), EVENTS[-1]["ts"])
        step(states, arrived(program, []), END_OF_TIME)
        states.rows()
    except (BatchTooLarge, RuleFailure, ValueError):
        pass
    return True
