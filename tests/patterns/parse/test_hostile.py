"""Text that nobody meant well: always findings, soon, and never an exception."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.patterns.parse.parser import MAX_STEPS, read_expression, read_match
from samovar.patterns.rulefile.rule_file import MAX_FILE_CHARACTERS, LoadedRuleFile, load_path, load_text
from samovar.patterns.syntax.constants import Constants
from samovar.patterns.syntax.findings import Report, render
from samovar.patterns.syntax.positions import whole
from tests.support.conformance_cases import CASES, rule_text

HEAD = "sequence by card with maxspan=10m "
FILE = "rule: r\nmatch: "

# Of work. Generous, because machines differ: what takes seconds here once took minutes or never ended.
SECONDS_AT_MOST = 20


def taken(text: str) -> LoadedRuleFile:
    """What loading gives, with all its findings shown, within the time allowed."""
    start = time.process_time()
    loaded = load_text(text)
    for finding in loaded.findings:
        assert render(finding, text).isprintable() or "\n" in render(finding, text)
    assert time.process_time() - start < SECONDS_AT_MOST
    return loaded


REFUSED = {
    "a megabyte of brackets": rule_text("[" * 900_000),
    "a megabyte of YAML brackets": FILE + "[" * 900_000,
    "a megabyte of YAML braces": FILE + "{" * 900_000,
    "deep YAML": "\n".join(" " * depth + "a:" for depth in range(1_200)),
    "closing brackets": rule_text("]" * 50_000),
    "empty brackets": rule_text("[]" * 4_000),
    "deep parentheses": rule_text(HEAD + "[a where " + "(" * 3_000 + "x" + ")" * 3_000 + "]"),
    "deep not": rule_text(HEAD + "[a where " + "not " * 5_000 + "x]"),
    "deep minus": rule_text(HEAD + "[a where x == " + "- " * 5_000 + "x]"),
    "deep calls": rule_text(HEAD + "[a where " + "lower(" * 2_000 + "x" + ")" * 2_000 + ' == "x"]'),
    "a long sum": rule_text(HEAD + "[a where " + "x + " * 3_000 + "y == 2]"),
    "ten thousand steps": rule_text(HEAD + "[a where true] " * 10_000),
    "a few steps too many": rule_text(HEAD + "[a where true] " * (MAX_STEPS + 1)),
    "a long name": rule_text(HEAD + f"[a where {'x' * 50_000} == 1]"),
    "a long string": rule_text(HEAD + f'[a where x == "{"x" * 50_000}"]'),
    "a long number": rule_text(HEAD + f"[a where x == {'1' * 5_000}]"),
    "a large regex": rule_text(HEAD + '[a where x regex "' + "(x{900})" * 100 + '"]'),
    "a nested regex": rule_text(HEAD + '[a where x regex "' + "(" * 900 + "x" + "){2}" * 900 + '"]'),
    "quotes": rule_text(HEAD + "[a where x == " + '"' * 60_001 + "]"),
    "backslashes": rule_text(HEAD + '[a where x == "' + "\\" * 60_001),
    "comments": rule_text("/* " * 20_000),
    "braces": rule_text(HEAD + "unordered {" * 3_000),
    "lets that multiply": rule_text(
        HEAD + "[a where a0 > 3]", let="{" + "".join(f"a{i}: a{i + 1} + a{i + 1}, " for i in range(60)) + "a60: x}"
    ),
    "lets one in another": rule_text(
        HEAD + "[a where a0 > 3]", let="{" + "".join(f"a{i}: a{i + 1} + 1, " for i in range(400)) + "a400: x}"
    ),
    "a let of itself": rule_text(HEAD + "[a where a0 > 3]", let="{a0: a0}"),
    "many unknown keys": "\n".join(f"k{number}: 1" for number in range(50_000)),
    "many entries": rule_text(HEAD + "[a where true]", emit="{" + ", ".join(f"a{i}: x" for i in range(20_000)) + "}"),
    "a message of many parts": rule_text(HEAD + "[a where true]", message='"' + "{x}" * 20_000 + '"'),
    "a file that is too large": "#" * (MAX_FILE_CHARACTERS + 1),
    "anchors": "rule: &a r\nmatch: *a",
    "a billion laughs": "a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]",
    "a tag": "rule: !!python/object:os.system r\nmatch: x",
    "two documents": "rule: a\n---\nrule: b",
    "NUL": "rule: r\x00",
    "a lone surrogate": "rule: r\ud800",
    "an escaped surrogate": 'rule: "\\ud800"\nmatch: x',
    "a bell": "rule: r\x07",
    "a mark that turns the line": rule_text(HEAD + "[a where x == 1\u202e]"),
    "a space without width": rule_text(HEAD + "[a where x\u200b == 1]"),
    "NUL inside": 'rule: r\nmatch: "sequence with maxspan=1m [a where x\\0 == 1]"',
    "a line separator": rule_text(HEAD + "[a where x \u2028= 1]"),
    "nothing": "",
    "a comment": "# nothing",
    "a list": "- a",
    "a word": "hello",
    "a number": "5",
    "a map as a key": "{{a: b}: c}",
    "everything of the wrong kind": "rule: {}\ntitle: []\nseverity: {}\ntags: {a: b}\nmatch: []\nemit: x\nmessage: {}\n"
    "suppress: {}\nlet: []\nparams: x\nlists: x\ntests: x",
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED.keys())
def test_hostile_text_is_refused(text: str) -> None:
    loaded = taken(text)
    assert loaded.rule is None
    assert any(finding.level == "error" for finding in loaded.findings)
    assert len(loaded.findings) <= 101


TAKEN = {
    "nested parentheses": rule_text(HEAD + "[a where " + "(" * 80 + "x == 1" + ")" * 80 + "]"),
    "as many steps as may be": rule_text(HEAD + "[a where true] " * MAX_STEPS),
    "a long list": rule_text(HEAD + "[a where x in $l]", lists="{l: [" + "abc, " * 50_000 + "]}"),
    "a long chain": rule_text(HEAD + "[a where " + "x == 1 or " * 1_500 + "y == 2]"),
    "many tests": rule_text(HEAD + "[a where true]")
    + "tests:\n- events:\n" + '  - "+0s a {card: c1}"\n' * 5_000 + "  expect: []\n",
}  # fmt: skip


@pytest.mark.parametrize("text", TAKEN.values(), ids=TAKEN.keys())
def test_large_but_honest_text_is_taken(text: str) -> None:
    assert taken(text).rule is not None


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for name, content in {
        "latin.yml": b"rule: \xe9",
        "utf16.yml": "rule: r".encode("utf-16"),
        "empty.yml": b"",
    }.items():
        (tmp_path / name).write_bytes(content)
        assert load_path(tmp_path / name).rule is None
    assert load_path(tmp_path / "nowhere.yml").findings[0].id == "unreadable-file"
    assert load_path(tmp_path).findings[0].id == "unreadable-file"
    assert load_path(tmp_path / "latin.yml").findings[0].id == "not-utf-8"
    (tmp_path / "large.yml").write_bytes(b"#" * 9_000_000)
    assert load_path(tmp_path / "large.yml").findings[0].id == "file-too-large"


# ---------------------------------------------------------------- random text

WORDS = [
    "sequence", "aggregate", "session", "window", "by", "with", "as", "or", "and", "not", "in", "like", "regex",
    "where",
    "until", "having", "next", "unordered", "over", "every", "maxspan=1m", "gap=1m", "runs=2..", "within=5s", "for=1h",
    "[", "]", "(", ")", "{", "}", "!", "?", ",", "=", "==", "<", "+", "-", "/", "%", ":", "~", "|", "..", "$l", "$p",
    "1", "2.5", "10m", "1w", '"a"', '"', "'a'", "`b`", '"""', "true", "null", "a", "x.y", "@time", "count(", "sum(x.n)",
    "seen(f, 1d)", "//", "/*", "*/", "\n", "\u200b", "\\", "é", "[a where true]", "as x",
    "[b where x.n == 1]", "lower(",
]  # fmt: skip
SOUP = st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join)
RULES = [path.read_text("utf-8") for path in sorted((CASES / "match").glob("*/rule.yml"))]


def silent(findings: Any, text: str) -> None:
    for finding in findings:
        assert render(finding, text)
        assert finding.span.line >= 1
        assert finding.span.column >= 1


@given(st.text(max_size=200))
def test_any_text_is_a_file_or_findings(text: str) -> None:
    loaded = load_text(text)
    silent(loaded.findings, text)
    assert loaded.rule is not None or loaded.findings


@given(st.one_of(SOUP, st.text(max_size=100)))
def test_any_text_is_a_match_or_findings(text: str) -> None:
    report = Report("<rule>")
    tree = read_match(text, whole(text).locate, report, Constants())
    silent(report.findings(), text)
    assert tree is not None or report.findings()


@given(st.one_of(SOUP, st.text(max_size=100)))
def test_any_text_is_an_expression_or_findings(text: str) -> None:
    report = Report("<rule>")
    tree = read_expression(text, whole(text).locate, report, Constants())
    silent(report.findings(), text)
    assert tree is not None or report.findings()


@given(SOUP)
def test_any_words_make_a_rule_or_findings(text: str) -> None:
    file = rule_text("sequence by u with maxspan=1m " + text, params="{p: 1}", lists="{l: [a]}", emit='{e: "count(x)"}')
    loaded = load_text(file)
    silent(loaded.findings, file)
    assert loaded.rule is not None or loaded.findings


@given(st.sampled_from(RULES), st.data())
def test_a_rule_with_a_piece_changed_is_a_rule_or_findings(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(at, min(len(text), at + 10)))
    changed = text[:at] + data.draw(st.one_of(st.sampled_from(WORDS), st.text(max_size=3))) + text[end:]
    loaded = load_text(changed)
    silent(loaded.findings, changed)
    assert loaded.rule is not None or loaded.findings
