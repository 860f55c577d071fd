"""Shares of the keys: several states, each with a share, find together what one finds, each key in one of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from samovar.native.kernel import Batch
from samovar.patterns.engine.compile import Program, compile_rules
from samovar.patterns.engine.matcher import ALL_KEYS, END_OF_TIME, KeyShare, States, step
from tests.support.matching import Match, arrived, as_set, in_order, part, program_of, rules_of
from tests.support.random_rules import Fields, rules_and_events


def found_in(share: KeyShare, program: Program, batch: Batch) -> tuple[list[Match], States]:
    """Matches of a share, in two steps."""
    states, middle = States(program), len(batch) // 2
    states.only(share)
    found = list(step(states, part(batch, 0, middle), int(batch.time[middle]) - 1 if len(batch) else 0))
    return [*found, *step(states, part(batch, middle, len(batch)), END_OF_TIME)], states


@given(cases=st.lists(rules_and_events(), min_size=1, max_size=3), count=st.integers(2, 9))
def test_shares_find_together_what_one_finds(cases: list[tuple[str, list[Fields]]], count: int) -> None:
    texts = [text.replace("rule: ", f"rule: r{number}-", 1) for number, (text, _) in enumerate(cases)]
    program = compile_rules(rules_of(*texts))
    batch = in_order(arrived(program, [event for _, events in cases for event in events]))
    whole, states = found_in(ALL_KEYS, program, batch)
    shares = [found_in(ALL_KEYS.part(number, count), program, batch) for number in range(count)]
    assert as_set(match for found, _ in shares for match in found) == as_set(whole)
    for number in range(len(program.rules)):
        assert sum(each.tallies(number).no_key for _, each in shares) == states.tallies(number).no_key
    assert sum(each.dropped() for _, each in shares) == states.dropped()


def test_programs_that_share_fields_read_one_batch() -> None:
    texts = [
        f"rule: by-{key}\nmatch: |\n  aggregate by {key} over 1h [a where n > 0] having count() > 1\n" for key in "pq"
    ]
    fields = compile_rules(rules_of(*texts)).fields
    both = [compile_rules(rules_of(text), fields) for text in texts]
    events = [{"type": "a", "ts": 1_700_000_000_000 + at, "n": 1, "p": "x", "q": f"y{at % 2}"} for at in range(4)]
    batch = in_order(arrived(both[0], events))
    assert [len(step(States(each), batch, END_OF_TIME)) for each in both] == [1, 2]


def hashes_of(keys: Sequence[Any]) -> NDArray[np.uint64]:
    program = program_of("rule: by-k\nmatch: |\n  aggregate by k over 1h [a where true] having count() > 0\n")
    batch = in_order(arrived(program, [{"type": "a", "ts": 1_700_000_000_000, "k": key} for key in keys]))
    return States(program).key_hashes(batch, 0)


def test_each_key_is_in_one_share_and_shares_are_about_as_large() -> None:
    hashes = hashes_of([*(f"c{number}" for number in range(2_000)), None])
    sizes = np.array([KeyShare(number, 10).has(hashes) for number in range(10)])
    assert sizes.sum(axis=0).tolist() == [1] * 2_000 + [0]
    assert 160 < sizes.sum(axis=1).min() <= sizes.sum(axis=1).max() < 240


def test_parts_of_a_share_are_the_share() -> None:
    parts = [KeyShare(2, 5).part(number, 3).hashes() for number in range(3)]
    first, last = KeyShare(2, 5).hashes()
    assert (parts[0][0], parts[2][1]) == (first, last)
    assert [after[0] - before[1] for before, after in pairwise(parts)] == [1, 1]


def test_hashes_of_keys_never_change() -> None:
    """Samples that are kept were chosen by them."""
    hashes = hashes_of(["c1", "a longer key than eight bytes", "", 7, -1, 2.5, True])
    assert (hashes >> np.uint64(58)).tolist() == [32, 28, 25, 30, 49, 6, 14]
