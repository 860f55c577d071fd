"""The tests inside rule files: events at a fixed base time, and what is expected of them.

    for result in run_tests(rule):
        print(result.name, result.passed)

Events are taken in the order (time, place as written), and event time goes to infinity at the end. The matches must be
as many as expected, in order, and agree in every field that an expectation gives; of `emit` only the named entries
count. Suppressed matches are none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samovar.common.times import duration_text
from samovar.native.kernel import joined
from samovar.patterns.engine.compile import compile_rules
from samovar.patterns.engine.decoder import Decoder
from samovar.patterns.engine.matcher import Matches
from samovar.patterns.engine.replay import EventReplay
from samovar.patterns.explain.key_trace import follow, numbered
from samovar.patterns.explain.why import explain
from samovar.patterns.syntax.tree import ExpectedMatch, Rule, RuleTest, Scalar

BASE_MS = 1_767_571_200_000  # 2026-01-05, a Monday, 00:00 UTC
KEYS_TRIED = 20  # keys that are asked why, to find the one that came furthest


@dataclass(frozen=True, slots=True)
class MatchDifference:
    """One expected match, or one too many: what was expected, what was found, and the names of what differs."""

    expected: Mapping[str, Any] | None
    found: Mapping[str, Any] | None
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleTestResult:
    """How a test went. `why` says, where a match did not come, how far the best partial got."""

    rule: str
    path: str
    name: str
    line: int
    expected: int
    found: int
    differences: tuple[MatchDifference, ...] = ()
    why: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.differences


def run_tests(rule: Rule) -> list[RuleTestResult]:
    return [run_test(rule, test) for test in rule.tests]


def run_test(rule: Rule, test: RuleTest) -> RuleTestResult:
    program = compile_rules([rule])
    events = [{**each.fields, "type": each.type, "ts": BASE_MS + each.offset_ms} for each in test.events]
    texts = [json.dumps(event, ensure_ascii=False, allow_nan=False) for event in events]
    messages = [text.encode("utf-8", "replace") for text in texts]
    found: list[dict[str, Any]] = []
    for matches in _feed_messages(EventReplay(program), messages):
        found += matches
    shown = [describe_match(match) for match in found]
    wanted = [describe_expected(expected) for expected in test.expect]
    differences = tuple(compare(wanted, shown))
    why = _why(rule, test, messages, found) if len(found) < len(wanted) else ()
    return RuleTestResult(
        rule=rule.id,
        path=rule.path,
        name=test.name,
        line=test.span.line,
        expected=len(wanted),
        found=len(found),
        differences=differences,
        why=why,
    )


def _feed_messages(replay: EventReplay, messages: Sequence[bytes]) -> Iterator[Matches]:
    decoder = Decoder(replay.program.fields)
    batch = decoder.batch()
    decoder.decode(batch, joined(messages), copy=True)
    yield replay.feed(batch)
    yield from replay.finish()


def describe_expected(expected: ExpectedMatch) -> dict[str, Any]:
    """What an expectation says, with times as in a rule file."""
    said = {
        "key": None if expected.key is None else dict(expected.key),
        "at": time_text(expected.at_ms), "start": time_text(expected.start_ms), "end": time_text(expected.end_ms),
        "steps": None if expected.steps is None else {name: list(each) for name, each in expected.steps.items()},
        "emit": None if expected.emit is None else dict(expected.emit), "message": expected.message,
    }  # fmt: skip
    return {name: value for name, value in said.items() if value is not None}


def describe_match(match: Mapping[str, Any]) -> dict[str, Any]:
    """A match in the same words."""
    shown = {name: match[name] for name in ("key", "steps", "emit", "message") if name in match}
    return {**shown, **{name: time_text(match[name] - BASE_MS) for name in ("at", "start", "end")}}


def time_text(offset_ms: int | None) -> str | None:
    """`+90s`: as it is written in a test."""
    if offset_ms is None:
        return None
    sign = "-" if offset_ms < 0 else "+"
    return sign + ("0s" if offset_ms == 0 else duration_text(abs(offset_ms)))


def compare(wanted: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]) -> Iterator[MatchDifference]:
    for place in range(max(len(wanted), len(found))):
        if place >= len(wanted):
            yield MatchDifference(None, found[place], ())
        elif place >= len(found):
            yield MatchDifference(wanted[place], None, ())
        else:
            names = tuple(name for name, value in wanted[place].items() if not agrees(name, value, found[place]))
            if names:
                yield MatchDifference(wanted[place], found[place], names)


def agrees(name: str, wanted: Any, match: Mapping[str, Any]) -> bool:
    found = match.get(name)
    if name == "emit":
        entries = found or {}
        return all(entry in entries and same(value, entries[entry]) for entry, value in wanted.items())
    if name == "steps":
        return {step: places for step, places in wanted.items() if places} == found
    return same(wanted, found)


def same(wanted: Any, found: Any) -> bool:
    """Equal, with numbers by value: 3 is 3.0, and the last digit of a sum does not matter; true is not 1."""
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found
    if isinstance(wanted, int | float) and isinstance(found, int | float):
        return math.isclose(wanted, found, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return wanted.keys() == found.keys() and all(same(value, found[name]) for name, value in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(same, wanted, found))
    return bool(wanted == found)


def _why(rule: Rule, test: RuleTest, messages: Sequence[bytes], found: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Of the key that is missing, or else of the keys in the events the one that came furthest."""
    program = compile_rules([rule])
    names = numbered("event", lambda time: str(time_text(time - BASE_MS)))
    have = [tuple(match["key"].values()) for match in found]
    best: tuple[int, tuple[str, ...]] = (-1, ())
    for key in _missing_keys(rule, test, have):
        story = follow(program, key, lambda replay: _feed_messages(replay, messages))
        if len(story.notes) > best[0]:
            best = (len(story.notes), explain(story, names).conclusion)
    return best[1]


def _missing_keys(rule: Rule, test: RuleTest, have: list[tuple[Scalar, ...]]) -> list[tuple[Scalar, ...]]:
    names = [key.name for key in rule.form.by]
    if not names:
        return [()]
    given = [tuple(expected.key.get(name) for name in names) for expected in test.expect if expected.key is not None]
    of_events = [tuple(event.fields.get(name) for name in names) for event in test.events]
    distinct = dict.fromkeys(given or of_events)
    scalars = [key for key in distinct if all(isinstance(value, bool | int | float | str) for value in key)]
    missing = [key for key in scalars if given.count(key) > have.count(key) or key not in have]
    return (missing or scalars)[:KEYS_TRIED]
