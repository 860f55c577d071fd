"""Rule files: their sections, YAML 1.2, messages, tests inside of them, folders of them, and their JSON Schema."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from samovar.patterns.rulefile import rule_file
from samovar.patterns.rulefile.rule_file import load_paths, load_text
from samovar.patterns.rulefile.sections import KEYS, SEVERITIES
from samovar.patterns.syntax import yaml as yamltext
from samovar.patterns.syntax.findings import Report
from samovar.patterns.syntax.positions import whole
from samovar.patterns.syntax.tree import Aggregate, Field, Literal, OfStep
from tests.support.conformance_cases import CASES, load, marked, rule_text, sound

MATCH = "sequence by card with maxspan=10m\n[a where true] as x with runs=2..\n[b where true] as y"


def ids(text: str) -> list[str]:
    return [finding.id for finding in load_text(text).findings]


# ---------------------------------------------------------------- plain sections


def test_only_rule_and_match_are_needed() -> None:
    rule = load_text("rule: a-1\nmatch: sequence with maxspan=1m [a where true]\n").rule
    assert rule is not None
    assert (rule.id, rule.title, rule.severity, rule.tags, rule.suppress_ms) == ("a-1", "a-1", "medium", (), None)
    assert rule.match_text == "sequence with maxspan=1m [a where true]"


def test_a_rule_keeps_its_sections() -> None:
    rule = sound(MATCH, title="A title", severity="high", tags="[fraud, 7]", suppress="1h")
    assert (rule.title, rule.severity, rule.tags, rule.suppress_ms) == ("A title", "high", ("fraud", "7"), 3_600_000)


@pytest.mark.parametrize(
    ("sections", "id", "place", "says"),
    [
        ({"serverity": "high"}, "unknown-key", "serverity", "`severity`"),
        ({"description": "x"}, "unknown-key", "description", "`title`"),
        ({"severity": "hgih"}, "unknown-severity", "hgih", "`high`"),
        ({"severity": "warning"}, "unknown-severity", "warning", "`medium`"),
        ({"tags": "{a: b}"}, "bad-tags", "{a: b}", ""),
        ({"suppress": "60"}, "no-duration", "60", "60s"),
        ({"suppress": "1w"}, "no-duration", "1w", "7d"),
        ({"suppress": "0s"}, "zero-duration", "0s", ""),
        ({"emit": "[a]"}, "not-a-map", "[a]", ""),
        ({"emit": "{a: [1]}"}, "not-text", "[1]", "quotes"),
        ({"emit": "{a: substring(card, 0, 6)}"}, "unclosed", "(", "comma"),
        ({"message": "{count(x)} ones"}, "yaml-syntax", "o", "quotes"),
        ({"message": '"{x.a"'}, "unclosed", "{", "{{"),
        ({"message": '"x.a}"'}, "unbalanced", "}", "}}"),
        ({"message": '"{}"'}, "missing-expression", "", ""),
        ({"let": "{1a: x}"}, "bad-name", "1a", ""),
        ({"params": "{a: [1]}"}, "bad-parameter", "[1]", "lists"),
        ({"lists": "{a: 1}"}, "bad-list", "1", "[a, b]"),
        ({"lists": "{a: [[1]]}"}, "bad-list", "[1]", ""),
        ({"params": "{a: 1}", "lists": "{a: [1]}"}, "duplicate-name", "{a: [1]}", ""),
        ({"title": "a\ntitle: b"}, "duplicate-key", "title", "line 6"),
    ],
)
def test_faults_of_sections(sections: dict[str, str], id: str, place: str, says: str) -> None:
    text = rule_text(MATCH, **sections)
    findings = [finding for finding in load_text(text).findings if finding.id == id]
    assert findings, load_text(text).findings
    assert marked(findings[0], text) == place
    assert says in f"{findings[0].expected} {findings[0].hint}"


def test_the_id_is_lower_case_digits_and_dashes() -> None:
    for good in ("a", "card-testing", "7", "0742"):
        assert ids(f"rule: {good}\nmatch: sequence with maxspan=1m [a where true]") == []
    for bad in ("Card", "a_b", "-a", '"a b"', "é", "x" * 101):
        assert ids(f"rule: {bad}\nmatch: sequence with maxspan=1m [a where true]") == ["bad-id"]


def test_what_is_missing_is_said() -> None:
    assert ids("title: x") == ["missing-match", "missing-rule"]


# ---------------------------------------------------------------- YAML 1.2


def test_plain_words_are_text() -> None:
    rule = sound("sequence with maxspan=1m [a where x in $l]", lists="{l: [NO, yes, on, 1:30, 0x1F, 0o17, ~]}")
    assert rule.lists == {"l": ("NO", "yes", "on", "1:30", 31, 15, None)}


def test_what_should_be_quoted_is_told() -> None:
    loaded = load(
        "sequence with maxspan=1m [a where x in $l]",
        lists="{l: [true, 0742, '0742']}",
        params="{p: 007}",
        emit="{e: 08}",
    )
    assert loaded.rule is not None
    assert loaded.rule.lists == {"l": (True, 742, "0742")}
    assert [finding.hint for finding in loaded.findings] == [f'quote it: "{x}"' for x in ("true", "0742", "007", "08")]
    assert {finding.level for finding in loaded.findings} == {"warning"}


def test_both_parsers_of_pyyaml_give_the_same_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [path.read_text("utf-8") for path in sorted((CASES / "match").glob("*/rule.yml"))]
    texts += ["a: \"x\\n\n  y\"\nb: >-\n  c\n\n  d\nc: [1, {d: e}]\nd: 'it''s'\n", "a: |2\n   x\n  y\n", "\ufeffa: b\n"]

    def trees() -> list[Any]:
        nodes = [yamltext.read(whole(text), Report("")) for text in texts]
        return [(yamltext.plain_data(node), node.span) for node in nodes if node is not None]

    fast = trees()
    monkeypatch.setattr(yamltext, "_Parser", yaml.SafeLoader)
    assert trees() == fast


# ---------------------------------------------------------------- messages and emit


def test_a_message_is_text_and_expressions() -> None:
    rule = sound(MATCH, message='"{{a}} {count(x)} of {y.n}{\\"}\\"}!"')
    assert rule.message == ("{a} ", Aggregate("count", "x", None), " of ", OfStep("y", Field("n")), Literal("}"), "!")


def test_emit_takes_expressions_and_plain_values() -> None:
    rule = sound(MATCH, emit='{a: count(x), b: 5, c: true, d: "\\"text\\"", e: card}')
    assert dict(rule.emit) == {
        "a": Aggregate("count", "x", None), "b": Literal(5), "c": Literal(True), "d": Literal("text"),
        "e": Field("card"),
    }  # fmt: skip


# ---------------------------------------------------------------- tests inside a rule


def test_tests_are_read() -> None:
    tests = """
- name: one
  events:
    - "+0s a {card: NO, n: 1, deep: {list: [1, two]}}"
    - "+500ms b"
  expect:
    - {key: {card: "NO"}, at: "+1m", start: "+0s", end: "+5s", steps: {x: [0], y: 1}, emit: {e: 3}, message: hello}
- {events: [], expect: []}"""
    first, second = sound(MATCH, emit="{e: count(x)}", tests=tests).tests
    assert (first.name, second.name, second.events, second.expect) == ("one", "test 2", (), ())
    assert [(event.offset_ms, event.type) for event in first.events] == [(0, "a"), (500, "b")]
    assert first.events[0].fields == {"card": "NO", "n": 1, "deep": {"list": [1, "two"]}}
    (expected,) = first.expect
    assert (expected.key, expected.at_ms, expected.start_ms, expected.end_ms) == ({"card": "NO"}, 60_000, 0, 5_000)
    assert (expected.steps, expected.emit, expected.message) == ({"x": (0,), "y": (1,)}, {"e": 3}, "hello")


@pytest.mark.parametrize(
    ("test", "id", "place"),
    [
        ("{events: [], expct: []}", "unknown-key", "expct"),
        ("{events: []}", "missing-expect", "{events: []}"),
        ("{expect: []}", "missing-events", "{expect: []}"),
        ('{events: ["5s a"], expect: []}', "bad-event", '"5s a"'),
        ('{events: ["+5s"], expect: []}', "bad-event", '"+5s"'),
        ('{events: ["+5 a"], expect: []}', "bad-time", "+5"),
        ('{events: ["+1w a"], expect: []}', "bad-time", "+1w"),
        ('{events: ["+5s a {card: [}"], expect: []}', "yaml-syntax", "}"),
        ('{events: ["+5s a {n: 1, n: 2}"], expect: []}', "duplicate-key", "n"),
        ("{events: [{type: a}], expect: []}", "bad-event", "{type: a}"),
        ("{events: [], expect: [{key: {crad: 1}}]}", "unknown-name", "crad"),
        ("{events: [], expect: [{emit: {nope: 1}}]}", "unknown-name", "nope"),
        ("{events: [], expect: [{steps: {z: [0]}}]}", "unknown-name", "z"),
        ('{events: ["+0s a"], expect: [{steps: {x: [1]}}]}', "bad-tests", "[1]"),
        ("{events: [], expect: [{at: 60}]}", "bad-time", "60"),
        ("{events: [], expect: [{when: 1}]}", "unknown-key", "when"),
        ("{events: x, expect: []}", "bad-tests", "x"),
        ("hello", "bad-tests", "hello"),
    ],
)
def test_faults_in_tests_have_their_place(test: str, id: str, place: str) -> None:
    text = rule_text(MATCH, tests=f"\n- {test}")
    loaded = load_text(text)
    assert loaded.rule is None
    assert [(finding.id, marked(finding, text)) for finding in loaded.findings if finding.id == id] == [(id, place)]


# ---------------------------------------------------------------- folders


def test_folders_are_read_in_order_and_ids_are_single(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name, identity in (("b.yml", "b"), ("a.yaml", "a"), ("deep/c.yml", "a"), ("no.txt", "x")):
        (tmp_path / name).write_text(f"rule: {identity}\nmatch: sequence with maxspan=1m [a where true]\n")
    loaded = load_paths([tmp_path, tmp_path / "nowhere.yml"])
    assert [one.rule.id if one.rule else None for one in loaded] == ["a", "b", None, None]
    clash, missing = loaded[2].findings[0], loaded[3].findings[0]
    assert (clash.id, clash.span.line, clash.span.column) == ("duplicate-rule", 1, 7)
    assert "a.yaml" in clash.message
    assert missing.id == "unreadable-file"


@pytest.mark.parametrize(
    ("options", "id"),
    [
        ({"params": {"nope": 1}}, "unknown-parameter"),
        ({"lists": {"nope": []}}, "unknown-parameter"),
        ({"params": {"limit": "x"}}, "bad-parameter"),
        ({"params": {"span": "soon"}}, "bad-parameter"),
        ({"lists": {"l": "x"}}, "bad-list"),
    ],
)
def test_values_from_outside_are_checked(options: dict[str, Any], id: str) -> None:
    loaded = load(
        "sequence with maxspan=$span [a where n > $limit and c in $l]",
        params="{limit: 1, span: 1m}", lists="{l: [a]}", options=options,
    )  # fmt: skip
    assert [finding.id for finding in loaded.findings] == [id]


# ---------------------------------------------------------------- the JSON Schema for editors

JSON_SCHEMA = json.loads(Path(rule_file.__file__).with_name("rule.schema.json").read_text("utf-8"))
TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "number": (int, float), "integer": int, "boolean": bool,
    "null": type(None),
}  # fmt: skip


def faults(data: Any, schema: dict[str, Any], where: str = "") -> list[str]:
    """What a JSON Schema has against the data; as much of JSON Schema as the file uses."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return faults(data, JSON_SCHEMA["$defs"][name], where)
    found = []
    if "anyOf" in schema and all(faults(data, one, where) for one in schema["anyOf"]):
        found.append(f"{where}: none of anyOf")
    if "enum" in schema and data not in schema["enum"]:
        found.append(f"{where}: not in enum")
    wanted = schema.get("type", [])
    wanted = [wanted] if isinstance(wanted, str) else wanted
    if wanted and not any(isinstance(data, TYPES[name]) for name in wanted):
        return [*found, f"{where}: not {wanted}"]
    if isinstance(data, str) and "pattern" in schema and not re.search(schema["pattern"], data):
        found.append(f"{where}: pattern")
    if isinstance(data, list):
        found += [
            fault for n, item in enumerate(data) for fault in faults(item, schema.get("items", {}), f"{where}/{n}")
        ]
    if isinstance(data, dict):
        found += [f"{where}: no {name}" for name in schema.get("required", []) if name not in data]
        other = schema.get("additionalProperties", {})
        for name, value in data.items():
            known = schema.get("properties", {}).get(name, other)
            found += [f"{where}: unknown {name}"] if known is False else faults(value, known, f"{where}/{name}")
            found += faults(name, schema.get("propertyNames", {}), f"{where}/{name}")
    return found


def as_data(text: str) -> Any:
    node = yamltext.read(whole(text), Report(""))
    assert node is not None
    return yamltext.plain_data(node)


@pytest.mark.parametrize("folder", sorted((CASES / "match").iterdir()), ids=lambda folder: folder.name)
def test_every_case_fits_the_json_schema(folder: Path) -> None:
    assert faults(as_data((folder / "rule.yml").read_text("utf-8")), JSON_SCHEMA) == []


def test_the_json_schema_knows_the_sections_and_refuses_the_rest() -> None:
    assert set(JSON_SCHEMA["properties"]) == set(KEYS)
    assert JSON_SCHEMA["properties"]["severity"]["enum"] == list(SEVERITIES)
    good = as_data(
        rule_text(MATCH, suppress="1h", emit="{e: count(x)}", let="{k: a + 1}", params="{p: 1m}", tags="[a]")
    )
    assert faults(good, JSON_SCHEMA) == []
    for change in ({"serverity": "high"}, {"severity": "hihg"}, {"suppress": "1w"}, {"rule": "Bad Id"}, {"match": "x"},
                   {"tests": [{"events": ["5s a"], "expect": []}]}, {"lists": {"l": "x"}}):  # fmt: skip
        assert faults(good | change, JSON_SCHEMA) != []
