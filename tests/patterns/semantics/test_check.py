"""The resolved tree: what names, keys, lets and aggregates become, and what a version depends on."""

from __future__ import annotations

import pytest

from samovar.patterns.semantics.schema import Schema
from samovar.patterns.semantics.versioning import version_of
from samovar.patterns.syntax.tree import (
    Aggregate,
    AggregateForm,
    Binary,
    Call,
    Expr,
    Field,
    History,
    Key,
    Literal,
    OfStep,
    Overlap,
    SequenceForm,
    SessionForm,
    Skip,
    StepKind,
    WindowForm,
)
from tests.support.conformance_cases import SCHEMA, sound


def sequence(match: str, **sections: str) -> SequenceForm:
    form = sound(match, **sections).form
    assert isinstance(form, SequenceForm)
    return form


def condition(match: str, step: int = -1) -> Expr:
    return sequence(match).steps[step].brackets[0].condition


def emitted(match: str, expression: str) -> Expr:
    return sound(match, emit=f"{{x: '{expression}'}}").emit[0][1]


# ---------------------------------------------------------------- steps


def test_unnamed_steps_are_numbered_by_place() -> None:
    form = sequence(
        "sequence with maxspan=1m [a where true] ![n where true] [b where true] as x"
        " unordered { [c where true] as c [d where true] as d } [e where true]"
    )
    assert [step.name for step in form.steps] == ["step1", None, "x", "step3", "step4"]
    assert [bracket.name for bracket in form.steps[3].brackets] == ["c", "d"]
    assert [step.kind for step in form.steps][3] is StepKind.UNORDERED


def test_modifiers_stand_in_any_order() -> None:
    form = sequence(
        "sequence by u with maxspan=1m [a where true] with runs=2 as x [b where true] by v with within=5s as y"
    )
    assert [step.name for step in form.steps] == ["x", "y"]
    assert (form.steps[0].runs_min, form.steps[0].runs_max) == (2, 2)
    assert form.steps[1].within_ms == 5_000


def test_defaults_and_options_of_a_sequence() -> None:
    form = sequence("sequence with maxspan=0ms [a where true]")
    assert (form.maxspan_ms, form.overlap, form.skip, form.by) == (0, Overlap.LATEST, Skip.PAST_LAST, ())
    form = sequence("sequence by a with maxspan=1m, overlap=any, skip=to_next [a where true]")
    assert (form.overlap, form.skip) == (Overlap.ANY, Skip.TO_NEXT)


def test_prefixes_and_runs() -> None:
    form = sequence(
        "sequence with maxspan=1m ![z where true] with for=1h [a where true] with runs=2.."
        " ?[b where true] with runs=1..3"
        " next [c where true] or [d where true] as cd with after=1s, within=2s"
    )
    first, bag, optional, last = form.steps
    assert (first.kind, first.for_ms) == (StepKind.ABSENT, 3_600_000)
    assert (bag.runs_min, bag.runs_max, bag.repeated) == (2, None, True)
    assert (optional.optional, optional.runs_max) == (True, 3)
    assert (last.next, last.after_ms, last.within_ms, len(last.brackets), last.name) == (True, 1_000, 2_000, 2, "cd")


def test_having_and_until_may_come_in_either_order() -> None:
    for tail in ("until [z where true] having count(x) > 1", "having count(x) > 1 until [z where true]"):
        form = sequence(f"sequence with maxspan=1m [a where true] as x {tail}")
        assert form.having == Binary(">", Aggregate("count", "x", None), Literal(1))
        assert form.until is not None


# ---------------------------------------------------------------- keys


def test_a_bracket_has_the_key_of_its_form_or_its_own() -> None:
    form = sequence("sequence by user, host with maxspan=1m [a where true] [b where true] by account, box")
    assert [key.name for key in form.by] == ["user", "host"]
    assert form.steps[0].brackets[0].by == (Key("user", Field("user")), Key("host", Field("host")))
    assert form.steps[1].brackets[0].by == (Key("user", Field("account")), Key("host", Field("box")))


def test_without_a_key_on_the_form_the_first_step_gives_the_names() -> None:
    form = sequence("sequence with maxspan=1m [a where true] by x [b where true] by y until [a where stop]")
    assert form.by == (Key("x", Field("x")),)
    assert form.steps[1].brackets[0].by == (Key("x", Field("y")),)
    assert form.until is not None
    assert form.until.by == (Key("x", Field("x")),)


def test_a_type_without_a_key_belongs_to_none() -> None:
    form = sequence("sequence with maxspan=1m [a where true] by x ![c where true] [b where true] by y")
    assert form.steps[1].brackets[0].by == (Key("x", Literal(None)),)


def test_by_after_alternatives() -> None:
    form = sequence("sequence with maxspan=1m [a where true] or [b where true] by x")
    assert [bracket.by for bracket in form.steps[0].brackets] == [(Key("x", Field("x")),)] * 2
    form = sequence("sequence by u with maxspan=1m [a where true] or [b where true] by x")
    assert [bracket.by for bracket in form.steps[0].brackets] == [(Key("u", Field("u")),), (Key("u", Field("x")),)]


def test_a_let_may_be_a_key() -> None:
    form = sequence("sequence by bin with maxspan=1m [a where true]", let='{bin: "substring(card, 0, 6)"}')
    value = Call("substring", (Field("card"), Literal(0), Literal(6)))
    assert form.by == (Key("bin", value),)
    assert form.steps[0].brackets[0].by == (Key("bin", value),)


# ---------------------------------------------------------------- names


def test_a_dotted_name_reads_a_step_before_a_field() -> None:
    tree = condition("sequence with maxspan=1m [a where true] as x [b where x.n == y.n and x.@time < @time]")
    assert isinstance(tree, Binary)
    assert tree.left == Binary("==", OfStep("x", Field("n")), Field("y.n"))
    assert tree.right == Binary("<", OfStep("x", Field("@time")), Field("@time"))


def test_a_field_may_be_close_to_a_step() -> None:
    match = "sequence with maxspan=1m [a where true] as probe [b where prob.n == 1]"
    sound(match, {"known_fields": ["prob.n"]})
    sound(match.replace("prob.n", "?prob.n"))
    sound(match.replace("prob.n", "other.n"))


def test_an_unnamed_step_is_read_by_its_number() -> None:
    assert condition("sequence with maxspan=1m [a where true] [b where n == step1.n]") == Binary(
        "==", Field("n"), OfStep("step1", Field("n"))
    )


def test_a_repeated_step_reads_the_events_it_has() -> None:
    tree = condition(
        "sequence with maxspan=1m [a where n > max(x.n) or count(x) == 0] as x with runs=3 [b where true]", 0
    )
    assert isinstance(tree, Binary)
    assert tree.left == Binary(">", Field("n"), Aggregate("max", "x", Field("n")))
    assert tree.right == Binary("==", Aggregate("count", "x", None), Literal(0))


def test_lets_are_written_out() -> None:
    form = sequence(
        "sequence with maxspan=1m [a where net > 1] as x [b where x.net == net]",
        let='{net: "amount - fee", fee: "amount * 0.1"}',
    )
    fee = Binary("*", Field("amount"), Literal(0.1))
    net = Binary("-", Field("amount"), fee)
    assert form.steps[0].brackets[0].condition == Binary(">", net, Literal(1))
    assert form.steps[1].brackets[0].condition == Binary("==", OfStep("x", net), net)


# ---------------------------------------------------------------- aggregates and history

TWO = "sequence with maxspan=1m [a where true] as x with runs=2.. [b where true] as y"


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("count(x)", Aggregate("count", "x", None)),
        ("sum(x.amount)", Aggregate("sum", "x", Field("amount"))),
        ("sum(x.amount * 2)", Aggregate("sum", "x", Binary("*", Field("amount"), Literal(2)))),
        ("distinct(lower(x.ip))", Aggregate("distinct", "x", Call("lower", (Field("ip"),)))),
        ("x.amount", OfStep("x", Field("amount"))),
        ("amount", Field("amount")),
        ("first(x.@time)", Aggregate("first", "x", Field("@time"))),
        ("values(y.n)", Aggregate("values", "y", Field("n"))),
        ("5", Literal(5)),
    ],
)
def test_what_emit_reads_of_a_sequence(text: str, tree: Expr) -> None:
    assert emitted(TWO, text) == tree


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("count()", Aggregate("count", None, None)),
        ("count(cart)", Aggregate("count", "cart", None)),
        ("sum(amount)", Aggregate("sum", None, Field("amount"))),
        ("avg(cart.amount / 2)", Aggregate("avg", "cart", Binary("/", Field("amount"), Literal(2)))),
        ("amount", Field("amount")),
        ("cart.amount", OfStep("cart", Field("amount"))),
    ],
)
def test_what_emit_reads_of_the_other_forms(text: str, tree: Expr) -> None:
    assert emitted("session by u with gap=1m [any where true] [c where true] as cart", text) == tree


def test_history() -> None:
    tree = condition("sequence by u with maxspan=1m [a where amount > 5 * avg(amount, 30d where ok == true)]")
    earlier = History("avg", Field("amount"), 30 * 86_400_000, Binary("==", Field("ok"), Literal(True)))
    assert tree == Binary(">", Field("amount"), Binary("*", Literal(5), earlier))


# ---------------------------------------------------------------- the other forms


def test_the_other_forms() -> None:
    form = sound("aggregate by u over 10m, repeat=1h [a where true] as x [b where true] having count(x) > 2").form
    assert isinstance(form, AggregateForm)
    assert (form.over_ms, form.repeat_ms, [bracket.name for bracket in form.brackets]) == (
        600_000,
        3_600_000,
        ["x", None],
    )
    form = sound("session by u with gap=30m, max=8h [a where true] by v").form
    assert isinstance(form, SessionForm)
    assert (form.gap_ms, form.max_ms, form.brackets[0].by) == (1_800_000, 28_800_000, (Key("u", Field("v")),))
    form = sound("window by u every 10m, size=1h [a where true] having sum(n) > 2").form
    assert isinstance(form, WindowForm)
    assert (form.every_ms, form.size_ms) == (600_000, 3_600_000)
    form = sound("window every 10m [a where true]").form
    assert isinstance(form, WindowForm)
    assert (form.size_ms, form.by) == (600_000, ())


# ---------------------------------------------------------------- schema


def test_a_schema_in_all_its_spellings() -> None:
    text = "purchase: {card: keyword, amount: float, n: int, ok: bool, process: {name: text, any: object}}\nempty: {}"
    schema = Schema.parse(text)
    assert schema.types["purchase"] == {
        "card": "string", "amount": "double", "n": "long", "ok": "boolean", "process.name": "string",
        "process.any": "any",
    }  # fmt: skip
    assert schema.kind("process.any.deep", ["purchase"]) == "any"
    assert schema.kind("process", ["purchase"]) == "any"
    assert schema.kind("nope", ["purchase"]) is None
    assert Schema.parse(schema.to_json()) == schema


@pytest.mark.parametrize("text", ["a: {b: strin}", "a: 1", "- a", "a: [", "a: {b: [string]}"])
def test_a_faulty_schema_says_so(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Schema.parse(text)


def test_what_a_schema_allows() -> None:
    options = {"schema": SCHEMA}
    sound(
        "sequence by card with maxspan=1m [purchase where amount > 2 and ok] as p [login where tries > p.amount]",
        options=options,
    )
    sound('sequence with maxspan=1m [any where process.name == "x" or ?nope == null]', options=options)
    sound("sequence with maxspan=1m [purchase where true] by card [wire where true] by account", options=options)
    sound(
        "aggregate by card over 1m [purchase where true] as p [login where true] having sum(p.amount) > tries",
        options=options,
    )


# ---------------------------------------------------------------- version

BASE = "sequence by u with maxspan=1m\n[a where n > $x and c in $l] as s\n[b where k == 1]"
SECTIONS = {"params": "{x: 1}", "lists": "{l: [A]}", "let": '{k: "m + 1"}', "emit": "{e: s.n}", "suppress": "1h"}


def version(match: str = BASE, **changes: str) -> str:
    return version_of(sound(match, **(SECTIONS | changes)))


@pytest.mark.parametrize(
    "changes",
    [
        {"params": "{x: 2}"},
        {"lists": "{l: [B]}"},
        {"let": '{k: "m + 2"}'},
        {"emit": "{e: s.m}"},
        {"suppress": "2h"},
        {"match": BASE.replace("maxspan=1m", "maxspan=2m")},
        {"match": BASE.replace("as s", "as s with runs=2")},
        {"match": BASE.replace("by u", "by v")},
    ],
    ids=str,
)
def test_a_version_depends_on_all_that_affects_matching(changes: dict[str, str]) -> None:
    assert version(**changes) != version()


@pytest.mark.parametrize(
    "changes",
    [
        {"title": "t", "severity": "high", "tags": "[a]", "message": "hello"},
        {"params": "{x: 1.0, unused: 2}"},
        {"match": "// why\n" + BASE.replace("where", " where /* so */")},
        {"match": BASE.replace("$x", "1").replace("$l", '("A")'), "params": "{}", "lists": "{}"},
        {"match": BASE.replace("k == 1", "(m + 1) == 1"), "let": "{}"},
        {"tests": "[{events: [], expect: []}]"},
    ],
    ids=str,
)
def test_a_version_depends_on_nothing_else(changes: dict[str, str]) -> None:
    assert version(**changes) == version()
