"""docs/errors.md lists every code with which Samovar refuses, and no other; and every class of dead letter."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from samovar.patterns.engine.decode import CODES
from tests.support.project import ROOT

PAGE = ROOT / "docs" / "errors.md"
FOLDERS = ("changelog", "common", "native", "patterns", "service", "state", "tasks")

# What has a code as its first argument: classes, their heirs, and what makes a problem of the HTTP API.
CODED = {"Refused", "Mismatch", "problem"}
_HEADING = re.compile(r"^### `([^`]+)`$", re.MULTILINE)
_LETTER = re.compile(r"^\| `([A-Z][A-Z0-9_]+)` \|", re.MULTILINE)
_CODE = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)+|unwritable")
_TOLD = re.compile(r"([a-z0-9]+(?:-[a-z0-9]+)+): ")


@dataclass(frozen=True)
class Use:
    """A code and the line that has it; without a code, the line that hides one."""

    place: str
    code: str | None


def uses_in(tree: ast.Module, place: str, coded: set[str]) -> Iterator[Use]:
    """Codes in the calls that make refusals and findings, in class attributes, and at the head of a text."""
    for node in ast.walk(tree):
        where = f"{place}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Call) and (_called(node) in coded or _is_finding(node, place)):
            yield from _of_call(node, where)
        elif isinstance(node, ast.ClassDef):
            yield from _of_class(node, where)
        elif isinstance(node, ast.JoinedStr) and (told := _TOLD.match(_head(node))):
            yield Use(where, told[1])


def _head(node: ast.JoinedStr) -> str:
    first = node.values[0] if node.values else None
    return str(first.value) if isinstance(first, ast.Constant) else ""


def _called(node: ast.Call) -> str:
    target = node.func
    return target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute) else ""


def _is_finding(node: ast.Call, place: str) -> bool:
    """`report.error(CODE, ...)` of the service file's reader."""
    return place.startswith("service/config/") and isinstance(node.func, ast.Attribute) and node.func.attr == "error"


def _of_call(node: ast.Call, where: str) -> Iterator[Use]:
    named = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
    for value in [*node.args[:1], *named][:1]:
        if isinstance(value, ast.Attribute) and value.attr == "code":
            continue  # hands on the code of another
        for choice in (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,):
            text = choice.value if isinstance(choice, ast.Constant) else None
            yield Use(where, text if isinstance(text, str) else None)


def _of_class(node: ast.ClassDef, where: str) -> Iterator[Use]:
    for part in node.body:
        targets = (
            part.targets if isinstance(part, ast.Assign) else [part.target] if isinstance(part, ast.AnnAssign) else []
        )
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        value = part.value if isinstance(part, ast.Assign | ast.AnnAssign) else None
        if names == ["code"] and isinstance(value, ast.Constant):
            yield Use(where, str(value.value))


def parsed() -> dict[str, ast.Module]:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text("utf-8")) for path in paths}


def with_heirs(trees: list[ast.Module], names: set[str]) -> set[str]:
    """These classes and all that inherit from them."""
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    heirs = {
        each.name for each in classes if any(isinstance(base, ast.Name) and base.id in names for base in each.bases)
    }
    return names if heirs <= names else with_heirs(trees, names | heirs)


def all_uses() -> list[Use]:
    trees = parsed()
    coded = with_heirs(list(trees.values()), CODED)
    return [use for place, tree in trees.items() for use in uses_in(tree, place, coded)]


# ---------------------------------------------------------------- the page and the sources


def test_every_code_is_in_the_page() -> None:
    listed = set(_HEADING.findall(PAGE.read_text("utf-8")))
    missing: dict[str, str] = {}
    for use in all_uses():
        if use.code is not None and use.code not in listed:
            missing.setdefault(use.code, use.place)
    wanted = "\n".join(f"### `{code}`\nWhat happened, what to do ({place}).\n" for code, place in missing.items())
    assert not missing, f"add to docs/errors.md, under the heading where it belongs:\n\n{wanted}"


def test_the_page_has_no_other_code() -> None:
    used = {use.code for use in all_uses()}
    gone = [code for code in _HEADING.findall(PAGE.read_text("utf-8")) if code not in used]
    assert not gone, f"no source has these codes any more; remove them from docs/errors.md: {', '.join(gone)}"


def test_a_code_stands_once_in_the_page() -> None:
    listed = _HEADING.findall(PAGE.read_text("utf-8"))
    assert sorted(set(listed)) == sorted(listed)


def test_a_code_is_written_out_where_it_is_used() -> None:
    """A code that is put together cannot be searched for, neither here nor by the person who got it."""
    hidden = [use.place for use in all_uses() if use.code is None]
    assert hidden == [], "write the code as a text there"


def test_codes_are_small_words_with_hyphens() -> None:
    odd = {use.code for use in all_uses() if use.code is not None and not _CODE.fullmatch(use.code)}
    assert odd == set()


def test_every_class_of_dead_letter_is_in_the_page() -> None:
    trees = [
        ast.parse((ROOT / "tasks" / name).read_text("utf-8"))
        for name in ("input/source.py", "input/repartition_source.py", "user/processor.py")
    ]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    own = {text for text in texts if re.fullmatch(r"[A-Z]+(_[A-Z]+)+", text)}
    assert set(_LETTER.findall(PAGE.read_text("utf-8"))) == {*CODES, *own} - {"OK"}


# ---------------------------------------------------------------- the search itself


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('raise Refused("a-b", "what", "hint")', ["a-b"]),
        ('raise Worse(code="a-b", what="what")', ["a-b"]),
        ('raise errors.Refused("a-b" if here else "a-c", "what")', ["a-b", "a-c"]),
        ("raise Refused(other.code, other.what)", []),
        ('raise Refused(f"a-{kind}", "what")', [None]),
        ('class Full(Base):\n    code: ClassVar[str] = "a-b"', ["a-b"]),
        ('text = f"a-b: {error}"', ["a-b"]),
        ('print("a-b")', []),
    ],
)
def test_codes_are_found_however_they_are_written(source: str, found: list[str | None]) -> None:
    tree = ast.parse(source)
    assert [use.code for use in uses_in(tree, "x.py", {"Refused", "Worse"})] == found


def test_heirs_are_found() -> None:
    tree = ast.parse("class A(Refused): ...\nclass B(A): ...\nclass C(Other): ...")
    assert with_heirs([tree], {"Refused"}) == {"Refused", "A", "B"}
