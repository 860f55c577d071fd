"""The matcher gives what the oracle gives, for random rules and events; and goes on doing so however it is run.

A failure prints the rules, the events that are needed for it, and the call that repeats it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from samovar.native.kernel import Batch
from samovar.patterns.engine.compile import Program, compile_rules
from samovar.patterns.engine.matcher import States, step
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.tree import AggregateForm, Rule
from tests import oracle
from tests.support.matching import (
    Match,
    Options,
    Store,
    arrived,
    as_set,
    in_order,
    loaded,
    part,
    replayed,
    rules_of,
    same,
    shown,
)
from tests.support.project import ROOT
from tests.support.random_rule_texts import history
from tests.support.random_rules import SLACK_MS, TYPES, Fields, make_case, random_events, random_rule, types_of
from tests.support.tunables import tiny

EXAMPLES = int(os.environ.get("SAMOVAR_EXAMPLES", "200"))

SEVERAL_RULES = 0.25  # share of the cases
FEW_PARTIALS = 0.15
FEW_MATCHES = 0.25
FEW_EVENTS = 0.5
# Cases that have shown a fault of the matcher or of the oracle. They are written out: a seed means something else when
# the generator changes.
ONCE_FAILED = json.loads((ROOT / "tests" / "fixtures" / "once_failed.json").read_text())


@dataclass(frozen=True)
class Case:
    """Rules, events in the order of their arrival, and how to run them. All of it follows from the seed."""

    seed: int
    texts: tuple[str, ...]
    events: tuple[Fields, ...]
    options: Options
    rules: list[Rule] = field(compare=False)
    program: Program = field(compare=False)
    again: str = "check"  # what repeats it, given the seed

    def batch(self) -> Batch:
        return in_order(arrived(self.program, self.events))

    def chance(self) -> Random:
        """For cuts and the like: the same again each time, whatever the events."""
        return Random(f"{self.seed}: how it is run")


def case_of(seed: int) -> Case:
    rng = Random(seed)
    if rng.random() < SEVERAL_RULES:
        texts = [random_rule(rng).replace("rule: random", f"rule: random-{n}") for n in range(rng.choice((2, 2, 3)))]
        few = any("overlap=any" in text for text in texts)
        kinds = [kind for text in texts for kind in types_of(text)]
        events = random_events(rng, rng.randint(8, 18 if few else 40), [*TYPES, *kinds * 2])
    else:
        text, events = make_case(rng)
        texts = [text]
    options = Options(
        flush=rng.random() < 0.8,
        show_suppressed=rng.random() < 0.3,
        max_partials=rng.choice((1, 2, 3, 5)) if rng.random() < FEW_PARTIALS else 1000,
        max_matches=rng.choice((1, 2, 3)) if rng.random() < FEW_MATCHES else 1000,
    )
    most = rng.choice((1, 2, 3)) if rng.random() < FEW_EVENTS else 10_000
    case = made_of(seed, texts, events, options)
    return case if any(map(has_shared_events, case.rules)) else replace(case, options=replace(options, max_events=most))


def has_shared_events(rule: Rule) -> bool:
    """Whether the events of a key are held in one place for several partial matches, or not at all but as sums: where
    they are too many, which of them go is not said by the language.
    """
    form = rule.form
    if not isinstance(form, tree.SequenceForm):
        return not isinstance(form, AggregateForm)
    return form.overlap is tree.Overlap.LATEST and any(step.runs_max != 1 for step in form.steps)


def history_case_of(seed: int) -> Case:
    """One step that asks history functions for up to two things, with so few events held that some go."""
    rng = Random(seed)
    asked = " and ".join(history(rng) for _ in range(rng.choice((1, 2))))
    key = rng.choice(("by u ", "by u ", "by u, v ", ""))
    bracket = f"[{rng.choice(('a', 'any'))} where {asked}] as s"
    text = f"rule: random\nmatch: |\n  sequence {key}with maxspan=0ms\n    {bracket}\n"
    options = Options(flush=rng.random() < 0.5, max_events=rng.choice((1, 2, 3, 5, 10_000)))
    case = made_of(seed, [text], random_events(rng, rng.randint(5, 40), ["a", "a", "b"]), options)
    return replace(case, again="check_history")


def made_of(seed: int, texts: Sequence[str], events: Sequence[Fields], options: Options) -> Case:
    rules = rules_of(*texts)
    return Case(seed, tuple(texts), tuple(events), options, rules, compile_rules(rules))


# ---------------------------------------------------------------- what is compared


def check(seed: int) -> None:
    """All comparisons of one case. `from tests.system.test_matcher_equals_oracle import check` repeats a failure."""
    compare(case_of(seed))


def check_history(seed: int) -> None:
    compare(history_case_of(seed))


def compare(case: Case) -> None:
    for comparison in (equals_the_oracle, cuts_and_reloads_change_nothing, disorder_changes_nothing):
        if difference(comparison, case) is not None:
            case = without_needless_events(comparison, case)
            pytest.fail(told(case, comparison.__name__, difference(comparison, case) or ""), pytrace=False)


def equals_the_oracle(case: Case) -> None:
    options = case.options
    wanted = oracle.run(
        case.rules,
        case.events,
        flush=options.flush,
        show_suppressed=options.show_suppressed,
        max_partials=options.max_partials,
        max_matches=options.max_matches,
        max_events=options.max_events,
    )
    batch, states = case.batch(), options.states(case.program)
    found = [shown(match) for match in step(states, batch, options.end_of(batch))]
    assert_same(by_key_in_ties(found), by_key_in_ties(wanted.matches))
    dropped = sum(states.counters(rule).dropped_partials for rule in range(len(case.rules)))
    assert dropped == wanted.dropped_partials, "dropped partials"
    dropped = sum(states.counters(rule).dropped_matches for rule in range(len(case.rules)))
    assert dropped == wanted.dropped_matches, "dropped matches"
    # An aggregate whose `having` holds of nothing at all stays as it is: it may never fire again.
    if options.flush and not any(isinstance(rule.form, AggregateForm) for rule in case.rules):
        assert not states.live(), "states are left at the end of time"


def cuts_and_reloads_change_nothing(case: Case) -> None:
    """In batches, and again in batches with everything stored and loaded between them."""
    rng, batch = case.chance(), case.batch()
    whole = list(step(case.options.states(case.program), batch, case.options.end_of(batch)))
    cuts = random_cuts(rng, batch)
    straight, reloaded = Straight(case), Reloaded(case, rng)
    first = 0
    for end, watermark in cuts:
        straight.take(part(batch, first, end), watermark)
        reloaded.take(part(batch, first, end), watermark)
        digest = straight.states.digest(watermark)
        assert reloaded.states.digest(watermark) == digest, f"digest after row {end}, stored and loaded in between"
        first = end
    if cuts:
        end, watermark = rng.choice(cuts)
        compare_prefixes(case, batch, cuts, end, watermark)
    for run in (straight, reloaded):
        run.take(part(batch, first, len(batch)), case.options.end_of(batch))
        assert as_set(run.found) == as_set(whole), type(run).__name__


def compare_prefixes(case: Case, batch: Batch, cuts: list[tuple[int, int]], end: int, watermark: int) -> None:
    """The digest at one moment does not show how events came there."""
    at_once, in_parts = case.options.states(case.program), case.options.states(case.program)
    step(at_once, part(batch, 0, end), watermark)
    first = 0
    for cut, time in cuts:
        if cut <= end:
            step(in_parts, part(batch, first, cut), min(time, watermark))
            first = cut
    assert at_once.digest(watermark) == in_parts.digest(watermark), (
        f"digest of the first {end} rows, at once or in parts"
    )


class Straight:
    """Batch after batch through one engine."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.states = case.options.states(case.program)
        self.found: list[Match] = []

    def take(self, batch: Batch, watermark: int) -> None:
        self.found += step(self.states, batch, watermark)


class Reloaded(Straight):
    """After each batch the engine is thrown away, and a new one loads what was stored: all rows, or those changed. Each
    has tunables of its own.
    """

    def __init__(self, case: Case, rng: Random) -> None:
        super().__init__(case)
        self.rng = rng
        self.store = Store()
        self.states = self.options().states(case.program)

    def options(self) -> Options:
        return replace(self.case.options, tunables=tiny(self.rng))

    def take(self, batch: Batch, watermark: int) -> None:
        super().take(batch, watermark)
        rows = self.states.rows()
        self.store.write(self.states.changed_rows())
        restored = loaded(self.case.program, self.store.rows, self.options())
        assert restored.digest(watermark) == self.states.digest(watermark), "digest of the rows written one by one"
        assert restored.live() == self.states.live(), "states of the rows written one by one"
        if self.rng.random() < 0.7:
            self.states = self.from_store(restored, rows)

    def from_store(self, restored: States, rows: dict[bytes, bytes]) -> States:
        if self.rng.random() < 0.5:
            return restored
        self.store = Store(dict(rows))
        return loaded(self.case.program, rows, self.options())


def disorder_changes_nothing(case: Case) -> None:
    """Events in the order of their arrival, repaired within the slack: the same lines in the same order."""
    rng, batch = case.chance(), arrived(case.program, case.events)
    whole = list(step(case.options.states(case.program), case.batch(), case.options.end_of(batch)))
    size = rng.choice((1, 2, 5, 100))
    batches = [part(batch, first, min(len(batch), first + size)) for first in range(0, len(batch), size)]
    found, late = replayed(case.program, batches, SLACK_MS, replace(case.options, tunables=tiny(rng)))
    assert not late, "within the slack nothing is late"
    assert_same(found, whole)


def random_cuts(rng: Random, batch: Batch) -> list[tuple[int, int]]:
    """After which row, and the watermark there: between the last event's time and the next one's."""
    many = rng.choice((1, 3, 8, len(batch)))
    rows = sorted(rng.sample(range(1, len(batch)), min(many, len(batch) - 1))) if len(batch) > 1 else []
    times = batch.time.tolist()
    return [(row, rng.choice((times[row - 1], rng.randint(times[row - 1], times[row]), times[row]))) for row in rows]


# ---------------------------------------------------------------- telling a failure


def assert_same(found: list[Match], wanted: list[Match]) -> None:
    for place, (one, other) in enumerate(zip(found, wanted, strict=False)):
        assert same(one, other), f"match {place}\n  found  {json.dumps(one)}\n  wanted {json.dumps(other)}"
    more = [("found only", found[len(wanted) :]), ("wanted only", wanted[len(found) :])]
    for word, rest in more:
        assert not rest, f"match {min(len(found), len(wanted))}\n  {word} {json.dumps(rest[0])}"


def by_key_in_ties(matches: list[Match]) -> list[Match]:
    """Where steps have keys of their own, one event may end a match of two keys: between those no order is set."""
    found: list[Match] = []
    for _, tied in groupby(matches, lambda match: (match["at"], match["rule"], match["steps"])):
        found += sorted(tied, key=lambda match: json.dumps(match["key"]))
    return found


def difference(comparison: Callable[[Case], None], case: Case) -> str | None:
    try:
        comparison(case)
    except AssertionError as error:
        return str(error)
    return None


def without_needless_events(comparison: Callable[[Case], None], case: Case) -> Case:
    """Leave out events as long as there still is a difference."""
    width = len(case.events) // 2
    while width:
        first = 0
        while first < len(case.events):
            fewer = replace(case, events=case.events[:first] + case.events[first + width :])
            if fewer.events and difference(comparison, fewer) is not None:
                case = fewer
            else:
                first += width
        width //= 2
    return case


def told(case: Case, what: str, why: str) -> str:
    lines = [f"{what}: {why}", "", *case.texts, *(json.dumps(event) for event in case.events), "", str(case.options)]
    return "\n".join(
        [*lines, f"again: from tests.system.test_matcher_equals_oracle import {case.again}; {case.again}({case.seed})"]
    )


# ---------------------------------------------------------------- the tests


# A seed says all, so there is nothing for hypothesis to shrink: events are left out above.
@settings(max_examples=EXAMPLES, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(seed=st.integers(0, 2**64 - 1))
def test_the_matcher_equals_the_oracle(seed: int) -> None:
    check(seed)


@settings(max_examples=EXAMPLES, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(seed=st.integers(0, 2**64 - 1))
def test_history_functions_equal_the_oracle_s_however_few_events_are_held(seed: int) -> None:
    check_history(seed)


@pytest.mark.parametrize("once", ONCE_FAILED, ids=lambda once: str(once["seed"]))
def test_what_once_failed(once: dict[str, Any]) -> None:
    compare(made_of(once["seed"], once["rules"], once["events"], Options(**once["options"])))


def test_a_failure_tells_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matcher that forgets the last match: what the failure prints."""
    honest = step
    monkeypatch.setattr(
        "tests.system.test_matcher_equals_oracle.step", lambda *arguments: list(honest(*arguments))[:-1], raising=True
    )
    seed = next(seed for seed in range(100) if oracle.run(case_of(seed).rules, case_of(seed).events).matches)
    with pytest.raises(pytest.fail.Exception) as failure:
        check(seed)
    text = str(failure.value)
    assert f"check({seed})" in text
    assert "match: |" in text
    assert '"ts": ' in text
    assert "wanted only" in text
