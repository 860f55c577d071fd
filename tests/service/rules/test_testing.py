"""`samovar rules test`: text, JSON, JUnit XML and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner, Result

from samovar.patterns.rule_tests import MatchDifference, RuleTestResult
from samovar.service.cli.main import app
from samovar.service.rules.testing import FileResult, junit_xml

RULE = """
rule: {name}
match: |
  sequence by card with maxspan=10m
    [a where amount < 2] as small
    [b where amount > 200] as big
emit: {{spent: big.amount}}
tests:
  - name: fires & "quotes" <tag>
    events: ["+0s a {{card: c1, amount: 1}}", "+1m b {{card: c1, amount: {amount}}}"]
    expect: [{{key: {{card: c1}}, at: {at}}}]
  - name: stays silent
    events: ["+0s a {{card: c1, amount: 1}}", "+11m b {{card: c1, amount: 300}}"]
    expect: []
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["rules", "test", *map(str, arguments)])


def write(folder: Path, name: str, amount: int = 300, at: str = "+1m") -> Path:
    path = folder / f"{name}.yml"
    path.write_text(RULE.format(name=name, amount=amount, at=at))
    return path


def test_all_pass(tmp_path: Path) -> None:
    write(tmp_path, "one")
    write(tmp_path, "two")
    result = run(tmp_path)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "4 passed, 0 failed"
    assert 'passed  one: fires & "quotes" <tag>' in result.stdout


def test_failures_show_expected_and_found_side_by_side(tmp_path: Path) -> None:
    result = run(write(tmp_path, "one", at="+2m"))
    assert result.exit_code == 1
    assert "    expected  found\nat  +2m       +1m" in result.stdout.replace("\n    ", "\n")
    assert result.stdout.splitlines()[-1] == "1 passed, 1 failed"


def test_a_match_that_did_not_come_is_explained(tmp_path: Path) -> None:
    path = write(tmp_path, "one", amount=35)
    result = run(path)
    assert result.exit_code == 1
    assert f"({path}:9)" in result.stdout
    assert "expected 1 match, found no match" in result.stdout
    assert "The furthest partial match had small (event 1) and waited for big." in result.stdout
    assert "Event 2 was not big: `amount > 200` (amount is 35) does not hold." in result.stdout


def test_a_rule_without_tests_is_told_and_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "bare.yml"
    path.write_text("rule: bare\nmatch: sequence by card with maxspan=1m [a where true] [b where true]\n")
    result = run(path)
    assert result.exit_code == 0
    assert result.stdout == f"no tests  {path}\n0 passed, 0 failed, 1 without tests\n"


def test_rule_errors_are_failures_with_findings(tmp_path: Path) -> None:
    write(tmp_path, "good")
    path = tmp_path / "wrong.yml"
    path.write_text("rule: wrong\nmatch: sequence by card [a where true]\n")
    result = run(tmp_path)
    assert result.exit_code == 1
    assert f"{path}:2:" in result.stdout
    assert result.stdout.splitlines()[-1] == "2 passed, 1 failed"


def test_schema(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"a": {"card": "string", "amnt": "double"}, "b": {"card": "string", "amount": "double"}}')
    path = write(tmp_path, "one")
    result = run(path, "--schema", schema)
    assert result.exit_code == 1
    assert "amount" in result.stdout
    assert run(path, "--schema", "/nowhere").exit_code == 2


@pytest.mark.parametrize("arguments", [(), ("/nowhere",), ("{folder}",)])
def test_wrong_usage(arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert run(*(argument.format(folder=tmp_path) for argument in arguments)).exit_code == 2


def test_json(tmp_path: Path) -> None:
    write(tmp_path, "one", amount=35)
    data = json.loads(run(tmp_path, "--json").stdout)
    assert (data["passed"], data["failed"]) == (1, 1)
    failed, passed = data["files"][0]["tests"]
    assert passed["passed"]
    assert failed["differences"][0] == {"expected": {"key": {"card": "c1"}, "at": "+1m"}, "found": None, "differs": []}
    assert failed["why"][0].startswith("The furthest partial match")


def test_junit_is_valid_xml(tmp_path: Path) -> None:
    write(tmp_path, "one", amount=35)
    (tmp_path / "bare.yml").write_text("rule: bare\nmatch: window by card every 1h [a where true]\n")
    (tmp_path / "wrong.yml").write_text("rule: wrong\nmatch: nonsense <&>\n")
    out = tmp_path / "junit.xml"
    assert run(tmp_path, "--junit", out).exit_code == 1
    root = ET.fromstring(out.read_text())
    assert root.attrib == {"tests": "4", "failures": "2", "errors": "0", "skipped": "1"}
    case = root.find("./testsuite[@name='one']/testcase")
    assert case is not None
    assert case.attrib["name"] == 'fires & "quotes" <tag>'
    failure = case.find("failure")
    assert failure is not None
    assert failure.attrib["message"] == "expected 1 match, found no match"
    assert "amount is 35" in (failure.text or "")
    assert run(tmp_path, "--junit", "/nowhere/junit.xml").exit_code == 2


def test_junit_replaces_what_xml_cannot_hold() -> None:
    difference = MatchDifference(None, {"null \x00": "\ud800 ok"}, ())
    result = RuleTestResult(
        rule="s", path="f.yml", name="bell \x07", line=1, expected=0, found=1, differences=(difference,)
    )
    text = junit_xml([FileResult("f.yml", "s", (), (result,))])
    case = ET.fromstring(text).find("./testsuite/testcase")
    assert case is not None
    assert case.attrib["name"] == "bell \ufffd"
