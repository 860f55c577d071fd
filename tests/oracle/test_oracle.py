"""The oracle itself: sentences of the language that the cases leave open, one small example each."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings

from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.syntax.tree import Rule
from tests.oracle import Result, run
from tests.oracle.aggregates import aggregate
from tests.oracle.events import read_time
from tests.oracle.values import FUNCTIONS, calculate, compare
from tests.support.random_rules import SLACK_MS, random_case, rules_and_events

T0 = 1_700_000_000_000


def rule_of(match: str, **more: str) -> Rule:
    lines = ["rule: test", "title: test", "severity: low", "match: |", *(f"  {line}" for line in match.splitlines())]
    loaded = load_text("\n".join([*lines, *(f"{name}: {value}" for name, value in more.items())]) + "\n")
    assert loaded.rule is not None, loaded.findings
    return loaded.rule


def events_of(text: str) -> list[dict[str, Any]]:
    """`0:a 1.5:b2` is an a at 0 s, and a b with n = 2 at 1.5 s."""
    found = re.findall(r"([\d.]+):([a-z]+)(\d*)", text)
    return [
        {"type": kind, "ts": T0 + round(float(at) * 1000), "u": "u", **({"n": int(n)} if n else {})}
        for at, kind, n in found
    ]


def result_of(match: str, events: str, **options: Any) -> Result:
    return run([rule_of(match)], events_of(events), **options)


def steps_of(match: str, events: str, **options: Any) -> list[dict[str, list[int]]]:
    return [found["steps"] for found in result_of(match, events, **options).matches]


def sequence(steps: str, options: str = "maxspan=1m") -> str:
    return f"sequence by u with {options}\n" + "\n".join(f"  {step.strip()}" for step in steps.strip().splitlines())


# ---------------------------------------------------------------- overlap=latest


LATEST = {
    "what missed its strict next gives way": (
        "[a where true] as s\n[b where true] as t\nnext [c where true] as r",
        "0:a 1:b 2:b 3:c",
        [{"s": [0], "t": [2], "r": [3]}],
    ),
    "a negation behind an optional step cuts off only the way around it": (
        "[a where true] as s\n?[b where true] as t\n![x where true]\n[c where true] as r",
        "0:a 1:x 2:c 3:b 4:c",
        [{"s": [0], "t": [3], "r": [4]}],
    ),
    "what is cut off does not stand in the way of a newer one": (
        "[s where true] as q\n[a where true] as s\n?[b where true] as t\n![x where true]\n[c where true] as r",
        "0:s 1:a 2:x 3:a 4:c",
        [{"q": [0], "s": [3], "r": [4]}],
    ),
    "at one position the newest start wins, so an optional first step is lost": (
        "?[a where true] as s\n[b where true] as t\n[c where true] as r",
        "0:a 1:b 2:c",
        [{"t": [1], "r": [2]}],
    ),
    "on completion the earliest start wins": (
        "?[a where true] as s\n[b where true] as t",
        "0:a 1:b",
        [{"s": [0], "t": [1]}],
    ),
    "a run reads the events it has taken": (
        "[a where n >= coalesce(s.n, 0)] as s with runs=2..\n[b where true] as t",
        "0:a1 1:a3 2:a2 3:a3 4:b",
        [{"s": [0, 1, 3], "t": [4]}],
    ),
    "an event that is x and in the bag empties it and enters": (
        "[a where true] as s with runs=2\n![a where n == 1]\n[b where true] as t",
        "0:a 1:a 2:a1 3:b 4:a 5:b",
        [{"s": [2, 4], "t": [5]}],
    ),
    "each last negation kills up to its own deadline": (
        "[a where true] as s\n![x where true] with within=2s\n![y where true] with within=5s",
        "0:a 3:x 20:a 21:x 40:a 45:y 60:a",
        [{"s": [0]}, {"s": [6]}],
    ),
    "having is a condition of completion": (
        "[a where true] as s\n[b where true] as t\nhaving t.n > 1",
        "0:a 1:b1 2:b2",
        [{"s": [0], "t": [2]}],
    ),
    "a bag before an absence is fixed, and no more is taken in": (
        "[a where true] as s with runs=2..\n![x where true] with within=3s",
        "0:a 1:a 2:a 10:a",
        [{"s": [0, 1]}],
    ),
}


@pytest.mark.parametrize(("steps", "events", "expected"), LATEST.values(), ids=LATEST)
def test_latest(steps: str, events: str, expected: list[dict[str, list[int]]]) -> None:
    assert steps_of(sequence(steps), events) == expected


def test_of_several_last_negations_the_latest_deadline_counts() -> None:
    steps = "[a where true] as s\n![x where true] with within=2s\n![y where true] with within=5s"
    assert [match["at"] - T0 for match in result_of(sequence(steps), "0:a 3:x").matches] == [5000]


# ---------------------------------------------------------------- overlap=all and any


def test_all_takes_events_in_until_the_next_step_comes() -> None:
    match = sequence("[a where true] as s with runs=2..\n[any where n > 1] as t", "maxspan=1m, overlap=all, skip=none")
    assert steps_of(match, "0:a1 1:a1 2:a2 3:a3") == [{"s": [0, 1], "t": [2]}, {"s": [1, 2], "t": [3]}]


def test_an_optional_run_with_too_few_counts_as_skipped() -> None:
    steps = "[a where true] as s\n?[b where true] as t with runs=2\n[c where true] as r with within=2s"
    match = sequence(steps, "maxspan=1m, overlap=all")
    assert steps_of(match, "0:a 1:b 2:c 10:a 11:b 13:c 20:a 21:b 22:b 24:c") == [
        {"s": [0], "r": [2]},
        {"s": [6], "t": [7, 8], "r": [9]},
    ]


def test_to_next_keeps_one_match_of_a_first_event() -> None:
    match = sequence(
        "[a where true] as s\n[b where true] as t\n[c where true] as r", "maxspan=1m, overlap=any, skip=to_next"
    )
    assert steps_of(match, "0:a 1:b 2:b 3:c 4:c") == [{"s": [0], "t": [1], "r": [3]}]


def test_of_a_tie_under_any_the_longer_wins() -> None:
    match = sequence("[a where true] as s with runs=1..2\n[c where true] as r", "maxspan=1m, overlap=any")
    assert steps_of(match, "0:a 1:a 2:c") == [{"s": [0, 1], "r": [2]}]


def test_the_oldest_run_goes_when_there_are_too_many() -> None:
    match = sequence("[a where true] as s\n[c where true] as r", "maxspan=1m, overlap=all, skip=none")
    result = result_of(match, "0:a 1:a 2:a 3:c", max_partials=2)
    assert [found["steps"]["s"] for found in result.matches] == [[1], [2]]
    assert result.dropped_partials == 1


# ---------------------------------------------------------------- the other forms


def test_repeat_alerts_again_while_having_holds() -> None:
    match = "aggregate by u over 10s, repeat=3s [a where true] having count() >= 2"
    found = result_of(match, "0:a 1:a 2:a 4:a 5:a 7:a 30:a").matches
    assert [record["at"] - T0 for record in found] == [1000, 4000, 7000]


def test_a_session_is_cut_by_max_and_an_event_at_max_belongs() -> None:
    found = result_of("session by u with gap=2s, max=3s [a where true]", "0:a 1:a 3:a 4:a").matches
    assert [(record["start"] - T0, record["end"] - T0, record["at"] - T0) for record in found] == [
        (0, 3000, 3000),
        (4000, 4000, 6000),
    ]
    assert [record["emit"]["count"] for record in found] == [3, 1]


def test_hopping_windows_overlap() -> None:
    found = result_of("window by u every 2s, size=4s [a where true]", "1:a 3:a").matches
    assert [(record["start"] - T0, record["steps"]["events"]) for record in found] == [
        (-2000, [0]),
        (0, [0, 1]),
        (2000, [1]),
    ]


def test_an_event_enters_every_bracket_but_counts_once() -> None:
    rule = rule_of(
        "session by u with gap=2s [any where true] [a where true] as one [any where n > 0] as two",
        emit="{all: count(), one: count(one), two: count(two)}",
    )
    (found,) = run([rule], events_of("0:a1 1:b1")).matches
    assert found["emit"] == {"count": 2, "all": 2, "one": 1, "two": 2}


# ---------------------------------------------------------------- limits, time, keys


def test_max_events_drops_the_oldest_and_counts() -> None:
    result = result_of(
        sequence("[a where true] as s with runs=2..\n[b where true] as t"), "0:a 1:a 2:a 3:b", max_events=2
    )
    assert result.matches[0]["steps"] == {"s": [1, 2], "t": [3]}
    assert result.dropped_events == 1


def test_an_event_is_late_only_behind_the_watermark() -> None:
    result = result_of(sequence("[a where true] as s"), "5:a 3:a 2:a 9:a", slack_ms=2000)
    assert result.late == [2]
    assert [found["steps"]["s"] for found in result.matches] == [[1], [0], [3]]


def test_an_event_without_a_key_is_counted() -> None:
    events = [*events_of("0:a 1:a"), {"type": "a", "ts": T0, "u": None}, {"type": "a", "ts": T0}]
    assert run([rule_of(sequence("[a where true] as s"))], events).no_key == 2


def test_keys_keep_their_type() -> None:
    events = [{"type": "a", "ts": T0, "u": key} for key in (1, "1", True, 1.0)]
    found = run([rule_of(sequence("[a where true] as s with runs=2"))], events).matches
    assert [record["steps"]["s"] for record in found] == [[0, 3]]


def test_suppressed_matches_show_when_asked_for() -> None:
    rule = rule_of(sequence("[a where true] as s"), suppress="2s")
    events = events_of("0:a 2:a 3:a")
    assert [record["steps"]["s"] for record in run([rule], events).matches] == [[0], [2]]
    shown = run([rule], events, show_suppressed=True).matches
    assert [record.get("suppressed", False) for record in shown] == [False, True, False]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (T0, T0),
        (T0 + 0.9, T0),
        ("2023-11-14T22:13:20Z", T0),
        ("2023-11-14T22:13:20.0009", T0),
        ("2023-11-14T23:13:20+01:00", T0),
        ("1700000000000", None),
        ("soon", None),
        (None, None),
        (True, None),
    ],
)
def test_times(value: object, expected: int | None) -> None:
    assert read_time(value) == expected


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("op", "left", "right", "expected"),
    [
        ("==", 1, 1.0, True),
        ("==", 1, True, False),
        ("!=", 1, "1", True),
        ("!=", None, 1, False),
        ("<", "a", 1, False),
        ("<", "a", "b", True),
        (">=", None, None, False),
    ],
)
def test_comparisons(op: str, left: object, right: object, expected: bool) -> None:
    assert compare(op, left, right) is expected


@pytest.mark.parametrize(
    ("op", "left", "right", "expected"),
    [
        ("/", 3, 2, 1.5),
        ("/", 1, 0, None),
        ("%", -7, 3, -1),
        ("%", 7.5, -2, 1.5),
        ("%", 1, 0, None),
        ("+", "a", 1, None),
    ],
)
def test_arithmetic(op: str, left: object, right: object, expected: object) -> None:
    assert calculate(op, left, right) == expected


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        ("round", (2.5,), 3),
        ("round", (-2.5,), -3),
        ("round", (1.25, 1), 1.3),
        ("substring", ("abcdef", 1, 3), "bc"),
        ("substring", ("abcdef", -2), "ef"),
        ("index_of", ("abc", "c"), 2),
        ("index_of", ("abc", "x"), None),
        ("between", ("<a><b>", "<", ">"), "a"),
        ("between", ("<a><b>", "<", ">", True), "a><b"),
        ("length", (5,), None),
        ("starts_with", ("abc", None), None),
        ("number", ("1.5",), 1.5),
        ("number", ("x",), None),
        ("string", (2.0,), "2"),
        ("cidr", ("10.1.2.3", "10.0.0.0/8"), True),
        ("cidr", ("10.1.2", "10.0.0.0/8"), False),
        ("hour", (T0, "Europe/Berlin"), 23),
        ("day_of_week", (T0,), 2),
    ],
)
def test_functions(function: str, args: tuple[object, ...], expected: object) -> None:
    assert FUNCTIONS[function](*args) == expected


@pytest.mark.parametrize(
    ("function", "of_nothing", "of_some"),
    [
        ("count", 0, 4),
        ("sum", 0, 6),
        ("avg", None, 1.5),
        ("min", None, 0),
        ("max", None, 3),
        ("stddev", None, 1.118033988749895),
        ("distinct", 0, 4),
        ("first", None, 0),
        ("last", None, 3),
        ("values", [], [0, 1, 2, 3]),
    ],
)
def test_aggregates_leave_nulls_out(function: str, of_nothing: object, of_some: object) -> None:
    assert aggregate(function, [None]) == of_nothing
    assert aggregate(function, [None, 0, 1, 2, None, 3]) == of_some


# ---------------------------------------------------------------- random rules


def outcome(text: str, events: list[dict[str, Any]], **options: Any) -> Result:
    rule = load_text(text).rule
    assert rule is not None
    return run([rule], events, show_suppressed=True, **options)


def test_arrival_order_within_the_slack_changes_nothing() -> None:
    for seed in range(150):
        text, events = random_case(seed)
        repaired = outcome(text, events, slack_ms=SLACK_MS)
        assert repaired == outcome(text, events), f"random_case({seed})"
        assert not repaired.late, f"random_case({seed})"


def test_any_finds_what_all_finds() -> None:
    """Where all matches are kept."""
    compared = 0
    for seed in range(800):
        text, events = random_case(seed)
        if "overlap=all, skip=none" in text:
            few = events[:16]
            of_any = outcome(text.replace("overlap=all", "overlap=any"), few, max_partials=100_000, max_matches=100_000)
            of_all = outcome(text, few)
            every = unmarked(of_any)
            assert all(match in every for match in unmarked(of_all)), f"random_case({seed})"
            compared += bool(of_all.matches)
    assert compared > 5


def unmarked(result: Result) -> list[dict[str, Any]]:
    return [{name: value for name, value in match.items() if name != "suppressed"} for match in result.matches]


def test_random_rules_match_often() -> None:
    """A generator whose rules never fire would test nothing."""
    seeds = Random(0).sample(range(100_000), 200)
    assert sum(bool(outcome(*random_case(seed)).matches) for seed in seeds) > 100


@settings(deadline=None, max_examples=100)
@given(case=rules_and_events())
def test_matches_keep_their_bounds(case: tuple[str, list[dict[str, Any]]]) -> None:
    """Whatever the rule: a match lists events of its span, each once, and none is listed after it is detected."""
    text, events = case
    for match in outcome(text, events).matches:
        lines = [line for listed in match["steps"].values() for line in listed]
        times = [events[line]["ts"] for line in lines]
        assert len(set(lines)) == len(lines)
        assert match["start"] <= min(times) <= max(times) <= match["end"] <= match["at"]
