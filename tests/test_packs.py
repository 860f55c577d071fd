"""The rule packs of examples/: they load without a complaint, and their own tests hold, whoever runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from samovar.patterns.rulefile import load_paths
from samovar.patterns.schema import Schema
from samovar.patterns.syntax import Expected, Rule, RuleTest
from samovar.service import synth_plants, synth_sessions
from tests import oracle

Matches: TypeAlias = list[dict[str, Any]]
Engine: TypeAlias = Callable[[Rule, list[dict[str, Any]]], Matches]

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
PACKS = ("fraud", "sessions")
BASE_MS = 1_767_571_200_000


def by_oracle(rule: Rule, events: list[dict[str, Any]]) -> Matches:
    return oracle.run([rule], events).matches


# A further engine takes a rule and events as dictionaries with `type` and `ts`, and gives what `samovar match` prints.
ENGINES: dict[str, Engine] = {"oracle": by_oracle}


def load(pack: str) -> dict[str, Rule]:
    rules, findings = load_pack(pack)
    assert [finding for finding in findings if finding.level == "error"] == []
    return {rule.id: rule for rule in rules}


def cases() -> Iterable[Any]:
    for pack in PACKS:
        for rule in load(pack).values():
            for test in rule.tests:
                yield pytest.param(rule, test, id=f"{pack}-{rule.id}-{test.name}")


def pack_rules() -> Iterable[Any]:
    return (pytest.param(rule, id=f"{pack}-{rule.id}") for pack in PACKS for rule in load(pack).values())


@pytest.mark.parametrize("pack", PACKS)
def test_no_finding_at_all(pack: str) -> None:
    _, findings = load_pack(pack)
    assert [f"{finding.path}: {finding.message}" for finding in findings] == []


@pytest.mark.parametrize(("pack", "least"), [("fraud", 12), ("sessions", 6)])
def test_enough_rules_named_as_their_files(pack: str, least: int) -> None:
    rules = load(pack)
    assert len(rules) >= least
    assert {Path(rule.path).stem for rule in rules.values()} == set(rules)


@pytest.mark.parametrize(("pack", "kinds"), [("fraud", synth_plants.KINDS), ("sessions", synth_sessions.KINDS)])
def test_every_planted_kind_has_its_rule(pack: str, kinds: tuple[str, ...]) -> None:
    assert set(kinds) <= set(load(pack))


@pytest.mark.parametrize("rule", pack_rules())
def test_rule_is_complete(rule: Rule) -> None:
    assert rule.title
    assert rule.tags
    assert rule.emit
    assert rule.message
    assert sum(bool(test.expect) for test in rule.tests) >= 2
    assert sum(not test.expect for test in rule.tests) >= 2


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("rule", "test"), cases())
def test_own_tests_hold(rule: Rule, test: RuleTest, engine: str) -> None:
    events = [{**event.fields, "type": event.type, "ts": BASE_MS + event.offset_ms} for event in test.events]
    matches = ENGINES[engine](rule, events)
    assert [told(match, expected) for match, expected in pairs(matches, test.expect)] == [
        wanted(expected) for expected in test.expect
    ]
    assert len(matches) == len(test.expect)


def pairs(matches: Matches, expect: tuple[Expected, ...]) -> Iterable[tuple[Mapping[str, Any], Expected]]:
    return zip(matches, expect, strict=False)


def wanted(expected: Expected) -> dict[str, Any]:
    """What an expectation says, in the words of a match."""
    times = {"start": expected.start_ms, "end": expected.end_ms, "at": expected.at_ms}
    steps = None if expected.steps is None else {name: list(lines) for name, lines in expected.steps.items()}
    said = {
        "key": None if expected.key is None else dict(expected.key),
        "steps": steps,
        "emit": None if expected.emit is None else dict(expected.emit),
        "message": expected.message,
        **{name: None if offset is None else BASE_MS + offset for name, offset in times.items()},
    }
    return {name: value for name, value in said.items() if value is not None}


def told(match: Mapping[str, Any], expected: Expected) -> dict[str, Any]:
    """The part of a match that the expectation speaks of; of `emit` only the fields that it names."""
    part = {name: match[name] for name in wanted(expected)}
    if expected.emit is not None:
        part["emit"] = {name: value for name, value in match["emit"].items() if name in expected.emit}
    return part
