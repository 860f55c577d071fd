"""Rules in plain English: what a person reads who does not write rules."""

from __future__ import annotations

import pytest
from hypothesis import given

from samovar.patterns.explain.english import as_text, explain
from samovar.patterns.explain.phrases import condition_words, duration_words, value_words
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.syntax.tree import Rule, SequenceForm
from tests.support.random_rules import Fields, rules_and_events


def rule_of(match: str, rest: str = "") -> Rule:
    lines = "\n".join(f"  {line}" for line in match.splitlines())
    loaded = load_text(f"rule: r\ntitle: T\nmatch: |\n{lines}\n{rest}", "r.yml")
    assert loaded.rule is not None, loaded.findings
    return loaded.rule


def told(match: str, rest: str = "") -> str:
    """The explanation in one line, however it was wrapped."""
    return " ".join(as_text(explain(rule_of(match, rest))).split())


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("amount < 2", "amount is below 2"),
        ("2 >= amount", "amount is at most 2"),
        ("amount >= 0.9 * 10000", "amount is at least 9000"),
        ("amount > 10000", "amount is above 10,000"),
        ('country == "US"', 'country is "US"'),
        ("country != null", "country is there"),
        ("country == null", "country is missing"),
        ('country in ("US", "DE", "FR")', 'country is one of "US", "DE" and "FR"'),
        ('country not in ("US", "DE")', 'country is none of "US" and "DE"'),
        ('not (country == "US")', 'country is not "US" (or is missing)'),
        ("a > 1 and b < 2", "a is above 1 and b is below 2"),
        ("a > 1 and (b < 2 or c == 3)", "a is above 1 and (either b is below 2 or c is 3)"),
        ('page like "/product/*"', 'page begins with "/product/"'),
        ('page like "*.exe"', 'page ends with ".exe"'),
        ('page like "*x*"', 'page contains "x"'),
        ('page like "a*z"', 'page looks like "a*z"'),
        ('page not like "a*"', 'page does not begin with "a"'),
        ('page regex "^a"', 'page matches the expression "^a"'),
        ('not starts_with(page, "a")', 'page does not begin with "a"'),
        ('cidr(ip, "10.0.0.0/8")', "ip lies in the network 10.0.0.0/8"),
        ("not seen(device, 90d)", "this device was not seen in the 90 days before"),
        (
            "seen(device, 1d where ok == true)",
            "this device was seen in the day before, among events in which ok is true",
        ),
        ("amount > 5 * avg(amount, 30d)", "amount is above 5 times the average of amount in the 30 days before"),
        ("count(1h) > 3", "the number of such events in the hour before is above 3"),
        (
            "@time - prev(@time, 1h) < 200",
            "the time since the event before it (at most 1 hour back) is less than 200 milliseconds",
        ),
        ("lower(name) == name", "name in small letters is name"),
        ("hour(@time) < 6", "the hour of the time (UTC) is below 6"),
        ("ok", "ok is true"),
        ("not ok", "ok is not true"),
    ],
)
def test_conditions(condition: str, words: str) -> None:
    form = rule_of(f"sequence by u with maxspan=1m [e where {condition}]").form
    assert isinstance(form, SequenceForm)
    assert condition_words(form.steps[0].brackets[0].condition) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("count(x)", "the number of x events"),
        ("sum(x.amount) + y.amount", "the sum of amount of x plus the amount of y"),
        ("distinct(x.card)", "the number of different card values of x"),
        ("first(x.card)", "the first card of x"),
        ("(y.@time - z.@time) / 1m", "the time from z to y in minutes"),
        ("round(y.amount, 2)", "the amount of y, rounded"),
        ("2 * (y.a + y.b)", "2 times (the a of y plus the b of y)"),
        ("country", "country"),
    ],
)
def test_values(value: str, words: str) -> None:
    text = (
        "sequence by u with maxspan=1m\n  [a where true] as x with runs=3..\n  [b where true] as z [b where true] as y"
    )
    rule = rule_of(text, f"emit: {{v: '{value}'}}")
    assert value_words(rule.emit[0][1]) == words


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (0, "0 milliseconds"),
        (1, "1 millisecond"),
        (1_000, "1 second"),
        (90_000, "90 seconds"),
        (5_400_000, "90 minutes"),
        (86_400_000, "1 day"),
        (88_200_000, "1 day and 30 minutes"),
        (365 * 86_400_000, "365 days"),
    ],
)
def test_durations(ms: int, words: str) -> None:
    assert duration_words(ms) == words


def test_sequence_is_told_in_order() -> None:
    text = told(
        "sequence by card with maxspan=10m\n"
        "  [purchase where amount < 2] as probe with runs=3..\n"
        "  ![refund where true]\n"
        "  ?[login where ok == true] as entry\n"
        "  [purchase where amount > 200 and country != probe.country] as big with within=5m, after=1s",
        'message: "{count(probe)} small ones, then {big.amount}"\nsuppress: 1h',
    )
    for part in (
        "Every card by itself.",
        '1. It starts with 3 or more purchase events ("probe") in which amount is below 2.',
        "2. In between there comes no refund event.",
        '3. Then perhaps a login event ("entry") in which ok is true (this may be left out).',
        '4. Then a purchase event ("big") in which amount is above 200 and country is another than the country of '
        "probe, at most 5 minutes and at least 1 second after the step before.",
        "All of it within 10 minutes, from the first event to the last.",
        "At the moment of the last event.",
        "“<the number of probe events> small ones, then <the amount of big>”",
        "For one card at most once in 1 hour.",
        "A key that falls silent is forgotten 1 hour after its last event.",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("match", "part"),
    [
        ("sequence with maxspan=1h [a where true] [b where true]", "All events together, as one stream."),
        ("sequence by u, v with maxspan=1h [a where true] [b where true]", "Every combination of u and v by itself."),
        ("sequence by u with maxspan=1h [a where true]", "At once, with that event."),
        (
            "sequence by u with maxspan=1h [a where true] next [b where true]",
            "with no other event of the key between, a b",
        ),
        (
            "sequence by u with maxspan=1h [a where true] ![b where true]",
            "until 1 hour after the first event, there comes",
        ),
        ("sequence by u with maxspan=1h [a where true] ![b where true]", "By the clock, when that time has passed"),
        (
            "sequence by u with maxspan=1h [a where true] ![b where true] with within=5m",
            "for 5 minutes after the step bef",
        ),
        (
            "sequence by u with maxspan=0ms ![b where true] with for=1d [a where true]",
            "In the day before the start there",
        ),
        (
            "sequence by u with maxspan=1h [a where true] or [b where n > 1] as x [c where true]",
            'either an a event ("x") or',
        ),
        (
            "sequence by u with maxspan=1h unordered { [a where true] as x [b where true] as y } [c where true]",
            'all of these, in any order: an a event ("x") and a b event ("y").',
        ),
        ("sequence by u with maxspan=1h [a where true] [b where true] by w", 'a b event ("step2") (w is the u)'),
        (
            "sequence by u with maxspan=1h [a where true] [b where true] until [c where true]",
            "If a c event comes, all that was begun is forgotten.",
        ),
        (
            "sequence by u with maxspan=1h [a where true] as x with runs=2 [b where true] having count(x) > 1",
            "And at the end",
        ),
        ("sequence by u with maxspan=1h, overlap=all, skip=to_next [a where true] [b where true]", "the rest goes on"),
        (
            "sequence by u with maxspan=1h, overlap=any, skip=none [a where true] [b where true]",
            "Every combination of ev",
        ),
        ("aggregate by u over 10m [a where true] having count() > 5", "As soon as the number of events is above 5."),
        ("aggregate by u over 10m, repeat=1h [a where true] having count() > 5", "the first event after every 1 hour"),
        (
            "session by u with gap=30m, max=8h [a where true]",
            "more than 30 minutes between them. A session is cut after 8 hours.",
        ),
        (
            "session by u with gap=30m [a where true] having count() > 5",
            "after its last event, if the number of events is",
        ),
        ("window by u every 1h [a where true]", "Windows of 1 hour by the clock (UTC), one after the other."),
        ("window by u every 5m, size=1h [a where true]", "a new one every 5 minutes, so that they overlap"),
    ],
)
def test_forms(match: str, part: str) -> None:
    assert part in told(match)


@given(rules_and_events())
def test_every_rule_can_be_told(case: tuple[str, list[Fields]]) -> None:
    rule = load_text(case[0]).rule
    assert rule is not None
    text = as_text(explain(rule))
    assert all(len(line) <= 88 for line in text.splitlines())
    assert "None" not in text
