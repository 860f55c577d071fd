"""`samovar rules explain`: text, picture and document of a rule."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from samovar.service.cli import main

RULE = """
rule: card-testing
title: Card testing, then a large purchase
severity: high
match: |
  sequence by card with maxspan=10m
    [purchase where amount < 2] as probe with runs=3..
    [purchase where amount > 200] as big
message: "{count(probe)} small ones, then {big.amount}"
suppress: 1h
"""


@pytest.fixture
def rule(tmp_path: Path) -> Path:
    path = tmp_path / "rule.yml"
    path.write_text(RULE, "utf-8")
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main.run(["rules", "explain", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_text(rule: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, rule)
    assert (code, err) == (0, "")
    assert '1. It starts with 3 or more purchase events ("probe") in which amount is below 2.' in out
    assert "All of it within 10 minutes" in out
    assert "┌─ 1 probe ─" in out
    assert "║ ALERT high ║" in out
    assert "What it holds in memory" in out


def test_picture(rule: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, rule, "--format", "svg")
    assert code == 0
    assert ElementTree.fromstring(out).tag == "{http://www.w3.org/2000/svg}svg"


def test_document(rule: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, rule, "--format", "json")
    document = json.loads(out)
    assert code == 0
    assert list(document) == ["rule", "title", "severity", "version", "sections", "drawing", "cost"]
    assert document["rule"] == "card-testing"
    assert [section["heading"] for section in document["sections"]] == [
        "What it watches",
        "What must happen",
        "When it fires",
        "What the alert says",
        "How often",
        "What it holds in memory",
    ]


def test_output_to_a_file(rule: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "rule.svg"
    assert run(capsys, rule, "--format", "svg", "--out", target) == (0, "", "")
    ElementTree.fromstring(target.read_text("utf-8"))


def test_output_that_cannot_be_written(rule: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, rule, "--out", tmp_path / "none" / "rule.txt")
    assert (code, out) == (1, "")
    assert err.startswith("error: cannot write ")


def test_rule_with_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.yml"
    path.write_text(RULE.replace("amount < 2", "amount = 2"), "utf-8")
    code, out, err = run(capsys, path)
    assert (code, out) == (1, "")
    assert "[wrong-operator]" in err
    assert "^" in err


def test_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, tmp_path / "none.yml")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "No such file or directory" in err


def test_wrong_usage(rule: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys)[0] == 2
    assert run(capsys, rule, "--format", "xml")[0] == 2
