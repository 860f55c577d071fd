"""Every finding of the lint is made where it should be, and not made where it should not."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from samovar.patterns.analysis.lint.linter import LINTS, lint
from samovar.patterns.rulefile.rule_file import load_paths, load_text
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax.findings import Finding, render

TWO = "[a where true] as x [b where true] as y"

# What the checker tells already; the lint is silent there, and the rule author reads one finding, not two.
BY_THE_CHECKER = {
    "sql-pattern": 'sequence by u with maxspan=1m [a where f like "a%"]',
    "too-few-in-aggregate": "aggregate by u over 1m [a where true] having count() < 5",
    "open-last": "sequence by u with maxspan=1m [a where true] as x with runs=5..",
    "single-quotes": "sequence by u with maxspan=1m [a where f == 'US']",
    "wrong-operator": "sequence by u with maxspan=1m [a where f <> 2]",
    "wrong-unit": "sequence by u with maxspan=1m [a where count(1w) > 1]",
    "null-order": "sequence by u with maxspan=1m [a where f > null]",
}


def all_findings(match: str, rest: str = "", schema: Schema | None = None) -> tuple[Finding, ...]:
    lines = "\n".join(f"  {line}" for line in match.splitlines())
    loaded = load_text(f"rule: r\nmatch: |\n{lines}\n{rest}", "r.yml", schema=schema)
    return loaded.findings + (lint(loaded.rule, schema) if loaded.rule is not None else ())


def ids(match: str, rest: str = "", schema: Schema | None = None) -> list[str]:
    return [finding.id for finding in all_findings(match, rest, schema)]


def one(match: str, rest: str = "") -> Finding:
    (finding,) = all_findings(match, rest)
    return finding


def step(condition: str, options: str = "by u with maxspan=1m") -> str:
    return f"sequence {options} [e where {condition}] as x"


# ---------------------------------------------------------------- conditions


@pytest.mark.parametrize(
    "condition",
    [
        "amount < 2 and amount > 5",
        "amount < 2 and ok == true and 5 < amount",
        'country == "US" and country == "DE"',
        "n in (1, 2) and n != 1 and n != 2",
        'f in ("a", "b") and f not in ("a", "b", "c")',
        'f in ("a", "b") and f like "c*"',
        'f in ("a", "b") and f regex "^[cd]"',
        'f like "ab*" and starts_with(f, "b")',
        'f in~ ("A") and f == "b"',
        "n == null and n > 1",
        "n == null and n != 1",
        "n > 5 and not (n > 3)",
        'n == "5" and n == 5',
        "ok == true and ok == false",
        "n < m and n > m",
        "n == m and n != m",
        "false",
        "1 > 2",
        "amount < $low and amount >= 0.9 * $high",
        "day_of_week(@time) == 0",
        "hour(@time) > 22 and hour(@time) < 23",
        "length(f) < 0",
        "count(1h) < 0",
        "@time - prev(@time, 1h) > 2h",
        '@type == "login"',
        "n > 1 and (m == 1 and m == 2)",
        "n > 5 and (n < 2 or n < 3)",
    ],
)
def test_condition_that_is_never_true(condition: str) -> None:
    assert "never-true" in ids(step(condition), "params: {low: 100, high: 1000}")


@pytest.mark.parametrize(
    "condition",
    [
        "amount > 2 and amount < 5",
        "n >= 5 and n <= 5",
        'country == "US" or country == "DE"',
        "n != 1 and n != 2",
        "n not in (1, 2) and n != 3 and f != null",
        'f like "a*" and f like "*b"',
        'f like "a*" and starts_with(f, "ab") and f != "abc"',
        'f regex "^a" and f regex "b$"',
        "n <= m and n >= m",
        "n > m and m > k and k > n",
        "hour(@time) >= 22 or hour(@time) < 6",
        "day_of_week(@time) in (6, 7)",
        "n % 2 == 0 and n % 3 == 0",
        'f > "a" and f < "b"',
        "n + 1 > 5 and n < 2",
        "count(1h) > 3 and count(1h where n > 1) == 0",
        "(n < 2 or m > 5) and (n > 2 or m < 5)",
        'f == "1" or f == 1',
        "ok",
        '@type like "log*"',
        "true",
    ],
)
def test_condition_that_can_be_true_and_false(condition: str) -> None:
    assert ids(f"sequence by u with maxspan=1m [any where {condition}] as x") == []


@pytest.mark.parametrize(
    "condition",
    [
        "true or n > 1",
        "n == null or n != null",
        "2 > 1",
        "n > 1 and length(f) != -1 or n == null or n <= 1 or n != 1 or n == 1 or 1 == 1",
        "count(1h) >= 0",
        "not (count(1h) < 0)",
        "@time - prev(@time, 1h) <= 1h or prev(@time, 1h) == null or 1 < 2",
        'n > 1 and @type == "e"',
    ],
)
def test_condition_that_is_always_true(condition: str) -> None:
    assert "always-true" in ids(step(condition))


def test_a_comparison_and_its_opposite_are_not_always_true_because_of_null() -> None:
    assert ids(step("n < 5 or n >= 5")) == []


def test_a_schema_tells_what_a_field_can_be() -> None:
    schema = Schema.of({"e": {"u": "string", "ok": "boolean"}})
    assert ids(step("ok != true and ok != false")) == []
    assert ids(step("ok != true and ok != false"), schema=schema) == ["never-true"]


def test_clash_names_both_parts_and_points_at_the_second() -> None:
    finding = one(step("amount < 2 and ok == true and amount > 5"))
    assert finding.message == "`amount < 2` and `amount > 5` are never true of one event"
    assert (finding.span.line, finding.span.column) == (3, 72)


def test_condition_that_clashes_with_an_earlier_step() -> None:
    text = "sequence by u with maxspan=1m, overlap=all [a where n < 2] as x [b where x.n > 5] as y"
    assert ids(text) == ["never-true"]
    assert ids(text.replace("[a", "?[a")) == []
    assert ids(text.replace("x.n > 5", "x.n > 1")) == []


def test_time_between_steps_is_bounded_by_maxspan() -> None:
    text = "sequence by u with maxspan=1h, overlap=all [a where true] as x [b where @time - x.@time {}] as y"
    assert ids(text.format("> 2h")) == ["never-true"]
    assert ids(text.format("<= 2h")) == ["always-true"]
    assert ids(text.format("< 30m")) == []


def test_counts_of_a_repeated_step_are_known() -> None:
    text = "sequence by u with maxspan=1h [a where true] as x with runs=3..7 [b where true] as y having count(x) {}"
    assert ids(text.format("> 7")) == ["never-true"]
    assert ids(text.format(">= 3")) == ["always-true"]
    assert ids(text.format("> 4")) == []


def test_a_session_has_at_least_one_event() -> None:
    text = "session by u with gap=1m, max=1h [a where true] having count() {}"
    assert ids(text.format("> 0")) == ["always-true"]
    assert ids(text.format("== 0")) == ["never-true"]
    assert ids("aggregate by u over 1m [a where true] having count() > 0") == []


def test_where_of_a_history_function_is_looked_at() -> None:
    assert ids(step("seen(f, 1h where n == 1 and n == 2)")) == ["never-true"]


@pytest.mark.parametrize(
    ("condition", "idle"),
    [
        ("n > 5 and n > 2", "n > 2"),
        ("n == 1 and n == 1", "n == 1"),
        ("n == 1 and n != null", "n != null"),
        ("n in (1, 2) and n < 9", "n < 9"),
        ("n > 2 or n > 5", "n > 5"),
        ('f == "a" or f in ("a", "b")', 'f == "a"'),
    ],
)
def test_part_that_changes_nothing(condition: str, idle: str) -> None:
    finding = one(step(condition))
    assert finding.id == "covered-condition"
    assert finding.level == "info"
    assert finding.message.startswith(f"`{idle}` changes nothing")


def test_a_chain_of_many_parts_is_let_pass() -> None:
    assert ids(step(" and ".join(f"n{k} > m{k} or k{k} == {k}" for k in range(200)))) == []
    assert ids(step(" or ".join(f'f like "*{k}"' for k in range(23)))) == []


# ---------------------------------------------------------------- habits


def test_condition_across_steps_under_latest() -> None:
    finding = one("sequence by u with maxspan=1m [a where true] as x [b where n > x.n] as y")
    assert (finding.id, finding.level, finding.hint) == ("across-steps", "warning", "write `overlap=all`")


@pytest.mark.parametrize(
    ("condition", "hint"),
    [
        ("ip == x.ip", "`sequence by u, ip`"),
        ("x.ip == ip", "`sequence by u, ip`"),
        ("source == x.target", "`by u, target` on `x` and `by u, source` here"),
    ],
)
def test_equality_across_steps_is_offered_as_key(condition: str, hint: str) -> None:
    finding = one(f"sequence by u with maxspan=1m [a where true] as x [b where {condition}] as y")
    assert finding.id == "across-steps"
    assert finding.hint is not None
    assert hint in finding.hint
    assert "overlap=all" in finding.hint


@pytest.mark.parametrize(
    "text",
    [
        "sequence by u with maxspan=1m, overlap=all [a where true] as x [b where n > x.n] as y",
        "sequence by u with maxspan=1m, overlap=any [a where true] as x [b where n > x.n] as y",
        "sequence by u with maxspan=1m [a where true] as x next [a where n > x.n] as y next [a where n > y.n] as z",
        "sequence by u with maxspan=1m [a where true] as x with runs=3.. [b where n > 2 * avg(x.n)] as y",
        "sequence by u with maxspan=1m [a where true] as x with runs=3.. [b where true] as y having count(x) > 5",
        "sequence by u with maxspan=1m [a where true] as x [b where true] as y having y.n > 5",
        "sequence by u with maxspan=1m [a where count(x) < 2 or n > x.n] as x with runs=3 [b where true] as y",
    ],
)
def test_condition_across_steps_that_loses_nothing(text: str) -> None:
    assert "across-steps" not in ids(text)


@pytest.mark.parametrize(
    "text",
    [
        "sequence by u with maxspan=1m [a where true] as x ![c where n == x.n] [b where true] as y",
        "sequence by u with maxspan=1m [a where true] as x [b where true] as y having x.n < y.n",
        "sequence by u with maxspan=1m [a where true] as x [b where true] as y next [c where n == x.n] as z",
    ],
)
def test_condition_across_steps_in_other_places(text: str) -> None:
    assert ids(text) == ["across-steps"]


def test_repeated_step_read_as_one_event() -> None:
    text = "sequence by u with maxspan=1m [a where true] as x with runs=3.. [b where true] as y"
    finding = one(text, "emit: {c: x.country}")
    assert (finding.id, finding.level) == ("last-of-repeated", "warning")
    assert "last(x.country)" in (finding.hint or "")
    assert ids(text, "emit: {c: last(x.country), n: count(x), d: y.country}") == []
    assert ids(text, 'message: "{x.country} {x.country}"') == ["last-of-repeated"]
    across = text.replace("[b where true]", "[b where country != x.country]")
    assert sorted(ids(across)) == ["across-steps", "last-of-repeated"]


def test_repeated_step_that_reads_itself_means_the_event_before() -> None:
    assert ids("sequence by u with maxspan=1m [a where count(x) == 0 or n > x.n] as x with runs=3 [b where true]") == []


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ('not (f == "a")', "not-of-missing"),
        ('not f like "a*"', "not-of-missing"),
        ('f not like "a*"', "not-of-missing"),
        ("not (n > 5)", "not-of-missing"),
        ("not (n > 5 and m > 5)", "not-of-missing"),
        ('f not in ("a", "b")', "not-in-missing"),
        ("not seen(f, 1h)", "not-in-missing"),
        ('not starts_with(f, "a")', "not-in-missing"),
    ],
)
def test_not_over_a_field_that_may_be_missing(condition: str, expected: str) -> None:
    assert ids(step(condition)) == [expected]


@pytest.mark.parametrize(
    "condition",
    [
        'not (f == "a") and f != null',
        "n > 1 and not (n > 5)",
        "not (f == null)",
        'not (u == "root")',
        'u not in ("root")',
        'not (coalesce(f, "") == "a")',
        "not (@time - prev(@time, 1h) < 5m) or n > 1",
        "not (count(1h) > 5)",
        'f != "a"',
    ],
)
def test_not_where_nothing_can_be_missing(condition: str) -> None:
    assert not {"not-of-missing", "not-in-missing"} & set(ids(step(condition)))


def test_division_by_a_time_difference() -> None:
    text = "sequence by u with maxspan=1h, overlap=all [a where true] as x [b where {}] as y"
    assert ids(text.format("km / (@time - x.@time) > 5")) == ["division-by-time"]
    assert ids(text.format("km / ((@time - x.@time) / 1h) > 5")) == ["division-by-time"]
    assert ids(step("n / (@time - prev(@time, 1h)) > 5")) == ["division-by-time"]
    assert ids(text.format("@time > x.@time and km / (@time - x.@time) > 5")) == []
    assert ids(text.format("@time - x.@time > 0 and km / (@time - x.@time) > 5")) == []
    assert ids(text.format("km > 5 * (@time - x.@time) / 1h")) == []
    assert ids(text.format("km / (@time - x.@time) > 5") + " with after=1s") == []


def test_division_by_a_time_difference_in_emit() -> None:
    text = "session by u with gap=1m, max=1h [a where true]"
    assert ids(text, 'emit: {pace: "count() / (max(@time) - min(@time))"}') == ["division-by-time"]
    assert ids(text, 'emit: {pace: "coalesce(count() / (max(@time) - min(@time)), 0)"}') == []
    assert ids(text, 'emit: {seconds: "(max(@time) - min(@time)) / 1s"}') == []


# ---------------------------------------------------------------- steps


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("with within=5s, after=10s", ["never-in-time"]),
        ("with after=2m", ["never-in-time"]),
        ("with within=2m", ["within-over-maxspan"]),
        ("with within=30s, after=10s", []),
        ("with within=1m", []),
    ],
)
def test_times_of_a_step(options: str, expected: list[str]) -> None:
    assert ids(f"sequence by u with maxspan=1m {TWO} {options}") == expected


def test_times_of_all_steps_together() -> None:
    text = "sequence by u with maxspan=1m [a where true] [b where true] with after=40s {}[c where true] with after=30s"
    assert ids(text.format("")) == ["never-in-time"]
    assert ids(text.format("?") + " [d where true]") == ["never-in-time"]
    assert ids(text.replace("1m", "2m").format("")) == []


def test_last_negation_whose_within_is_too_long() -> None:
    assert ids("sequence by id with maxspan=1m [a where true] ![b where true] with within=2m") == [
        "within-over-maxspan"
    ]


def test_several_events_of_one_moment() -> None:
    assert ids(f"sequence by u with maxspan=0ms {TWO}") == ["zero-maxspan"]
    assert ids("sequence by u with maxspan=0ms [a where true] with runs=2") == ["zero-maxspan"]
    assert ids("sequence by u with maxspan=0ms [a where true]") == []


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("[a where true] ![b where true] [b where n > 1]", ["killed-step"]),
        ("[a where true] ![b where n > 0] [b where n > 1]", ["killed-step"]),
        ("[a where true] ![any where true] [b where n > 1]", ["killed-step"]),
        ("[a where true] ![b where n > 1] [b where true]", []),
        ("[a where true] ![b where n > 1] [c where n > 1]", []),
        ("[a where true] ![b where true] [b where n > 1] or [c where true]", ["killed-step"]),
        ("[a where true] ![b where true] next [c where true]", ["idle-negation"]),
        ("[a where true] ![any where n > 1] next [c where true]", []),
        ("![a where true] with for=1m [a where true]", []),
    ],
)
def test_negation_before_a_step(steps: str, expected: list[str]) -> None:
    assert ids(f"sequence by u with maxspan=1m {steps}") == expected


def test_negation_of_another_key_does_not_kill() -> None:
    assert ids("sequence by u with maxspan=1m [a where true] ![b where true] by v [b where true]") == []


def test_until_that_takes_a_step() -> None:
    text = "sequence by u with maxspan=1m [a where true] [b where n > 1] until [b where {}]"
    assert ids(text.format("true")) == ["until-takes-step"]
    assert ids(text.format("n > 5")) == []


@pytest.mark.parametrize(
    ("alternatives", "expected"),
    [
        ("[a where true] or [a where n > 3]", ["covered-alternative"]),
        ("[a where n > 3] or [a where n > 1]", ["covered-alternative"]),
        ("[a where n > 3] or [a where n > 3]", ["covered-alternative"]),
        ("[any where n > 3] or [a where n > 3]", ["covered-alternative"]),
        ("[a where n > 3] or [b where n > 3]", []),
        ("[a where n > 3] or [a where n < 1]", []),
    ],
)
def test_alternatives(alternatives: str, expected: list[str]) -> None:
    assert ids(f"sequence by u with maxspan=1m {alternatives} as x [c where true] as y") == expected


def test_waiting_absence_whose_key_repeats() -> None:
    text = "sequence by user with maxspan=1h [order where true] as o ![pay where true]"
    finding = one(text)
    assert (finding.id, finding.level) == ("waiting-absence", "warning")
    assert "`order` of the same user is dropped" in finding.message
    assert ids(text.replace("by user", "by user_id")) == ["waiting-absence"]


@pytest.mark.parametrize(
    "text",
    [
        "sequence by order_id with maxspan=1h [order where true] as o ![pay where true]",
        "sequence by order.id with maxspan=1h [order where true] as o ![pay where true]",
        "sequence by id with maxspan=1h [order where true] as o ![pay where true]",
        "sequence by trace_uuid with maxspan=1h [order where true] as o ![pay where true]",
        "sequence by host with maxspan=15m [heartbeat where true] ![heartbeat where true]",
        "sequence by user with maxspan=1h, overlap=all [order where true] as o ![pay where true]",
    ],
)
def test_waiting_absence_that_loses_nothing(text: str) -> None:
    assert ids(text) == []


# ---------------------------------------------------------------- bounds


def test_overlap_any_that_makes_too_many() -> None:
    text = "sequence by u with maxspan=1h, overlap=any [a where true] [b where true]{} [c where true]{}"
    finding = one(text.format("", ""))
    assert finding.id == "many-partials"
    assert finding.message.startswith("45 events of one key within 1h")
    assert ids(text.format(" with within=1m", " with within=1m")) == []
    assert ids(f"sequence by u with maxspan=1h, overlap=any {TWO}") == []
    assert ids("sequence by u with maxspan=1h, overlap=any [a where true] with runs=2.. [b where true]") == [
        "many-partials"
    ]


def test_open_run_under_all() -> None:
    text = "sequence by u with maxspan=1h, overlap=all [a where true] with runs=2..{} [b where true]"
    assert ids(text.format("")) == ["large-state"]
    assert ids(text.format("20")) == []
    assert ids(text.format("").replace("overlap=all", "overlap=latest")) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("session by u with gap=30m [a where true]", ["open-session"]),
        ("session by u with gap=30m, max=8h [a where true]", []),
        ("window by u every 1s, size=1h [a where true]", ["many-windows"]),
        ("window by u every 1m, size=1h [a where true]", []),
        (f"sequence by u with maxspan=60d {TWO}", ["long-span"]),
        ("aggregate by u over 60d [a where true] having count() > 5", ["long-span"]),
        (step("seen(f, 365d)"), ["long-history"]),
        (step("seen(f, 90d)"), []),
        (f"sequence with maxspan=1m {TWO}", ["one-key"]),
        ("session by u with gap=1m, max=1h [any where true] [a where true]", ["covered-bracket"]),
        ("session by u with gap=1m, max=1h [any where true] [a where true] as a having count(a) > 1", []),
        ("session by u with gap=1m, max=1h [a where n > 1] [a where n < 1]", []),
    ],
)
def test_bounds(text: str, expected: list[str]) -> None:
    assert ids(text) == expected


@pytest.mark.parametrize(
    ("text", "suppress", "expected"),
    [
        ("aggregate by u over 1h, repeat=12h [a where true] having count() > 5", "24h", ["suppress-hides-repeat"]),
        ("aggregate by u over 1h, repeat=12h [a where true] having count() > 5", "1h", []),
        ("session by u with gap=30m, max=8h [a where true]", "10m", ["idle-suppress"]),
        ("session by u with gap=30m, max=8h [a where true]", "24h", []),
        ("window by u every 1h [a where true]", "30m", ["idle-suppress"]),
        ("window by u every 1h [a where true]", "1h", []),
    ],
)
def test_suppress(text: str, suppress: str, expected: list[str]) -> None:
    findings = all_findings(text, f"suppress: {suppress}")
    assert [finding.id for finding in findings] == expected
    assert all(finding.span.line == 4 for finding in findings)


def test_what_nothing_reads() -> None:
    rest = 'let: {bin: "substring(f, 0, 6)", w: n + 1}\nparams: {low: 1, high: 2}\nlists: {some: [a], other: [b]}\n'
    text = step("w > $low and f in $some")
    assert ids(text, rest) == ["unused-let", "unused-param", "unused-list"]
    assert ids(text, rest + 'message: "{$high} {x.bin}"\n# reads $other\n') == ["unused-list"]


# ---------------------------------------------------------------- the list of findings


@pytest.mark.parametrize("id", BY_THE_CHECKER)
def test_habit_is_told_once_by_the_checker(id: str) -> None:
    assert ids(BY_THE_CHECKER[id]) in ([id], [id, "never-true"])


def test_keys_of_different_types_are_an_error() -> None:
    schema = Schema.of({"a": {"u": "long"}, "b": {"u": "string"}})
    assert ids(f"sequence by u with maxspan=1m {TWO}", schema=schema) == ["key-type"]


def test_documentation_lists_the_same_findings(root: Path) -> None:
    text = (root / "docs" / "lint.md").read_text("utf-8")
    listed = dict(re.findall(r"^### `([a-z-]+)` \((\w+)\)$", text, re.MULTILINE))
    assert listed == {id: level for id, (level, _) in LINTS.items()}


def test_every_finding_has_a_test() -> None:
    source = Path(__file__).read_text("utf-8")
    assert [id for id in LINTS if f'"{id}"' not in source] == []


def test_examples_have_no_warning(root: Path) -> None:
    for pack in ("fraud", "sessions"):
        schema = Schema.parse((root / "examples" / pack / "schema.yml").read_text("utf-8"))
        for loaded in load_paths([root / "examples" / pack / "rules"], schema=schema):
            assert loaded.rule is not None
            found = [render(finding, loaded.rule.text) for finding in lint(loaded.rule, schema)]
            assert [text for text in found if ": warning: " in text] == []


def test_lint_stays_quick_on_hostile_rules() -> None:
    parts = [" or ".join(f'f{k % 3} like "*{k}{n}" or n{n} < {k}' for n in range(20)) for k in range(20)]
    condition = " and ".join(f"({part})" for part in parts)
    brackets = " ".join(f"[a where {condition}]" for _ in range(2)) + " ".join(
        f"[a where {' and '.join(f'(n{k} < {k} or n{k + 1} > {number})' for k in range(20))}]" for number in range(20)
    )
    started = time.process_time()
    assert "never-true" not in ids(f"session by u with gap=1m, max=1h {brackets}")
    assert time.process_time() - started < 30


def test_documentation_names_warnings_of_the_checker_that_exist(root: Path) -> None:
    text = (root / "docs" / "lint.md").read_text("utf-8")
    listed = re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)
    sources = "".join(path.read_text("utf-8") for path in (root / "patterns").rglob("*.py"))
    assert listed
    assert [id for id in listed if f'"{id}"' not in sources] == []
