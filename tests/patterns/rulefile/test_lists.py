"""Lists of values: what fits them is as the oracle says, and a long one is no more work per event than a short one."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.patterns.analysis.cost import cost
from samovar.patterns.engine.compile import Program, compile_rules
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.semantics.versioning import version_of
from samovar.patterns.syntax.tree import LongList, Rule, walk
from samovar.patterns.syntax.unparse import unparse
from tests import oracle
from tests.support.matching import find

RULE = """
rule: listed
match: |
  sequence by k with maxspan=1m
    [e where {first}] as a
    [e where {second}] as b
lists: {{l: [a]}}
"""
CONDITIONS = (
    "x in $l",
    "x not in $l",
    "x in~ $l",
    "not (x in $l)",
    "x in $l or y in~ $l",
    'x in (1, 2.5, "p", y, null)',
    "x in ($l, y)",
    '"p" in (x, y)',
)
ACROSS = ("a.x in $l", "a.x not in $l and x in $l", "x in ($l, a.x)", "x in (a.x, a.y)", "coalesce(a.x, x) in~ $l")

# Numbers that are equal and are not written alike, numbers that differ by less than a double can tell, texts that look
# like numbers, and texts that differ by case alone.
NUMBERS = (0, -0.0, 1, 1.0, 2.5, -1, 2**53, 2.0**53, 2**53 + 1, -(2**63), 2**63 - 1, 1e300, 1e-300)
TEXTS = ("", "1", "1.0", "true", "p", "P", "pq", "PQ", "É", "é", "p*", "longer than what stands in a value", "null")
# Letters whose other case is more than one letter, or another script's.
LONG_S, SIGMA, KELVIN, DOTLESS = "\u017f", "\u03c3", "\u212a", "\u0131"
CASES = (
    "straße",
    "STRASSE",
    "STRAẞE",
    LONG_S,
    "s",
    "S",
    "ς",
    "Σ",
    SIGMA,
    KELVIN,
    "k",
    "İ",
    "i",
    DOTLESS,
    "ŉ",
    "ǅ",
    "ǆ",
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(NUMBERS),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from((*TEXTS, *CASES)),
    st.text("pPqQ1*?é ", max_size=4),
)
LISTS = st.lists(SCALARS, min_size=1, max_size=80)
EVENTS = st.lists(st.tuples(SCALARS, SCALARS), min_size=1, max_size=8)


def rule_of(conditions: tuple[str, str], values: Sequence[Any]) -> Rule:
    loaded = load_text(RULE.format(first=conditions[0], second=conditions[1]), lists={"l": values})
    assert loaded.rule is not None, loaded.findings
    return loaded.rule


def assert_as_the_oracle(rule: Rule, values: Sequence[tuple[Any, Any]]) -> None:
    events = [{"type": "e", "ts": 1_000 * n, "k": 1, "x": x, "y": y} for n, (x, y) in enumerate(values)]
    wanted = [match["steps"] for match in oracle.run([rule], events).matches]
    assert [match["steps"] for match in find(compile_rules([rule]), events)] == wanted


@given(first=st.sampled_from(CONDITIONS), second=st.sampled_from(CONDITIONS + ACROSS), listed=LISTS, events=EVENTS)
def test_what_is_in_a_list_is_what_the_oracle_finds_in_it(
    first: str, second: str, listed: list[Any], events: list[tuple[Any, Any]]
) -> None:
    """Half of the events have values that the list has."""
    picked = [(listed[n % len(listed)] if n % 2 else x, y) for n, (x, y) in enumerate(events)]
    assert_as_the_oracle(rule_of((first, second), listed), picked)


@pytest.mark.parametrize("sign", ["in~", "like~", ":", "regex~"])
@pytest.mark.parametrize("word", CASES)
def test_letters_are_folded_one_by_one_whatever_the_operator(sign: str, word: str) -> None:
    pattern = f"^{word}$" if sign == "regex~" else word
    text = RULE.format(first=f'x {sign} ("{pattern}")', second="true").replace("    [e where true] as b\n", "")
    loaded = load_text(text)
    assert loaded.rule is not None, loaded.findings
    events = [{"type": "e", "ts": n, "k": 1, "x": each} for n, each in enumerate(CASES)]
    found = {CASES[match["steps"]["a"][0]] for match in find(compile_rules([loaded.rule]), events)}
    alike = {"straße", "STRAẞE"}, {LONG_S, "s", "S"}, {"ς", "Σ", SIGMA}, {KELVIN, "k"}, {"ǅ", "ǆ"}
    assert found == next((letters for letters in alike if word in letters), {word})


PATTERNS = st.lists(st.text("ab*?éßS", max_size=4), min_size=1, max_size=12)


@given(
    sign=st.sampled_from(["like", "like~", ":"]),
    patterns=PATTERNS,
    texts=st.lists(st.text(f"abABé*ßẞs{LONG_S}", max_size=5)),
)
def test_what_fits_a_list_of_patterns_is_what_the_oracle_finds(
    sign: str, patterns: list[str], texts: list[str]
) -> None:
    assert_as_the_oracle(rule_of((f"x {sign} $l", f"not (x {sign} $l)"), patterns), [(text, None) for text in texts])


ADDRESSES = st.one_of(st.ip_addresses().map(str), st.integers(0, 1023).map(lambda n: f"10.0.{n // 256}.{n % 256}"))
NETWORKS = st.lists(st.tuples(ADDRESSES, st.integers(0, 32)).map(lambda pair: f"{pair[0]}/{pair[1]}"), min_size=1)


@given(networks=NETWORKS, addresses=st.lists(ADDRESSES))
def test_what_is_in_a_network_is_what_the_oracle_finds(networks: list[str], addresses: list[str]) -> None:
    named = ", ".join(f'"{network}"' for network in networks)
    rule = rule_of((f"cidr(x, {named})", f"not cidr(x, {named})"), ["a"])
    assert_as_the_oracle(rule, [(address, None) for address in addresses])


# ---------------------------------------------------------------- a long list is one thing


def nodes_of(program: Program) -> int:
    """How many expressions there are, each of which may be a column: see `Program::read` of the kernel."""
    words = iter(program.words)

    def skip(count: int) -> None:
        for _ in range(count):
            next(words)

    skip(3 * next(words))  # constants
    for _ in ("sets", "patterns"):
        for _ in range(next(words)):
            skip(next(words))
    skip(2)  # fields, functions
    skip(next(words))  # types
    return next(words)


@pytest.mark.parametrize("condition", ["x in $l", "x not in $l", "x in~ $l", "x like $l", "x regex $l", "x : $l"])
def test_a_list_of_any_length_is_one_expression(condition: str) -> None:
    def program(size: int) -> Program:
        return compile_rules([rule_of((condition, "true"), [f"v{n}" for n in range(size)])])

    assert nodes_of(program(10)) == nodes_of(program(2_000))


def test_networks_of_any_number_are_one_expression() -> None:
    def program(size: int) -> Program:
        networks = ", ".join(f'"{ipaddress.ip_address(n << 8)}/24"' for n in range(size))
        return compile_rules([rule_of((f"cidr(x, {networks})", "true"), ["a"])])

    assert nodes_of(program(1)) == nodes_of(program(200))


def test_a_hundred_thousand_values_are_found_among_as_many_that_are_not() -> None:
    values = [f"v{n}" for n in range(0, 200_000, 2)]
    rule = rule_of(("x in $l and y not in $l", "x in $l"), values)
    events = [{"type": "e", "ts": n, "k": 1, "x": f"v{n}", "y": f"v{n + 1}"} for n in range(2_000)]
    assert len(find(compile_rules([rule]), events)) == 500


def test_a_long_list_is_one_object_however_often_a_rule_names_it() -> None:
    """Lint compares conditions with each other again and again."""
    rule = rule_of(("x in $l and not (y in $l)", "x in~ $l"), [f"v{n}" for n in range(1_000)])
    found = [bracket.condition for step in rule.form.steps for bracket in step.brackets]  # type: ignore[union-attr]
    lists = {
        id(items) for part in found for each in walk(part) if isinstance(items := getattr(each, "items", 0), LongList)
    }
    assert len(lists) == 1
    assert sum(1 for part in found for _ in walk(part)) < 20, "its values are no part of a walk"
    assert cost(rule) == cost(rule_of(("x in $l and not (y in $l)", "x in~ $l"), ["v1"]))
    assert unparse(found[1]) == 'x in~ ("v0", "v1", "v2", "v3", "v4", "v5", ... 994 more)'


def test_every_value_of_a_long_list_is_part_of_the_version() -> None:
    values = [f"v{n}" for n in range(1_000)]
    versions = {version_of(rule_of(("x in $l", "true"), [*values[:999], last])) for last in ("v999", "w", 1, 1.0, True)}
    assert len(versions) == 4, "1 and 1.0 are one value"
