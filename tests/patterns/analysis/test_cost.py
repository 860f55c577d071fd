"""The estimate of a rule's state is an upper bound of what the kernel really stores."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given

from samovar.native.kernel import joined
from samovar.patterns.analysis.cost import TEXT_BYTES, cost
from samovar.patterns.engine.compile import compile_rules
from samovar.patterns.engine.decoder import Decoder
from samovar.patterns.engine.matcher import END_OF_TIME, MAX_EVENTS, MAX_PARTIALS, States, step
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.syntax.tree import Rule
from tests.support.random_rules import rules_and_events

START = 1_900_000_000_000
KEY = "k" * TEXT_BYTES
TEXT = "t" * TEXT_BYTES
HOUR = 3_600_000
DAY = 24 * HOUR


def rule_of(match: str, rest: str = "") -> Rule:
    loaded = load_text(f"rule: {'r' * 40}\nmatch: |\n  {match}\n{rest}", "r.yml")
    assert loaded.rule is not None, loaded.findings
    return loaded.rule


def events(types: str, each_ms: int = 10) -> Iterator[dict[str, Any]]:
    """An event a letter, each of which makes the most of what a rule reads."""
    for number, type in enumerate(types):
        yield {
            "type": type,
            "ts": START + number * each_ms,
            "u": KEY,
            "f": TEXT,
            "n": 2**53 + number,
            "x": 0.1 + number,
        }


def run(
    rule: Rule, taken: Iterable[dict[str, Any]], max_events: int = MAX_EVENTS, max_partials: int = MAX_PARTIALS
) -> States:
    program = compile_rules([rule])
    decoder = Decoder(program.fields)
    batch = decoder.batch()
    decoder.decode(batch, joined([json.dumps(event).encode() for event in taken]))
    states = States(program, max_events=max_events, max_partials=max_partials)
    step(states, batch, int(batch.time.max()))
    return states


def stored_bytes(states: States) -> int:
    return sum(len(key) + len(value) for key, value in states.rows().items())


READS = "emit: {a: f, b: u, c: n}"
RULES = {
    "two steps": ("sequence by u with maxspan=1h [a where true] as x [z where f == x.f] as y", READS, "a"),
    "three steps": ("sequence by u with maxspan=1h [a where true] [b where true] [z where true] as y", READS, "ab"),
    "a bag": (
        "sequence by u with maxspan=1h [a where true] as x with runs=3.. [z where true] as y",
        "emit: {a: first(x.f), b: sum(x.n), c: f}",
        "aaa",
    ),
    "a run": (
        "sequence by u with maxspan=1h [a where true] as x [b where true] as y with runs=4 [z where true]",
        "emit: {a: first(y.f)}",
        "abbbb",
    ),
    "unordered": (
        "sequence by u with maxspan=1h unordered {[a where true] as x [b where true] as y} [z where true]",
        READS,
        "ab",
    ),
    "a last negation": ("sequence by u with maxspan=1h [a where true] as x ![z where true]", "emit: {a: x.f}", "a"),
    "a first negation": (
        "sequence by u with maxspan=1h ![b where true] with for=50ms [a where true] [z where true]",
        "",
        "bcccccca",
    ),
    "all": ("sequence by u with maxspan=1h, overlap=all [a where true] as x [z where true]", "emit: {a: x.f}", "a"),
    "next": ("sequence by u with maxspan=1h [a where true] as x next [z where true]", "emit: {a: x.f}", "a"),
    "history": ("sequence by u with maxspan=1h [a where not seen(f, 30d)] as x [z where true]", "", "aaaaaaaaaa"),
    "aggregate": (
        "aggregate by u over 1h [a where true] having count() >= 5",
        "emit: {s: sum(n), v: values(f)}",
        "aaaa",
    ),
    "session": (
        "session by u with gap=1h [a where true]",
        "emit: {s: sum(x), v: values(f), d: distinct(n), l: f}",
        "aaaaaaaaaa",
    ),
    "window": ("window by u every 1h [a where true] having count() > 3", "emit: {s: avg(x), m: max(f)}", "aaaa"),
}


@pytest.mark.parametrize("name", RULES)
def test_typical_state_is_bounded_and_not_far_off(name: str) -> None:
    match, rest, types = RULES[name]
    rule = rule_of(match, rest)
    stored, estimated = stored_bytes(run(rule, events(types))), cost(rule).typical_bytes
    assert 0 < stored <= estimated
    assert estimated < 4 * stored + 200


@pytest.mark.parametrize("name", RULES)
def test_worst_state_is_bounded(name: str) -> None:
    match, rest, types = RULES[name]
    rule = rule_of(match, rest)
    for order in (types * 300, types + types[-1] * 1_000, "".join(sorted(types * 300))):
        limits = {"max_events": 200, "max_partials": 50}
        states = run(rule, events(order), **limits)
        found = cost(rule, **limits)
        assert stored_bytes(states) <= found.worst_bytes
        assert states.counters(0).live_partials <= found.partials


def test_worst_state_of_hopping_windows() -> None:
    rule = rule_of("window by u every 1s, size=10s [a where true]", "emit: {d: distinct(n)}")
    states = run(rule, events("a" * 2_000, each_ms=20), max_events=100)
    assert stored_bytes(states) <= cost(rule, max_events=100).worst_bytes
    assert states.counters(0).live_partials <= cost(rule).partials


def test_worst_state_of_runs_under_all() -> None:
    rule = rule_of(
        "sequence by u with maxspan=1h, overlap=all [a where true] ?[b where true] as y with runs=3.. [z where true]",
        "emit: {s: count(y), f: last(y.f)}",
    )
    limits = {"max_events": 50, "max_partials": 20}
    states = run(rule, events("abb" * 200), **limits)
    assert stored_bytes(states) <= cost(rule, **limits).worst_bytes


@given(rules_and_events())
def test_worst_state_of_random_rules_is_bounded(case: tuple[str, list[dict[str, Any]]]) -> None:
    text, taken = case
    rule = load_text(text).rule
    assert rule is not None
    limits = {"max_events": 8, "max_partials": 5}
    states = run(rule, sorted(taken, key=lambda event: int(event["ts"])), **limits)
    rows = states.rows()
    found = cost(rule, **limits)
    keys = len({event.get("u") for event in taken}) + len({event.get("v") for event in taken}) + 2
    assert sum(len(key) + len(value) for key, value in rows.items()) <= keys * found.worst_bytes
    assert found.typical_bytes <= found.worst_bytes


@pytest.mark.parametrize("name", RULES)
def test_a_silent_key_leaves_nothing_after_the_time_told(name: str) -> None:
    match, rest, types = RULES[name]
    for suppress in ("", "\nsuppress: 3h"):
        rule = rule_of(match, rest + suppress)
        program = compile_rules([rule])
        taken = list(events(types + "z"))
        held = cost(rule).held_ms
        assert held is not None
        decoder = Decoder(program.fields)
        batch = decoder.batch()
        decoder.decode(batch, joined([json.dumps(event).encode() for event in taken]))
        states = States(program)
        step(states, batch, taken[-1]["ts"])
        step(states, decoder.batch(), taken[-1]["ts"] + held + HOUR + 1)  # a window ends up to its size later
        assert states.live() == 0


@pytest.mark.parametrize(
    ("match", "rest", "held"),
    [
        ("sequence by u with maxspan=1h [a where true] [b where true]", "", HOUR),
        ("sequence by u with maxspan=1h [a where true] [b where true]", "suppress: 1d", DAY),
        ("sequence by u with maxspan=1h [a where true] ![b where true]", "suppress: 1d", DAY + HOUR),
        ("sequence by u with maxspan=0ms ![b where true] with for=1d [a where true]", "", DAY),
        ("sequence by u with maxspan=1h [a where seen(f, 90d)]", "", 90 * DAY),
        ("aggregate by u over 1h [a where true] having count() > 5", "", HOUR),
        ("aggregate by u over 1h [a where true] having sum(n) < 5", "", None),
        ("aggregate by u over 1h [a where true] having avg(n) < 5", "", HOUR),
        ("session by u with gap=1h [a where true]", "suppress: 1d", DAY + HOUR),
        ("window by u every 1h, size=1d [a where true]", "", DAY),
    ],
)
def test_how_long_a_silent_key_is_held(match: str, rest: str, held: int | None) -> None:
    assert cost(rule_of(match, rest)).held_ms == held


def test_state_that_never_leaves_is_told() -> None:
    rule = rule_of("aggregate by u over 1h [a where true] having sum(n) < 5")
    states = run(rule, [{"type": "a", "ts": START, "u": KEY, "n": 1}])
    program_batch = Decoder(states.program.fields).batch()
    step(states, program_batch, END_OF_TIME - 1)
    assert cost(rule).held_ms is None
    assert states.live() == 1


@pytest.mark.parametrize(
    ("match", "events_needed"),
    [
        ("sequence by u with maxspan=1h [a where true] [b where true]", None),
        ("sequence by u with maxspan=1h, overlap=all [a where true]", None),
        ("sequence by u with maxspan=1h, overlap=all [a where true] [b where true]", 1_001),
        ("sequence by u with maxspan=1h, overlap=any, skip=none [any where true] [z where true]", 1_001),
        ("sequence by u with maxspan=1h, overlap=any, skip=none [any where true] [any where true] [z where true]", 45),
        ("sequence by u with maxspan=1h, overlap=any, skip=none [any where true] with runs=2.. [z where true]", 10),
        ("sequence by u with maxspan=1h, overlap=any, skip=none [any where true] with runs=2..3 [z where true]", 19),
    ],
)
def test_how_many_events_make_too_many_partials(match: str, events_needed: int | None) -> None:
    rule = rule_of(match)
    assert cost(rule).overflow_events == events_needed
    if events_needed is None:
        return
    assert run(rule, events("a" * (events_needed - 1))).counters(0).dropped_partials == 0
    if "[b" not in match:
        assert run(rule, events("a" * events_needed)).counters(0).dropped_partials > 0
