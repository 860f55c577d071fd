"""The way of marked fields through a rule: what is in each part of its output, and what it compares."""

from __future__ import annotations

import pytest

from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.syntax.tree import History, Rule, walk
from samovar.service.config.models import ServiceFile
from samovar.service.masking.fields import HIDDEN, Lineage, Masks, masked, replaced
from samovar.service.masking.lineage import Flow, compared, expressions_of, flows_of
from samovar.service.query.local_state import masked_history

RULE = """
rule: x
match: |
  {match}
{more}
"""


def rule_of(match: str, more: str = "") -> Rule:
    loaded = load_text(RULE.format(match=match, more=more))
    assert loaded.rule is not None, loaded.findings
    return loaded.rule


def is_marked(path: str) -> bool:
    return path in ("card", "account", "user", "user.email")


def sequence(condition: str, by: str = "card") -> str:
    return f"sequence by {by} with maxspan=1m [purchase where {condition}] as p"


@pytest.mark.parametrize(
    ("expression", "flow"),
    {
        "p.card": Flow.OWN, "p.user.email": Flow.OWN, "p.amount": Flow.CLEAR, "count(p)": Flow.CLEAR,
        "distinct(p.card)": Flow.CLEAR, "first(p.card)": Flow.OWN, "values(p.card)": Flow.OWN,
        "upper(p.card)": Flow.COMPUTED, "substring(p.card, 0, 4)": Flow.COMPUTED, "length(p.card)": Flow.COMPUTED,
        "min(p.card)": Flow.COMPUTED, "sum(p.account)": Flow.COMPUTED, "distinct(upper(p.card))": Flow.COMPUTED,
        "p.card == p.user.email": Flow.CLEAR, "p.card != null": Flow.CLEAR, 'p.card == "4"': Flow.COMPUTED,
        "p.card == p.amount": Flow.COMPUTED, 'p.card == "4" or p.amount > 1': Flow.COMPUTED,
        'concat("a", p.amount)': Flow.CLEAR, 'concat("a", p.card)': Flow.COMPUTED,
    }.items(),
)  # fmt: skip
def test_a_value_is_clear_own_or_computed(expression: str, flow: Flow) -> None:
    rule = rule_of(
        "sequence by country with maxspan=1m [purchase where true] as p with runs=1.. [login where true] as q",
        f"emit:\n  v: '{expression}'",
    )
    assert flows_of(rule, is_marked).emit == {"v": flow}


def test_a_definition_and_another_fields_key_are_followed() -> None:
    rule = rule_of(
        "sequence with maxspan=1m [purchase where true] as p by card [login where true] as q by name",
        'let: {shout: upper(card)}\nemit: {v: p.shout}\nmessage: "{p.card}"',
    )
    flows = flows_of(rule, is_marked)
    assert flows.emit == {"v": Flow.COMPUTED}
    assert not flows.has_clear_key


@pytest.mark.parametrize(
    "condition",
    ["amount > 1", "card != null", "not seen(card, 1h)", "prev(card, 1h) != card", "distinct(card, 1h) > 2",
     "seen(country, 1h where card != null)", "card == user.email", "count(1h where amount > 2) > 1"],
)  # fmt: skip
def test_what_would_be_the_same_for_other_values_compares_nothing(condition: str) -> None:
    assert compared(rule_of(sequence(condition)), is_marked) == []


@pytest.mark.parametrize(
    "condition",
    ['card == "4"', 'card like "4*"', 'card in ("4", "5")', "account > 3", "length(card) > 3", 'card < user.email',
     'seen(country, 1h where card == "4")', "card == country", 'prev(card, 1h) == "4"', 'upper(card) == user.email',
     'not (amount > 1 and starts_with(card, "4"))', "max(account, 1h) > 3", "(card == null) == ok and account > 1"],
)  # fmt: skip
def test_what_tells_something_of_a_value_compares_it(condition: str) -> None:
    assert compared(rule_of(sequence(condition)), is_marked)


def test_a_deep_condition_is_followed_to_its_end() -> None:
    condition = " or ".join(["amount > 1"] * 400 + ['card == "4"'])
    assert compared(rule_of(sequence(condition)), is_marked) == ["card"]


@pytest.mark.parametrize(
    ("by", "fields"),
    [("name", ["card"]), ("guess", ["card"]), ("user.email", []), ("card", [])],
)
def test_steps_that_are_joined_by_another_field_compare_the_two(by: str, fields: list[str]) -> None:
    """A constant under `let` would tell of each card whether it is that one."""
    match = f"sequence by card with maxspan=1m [purchase where true] as p [login where true] as q by {by}"
    assert compared(rule_of(match, "let:\n  guess: '\"4929\"'"), is_marked) == fields


@pytest.mark.parametrize(
    ("condition", "values"),
    {
        'card == "4"': {"4"}, 'card in ("4", "5")': {"4", "5"}, 'card like "49291*"': {"49291*"},
        'card like "4*"': set(),
        'card regex "^49291"': {"^49291"}, 'starts_with(card, "49291")': {"49291"}, 'card > "49291"': {"49291"},
        'card == concat("49291", "23412")': {"49291", "23412"}, "account > 123456": {123456}, "length(card) > 3": set(),
        'card == "4" and country == "Germany"': {"4"}, "card != null and amount > 123456": set(),
        'country like "Germany*"': set(), "account == null": set(),
    }.items(),
)  # fmt: skip
def test_a_value_that_a_rule_names_is_found_wherever_it_stands(condition: str, values: set[object]) -> None:
    assert flows_of(rule_of(sequence(condition)), is_marked).quotes == values


def test_a_list_is_looked_up_also_while_it_is_empty() -> None:
    looked = [
        flows_of(rule_of(sequence(f"{field} in $some"), "lists: {some: []}"), is_marked).looks_up
        for field in ("card", "upper(card)", "country")
    ]
    assert looked == [True, True, False]


# ---------------------------------------------------------------- masks


@pytest.fixture
def masks() -> Masks:
    settings = ServiceFile.model_validate({"service": "s", "streams": {"purchase": {"key": "card", "pii": ["card"]}}})
    return Masks(Lineage(settings), b"secret")


def alert(rule: Rule, message: str, card: str = "c1") -> dict[str, object]:
    return {"rule": rule.id, "id": "0" * 32, "key": {"card": card}, "message": message, "emit": {}}


def test_a_message_has_pseudonyms_where_it_quotes_the_key_and_only_there(masks: Masks) -> None:
    rule = rule_of(sequence("true"), 'message: "{card} paid {p.amount} and {p.card}"')
    alias = masks.alias("1")
    assert masks.alert(alert(rule, "1 paid 11 and 1", "1"), rule)["message"] == f"{alias} paid 11 and {alias}"
    assert masks.alert(alert(rule, "it was cut at some"), rule)["message"] == HIDDEN
    shouting = rule_of(sequence("true"), 'message: "{upper(card)} paid"')
    assert masks.alert(alert(shouting, "C1 paid"), shouting)["message"] == HIDDEN
    assert masks.alert(alert(rule, "1 paid 11 and 1"), None)["message"] == HIDDEN


def test_a_computed_null_looks_like_any_other_computed_value(masks: Masks) -> None:
    """Of all that is computed null is the one value that a rule can make out of exactly the value it asks for."""
    given = rule_of(sequence("true"), "emit: {guess: 1 / (number(p.card) - 4), own: p.card, count: count(p)}")
    told = [
        masks.alert({**alert(given, ""), "emit": {"guess": guess, "own": None, "count": 1}}, given)["emit"]
        for guess in (None, 0.5)
    ]
    assert told == [{"guess": HIDDEN, "own": None, "count": 1}] * 2


@pytest.mark.parametrize(
    ("call", "kept"),
    {
        "count(1h where amount > 1)": [1, 2], 'count(1h where starts_with(card, "4"))': [],
        "seen(card, 1h)": [1, 2], "distinct(upper(card), 1h)": [],
    }.items(),
)  # fmt: skip
def test_a_history_tells_which_events_it_kept_unless_they_are_those_that_fit(
    masks: Masks, call: str, kept: list[int]
) -> None:
    rule = rule_of(sequence(f"{call} != null"))
    known = next(each for part in expressions_of(rule) for each in walk(part) if isinstance(each, History))
    events = [{"time": 1, "value": "c1"}, {"time": 2, "value": "c1"}]
    told = masked_history(masks, {"call": call, "events": events}, {call: known})
    assert [each["time"] for each in told["events"]] == kept


def test_an_id_is_enciphered_and_found_again(masks: Masks) -> None:
    rule = rule_of(sequence("true"))
    for id in ("0" * 32, "0123456789abcdef" * 2, "f" * 32):
        shown = masks.alert_id(id, rule)
        assert shown != id
        assert masks.real_id(shown) == id
    clear = rule_of(sequence("true", by="country"))
    assert masks.alert_id("0" * 32, clear) == "0" * 32


def test_every_value_at_a_path_is_changed_however_it_is_nested() -> None:
    event = {"user.email": 1, "user": {"email": [2, {"x": 3}], "age": 4}, "users": {"email": 5}}
    assert masked(event, [["user", "email"]], lambda _: "x") == {
        "user.email": "x", "user": {"email": "x", "age": 4}, "users": {"email": 5}
    }  # fmt: skip
    deep = {"a.b": {"c": 1, "d": 2}, "a": {"b.c": 3, "b": [[{"c": 4}], "5"]}, "a.b.c": 6}
    assert masked(deep, [["a", "b", "c"]], lambda _: "x") == {
        "a.b": {"c": "x", "d": 2}, "a": {"b.c": "x", "b": [[{"c": "x"}], "x"]}, "a.b.c": "x"
    }  # fmt: skip


def test_a_text_that_is_not_its_template_is_hidden() -> None:
    runs = [("a", "x"), ("b", "y"), ("c", "z")]
    assert [replaced(text, runs) for text in ("a1b2c", "abc", "a1b2", "1b2c", "abbc")] == [
        "x1y2z",
        "xyz",
        HIDDEN,
        HIDDEN,
        "xybz",
    ]
