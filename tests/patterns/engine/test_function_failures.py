"""A function in Python that fails is the rule's failure: it is not null, it is not remembered, and nothing is taken."""

from __future__ import annotations

import io
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.native.kernel import Batch
from samovar.patterns.engine import scalars
from samovar.patterns.engine.matcher import END_OF_TIME, FunctionFailure, States, step
from samovar.service.offline.match import RULE_ERRORS, MatchRunOptions, match
from samovar.service.rules.testing import run_files
from tests.support.matching import arrived, in_order, matches_of, program_of

EVENTS = [
    {"type": "a", "ts": 1_000, "u": "k", "f": "1"},
    {"type": "b", "ts": 2_000, "u": "k", "f": "bad"},
    {"type": "c", "ts": 3_000, "u": "k", "f": "1"},
]
RULE = """
rule: {id}
match: |
  {match}
emit: {{shown: '{emit}'}}
let: {{by_number: 'number(f)', plain: u}}
"""
SEQUENCE = "sequence by u with maxspan=1m [a where true] as x [b where {}] as y"

# Where a function can be called, and the event at which it then meets the value that it fails with.
PLACES = {
    "a condition": (SEQUENCE.format("number(f) == 1"), "1", 1),
    "a condition across steps": (SEQUENCE.format("number(concat(f, x.u)) == 1"), "1", 1),
    "a history's value": (SEQUENCE.format("sum(number(f), 1h) > 0"), "1", 1),
    "a history's where": (SEQUENCE.format("count(1h where number(f) == 1) > 0"), "1", 1),
    "having": ("aggregate by u over 1m [any where true] having number(last(f)) == 7", "1", None),
    "emit": (SEQUENCE.format("true"), "number(y.f)", 1),
    "a key": ("sequence by by_number with maxspan=1m [b where true] as x", "1", 1),
    "emit of a timer": ("sequence by u with maxspan=1m [b where true] as y ![c where f == null]", "number(y.f)", None),
    "emit of a session": ("session by u with gap=1s [b where true]", "number(last(f))", None),
}


def failing(error: BaseException) -> Any:
    """`number`, but of any text with `bad` in it."""

    def number(value: Any) -> Any:
        if isinstance(value, str) and "bad" in value:
            raise error
        return 1

    return number


def ordered(program: Any, events: Any = EVENTS) -> Batch:
    return in_order(arrived(program, events))


@pytest.mark.parametrize("place", PLACES)
def test_a_step_fails_with_the_rule_the_function_the_event_and_the_key(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, emit, event = PLACES[place]
    monkeypatch.setitem(scalars.FUNCTIONS, "number", failing(MemoryError()))
    quiet = RULE.format(id="quiet", match=SEQUENCE.format("true"), emit="1")
    program = program_of(quiet, RULE.format(id="loud", match=text, emit=emit))
    with pytest.raises(FunctionFailure) as raised:
        step(States(program), ordered(program), END_OF_TIME)
    assert raised.value.rule == "loud"
    assert raised.value.version == program.rules[1].version
    assert raised.value.key == (() if place == "a key" else ("k",))
    where = "" if event is None else f" at event {event}"
    assert raised.value.reason == f"number raised MemoryError{where}"
    assert isinstance(raised.value.__cause__, MemoryError)


def test_states_that_failed_are_neither_stored_nor_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scalars.FUNCTIONS, "number", failing(OSError(24, "Too many open files")))
    program = program_of(RULE.format(id="r", match=PLACES["a condition"][0], emit="1"))
    states, batch = States(program), ordered(program)
    for _ in range(2):
        with pytest.raises(FunctionFailure, match="Too many open files"):
            step(states, batch, END_OF_TIME)
    for use in (states.rows, states.changed_rows, lambda: states.digest(0)):
        with pytest.raises(FunctionFailure):
            use()


def test_keys_that_cannot_be_worked_out_fail_before_they_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scalars.FUNCTIONS, "number", failing(MemoryError()))
    program = program_of(RULE.format(id="r", match=PLACES["a key"][0], emit="1"))
    with pytest.raises(FunctionFailure, match="rule r"):
        States(program).uncached_keys(ordered(program))


def test_an_event_of_a_topic_is_named_by_its_coordinates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scalars.FUNCTIONS, "number", failing(MemoryError()))
    program = program_of(RULE.format(id="r", match=PLACES["a condition"][0], emit="1"))
    with pytest.raises(FunctionFailure, match="at event taps/0/1"):
        step(States(program, topics=["taps"]), ordered(program), END_OF_TIME)


def test_ctrl_c_in_a_function_is_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scalars.FUNCTIONS, "number", failing(KeyboardInterrupt()))
    program = program_of(RULE.format(id="r", match=PLACES["a condition"][0], emit="1"))
    with pytest.raises(KeyboardInterrupt):
        step(States(program), ordered(program), END_OF_TIME)


@contextmanager
def no_more_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # those that are open stay open
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_zone_that_cannot_be_opened_now_is_not_an_unknown_zone() -> None:
    """Out of file handles, `hour` gave null, and went on giving it when there were handles again."""
    text = (
        'rule: late\nmatch: |\n  sequence by u with maxspan=0ms [a where hour(@time, "Pacific/Chatham") == 12] as a\n'
    )
    program = program_of(text)
    scalars._zone.cache_clear()
    ZoneInfo.clear_cache()
    with no_more_files(), pytest.raises(FunctionFailure, match=r"rule late.*hour raised OSError"):
        step(States(program), ordered(program), END_OF_TIME)
    assert len(step(States(program), ordered(program), END_OF_TIME)) == 1


# ---------------------------------------------------------------- commands


def test_samovar_match_says_which_rule_failed_and_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scalars.FUNCTIONS, "number", failing(MemoryError()))
    rule, events = tmp_path / "r.yml", tmp_path / "e.jsonl"
    rule.write_text(RULE.format(id="r", match=PLACES["a condition"][0], emit="1"))
    events.write_text('{"type": "b", "ts": 1, "u": "k", "f": "bad"}\n')
    out, err = io.BytesIO(), io.StringIO()
    assert match([str(rule)], str(events), MatchRunOptions(quiet=True), out, err) == RULE_ERRORS
    assert out.getvalue() == b""
    assert err.getvalue().startswith("samovar: rule r, key ['k']: number raised MemoryError at event 0\n  ")


def test_rules_test_counts_it_as_a_failure_of_that_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scalars.FUNCTIONS, "number", failing(MemoryError()))
    tests = 'tests: [{name: t, events: ["+0s b {u: k, f: bad}"], expect: []}]\n'
    (tmp_path / "r.yml").write_text(RULE.format(id="r", match=PLACES["a condition"][0], emit="1") + tests)
    (found,) = run_files([str(tmp_path / "r.yml")], None)
    assert [finding.id for finding in found.findings if finding.level == "error"] == ["rule-failed"]


# ---------------------------------------------------------------- no value of an event makes a function fail

TEXTS = st.one_of(
    st.text(max_size=20),
    st.from_regex(r"[+-]?[0-9]{1,5}([.][0-9]{0,5})?([eE][+-]?[0-9]{1,4})?", fullmatch=True),
    st.integers(1, 6000).map("9".__mul__),
    st.integers(1, 6000).map(lambda n: "0x" + "f" * n),
    st.ip_addresses().map(str),
    st.sampled_from(["Europe/Berlin", "Europe", "../x", "a\0b", "", "z" * 300, "10.0.0.0/8", "fe80::1%eth0", "::/0"]),
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
)


@given(function=st.sampled_from(sorted(scalars.FUNCTIONS)), first=VALUES, second=VALUES)
def test_a_function_answers_every_value(function: str, first: Any, second: Any) -> None:
    call = f"{function}(a)" if function in ("lower", "upper", "string") else f"{function}(a, b)"
    rule = f"rule: r\nmatch: |\n  sequence with maxspan=0ms [e where true] as e\nemit: {{is: '{call}'}}\n"
    assert len(matches_of(rule, [{"type": "e", "ts": 1, "a": first, "b": second}])) == 1


def test_a_number_that_no_double_holds_is_null() -> None:
    rule = "rule: r\nmatch: |\n  sequence with maxspan=0ms [e where true] as e\nemit: {is: number(f)}\n"
    texts = ["9" * 5000, "9" * 400, "1e999", "0x" + "f" * 400, "9" * 20, "-12"]
    found = matches_of(rule, [{"type": "e", "ts": n, "f": text} for n, text in enumerate(texts)])
    assert [each["emit"]["is"] for each in found] == [None, None, None, None, 1e20, -12]


@pytest.mark.parametrize("values", [(10**15, 1e15), (1e15, 10**15)])
def test_what_was_asked_before_does_not_change_an_answer(values: tuple[float, float]) -> None:
    """10**15 and 1e15 are equal, but not the same text."""
    rule = "rule: r\nmatch: |\n  sequence with maxspan=0ms [e where true] as e\nemit: {is: string(f)}\n"
    found = matches_of(rule, [{"type": "e", "ts": n, "f": value} for n, value in enumerate(values)])
    assert [each["emit"]["is"] for each in found] == [str(value) for value in values]
