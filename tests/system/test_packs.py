"""The rule packs of examples/: they load without a complaint, and their own tests hold, anyone who runs them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import numpy as np
import pytest

from samovar.patterns.engine.compile import compile_rules
from samovar.patterns.engine.decoder import Decoder
from samovar.patterns.engine.replay import BadLine, EventReplay, Lines
from samovar.patterns.rulefile.rule_file import LoadedRuleFile, load_paths
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax.tree import ExpectedMatch, Rule, RuleTest
from samovar.service.offline.generate import START_MS, generate_blocks
from samovar.service.offline.score import detects, score
from samovar.service.offline.synth import fraud, plants, sessions
from tests import oracle
from tests.support.project import ROOT

Matches: TypeAlias = list[dict[str, Any]]
Engine: TypeAlias = Callable[[Rule, list[dict[str, Any]]], Matches]

EXAMPLES = ROOT / "examples"
PACKS = ("fraud", "sessions")
BASE_MS = START_MS
# Two visits of one visitor within half an hour are one, and a small cart is below the limit: labels that no rule finds.
DILUTED = {"bounce", "cart-abandoned"}


def by_oracle(rule: Rule, events: list[dict[str, Any]]) -> Matches:
    return oracle.run([rule], events).matches


def by_matcher(rule: Rule, events: list[dict[str, Any]]) -> Matches:
    program = compile_rules([rule])
    lines, replay = Lines(Decoder(program.fields), on_bad=refuse), EventReplay(program)
    found = [replay.feed(lines.take("".join(json.dumps(event) + "\n" for event in events).encode())), *replay.finish()]
    return [match for part in found for match in part]


def refuse(line: BadLine) -> None:
    raise AssertionError(f"a line that is not an event: {line}")


# An engine takes a rule and events as dictionaries with `type` and `ts`, and gives what `samovar match` prints.
ENGINES: dict[str, Engine] = {"oracle": by_oracle, "matcher": by_matcher}


@cache
def load_pack(pack: str) -> tuple[LoadedRuleFile, ...]:
    schema = Schema.parse((EXAMPLES / pack / "schema.yml").read_text("utf-8"))
    return tuple(load_paths([EXAMPLES / pack / "rules"], schema=schema))


def load(pack: str) -> dict[str, Rule]:
    """Only what loads: a rule that does not is told by test_no_finding_at_all."""
    return {one.rule.id: one.rule for one in load_pack(pack) if one.rule is not None}


def cases() -> Iterable[Any]:
    for pack in PACKS:
        for rule in load(pack).values():
            for test in rule.tests:
                yield pytest.param(rule, test, id=f"{pack}-{rule.id}-{test.name}")


def pack_rules() -> Iterable[Any]:
    return (pytest.param(rule, id=f"{pack}-{rule.id}") for pack in PACKS for rule in load(pack).values())


@pytest.mark.parametrize("pack", PACKS)
def test_no_finding_at_all(pack: str) -> None:
    findings = [finding for one in load_pack(pack) for finding in one.findings]
    assert [f"{finding.path}:{finding.span.line}: {finding.message}" for finding in findings] == []
    assert all(one.rule for one in load_pack(pack))


@pytest.mark.parametrize(("pack", "least"), [("fraud", 12), ("sessions", 6)])
def test_enough_rules_named_as_their_files(pack: str, least: int) -> None:
    rules = load(pack)
    assert len(rules) >= least
    assert {Path(rule.path).stem for rule in rules.values()} == set(rules)


@pytest.mark.parametrize(("pack", "kinds"), [("fraud", plants.KINDS), ("sessions", sessions.KINDS)])
def test_every_planted_kind_has_its_rule(pack: str, kinds: tuple[str, ...]) -> None:
    assert set(kinds) <= set(load(pack))


@pytest.mark.parametrize("rule", list(pack_rules()))
def test_rule_is_complete(rule: Rule) -> None:
    assert rule.title
    assert rule.tags
    assert rule.emit
    assert rule.message
    assert sum(bool(test.expect) for test in rule.tests) >= 2
    assert sum(not test.expect for test in rule.tests) >= 2


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("rule", "test"), list(cases()))
def test_own_tests_hold(rule: Rule, test: RuleTest, engine: str) -> None:
    events = [{**event.fields, "type": event.type, "ts": BASE_MS + event.offset_ms} for event in test.events]
    matches = ENGINES[engine](rule, events)
    assert [told(match, expected) for match, expected in pairs(matches, test.expect)] == [
        wanted(expected) for expected in test.expect
    ]
    assert len(matches) == len(test.expect)


@pytest.mark.parametrize(("pack", "events"), [("fraud", 45_000), ("sessions", 8_000)])
def test_what_is_planted_is_what_the_rules_are_for(pack: str, events: int) -> None:
    """Among the labelled events alone, with the sleepers' prologue, every incident is found by the rule of its name."""
    stream = [pair for block in generate_blocks(pack, events, 2_000, seed=3) for pair in block]
    lines = [(line, label) for line, label in stream if label or json.loads(line)["ts"] < START_MS]
    labels = {number: label for number, (_, label) in enumerate(lines) if label}
    rules = [rule for rule in load(pack).values() if rule.id in (*plants.KINDS, *sessions.KINDS)]
    matches = [match for rule in rules for match in by_oracle(rule, [json.loads(line) for line, _ in lines])]
    result = score(matches, labels, detects(rules))
    assert result.unwatched == ()
    assert {row.rule: row.missed for row in result.rules if row.missed and row.rule not in DILUTED} == {}


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("kind", plants.KINDS)
def test_honest_doubles_are_no_frauds(kind: str, number: int) -> None:
    world = fraud.make_world(np.random.default_rng(number), 500, START_MS)
    for honest in (True, False):
        scene = plants.IncidentScene(
            world=world, random=Random(f"{kind}/{number}"), start=START_MS, stranger=1_000 + number, honest=honest
        )
        before = plants.slept_since(scene, START_MS - 100 * 86_400_000)
        lines = sorted([before, *plants.FRAUDS[kind](scene)])
        matches = by_oracle(load("fraud")[kind], [json.loads(line) for _, line in lines])
        assert bool(matches) is not honest


def pairs(matches: Matches, expect: tuple[ExpectedMatch, ...]) -> Iterable[tuple[Mapping[str, Any], ExpectedMatch]]:
    return zip(matches, expect, strict=False)


def wanted(expected: ExpectedMatch) -> dict[str, Any]:
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


def told(match: Mapping[str, Any], expected: ExpectedMatch) -> dict[str, Any]:
    """The part of a match that the expectation speaks of; of `emit` only the fields that it names."""
    part = {name: match[name] for name in wanted(expected)}
    if expected.emit is not None:
        part["emit"] = {name: value for name, value in match["emit"].items() if name in expected.emit}
    return part
