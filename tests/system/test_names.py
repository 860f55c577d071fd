"""Names say one thing each: classes, modules, folders."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("changelog", "common", "native", "patterns", "service", "state", "tasks")
# A finding is a thing; the other two are exceptions, which say what happened.
NOUNS = {"Fenced", "Finding", "Refused"}
IRREGULAR = (
    "Brought Built Done Fed Found Given Held Kept Known Left Lost Made Met Said Seen Sent Shown Taken Told Written"
)
PARTICIPLE = re.compile(rf"[A-Z][a-z]+(ed|ing)|{'|'.join(IRREGULAR.split())}")
MOST_ENTRIES = 24
# Nodes of the syntax tree are taken apart by `case` in the order of their fields; an Event is what tasks of users read
# and tests make by the thousand; a RecordBlock is the columns of a log, made by each of its readers;
# counters are filled in the order in which the kernel writes them.
POSITIONAL = {"Binary", "Event", "History", "In", "RecordBlock", "TextMatch", "_Counted"}
MOST_POSITIONAL = 4


def modules(root: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        yield from (path for path in (root / folder).rglob("*.py") if path.name != "__init__.py")


def classes(root: Path) -> Iterator[tuple[str, str]]:
    for path in modules(root):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, str(path.relative_to(root))


def test_a_public_class_name_stands_in_one_module(root: Path) -> None:
    counts = Counter(name for name, _ in classes(root))
    assert [found for found in classes(root) if counts[found[0]] > 1] == []


def test_no_class_is_a_bare_participle(root: Path) -> None:
    assert [found for found in classes(root) if PARTICIPLE.fullmatch(found[0]) and found[0] not in NOUNS] == []


def test_a_dataclass_of_many_fields_is_made_by_their_names(root: Path) -> None:
    found = set()
    for path in modules(root):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                made = " ".join(ast.unparse(each) for each in node.decorator_list if "dataclass" in ast.unparse(each))
                named = [each for each in node.body if isinstance(each, ast.AnnAssign)]
                fields = [each for each in named if "ClassVar" not in ast.unparse(each.annotation)]
                if made and "kw_only=True" not in made and len(fields) > MOST_POSITIONAL:
                    found.add(node.name)
    assert found == POSITIONAL


def test_a_prefix_that_three_modules_share_is_a_package(root: Path) -> None:
    shared: defaultdict[tuple[Path, str], list[str]] = defaultdict(list)
    for path in modules(root):
        shared[path.parent, path.stem.partition("_")[0]].append(path.stem)
    assert {prefix: names for (_, prefix), names in shared.items() if len(names) > 2} == {}


def test_no_folder_shows_more_than_one_can_take_in(root: Path) -> None:
    folders = {path.parent for path in modules(root)}
    shown = {folder: len([each for each in folder.iterdir() if each.name != "__pycache__"]) for folder in folders}
    assert {str(folder): count for folder, count in shown.items() if count > MOST_ENTRIES} == {}
