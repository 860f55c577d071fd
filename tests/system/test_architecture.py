"""docs/architecture.md names modules, classes and functions that exist, where it says they are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.project import ROOT

PAGE = ROOT / "docs" / "architecture.md"
FOLDERS = ("changelog", "common", "native", "patterns", "samovar", "service", "state", "tasks")
# A name in backticks, and the link to its module right behind it.
_LINKED = re.compile(r"`([A-Za-z_][\w.]*)`\s+\(\[[^\]]+\]\(\.\./([^)]+\.py)\)\)")
_CLASS = re.compile(r"`([A-Z]\w+)(?:\.(\w+))?`")


def members_of(path: Path) -> dict[str, set[str]]:
    """Top-level names of a module; of a class also what it defines."""
    found: dict[str, set[str]] = {}
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = set()
    return found


def test_linked_names_are_in_the_module_behind_them() -> None:
    linked = _LINKED.findall(PAGE.read_text("utf-8"))
    assert len(linked) > 10
    for name, path in linked:
        head, _, method = name.partition(".")
        known = members_of(ROOT / path)
        assert head in known, f"{name} is not in {path}"
        assert not method or method in known[head], f"{name} is not in {path}"


@pytest.mark.parametrize("page", ["architecture.md", "glossary.md"])
def test_classes_that_are_named_exist(page: str) -> None:
    known: dict[str, set[str]] = {}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            known |= {name: members for name, members in members_of(path).items() if name[0].isupper()}
    for name, method in _CLASS.findall((ROOT / "docs" / page).read_text("utf-8")):
        assert name in known, name
        assert not method or method in known[name], f"{name}.{method}"
