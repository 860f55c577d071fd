"""`samovar rules check`: what it prints, for people and for programs, and how it ends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from samovar.patterns.analysis.lint.linter import LINTS
from samovar.service.cli import main

GOOD = "rule: good\nmatch: |\n  sequence by u with maxspan=1m [a where n > 1] [b where true]\n"
WARNED = "rule: warned\nmatch: |\n  sequence by u with maxspan=1m [a where n > 1 and n < 1] [b where true]\n"
TOLD = "rule: told\nmatch: |\n  session by u with gap=1m [a where true]\n"
BROKEN = "rule: broken\nmatch: |\n  sequence by u with maxspan=1m\n    [a where n = 1]\n    [b where 'x' == f]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("good", GOOD), ("warned", WARNED), ("told", TOLD), ("broken", BROKEN)):
        (tmp_path / f"{name}.yml").write_text(text, "utf-8")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main.run(["rules", "check", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, Any]:
    code, out, err = run(capsys, "--json", *arguments)
    assert err == ""
    return code, json.loads(out)


def test_clean_rule(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, folder / "good.yml")
    assert (code, err) == (0, "")
    assert "good  " in out
    assert out.endswith("1 rule in 1 file: 0 errors, 0 warnings, 0 infos\n")


@pytest.mark.parametrize(
    ("name", "plain", "strict"), [("good", 0, 0), ("told", 0, 0), ("warned", 0, 1), ("broken", 1, 1)]
)
def test_exit_codes(folder: Path, capsys: pytest.CaptureFixture[str], name: str, plain: int, strict: int) -> None:
    assert run(capsys, folder / f"{name}.yml")[0] == plain
    assert run(capsys, folder / f"{name}.yml", "--strict")[0] == strict
    code, document = run_json(capsys, folder / f"{name}.yml", "--strict")
    assert code == strict
    assert document["ok"] == (strict == 0)


def test_finding_shows_place_caret_id_and_hint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "warned.yml"
    _, out, _ = run(capsys, path)
    assert out.split("\n")[:4] == [
        f"{path}:3:52: warning: `n > 1` and `n < 1` are never true of one event [never-true]",
        "    3 |   sequence by u with maxspan=1m [a where n > 1 and n < 1] [b where true]",
        "      | " + " " * 51 + "^^^^^",
        "  hint: for either of them write `or`; for two events write two steps",
    ]


def test_all_errors_of_all_files_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, folder, folder / "missing.yml")
    assert code == 1
    assert "[wrong-operator]" in out
    assert "[single-quotes]" in out
    assert "[never-true]" in out
    assert "missing.yml:1:1: error: cannot read the file: No such file or directory [unreadable-file]\n\n" in out
    assert out.endswith("3 rules in 5 files: 3 errors, 1 warning, 1 info\n")


def test_json_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = run_json(capsys, folder)
    assert code == 1
    assert list(document) == ["ok", "rules", "summary"]
    assert document["summary"] == {"files": 4, "rules": 3, "errors": 2, "warnings": 1, "infos": 1}
    broken, good, told, warned = document["rules"]
    assert list(good) == ["path", "rule", "version", "ok", "findings", "cost"]
    assert (broken["rule"], broken["version"], broken["cost"], broken["ok"]) == (None, None, None, False)
    assert (good["rule"], good["ok"], good["findings"]) == ("good", True, [])
    assert len(good["version"]) == 16
    assert list(good["cost"]) == ["typical_bytes", "worst_bytes", "partials", "held_ms", "overflow_events"]
    (finding,) = warned["findings"]
    assert {key: finding[key] for key in ("id", "level", "line", "column")} == {
        "id": "never-true", "level": "warning", "line": 3, "column": 52,
    }  # fmt: skip
    assert [finding["id"] for finding in told["findings"]] == ["open-session"]


def test_schema_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.yml").write_text(GOOD, "utf-8")
    (tmp_path / "schema.yaml").write_text("a: {u: string, n: string}\nb: {u: string}\n", "utf-8")
    code, document = run_json(capsys, tmp_path / "r.yml", "--schema", tmp_path / "schema.yaml")
    assert code == 1
    assert [finding["id"] for finding in document["rules"][0]["findings"]] == ["type-mismatch"]


@pytest.mark.parametrize("text", ["a: [", "a: {n: nonsense}", "[1]", "a: 1", None])
def test_schema_that_cannot_be_read_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    (tmp_path / "r.yml").write_text(GOOD, "utf-8")
    if text is not None:
        (tmp_path / "s.yml").write_text(text, "utf-8")
    code, out, err = run(capsys, tmp_path / "r.yml", "--schema", tmp_path / "s.yml")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "s.yml" in err


def test_same_rule_twice_and_same_path_twice(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(folder / "good.yml", folder / "copy.yml")
    assert run(capsys, folder / "good.yml", folder / "good.yml")[0] == 0
    code, out, _ = run(capsys, folder / "good.yml", folder / "copy.yml")
    assert code == 1
    assert "[duplicate-rule]" in out


def test_folder_without_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, tmp_path)
    assert code == 1
    assert "the folder holds no rule file [no-rules]" in out


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys)[0] == 2
    assert run(capsys, "x.yml", "--nonsense")[0] == 2


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"\0", b"", b"- 1", b"rule: [", b"rule: a\nmatch: 5", b"x" * 2_000_000]
)
def test_whatever_a_file_holds_there_is_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / "r.yml").write_bytes(content)
    code, out, err = run(capsys, tmp_path)
    assert (code, err) == (1, "")
    assert ": error: " in out


def test_rule_that_is_too_large_to_compile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = " ".join(f"[a{number} where true] or [b{number} where true]" for number in range(40))
    (tmp_path / "r.yml").write_text(f"rule: r\nmatch: |\n  sequence by u with maxspan=1m {steps}\n", "utf-8")
    code, out, _ = run(capsys, tmp_path)
    assert code == 1
    assert "64" in out


def test_refused_rules_of_the_conformance_cases(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = root / "tests" / "cases" / "errors"
    code, document = run_json(capsys, folder)
    assert code == 1
    assert all(not one["ok"] for one in document["rules"])


def test_examples_are_clean(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for pack in ("fraud", "sessions"):
        folder = root / "examples" / pack
        code, document = run_json(capsys, folder / "rules", "--schema", folder / "schema.yml", "--strict")
        assert code == 0
        assert {finding["id"] for one in document["rules"] for finding in one["findings"]} <= LINTS.keys()
