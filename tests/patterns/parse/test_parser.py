"""From text to tree: places, literals, options, and every way in which YAML can hold a match."""

from __future__ import annotations

from pathlib import Path

import pytest

from samovar.patterns.parse.parser import read_expression, read_match
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.syntax.constants import Constants
from samovar.patterns.syntax.findings import Report, render
from samovar.patterns.syntax.positions import whole
from samovar.patterns.syntax.tree import Binary, Call, Expr, History, In, Literal, Name, SequenceForm, TextMatch, Unary
from tests.support.conformance_cases import CASES, marked, sound


def expression(text: str) -> Expr:
    report = Report("<rule>")
    tree = read_expression(text, whole(text).locate, report, Constants())
    assert tree is not None, report.findings()
    assert not report.findings()
    return tree


@pytest.mark.parametrize("folder", sorted((CASES / "match").iterdir()), ids=lambda folder: folder.name)
def test_every_case_loads_without_a_word(folder: Path) -> None:
    text = (folder / "rule.yml").read_text("utf-8")
    loaded = load_text(text)
    assert loaded.rule is not None
    assert [render(finding, text) for finding in loaded.findings] == []


# ---------------------------------------------------------------- expressions


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("1", Literal(1)),
        ("1.5", Literal(1.5)),
        (".5", Literal(0.5)),
        ("1e3", Literal(1000.0)),
        ("-5", Literal(-5)),
        ("2h", Literal(7_200_000)),
        ("500ms", Literal(500)),
        ("true", Literal(True)),
        ("null", Literal(None)),
        ('"a\\"b\\\\c\\n\\t"', Literal('a"b\\c\n\t')),
        ('"""a\\d"b"""', Literal('a\\d"b')),
        ('""', Literal("")),
        ('"\\u{1F600}"', Literal("\U0001f600")),
        ("amount", Name("amount")),
        ("process.name", Name("process.name")),
        ("probe.@time", Name("probe.@time")),
        ("`my field`", Name("my field")),
        ("process.`odd-name`", Name("process.odd-name")),
        ("?user.id", Name("?user.id")),
        ("as.number", Name("as.number")),
        ("not a", Unary("not", Name("a"))),
        ("-x", Unary("-", Name("x"))),
        ("a + b * c", Binary("+", Name("a"), Binary("*", Name("b"), Name("c")))),
        ("a - b - c", Binary("-", Binary("-", Name("a"), Name("b")), Name("c"))),
        ("(a - b) * c", Binary("*", Binary("-", Name("a"), Name("b")), Name("c"))),
        ("a or b and c", Binary("or", Name("a"), Binary("and", Name("b"), Name("c")))),
        ("not a == 1", Unary("not", Binary("==", Name("a"), Literal(1)))),
        ("a in (1, 2)", In(Name("a"), (Literal(1), Literal(2)), False, False)),
        ('a not in~ ("x")', In(Name("a"), (Literal("x"),), True, True)),
        ('a like "x*"', TextMatch("like", Name("a"), ("x*",), False)),
        ('a like~ ("x*", "y")', TextMatch("like", Name("a"), ("x*", "y"), True)),
        ('a : "x*"', TextMatch("like", Name("a"), ("x*",), True)),
        ('a regex~ "^x"', TextMatch("regex", Name("a"), ("^x",), True)),
        ('a regex ("x", "y")', TextMatch("regex", Name("a"), ("x", "y"), False)),
        ("a : 443", In(Name("a"), (Literal(443),), False, False)),
        ('not a like "x"', Unary("not", TextMatch("like", Name("a"), ("x",), False))),
        ('a not like "x"', Unary("not", TextMatch("like", Name("a"), ("x",), False))),
        ('startsWith(a, "x")', Call("starts_with", (Name("a"), Literal("x")))),
        ("dayOfWeek(@time)", Call("day_of_week", (Name("@time"),))),
        ("add(a, 1)", Binary("+", Name("a"), Literal(1))),
        ("count(1h)", History("count", None, 3_600_000, None)),
        ("seen(f, 90d where ok)", History("seen", Name("f"), 7_776_000_000, Name("ok"))),
        ("count()", Call("count", ())),
        ("// a comment\na /* another */ + 1", Binary("+", Name("a"), Literal(1))),
    ],
)
def test_expressions(text: str, tree: Expr) -> None:
    assert expression(text) == tree


def test_a_folded_function_compares_in_lower_case() -> None:
    tree = expression('endsWith~(name, ".EXE")')
    assert tree == Call("ends_with", (Call("lower", (Name("name"),)), Call("lower", (Literal(".EXE"),))))


def test_words_of_the_language_may_be_fields() -> None:
    names = "next until having over every size max count first last sequence session window unordered any type"
    for name in names.split():
        assert expression(f"{name} == 1") == Binary("==", Name(name), Literal(1))


def test_a_long_chain_does_not_go_deep() -> None:
    tree = expression(" or ".join(f"a == {number}" for number in range(1000)))
    depth, level = 0, [tree]
    while level:
        depth += 1
        level = [side for node in level if isinstance(node, Binary) for side in (node.left, node.right)]
    assert depth < 25


def test_spans_are_those_of_the_text() -> None:
    tree = expression("amount  + \n  (b * 2)")
    assert isinstance(tree, Binary)
    assert (tree.span.line, tree.span.column, tree.span.end_line, tree.span.end_column) == (1, 1, 2, 10)
    assert (tree.op_span.line, tree.op_span.column) == (1, 9)
    assert (tree.right.span.line, tree.right.span.column) == (2, 3)


# ---------------------------------------------------------------- the match, and where its words stand

FAULTS = {
    "literal block": "rule: r\nmatch: |\n  sequence with maxspan=1m\n\n     [a where amount = 1]\n",
    "indented literal block": "rule: r\nmatch: |4-\n       sequence with maxspan=1m\n     [a where amount = 1]\n",
    "literal block with a comment": "rule: r\nmatch: | # why\n  sequence with maxspan=1m\n  [a where amount = 1]\n",
    "folded block": "rule: r\nmatch: >\n  sequence with\n  maxspan=1m\n\n  [a where\n  amount = 1]\n",
    "plain": "rule: r\nmatch: sequence with maxspan=1m [a where amount = 1]\n",
    "plain over lines": "rule: r\nmatch: sequence with maxspan=1m\n   [a where\n      amount = 1]\n",
    "double quotes": 'rule: r\nmatch: "sequence with maxspan=1m [a where b == \\"\\u00fc\\" and amount = 1]"\n',
    "double quotes over lines": 'rule: r\nmatch: "sequence with\n   maxspan=1m \\\n   [a where amount = 1]"\n',
    "single quotes": "rule: r\nmatch: 'sequence with maxspan=1m [a where b == \"it''s\" and amount = 1]'\n",
    "flow": "{rule: r, match: 'sequence with maxspan=1m [a where amount = 1]'}\n",
    "windows lines": "rule: r\r\nmatch: |\r\n  sequence with maxspan=1m\r\n  [a where amount = 1]\r\n",
    "byte order mark": "\ufeffrule: r\nmatch: |\n  sequence with maxspan=1m\n  [a where amount = 1]\n",
    "wide characters": 'rule: r\nmatch: |\n  sequence with maxspan=1m\n  [a where "東京" != c and amount = 1]\n',
}


@pytest.mark.parametrize("text", FAULTS.values(), ids=FAULTS.keys())
def test_places_are_those_of_the_file(text: str) -> None:
    (finding,) = load_text(text).findings
    assert finding.id == "wrong-operator"
    assert marked(finding, text.replace("\r\n", "\n")) == "="
    line = text.replace("\r\n", "\n").split("\n")[finding.span.line - 1]
    assert line[: finding.span.column - 1].endswith("amount ")


def test_places_inside_emit_let_and_messages() -> None:
    text = (
        'rule: r\nmatch: |\n  sequence with maxspan=1m [a where true] as x\nemit: {n: "count(y)", m: foo(x)}\n'
        'message: "é {x.a} and {bar(1)}"\nlet:\n  k: |\n    baz(1)\n'
    )
    places = {marked(finding, text) for finding in load_text(text).findings}
    assert places == {"count(y)", "foo(x)", "bar(1)", "baz(1)"}


def test_every_fault_is_reported_at_once() -> None:
    text = """\
rule: Bad Id
severity: hihg
matchh: x
match: |
  sequence by card with maxspan=10
    [a where amount = 1] as x with runs=many
    [b where ==] as y
    [c where (1] as z
    [d where lowr(a) == 1]
  until [e where x.a == 1]
  having cuont(x) > 1
emit:
  a: sum(x.amount
  b: count(nobody)
message: "{nope(}"
suppress: 10
let: {c: "1 +"}
lists: {l: x}
tests:
  - name: t
    events: ["5s a"]
    expect: [{at: "+1w"}]
"""
    lines = sorted(finding.span.line for finding in load_text(text).findings)
    assert lines == [1, 2, 3, 5, 6, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18, 21, 22]


def test_a_match_can_be_parsed_by_itself() -> None:
    text = "sequence by u with maxspan=1m [a where true] as x ![b where true] [c where x.n == 1]"
    report = Report("<rule>")
    tree = read_match(text, whole(text).locate, report, Constants())
    assert report.findings() == ()
    assert tree is not None
    assert [text.step.name for text in tree.steps] == ["x", None, None]


# ---------------------------------------------------------------- parameters and lists


def test_a_parameter_stands_wherever_a_literal_may() -> None:
    rule = sound(
        "sequence by u with maxspan=$span\n"
        "  [a where n > $limit and s like $pattern and seen(f, $back)] with runs=$low..$high\n"
        "  [b where n in (1, $limit)] with within=$text",
        params='{span: 10m, limit: 5, pattern: "a*", back: 1d, low: 2, high: 4, text: "5s"}',
        suppress="$span",
    )
    form = rule.form
    assert isinstance(form, SequenceForm)
    assert (form.maxspan_ms, rule.suppress_ms) == (600_000, 600_000)
    assert (form.steps[0].runs_min, form.steps[0].runs_max, form.steps[1].within_ms) == (2, 4, 5_000)


def test_a_service_sets_parameters_and_lists() -> None:
    match = "sequence by u with maxspan=$span [a where n > $limit and c in $risky]"
    sections = {"params": "{span: 10m, limit: 5}", "lists": "{risky: [KP]}"}
    options = {"params": {"span": "1h", "limit": 7}, "lists": {"risky": ["IR", "SY"]}}
    rule = sound(match, options=options, **sections)
    assert isinstance(rule.form, SequenceForm)
    assert rule.form.maxspan_ms == 3_600_000
    assert rule.params == {"span": 3_600_000, "limit": 7}
    assert rule.lists == {"risky": ("IR", "SY")}


def test_lists_become_literals() -> None:
    rule = sound("sequence with maxspan=1m [a where c in $l and d not in~ $l]", lists="{l: [NO, 7, '07']}")
    assert isinstance(rule.form, SequenceForm)
    condition = rule.form.steps[0].brackets[0].condition
    assert isinstance(condition, Binary)
    assert isinstance(condition.left, In)
    assert condition.left.items == (Literal("NO"), Literal(7), Literal("07"))
