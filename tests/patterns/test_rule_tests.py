"""The tests inside rule files: what passes, what fails, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from samovar.patterns.rule_tests import RuleTestResult, compare, run_tests, same, time_text
from samovar.patterns.rulefile.rule_file import load_path, load_text
from samovar.patterns.syntax.tree import Rule
from tests.support.project import ROOT

EXAMPLES = ROOT / "examples"

RULE = """
rule: card-testing
match: |
  sequence by card with maxspan=10m
    [purchase where amount < 2] as probe with runs=3..
    [purchase where amount > 200 and country != probe.country] as big
emit: {probes: count(probe), spent: sum(probe.amount) + big.amount}
message: "{count(probe)} small ones"
suppress: 1h
tests:
  - name: the test
    events:
      - "+1m purchase {card: c1, amount: %s, country: SG}"
      - "+0s purchase {card: c1, amount: 1, country: US}"
      - "+5s purchase {card: c1, amount: 1, country: US}"
      - "+9s purchase {card: c1, amount: 1.5, country: US}"
    expect: %s
"""


def rule_of(text: str) -> Rule:
    loaded = load_text(text)
    assert loaded.rule is not None, loaded.findings
    return loaded.rule


def result_of(expect: str, amount: object = 900) -> RuleTestResult:
    (result,) = run_tests(rule_of(RULE % (amount, expect)))
    return result


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/rules/*.yml")), ids=lambda path: path.stem)
def test_examples_pass(path: Path) -> None:
    rule = load_path(path).rule
    assert rule is not None
    assert [result.name for result in run_tests(rule) if not result.passed] == []


@pytest.mark.parametrize(
    "expect",
    [
        "[{}]",
        "[{key: {card: c1}, at: +1m, start: +0s, end: +1m}]",
        "[{steps: {probe: [1, 2, 3], big: [0]}}]",
        "[{emit: {probes: 3}}]",
        "[{emit: {spent: 903.5, probes: 3.0}, message: 3 small ones}]",
    ],
)
def test_what_is_given_is_compared(expect: str) -> None:
    assert result_of(expect).passed


@pytest.mark.parametrize(
    ("expect", "name"),
    [
        ("[{key: {card: c2}}]", "key"),
        ("[{at: +2m}]", "at"),
        ("[{start: +1s}]", "start"),
        ("[{end: +9s}]", "end"),
        ("[{steps: {probe: [1, 2], big: [0]}}]", "steps"),
        ("[{steps: {big: [0]}}]", "steps"),
        ("[{emit: {probes: 4}}]", "emit"),
        ('[{emit: {probes: "3"}}]', "emit"),
        ("[{message: 3 small}]", "message"),
    ],
)
def test_what_differs_is_named(expect: str, name: str) -> None:
    (difference,) = result_of(expect).differences
    assert difference.names == (name,)


def test_one_match_too_many() -> None:
    result = result_of("[]")
    assert (result.expected, result.found, result.why) == (0, 1, ())
    assert result.differences[0].expected is None


def test_a_match_that_did_not_come_says_how_far_it_got() -> None:
    result = result_of("[{key: {card: c1}}]", amount=35)
    assert (result.expected, result.found) == (1, 0)
    assert result.why == (
        "The furthest partial match had probe (events 2, 3, 4) and waited for big.",
        "Event 1 was not big: `amount > 200` (amount is 35) does not hold.",
        "Its span of 10m was over at +10m.",
    )


def test_without_a_key_the_one_that_came_furthest_is_told() -> None:
    assert "(events 2, 3, 4)" in result_of("[{at: +1m}]", amount=35).why[0]
    assert "waited for big" in result_of("[{}, {}]").why[0] or "matched once" in result_of("[{}, {}]").why[0]


def test_suppressed_matches_do_not_count() -> None:
    text = """
rule: r
match: aggregate by card over 1s [a where true] having count() >= 1
suppress: 1m
tests:
  - name: two in a minute are one
    events: ["+0s a {card: 1}", "+10s a {card: 1}", "+70s a {card: 1}", "+131s a {card: 1}"]
    expect: [{at: +0s}, {at: +70s}, {at: +131s}]
"""
    (result,) = run_tests(rule_of(text))
    assert result.passed, result


def test_windows_lie_on_round_times() -> None:
    text = """
rule: r
match: window by card every 1h [a where true]
emit: {n: count()}
tests:
  - events: ["+1s a {card: 1}", "+59m a {card: 1}", "+61m a {card: 1}"]
    expect: [{start: +0s, at: +1h, emit: {n: 2}}, {start: +1h, emit: {n: 1}}]
"""
    (result,) = run_tests(rule_of(text))
    assert result.passed, result


@pytest.mark.parametrize(
    ("wanted", "found", "equal"),
    [(3, 3.0, True), (0.3, 0.1 + 0.2, True), (True, 1, False), (1, True, False), ("1", 1, False), (None, None, True),
     ([1, 2], [1, 2.0], True), ([1], [1, 2], False), ({"a": 1}, {"a": 1.0}, True), ({"a": 1}, {"b": 1}, False)],
)  # fmt: skip
def test_same(wanted: Any, found: Any, equal: bool) -> None:
    assert same(wanted, found) is equal


def test_times_as_written() -> None:
    assert [time_text(ms) for ms in (0, 90_000, 60_000, 1_500, -1_000, None)] == [
        "+0s",
        "+90s",
        "+1m",
        "+1500ms",
        "-1s",
        None,
    ]


def test_compare_takes_matches_in_order() -> None:
    found = [{"at": "+1s"}, {"at": "+2s"}]
    assert list(compare([{"at": "+1s"}, {"at": "+2s"}], found)) == []
    assert len(list(compare([{"at": "+2s"}, {"at": "+1s"}], found))) == 2
