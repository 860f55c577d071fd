"""Meaning 2: a match ends at event e if and only if one exists that ends at e since the last match of that key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samovar.patterns.engine.compile import compile_rules
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.tree import Rule
from tests.oracle import run
from tests.oracle.events import in_order, read_events
from tests.oracle.existence import Search
from tests.support.matching import find
from tests.support.random_rules import random_events

Fields: TypeAlias = dict[str, Any]
# The matches of a rule, as `samovar match` shows them.
Implementation: TypeAlias = Callable[[Rule, Sequence[Fields]], list[dict[str, Any]]]

SPANS = ("400ms", "1s", "2s", "3s", "5s")


def by_the_oracle(rule: Rule, events: Sequence[Fields]) -> list[dict[str, Any]]:
    return run([rule], events).matches


def by_the_matcher(rule: Rule, events: Sequence[Fields]) -> list[dict[str, Any]]:
    return find(compile_rules([rule]), events)


IMPLEMENTATIONS: dict[str, Implementation] = {"oracle": by_the_oracle, "matcher": by_the_matcher}


def check_existence(implementation: Implementation, text: str, events: Sequence[Fields]) -> None:
    """For events of one key."""
    rule = load_text(text).rule
    assert rule is not None
    assert isinstance(rule.form, tree.SequenceForm)
    ordered, _ = in_order(read_events(events, "type", "ts"), None)
    ends = [max(line_place(events, match)) for match in implementation(rule, events)]
    assert [line for _, line in ends] == Search(rule.form, ordered).ends(), text


def line_place(events: Sequence[Fields], match: dict[str, Any]) -> list[tuple[int, int]]:
    return [(events[line]["ts"], line) for lines in match["steps"].values() for line in lines]


# ---------------------------------------------------------------- rules that the sentence covers


def covered_rule(rng: Random) -> str:
    lines = [f"  sequence with maxspan={rng.choice(('0ms', '1s', '5s', '5s', '12s', '12s', '30s'))}"]
    count = rng.choice((1, 2, 2, 3, 3, 4))
    optional = [place + 1 < count and rng.random() < 0.3 for place in range(count)]
    repeated = [rng.random() < 0.3 for place in range(count)]
    # A first negation keeps events out of a bag, which may then stand in the way of a run that began one step earlier.
    if not (optional[0] and any(repeated)) and rng.random() < 0.15:
        lines.append(f"    !{plain(rng)} with for={rng.choice(SPANS)}")
    for place in range(count):
        if place and not after_a_run(place, optional, repeated) and rng.random() < 0.3:
            lines.append(f"    !{plain(rng)}")
        lines.append(f"    {covered_step(rng, (place, count), optional[place], repeated[place])}")
    if rng.random() < 0.15:
        lines.append("  until [x where n > 1]")
    return "\n".join(["rule: existence", "title: existence", "severity: low", "match: |", *lines]) + "\n"


def after_a_run(place: int, optional: list[bool], repeated: list[bool]) -> bool:
    """Whether a negation at this place may stand right after a repeated step, once optional ones are skipped."""
    for before in range(place - 1, -1, -1):
        if repeated[before] or not optional[before]:
            return repeated[before]
    return False


def covered_step(rng: Random, place_of: tuple[int, int], optional: bool, repeated: bool) -> str:
    place, last = place_of[0], place_of[0] + 1 == place_of[1]
    options = [f"runs={rng.choice(('2', '3') if last else ('2', '2..', '2..3', '1..', '3'))}"] if repeated else []
    options += [f"within={rng.choice(SPANS)}"] if place and rng.random() < 0.3 else []
    tail = f" with {', '.join(options)}" if options else ""
    if not optional and not repeated and rng.random() < 0.15:
        # No event can fill two members: their types differ.
        one, other, *_ = rng.sample("abc", 2)
        return f"unordered {{ [{one} where true] as p{place} [{other} where n > 0] as q{place} }}{tail}"
    text = plain(rng) + (f" or {plain(rng)}" if rng.random() < 0.1 else "")
    strictly = "next " if place and not optional and rng.random() < 0.15 else ""
    return f"{'?' if optional else ''}{strictly}{text} as s{place}{tail}"


def plain(rng: Random) -> str:
    return f"[{rng.choice(('a', 'a', 'b', 'b', 'c', 'any'))} where {rng.choice(('true', 'true', 'n > 0', 'n < 2'))}]"


def covered_case(rng: Random) -> tuple[str, list[Fields]]:
    return covered_rule(rng), random_events(rng, rng.randint(3, 25), [*"aaabbbccx"])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
@settings(deadline=None, max_examples=300)
@given(case=st.randoms(use_true_random=False).map(covered_case))
def test_a_match_ends_where_one_exists(implementation: Implementation, case: tuple[str, list[Fields]]) -> None:
    check_existence(implementation, *case)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
def test_a_match_ends_where_one_exists_many(implementation: Implementation) -> None:
    """Many more, quickly; a failure names its seed."""
    for seed in range(600):
        text, events = covered_case(Random(seed))
        try:
            check_existence(implementation, text, events)
        except AssertionError as error:
            raise AssertionError(f"covered_case(Random({seed}))") from error
