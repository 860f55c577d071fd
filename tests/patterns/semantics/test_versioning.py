"""Versions of rules, which are stored: they may change only where the meaning of a rule does."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass

import pytest

from samovar.patterns.engine.compile import compile_rules
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.semantics.versioning import WIRE, version_of
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.tree import Rule
from tests.support.project import ROOT

PINNED = json.loads((ROOT / "tests" / "fixtures" / "rule_versions.json").read_text())
NOT_HASHED = {"Span", "TestEvent", "ExpectedMatch", "RuleTest", "Rule"}
HISTORY = """
rule: dormant
match: |
  sequence by card with maxspan=1m
    [purchase where not seen(device, 90d where ok == true)]
"""


def rule_of(text: str) -> Rule:
    rule = load_text(text).rule
    assert rule is not None, text
    return rule


@pytest.mark.parametrize("pinned", PINNED, ids=lambda each: each["version"])
def test_a_version_stays(pinned: dict[str, str]) -> None:
    """States are stored under it: a rename in this code must not lose them."""
    assert version_of(rule_of(pinned["text"])) == pinned["version"]


def test_every_part_of_a_rule_counts() -> None:
    """A field that is not named would let two rules with other meanings have one version."""
    parts = [each for each in vars(tree).values() if isinstance(each, type) and is_dataclass(each)]
    assert {each.__name__ for each in parts} == {each.__name__ for each in WIRE} | NOT_HASHED
    for kind, (_, named) in WIRE.items():
        assert [attribute for attribute, _, _ in named] == [each.name for each in fields(kind) if each.compare]


def test_names_on_the_wire_are_not_used_twice() -> None:
    names = [name for name, _ in WIRE.values()]
    assert len(set(names)) == len(names)
    for _, named in WIRE.values():
        wires = [wire for _, wire, _ in named]
        assert len(set(wires)) == len(wires)


def test_a_history_is_stored_under_what_it_asks_wherever_that_stands() -> None:
    moved = HISTORY.replace("rule: dormant", "# one line more\nrule: dormant").replace("[purchase", "  [purchase")
    one, other = (compile_rules([rule_of(text)]) for text in (HISTORY, moved))
    assert one.histories.keys() == other.histories.keys()
