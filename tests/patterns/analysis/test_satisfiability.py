"""What the lint calls impossible is impossible, and what it calls certain is certain: held against the oracle."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from samovar.patterns.analysis.satisfiability import Scope, implies, satisfiable
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.syntax.tree import Expr, SequenceForm
from tests.oracle.events import Event
from tests.oracle.expressions import Scope as Reading
from tests.oracle.expressions import holds

NUMBERS = (0, 1, 1.5, 2, 3, -1)
TEXTS = ("a", "ab", "b", "B", "")
VALUES: tuple[Any, ...] = (None, True, False, *NUMBERS, 1.25, 7, *TEXTS, "abc", "zz")
ATOMS = (
    "n {op} {number}", "n {op} {number}", "{number} {op} n", "m {op} {number}", "n {op} m", "m {op} n", "n == null",
    "n != null", "n in ({number}, {number})", "n not in ({number}, {text})", "f {op} {text}", "f in ({text}, {text})",
    "f in~ ({text}, {text})", 'f like "a*"', 'f like~ "b*"', 'f like ("*b", "a?")', 'f regex "^a"', "f == null",
    'starts_with(f, {text})', "contains(f, {text})", "length(f) {op} {number}", "n + 1 {op} {number}",
    "abs(n) {op} {number}", "ok == true", "ok", "ok != false", "n {op} {number} * 2 - 1", "hour(@time) {op} {number}",
    "day_of_week(@time) {op} {number}", '@type == "e"', "coalesce(n, 1) {op} {number}",
)  # fmt: skip


def condition_text(rng: Random, depth: int = 2) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.2:
        return atom_text(rng)
    if kind < 0.35:
        return f"not ({condition_text(rng, depth - 1)})"
    word = " and " if kind < 0.75 else " or "
    return word.join(f"({condition_text(rng, depth - 1)})" for _ in range(rng.randint(2, 3)))


def atom_text(rng: Random) -> str:
    text = rng.choice(ATOMS)
    while "{" in text:
        text = text.replace("{op}", rng.choice(("==", "!=", "<", "<=", ">", ">=")), 1)
        text = text.replace("{number}", str(rng.choice(NUMBERS)), 1)
        text = text.replace("{text}", f'"{rng.choice(TEXTS)}"', 1)
    return text


def resolved(text: str) -> Expr:
    rule = load_text(f"rule: r\nmatch: |\n  sequence by u with maxspan=1m [e where {text}]\n").rule
    assert rule is not None
    assert isinstance(rule.form, SequenceForm)
    return rule.form.steps[0].brackets[0].condition


def random_event(rng: Random) -> Event:
    fields = {name: rng.choice(VALUES) for name in ("n", "m", "f", "ok")}
    return Event(0, rng.randint(0, 10**12), "e", {**fields, "u": "k"})


@given(st.randoms(use_true_random=False))
def test_no_event_satisfies_what_is_called_impossible(rng: Random) -> None:
    condition = resolved(condition_text(rng))
    scope = Scope(types=("e",))
    possible, certain = satisfiable([condition], scope), implies([], condition, scope)
    for _ in range(100):
        found = holds(condition, Reading(random_event(rng)))
        assert possible or not found
        assert found or not certain


@given(st.randoms(use_true_random=False))
def test_implication_holds_of_every_event(rng: Random) -> None:
    one, two = resolved(condition_text(rng, 1)), resolved(condition_text(rng, 1))
    if implies([one], two, Scope(types=("e",))):
        for _ in range(100):
            reading = Reading(random_event(rng))
            assert holds(two, reading) or not holds(one, reading)


def test_the_generator_makes_both_kinds() -> None:
    rng, scope = Random(1), Scope(types=("e",))
    found = [satisfiable([resolved(condition_text(rng))], scope) for _ in range(300)]
    assert 10 < found.count(False) < 150
