"""Every error that the language names: which it is, where the caret stands, and what it tells to write."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.syntax.findings import Finding, render, to_json
from samovar.patterns.syntax.tree import Span
from tests.support.conformance_cases import CASES, SCHEMA, load, marked, rule_text

HEAD = "sequence by card with maxspan=10m\n"
A = "[purchase where true] as a\n"
B = "[purchase where true] as b"


@dataclass(frozen=True)
class Fault:
    """A match, the finding it must give, what the caret marks, and a word of the hint or what was expected."""

    id: str
    match: str
    place: str
    says: str = ""
    level: str = "error"
    schema: bool = False
    sections: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


SEQUENCES = [
    Fault("optional-last", HEAD + A + "?[b where true]", "?"),
    Fault("open-last", HEAD + A + "[b where true] with runs=3..", "runs=3..", "runs=3"),
    Fault("open-last", HEAD + "[b where true] with runs=5..", "runs=5..", "write `runs=5`"),
    Fault("open-last", HEAD + A + "[b where true] with runs=2..4", "runs=2..4", "runs=2"),
    Fault("misplaced-option", HEAD + "next [a where true] " + B, "next"),
    Fault("misplaced-option", HEAD + "[a where true] with within=5s " + B, "within=5s"),
    Fault("misplaced-option", HEAD + "[a where true] with after=5s " + B, "after=5s"),
    Fault("misplaced-option", HEAD + "![x where true] with for=1m [a where true] with within=5s", "within=5s"),
    Fault("misplaced-option", HEAD + A + "next ?[c where true] " + B, "next"),
    Fault("misplaced-option", HEAD + A + "next unordered {[c where true] as c [d where true] as d}", "next"),
    Fault("misplaced-option", HEAD + A + "?unordered {[c where true] as c [d where true] as d} " + B, "?"),
    Fault("misplaced-option", HEAD + A + "unordered {[c where true] as c [d where true] as d} with runs=2", "runs=2"),
    Fault("misplaced-option", HEAD + A + "unordered {[c where true] as c with runs=2 [d where true] as d}", "runs"),
    Fault("misplaced-option", HEAD + A + "![x where true] with within=5s " + B, "within=5s", "step that follows"),
    Fault("misplaced-option", HEAD + A + "![x where true] with runs=5 " + B, "runs=5"),
    Fault("misplaced-option", HEAD + A + "![x where true] with for=5s", "for=5s", "within"),
    Fault("misplaced-option", HEAD + "[a where true] with for=5s " + B, "for=5s"),
    Fault("missing-for", HEAD + "![x where true]\n" + B, "![x where true]", "for=10m"),
    Fault("skip-with-latest", "sequence with maxspan=1m, skip=none " + A, "skip=none", "overlap=all, skip=none"),
    Fault("skip-with-latest", "sequence with maxspan=1m, overlap=latest, skip=to_next " + A, "skip=to_next"),
    Fault("unreadable-step", HEAD + A + "![n where true] as n [b where n.k == 1]", "n.k"),
    Fault("unreadable-step", HEAD + "[c where x == b.y] " + B, "b.y", "later"),
    Fault("unreadable-step", HEAD + "[c where count(b) == 1] " + B, "count(b)", "later"),
    Fault("unreadable-step", HEAD + "[c where c.x == 1] as c", "c.x", "very step"),
    Fault("unreadable-step", HEAD + A + "until [c where a.x == 1]", "a.x", "until"),
    Fault("unreadable-step", HEAD + "unordered {[c where true] as c [d where c.x == 1] as d}", "c.x", "each other"),
    Fault("unreadable-step", HEAD + A + "[b where seen(a.x, 1h)]", "a.x"),
    Fault("duplicate-name", HEAD + A + "[b where true] as a", "a", "line 4"),
    Fault("duplicate-name", HEAD + "[b where true] as step2\n[c where true]", "[c where true]"),
    Fault("duplicate-name", HEAD + A + "unordered {[c where true] as a [d where true] as d}", "[c where true]"),
    Fault("only-negations", HEAD + "![x where true] with for=1m", "![x where true] with for=1m"),
    Fault("all-optional", HEAD + "?[c where true] ?[d where true] ![e where true]", "?[c where true]"),
    Fault("zero-duration", HEAD + A + "[b where true] with within=0s", "0s"),
    Fault("zero-duration", HEAD + "[b where seen(f, 0d)]", "0d"),
    Fault("zero-duration", "aggregate over 0m [a where true] having count() > 1", "0m"),
    Fault("zero-duration", "window every 0s [a where true]", "0s"),
    Fault("missing-maxspan", "sequence by card " + A, "sequence by card", "maxspan=10m"),
    Fault("missing-gap", "session by card " + A, "session by card", "gap=30m"),
    Fault("missing-every", "window by card " + A, "window by card", "every 10m"),
    Fault("missing-over", "aggregate by card " + A + "having count() > 1", "aggregate by card", "over 10m"),
    Fault("missing-having", "aggregate by card over 1m " + A, "aggregate by card over 1m", "having"),
    Fault("missing-bracket", "sequence by card with maxspan=1m", "sequence by card with maxspan=1m"),
    Fault("small-window", "window every 10m, size=5m [a where true]", "size=5m"),
    Fault("small-group", HEAD + "unordered {[a where true] as a}", "unordered {[a where true] as a}"),
    Fault("missing-name", HEAD + "unordered {[a where true] [b where true] as b}", "[a where true]", "as name"),
    Fault("key-count", HEAD + "[a where true] by x, y", "x", "same number"),
    Fault("missing-key", "sequence with maxspan=1m [a where true] by x [b where true]", "[b where true]", "by FIELD"),
    Fault("no-key", "sequence with maxspan=1m [a where true] by x ![n where true]", "[n where true]", level="warning"),
    Fault("unknown-choice", "sequence with maxspan=1m, overlap=lates " + A, "lates", "`latest`"),
    Fault("unknown-option", "sequence with maxpsan=1m " + A, "maxpsan", "`maxspan`"),
    Fault("unknown-option", "sequence with timeout=1m " + A, "timeout", "`maxspan`"),
    Fault("misplaced-option", "sequence with maxspan=1m, within=5s " + A, "within", "option of a step"),
    Fault("misplaced-option", HEAD + "[a where true] with maxspan=5s", "maxspan", "after `sequence`"),
    Fault("misplaced-option", "sequence over 5m " + A, "over 5m", "maxspan"),
    Fault("misplaced-option", "session with gap=1m ![a where true]", "!", "only brackets"),
    Fault("misplaced-option", "session with gap=1m [a where n] or [b where n]", "[a where n] or [b where n]"),
    Fault("misplaced-option", "session with gap=1m [a where true] until [b where true]", "[b where true]"),
    Fault("misplaced-name", HEAD + "[a where true] as x or [b where true]", "x", "whole step"),
    Fault("duplicate-option", HEAD + "[a where true] as x as y", "as y"),
    Fault("duplicate-option", "sequence with maxspan=1m, maxspan=2m " + A, "maxspan"),
    Fault("no-duration", "sequence with maxspan=10 " + A, "10", "maxspan=10s"),
    Fault("no-duration", "sequence with maxspan=soon " + A, "soon"),
    Fault("no-count", HEAD + "[a where true] with runs=0", "0", "?[...]"),
    Fault("no-count", HEAD + "[a where true] with runs=1.5", "1.5"),
    Fault("no-count", HEAD + "[a where true] with runs=-1", "-1"),
    Fault("no-count", HEAD + "[a where true] with runs=4..2 " + B, "4..2"),
    Fault("too-many-runs", HEAD + "[a where true] with runs=20000", "20000"),
]  # fmt: skip

NAMES = [
    Fault("unknown-field", HEAD + "[purchase where amout > 1]", "amout", "`amount`", schema=True),
    Fault("unknown-field", HEAD + A + "[purchase where a.amout > 1]", "a.amout", "`amount`", schema=True),
    Fault("unknown-field", HEAD + "[login where process.nam == null]", "process.nam", "`process.name`", schema=True),
    Fault("unknown-field", "sequence by crad with maxspan=1m [purchase where true]", "crad", "`card`", schema=True),
    Fault("unknown-field", HEAD + "[purchase where ts > 1]", "ts", "@time", schema=True),
    Fault("unknown-field", HEAD + A + "[purchase where amount > a]", "a", "a.card", schema=True),
    Fault("unknown-field", HEAD + "[purchase where true] as probe [login where probes.amount > 1]", "probes.amount",
          "`probe.amount`", schema=True),
    Fault("unknown-field", HEAD + "[a where @tme > 1]", "@tme", "@time"),
    Fault("unknown-type", HEAD + "[purchse where true]", "[purchse where true]", "`purchase`", schema=True),
    Fault("unknown-step", HEAD + "[e where true] as probe [e where prob.x == 1]", "prob.x", "`probe.x`",
          options={"known_fields": ["x", "card"]}),
    Fault("unknown-step", HEAD + "[e where true] as probe", "prob.x", "`?prob.x`", sections={"emit": "{e: prob.x}"}),
    Fault("step-as-field", HEAD + "[e where true] as probe [e where x == probe]", "probe", level="warning"),
    Fault("unknown-function", HEAD + "[a where lowr(x) == 1]", "lowr(x)", "`lower`"),
    Fault("unknown-function", HEAD + "[a where len(x) == 1]", "len(x)", "`length`"),
    Fault("unknown-parameter", HEAD + "[a where x > $limt]", "$limt", "`limit`", sections={"params": "{limit: 1}"}),
    Fault("unknown-parameter", HEAD + "[a where x in $l]", "$l", "declare it"),
    Fault("list-as-value", HEAD + "[a where x == $l]", "$l", "in $l", sections={"lists": "{l: [1]}"}),
    Fault("no-list", HEAD + "[a where x in $l]", "$l", sections={"params": "{l: 1}"}),
    Fault("unknown-step", "session with gap=1m [a where true] as cart having count(crat) > 1", "count(crat)", "`cart`"),
    Fault("missing-step", HEAD + A + "having count() > 1", "count()", "count(a)"),
    Fault("missing-step", HEAD + A + "having sum(amount) > 1", "sum(amount)", "sum(a.amount)"),
    Fault("missing-field", HEAD + A + "having sum(a) > 1", "sum(a)", "sum(a.amount)"),
    Fault("two-steps", HEAD + A + B + " having sum(a.n * b.n) > 1", "sum(a.n * b.n)"),
    Fault("two-steps", HEAD + A + B + " having sum(a.n * n) > 1", "sum(a.n * n)"),
    Fault("misplaced-aggregate", "aggregate over 1m [a where n > avg(n)] having count() > 1", "avg(n)", "30d)"),
    Fault("misplaced-history", HEAD + A + "having seen(x, 1h)", "seen(x, 1h)"),
    Fault("misplaced-history", HEAD + "[a where seen(prev(x, 1h), 1h)]", "prev(x, 1h)"),
    Fault("missing-duration", HEAD + "[a where seen(x)]", "seen(x)", "90d"),
    Fault("missing-duration", HEAD + "[a where seen(x, 90)]", "seen(x, 90)", "90d"),
    Fault("circular-let", HEAD + "[a where true]", "b", sections={"let": "{a: b, b: a}"}),
    Fault("duplicate-name", HEAD + A, "a", "let", sections={"let": "{a: x}"}),
]  # fmt: skip

VALUES = [
    Fault("type-mismatch", HEAD + '[purchase where amount < "a"]', 'amount < "a"', schema=True),
    Fault("type-mismatch", HEAD + '[purchase where amount == "5"]', 'amount == "5"', "without quotes: 5", schema=True),
    Fault("type-mismatch", HEAD + "[purchase where country != 5]", "country != 5", '"5"', schema=True),
    Fault("type-mismatch", HEAD + "[purchase where country in (1)]", "1", '"1"', schema=True),
    Fault("type-mismatch", HEAD + A + "[login where tries > a.country]", "tries > a.country", "number(", schema=True),
    Fault("type-mismatch", HEAD + '[a where 1 == "a"]', '1 == "a"'),
    Fault("type-mismatch", HEAD + '[a where length(x) == "3"]', 'length(x) == "3"', "without quotes"),
    Fault("key-type", HEAD + "[purchase where true] [wire where true]", "card", "string(", schema=True),
    Fault("not-a-condition", HEAD + "[purchase where amount]", "amount", "> 0", schema=True),
    Fault("not-a-condition", HEAD + "[purchase where not amount]", "amount", schema=True),
    Fault("not-a-condition", HEAD + "[a where 5 and x]", "5"),
    Fault("not-a-condition", HEAD + "[a where lower(x)]", "lower(x)"),
    Fault("not-a-condition", HEAD + "[a where null]", "null"),
    Fault("not-a-condition", HEAD + "[a where n + 1]", "n + 1"),
    Fault("not-a-condition", HEAD + A + "having count(a)", "count(a)", "> 0"),
    Fault("not-a-number", HEAD + '[a where "x" + y == 1]', '"x"', "concat"),
    Fault("not-a-number", HEAD + A + "having sum(a.country) > 1", "sum(a.country)", schema=True),
    Fault("null-order", HEAD + "[a where x > null]", "x > null", "== null", level="warning"),
    Fault("pattern-on-number", HEAD + '[wire where amount like "1"]', 'amount like "1"', level="warning", schema=True),
    Fault("argument-type", HEAD + "[purchase where lower(amount) == null]", "amount", level="warning", schema=True),
    Fault("argument-count", HEAD + "[a where starts_with(x)]", "starts_with(x)", 'starts_with(name, "a")'),
    Fault("argument-count", HEAD + "[a where round(x, 1, 2) > 1]", "round(x, 1, 2)"),
    Fault("argument-count", HEAD + "[a where count(x, 1h) > 1]", "count(x, 1h)", "count(1h)"),
    Fault("bad-regex", HEAD + '[a where x regex "^(US$"]', '"^(US$"', "RE2"),
    Fault("bad-regex", HEAD + '[a where x regex ("a", "(?=b)")]', '"(?=b)"', "lookahead"),
    Fault("bad-regex", HEAD + '[a where x regex "(a{999}){999}"]', '"(a{999}){999}"', "smaller"),
    Fault("no-pattern", HEAD + "[a where x like 5]", "5", '"a*"'),
    Fault("empty-list", HEAD + "[a where x in ()]", "()"),
    Fault("no-list", HEAD + '[a where x in "a"]', '"a"'),
    Fault("bad-network", HEAD + '[a where cidr(ip, "10.0.0.0/40")]', '"10.0.0.0/40"', "10.0.0.0/8"),
    Fault("unknown-zone", HEAD + '[a where hour(@time, "Berlin") == 1]', '"Berlin"', "Europe/Berlin"),
    Fault("unknown-escape", HEAD + '[a where x == "C:\\Users"]', "\\U", '"""raw text"""'),
    Fault("number-too-large", HEAD + "[a where x == 1e999]", "1e999"),
]  # fmt: skip

HABITS = [
    Fault("wrong-operator", HEAD + "[a where x = 1]", "=", "write `==`"),
    Fault("wrong-operator", HEAD + "[a where x <> 1]", "<>", "write `!=`"),
    Fault("wrong-operator", HEAD + "[a where x => 1]", "=>", "write `>=`"),
    Fault("single-quotes", HEAD + "[a where x == 'US']", "'US'", 'write "US"'),
    Fault("syntax", HEAD + "[a where x AND y]", "AND", "`and`"),
    Fault("syntax", HEAD + "[a where NOT x]", "x", "`not`"),
    Fault("unknown-function", HEAD + "[a where NOT (x == 1)]", "NOT (x == 1)", "`not`"),
    Fault("wrong-case", HEAD + "[a where x == TRUE]", "TRUE", "`true`"),
    Fault("syntax", "SEQUENCE BY x WITH maxspan=1m [a where true]", "SEQUENCE", "`sequence`"),
    Fault("syntax", HEAD + "[a where x is null]", "is", "write `== null`"),
    Fault("syntax", HEAD + "[a where x is not null]", "is", "write `!= null`"),
    Fault("syntax", HEAD + "[a where x && y]", "&", "write `and`"),
    Fault("syntax", HEAD + "[a where !x]", "!", "write `not`"),
    Fault("syntax", HEAD + '[a where x contains "b"]', "contains", 'contains(field, "...")'),
    Fault("syntax", HEAD + "[a where 1 < x < 3]", "<", "a < b and b < c"),
    Fault("syntax", HEAD + "[a where x between 1 and 2]", "between", "x >= 1 and x <= 9"),
    Fault("wrong-unit", "sequence with maxspan=1w [a where true]", "1w", "write `7d`"),
    Fault("wrong-unit", HEAD + "[a where seen(x, 2weeks)]", "2weeks", "write `14d`"),
    Fault("wrong-unit", "sequence with maxspan=1h30m [a where true]", "1h30m", "write `90m`"),
    Fault("wrong-unit", "sequence with maxspan=1.5h [a where true]", "1.5h", "write `90m`"),
    Fault("wrong-unit", HEAD + "[a where x > 1_000]", "1_000", "write `1000`"),
    Fault("sql-pattern", HEAD + '[a where x like "a%"]', '"a%"', '"a*"', level="warning"),
    Fault("too-few-in-aggregate", "aggregate over 1m [a where true] having count() < 5", "count() < 5", "window",
          level="warning"),
    Fault("syntax", HEAD + A + "| head 5", "|", "pipes are not part of the language"),
    Fault("syntax", "aggregate over 1m [a where true] having count() > 1 | unique x", "|", "suppress"),
    Fault("syntax", HEAD + "[a]", "", "where true"),
    Fault("syntax", "process where true", "process", "[type where ...]"),
    Fault("syntax", "sequense with maxspan=1m [a where true]", "sequense", "`sequence`"),
    Fault("syntax", "sequence by lower(x) with maxspan=1m [a where true]", "(", "let"),
    Fault("syntax", HEAD + "[a where true] then [b where true]", "then", "without a word"),
    Fault("syntax", HEAD + "[a where true] within=5s", "within", "with within="),
    Fault("syntax", HEAD + "[a where by == 1]", "by", "backticks"),
    Fault("syntax", HEAD + "[a where x == \u201cUS\u201d]", "\u201c", "straight"),
    Fault("unexpected", HEAD + "[a where args[0] == 1]", "[", "by number"),
    Fault("unbalanced", HEAD + "[a where true]] as x", "]", "delete"),
    Fault("unbalanced", HEAD + "[a where x)]", ")"),
    Fault("unclosed", HEAD + "[a where (x]", "("),
    Fault("unclosed", HEAD + "[a where true\n[b where true]", "[", "`]`"),
    Fault("unclosed", HEAD + '[a where x == "b]', '"', 'closing "'),
    Fault("unclosed", HEAD + "[a where true /* why]", "/*", "*/"),
    Fault("unclosed", "aggregate over 1m [a where true] having (count() > 1", "("),
    Fault("odd-character", HEAD + "[a where x\u200b == 1]", "\u200b", "cannot be seen"),
    Fault("odd-character", HEAD + '[a where x == "\u202e"]', '"\u202e"', "cannot be seen", level="warning"),
]  # fmt: skip


@pytest.mark.parametrize(
    "fault", [*SEQUENCES, *NAMES, *VALUES, *HABITS], ids=lambda fault: f"{fault.id}: {fault.match}"
)
def test_each_fault_is_named_and_marked(fault: Fault) -> None:
    options = fault.options | ({"schema": SCHEMA} if fault.schema else {})
    text = rule_text(fault.match, **fault.sections)
    loaded = load(fault.match, options=options, **fault.sections)
    found = [finding for finding in loaded.findings if finding.id == fault.id and marked(finding, text) == fault.place]
    assert found, "\n".join(render(finding, text) for finding in loaded.findings)
    assert found[0].level == fault.level
    assert (loaded.rule is None) == (fault.level == "error")
    assert fault.says in render(found[0], text)


@pytest.mark.parametrize(
    "fault", [*SEQUENCES, *NAMES, *VALUES, *HABITS], ids=lambda fault: f"{fault.id}: {fault.match}"
)
def test_no_fault_brings_others_along(fault: Fault) -> None:
    options = fault.options | ({"schema": SCHEMA} if fault.schema else {})
    findings = load(fault.match, options=options, **fault.sections).findings
    assert {finding.id for finding in findings} == {fault.id}


@pytest.mark.parametrize("path", sorted((CASES / "errors").glob("*.yml")), ids=lambda path: path.stem)
def test_the_cases_are_refused_on_their_line(path: Path) -> None:
    loaded = load_text(path.read_text("utf-8"))
    lines = {finding.span.line for finding in loaded.findings if finding.level == "error"}
    assert loaded.rule is None
    assert lines
    assert lines <= set(json.loads(path.with_suffix(".expect.json").read_text("utf-8"))["lines"])


# ---------------------------------------------------------------- how a finding is shown


def shown(line: str, column: int, end: int) -> list[str]:
    finding = Finding(
        id="an-id",
        level="error",
        message="what",
        path="f.yml",
        span=Span(1, column, 1, end),
        expected="this",
        hint="that",
    )
    return render(finding, line).split("\n")


def test_a_finding_shows_its_line_and_a_caret() -> None:
    assert shown("abc = 1", 5, 6) == [
        "f.yml:1:5: error: what [an-id]",
        "    1 | abc = 1",
        "      |     ^",
        "  expected: this",
        "  hint: that",
    ]


def test_the_caret_minds_tabs_wide_and_combining_characters() -> None:
    assert shown("\tx = 1", 4, 5)[2] == "      | \t  ^"
    assert shown("東京 = 1", 4, 5)[2] == "      |      ^"
    assert shown("東京 = 1", 1, 3)[2] == "      | ^^^^"
    assert shown("e\u0301 = 1", 4, 5)[2] == "      |   ^"


def test_what_cannot_be_seen_is_written_as_an_escape() -> None:
    head, line, caret, *_ = shown("a\u202e = 1", 4, 5)
    assert line == "    1 | a\\u202e = 1"
    assert caret == "      |         ^"
    assert "\u202e" not in head


def test_a_long_line_is_cut_around_the_caret() -> None:
    _, line, caret, *_ = shown("x" * 5_000 + "=" + "y" * 5_000, 5_001, 5_002)
    assert len(line) < 200
    assert line[caret.index("^")] == "="


def test_a_place_outside_of_the_text_shows_no_line() -> None:
    finding = Finding(id="an-id", level="error", message="what", path="f.yml", span=Span(9, 1, 9, 2))
    assert render(finding, "one line") == "f.yml:9:1: error: what [an-id]"


def test_a_finding_as_json() -> None:
    finding = Finding(
        id="an-id", level="warning", message="what", path="f.yml", span=Span(1, 2, 3, 4), expected=None, hint="that"
    )
    assert to_json(finding) == {
        "id": "an-id", "level": "warning", "message": "what", "path": "f.yml", "line": 1, "column": 2, "end_line": 3,
        "end_column": 4, "expected": None, "hint": "that",
    }  # fmt: skip
