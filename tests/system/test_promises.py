"""docs/promises.md: every promise has tests, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PROMISES = [f"P{number}" for number in range(1, 11)]
SECTION = re.compile(r"^## (P\d+): .*$", re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def test_each_promise_is_defined_and_names_tests_that_exist(root: Path) -> None:
    text = (root / "docs" / "promises.md").read_text()
    found = SECTION.split(text)[1:]
    assert found[::2] == PROMISES
    for name, section in zip(found[::2], found[1::2], strict=True):
        named = NAMED.findall(section)
        assert len(named) >= 3, f"{name} names {len(named)} tests"
        missing = [f"{file}::{test}" for file, test in named if not has_test(root / file, test)]
        assert missing == [], f"{name} names tests that do not exist"


def has_test(file: Path, test: str) -> bool:
    if not file.is_file():
        return False
    functions = (node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef))
    return not test or test in functions
