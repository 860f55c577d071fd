"""Why a key did or did not match, in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from samovar.native.kernel import joined
from samovar.patterns.engine.compile import compile_rules
from samovar.patterns.engine.decoder import Decoder
from samovar.patterns.engine.matcher import Matches
from samovar.patterns.engine.replay import EventReplay, Lines
from samovar.patterns.explain.key_trace import KeyTrace, follow, key_candidates
from samovar.patterns.explain.why import WhyText, explain
from samovar.patterns.rulefile.rule_file import load_text
from tests.support.project import ROOT

CASES = sorted((ROOT / "tests" / "cases" / "match").iterdir())

Event = tuple[int, str, dict[str, Any]]


def story_of(
    match: str, events: list[Event], key: tuple[Any, ...] = ("c1",), extra: str = "", **options: Any
) -> KeyTrace:
    indented = "\n".join(f"  {line}" for line in match.strip().splitlines())
    loaded = load_text(f"rule: r\nmatch: |\n{indented}\n{extra}")
    assert loaded.rule is not None, loaded.findings
    program = compile_rules([loaded.rule])
    messages = [json.dumps({"card": "c1", **fields, "ts": ts, "type": type}).encode() for ts, type, fields in events]

    def feed(replay: EventReplay) -> Iterator[Matches]:
        decoder = Decoder(program.fields)
        batch = decoder.batch()
        decoder.decode(batch, joined(messages), copy=True)
        yield replay.feed(batch)
        yield from replay.finish()

    return follow(program, key, feed, **options)


def told(match: str, events: list[Event], **more: Any) -> WhyText:
    return explain(story_of(match, events, **more))


def of_events(answer: WhyText) -> list[tuple[str, ...]]:
    return [sentences for _, sentences in answer.events]


PAIR = """
sequence by card with maxspan=10s
  [a where amount < 2] as small
  [b where amount > 200 and country != small.country] as big
"""


def test_condition_over_one_event_and_across_steps() -> None:
    answer = told(PAIR, [
        (0, "a", {"amount": 1, "country": "US"}),
        (1000, "b", {"amount": 35, "country": "SG"}),
        (2000, "b", {"amount": 300, "country": "US"}),
    ])  # fmt: skip
    assert of_events(answer) == [
        ("taken as small",),
        ("not big: `amount > 200` (amount is 35) does not hold",),
        ('not big: `country != small.country` (country is "US", small.country is "US") does not hold',),
    ]
    assert answer.conclusion == (
        "The furthest partial match had small (line 1) and waited for big.",
        "Line 2 was not big: `amount > 200` (amount is 35) does not hold.",
        'Line 3 was not big: `country != small.country` (country is "US", small.country is "US") does not hold.',
        "Its span of 10s was over at 1970-01-01T00:00:10.000Z.",
    )


def test_a_match_is_told() -> None:
    answer = told(PAIR, [(0, "a", {"amount": 1, "country": "US"}), (5, "b", {"amount": 201, "country": "SG"})])
    assert of_events(answer)[1] == ("completes a match",)
    assert answer.conclusion == ("It matched once: at 1970-01-01T00:00:00.005Z.",)


def test_nothing_began() -> None:
    answer = told(PAIR, [(0, "a", {"amount": 7})])
    assert answer.conclusion == (
        "No partial match was begun.",
        "Line 1 was not small: `amount < 2` (amount is 7) does not hold.",
    )
    assert told(PAIR, [(0, "x", {})], key=("c1",)).conclusion == ('No event of type a or b has the key card="c1".',)


@pytest.mark.parametrize(
    ("match", "events", "sentence"),
    [
        (
            "sequence by card with maxspan=1m [a where true] as x [b where true] as y with within=5s",
            [(0, "a", {}), (6000, "b", {})],
            "Line 2 was too late for y: 6s after the step before it, within=5s.",
        ),
        (
            "sequence by card with maxspan=1m [a where true] as x [b where true] as y with after=5s",
            [(0, "a", {}), (4000, "b", {})],
            "Line 2 was too early for y: 4s after the step before it, after=5s.",
        ),
        (
            "sequence by card with maxspan=1m [a where true] as x ![c where true] [b where true] as y",
            [(0, "a", {}), (1, "c", {}), (2, "b", {})],
            "Line 2 killed it: ![c ...].",
        ),
        (
            "sequence by card with maxspan=1m [a where true] as x [b where true] as y until [c where true]",
            [(0, "a", {}), (1, "c", {}), (2, "b", {})],
            "Line 2 ended it (`until`).",
        ),
        (
            "sequence by card with maxspan=1m [a where true] as x [b where true] as y having y.n > x.n",
            [(0, "a", {"n": 5}), (1, "b", {"n": 4})],
            "It was complete, but `having` refused it: `y.n > x.n` (y.n is 4, x.n is 5).",
        ),
        (
            "sequence by card with maxspan=1m [a where true] as x with runs=3 [b where true] as y",
            [(0, "a", {}), (1, "a", {})],
            "The furthest partial match had x (lines 1, 2), 2 of at least 3 events of x.",
        ),
        (
            "sequence by card with maxspan=1m unordered { [a where true] as x [b where true] as y } [c where true]",
            [(0, "b", {})],
            "The furthest partial match had y (line 1) and waited for x.",
        ),
        (
            "sequence by card with maxspan=1m ![z where true] with for=10s [a where true] as x [b where true] as y",
            [(0, "z", {}), (1, "a", {})],
            "Line 2 was no start as x: what must be absent before it has just happened.",
        ),
        (
            "sequence by card with maxspan=1m [a where true] as x ![b where true] with within=5s",
            [(0, "a", {}), (1, "b", {})],
            "Line 2 killed it: what must not happen.",
        ),
    ],
)
def test_what_stopped_a_sequence(match: str, events: list[Event], sentence: str) -> None:
    assert sentence in told(match, events).conclusion


def test_history_is_read_too() -> None:
    match = "sequence by card with maxspan=1m [a where amount > 5 * avg(amount, 1d)] as x [b where true] as y"
    answer = told(match, [(0, "a", {"amount": 10}), (1, "a", {"amount": 30})])
    assert "(amount is 30, avg(amount, 1d) is 10)" in answer.conclusion[-1]


def test_input_that_ended_too_early() -> None:
    answer = told(PAIR, [(0, "a", {"amount": 1})], flush=False)
    assert answer.conclusion[-1] == "The input ended before its span of 10s was over."


def test_suppressed_matches_are_told() -> None:
    match = "aggregate by card over 1s [a where true] having count() >= 1"
    answer = told(match, [(0, "a", {}), (5000, "a", {})], extra="suppress: 1m\n")
    assert answer.conclusion == (
        "It matched once: at 1970-01-01T00:00:00.000Z.",
        "1 more were suppressed (`suppress`).",
    )


def test_aggregate() -> None:
    match = "aggregate by card over 10s [a where amount > 5] having count() > 3 and sum(amount) > 100"
    events: list[Event] = [(n * 1000, "a", {"amount": 9 + n}) for n in range(3)]
    answer = told(match, [*events, (3000, "a", {"amount": 1}), (60_000, "a", {"amount": 200})])
    assert of_events(answer)[2] == ("3 in the window, count() is 3, sum(amount) is 30",)
    assert of_events(answer)[3] == ("not in [a ...]: `amount > 5` (amount is 1) does not hold",)
    assert answer.conclusion == ("`having` was nearest at line 5: `count() > 3` (count() is 1) does not hold.",)


def test_session_and_window() -> None:
    events: list[Event] = [(0, "a", {}), (1000, "a", {}), (90_000, "a", {})]
    session = told("session by card with gap=30s [a where true] having count() > 2", events)
    assert of_events(session)[1] == ("2 in the session, count() is 2",)
    assert session.conclusion == ("`having` was nearest at line 2: `count() > 2` (count() is 2) does not hold.",)
    window = told("window by card every 1m [a where true] having count() > 2", events)
    assert of_events(window)[2] == ("1 in the window from 1970-01-01T00:01:00.000Z, count() is 1",)
    assert told(
        "session by card with gap=30s [a where true] having count() > 2", events[:1], flush=False
    ).conclusion == ("The input ended before event time passed its end.",)


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_tracing_changes_no_match(folder: Path) -> None:
    loaded = load_text((folder / "rule.yml").read_text())
    assert loaded.rule is not None
    program = compile_rules([loaded.rule])
    found: list[list[bytes]] = []

    def feed(replay: EventReplay) -> Iterator[Matches]:
        lines = Lines(Decoder(program.fields), lambda _: None)
        parts = [replay.feed(lines.take((folder / "events.jsonl").read_bytes() + b"\n")), *replay.finish()]
        found.append([line for part in parts for line in part.lines])
        yield from parts

    for _ in feed(EventReplay(program, show_suppressed=True)):
        pass
    keys = {tuple(json.loads(line)["key"].values()) for line in found[0]}
    for key in keys:
        story = follow(program, key, feed)
        assert found[-1] == found[0]
        own = [line for line in found[0] if tuple(json.loads(line)["key"].values()) == key]
        assert sum(note["what"] == "match" for note in story.notes) == len(own)
        assert explain(story).conclusion


@pytest.mark.parametrize(
    ("names", "text", "keys"),
    [
        (["card"], "c1", [("c1",)]),
        (["card"], "card=c1", [("c1",)]),
        (["card"], "a=b", [("a=b",)]),
        (["card"], "1.5", [("1.5",), (1.5,)]),
        (["card"], "true", [("true",), (True,)]),
        (["card", "user"], "card=c,1,user=u", [("c,1", "u")]),
        (["card", "user"], "card=1,user=u", [("1", "u"), (1, "u")]),
        (["card", "user"], "c1", []),
        (["card", "user"], "card=c1", []),
    ],
)
def test_keys_as_typed(names: list[str], text: str, keys: list[tuple[Any, ...]]) -> None:
    assert key_candidates(names, text) == keys
