"""Marks for rules: what counts as true, found, missed, and what has no mark."""

from __future__ import annotations

from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from samovar.common.errors import UsageError
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.syntax.tree import Rule
from samovar.service.offline.generate import generate_blocks, write
from samovar.service.offline.score import detects, read_labels, render_table, score

LABELS = {0: ("card-testing", "f-1"), 1: ("card-testing", "f-1"), 5: ("card-testing", "f-2"), 7: ("mule", "f-3")}


def rule(id: str, *tags: str) -> Rule:
    loaded = load_text(f"rule: {id}\ntags: {list(tags)}\nmatch: window by card every 1h [a where true]\n")
    assert loaded.rule is not None
    return loaded.rule


def match(rule: str, *lines: int) -> dict[str, Any]:
    return {"rule": rule, "steps": {"a": list(lines[:1]), "b": list(lines[1:])}}


def test_true_false_and_missed() -> None:
    result = score([match("card-testing", 0, 1), match("card-testing", 1, 3), match("card-testing", 8)], LABELS)
    (row,) = result.rules
    assert (row.alerts, row.true_alerts, row.planted, row.found) == (3, 2, 2, 1)
    assert row.precision == pytest.approx(2 / 3)
    assert row.recall == pytest.approx(1 / 2)
    assert row.missed == ("f-2",)
    assert result.unwatched == ("mule",)


def test_another_kind_is_no_hit() -> None:
    (row,) = score([match("card-testing", 7)], LABELS).rules
    assert (row.true_alerts, row.found, row.precision) == (0, 0, 0.0)


def test_one_alert_may_find_two_incidents() -> None:
    (row,) = score([match("card-testing", 0, 5)], LABELS).rules
    assert (row.true_alerts, row.found, row.recall) == (1, 2, 1.0)


def test_tags_say_what_a_rule_is_for() -> None:
    meant = detects([rule("money", "fraud", "detects:mule", "detects:card-testing"), rule("mule")])
    assert meant == {"money": frozenset({"mule", "card-testing"}), "mule": frozenset({"mule"})}
    result = score([match("money", 7)], LABELS, meant)
    assert [(row.rule, row.planted, row.found) for row in result.rules] == [("money", 3, 1), ("mule", 1, 0)]
    assert (result.planted, result.found, result.unwatched) == (3, 1, ())


def test_a_report_has_no_marks() -> None:
    (row,) = score([match("summary", 0)], LABELS).rules
    assert (row.alerts, row.precision, row.recall) == (1, None, None)


def test_nothing_at_all() -> None:
    result = score([], {})
    assert (result.rules, result.planted, result.recall) == ((), 0, None)


def test_labels_are_read_by_line_number(tmp_path: Path) -> None:
    write("fraud", 5_000, 500, out=tmp_path / "events.jsonl", labels=tmp_path / "labels.jsonl.gz")
    labels = read_labels(str(tmp_path / "labels.jsonl.gz"))
    pairs = [pair for block in generate_blocks("fraud", 5_000, 500) for pair in block]
    assert labels == {number: label for number, (_, label) in enumerate(pairs) if label is not None}


@pytest.mark.parametrize(
    "line", ["no JSON", "[1]", '{"line": 3, "kind": "x"}', '{"line": null, "kind": "", "incident": ""}']
)
def test_what_is_not_a_label_is_refused_with_its_place(tmp_path: Path, line: str) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text('{"line": 2, "kind": "x", "incident": "f-1"}\n' + line + "\n", "utf-8")
    with pytest.raises(UsageError, match=r"labels.jsonl:2: not a label"):
        read_labels(str(path))


def test_table_and_json_say_the_same() -> None:
    result = score([match("card-testing", 0), match("summary", 2)], LABELS)
    console = Console(file=StringIO(), width=120)
    console.print(render_table(result))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "card-testing" in shown
    assert "50.0%" in shown
    assert "no rule is for: mule" in shown
    data = asdict(result)
    assert data["rules"][0]["recall"] == 0.5
    assert data["rules"][1]["precision"] is None
