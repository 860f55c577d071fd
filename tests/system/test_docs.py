"""The documentation is true: what it shows runs, and its links lead somewhere. How it is run: snippets.py."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from samovar.patterns.api import Rules
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.syntax.functions import AGGREGATES, FUNCTIONS, HISTORY
from tests.support.doc_snippets import Block, blocks_of, run_document, write_files
from tests.support.project import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ALL = sorted({*DOCUMENTS, *ROOT.glob("*.md"), *(ROOT / "examples").rglob("*.md")})

_LINK = re.compile(r"!?\[[^\]\n]*\]\(([^)\s]+)\)|<img[^>]*\ssrc=\"([^\"]+)\"")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_EXAMPLE = re.compile(r"`([^`\n]+)` is (`\"[^`\n]*\"`|true|false|null|-?\d+(?:\.\d+)?)(?!\w)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)

# Put together from parts, so that this file does not find itself.
_UNWANTED = re.compile(
    "|".join((r"pypi" + r"\.org", r"python" + r"hosted", r"(?<![\w.])/" + r"(?:home|Users|root|work|tmp)/"))
)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_what_is_shown_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if "SparkSession" in path.read_text("utf-8"):
        request.getfixturevalue("spark")  # one session for all tests
    write_files(list(blocks_of(ROOT / "README.md", ROOT)), tmp_path)
    run_document(list(blocks_of(path, ROOT)), tmp_path, monkeypatch)


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    broken = [target for target in links_of(path) if not leads_somewhere(path, target)]
    assert broken == []


@pytest.mark.parametrize("path", [*ALL, *sorted((ROOT / "docs" / "images").glob("*.svg"))], ids=name_of)
def test_no_registry_hosts_and_no_local_paths(path: Path) -> None:
    assert _UNWANTED.findall(path.read_text("utf-8")) == []


def test_pictures_fetch_nothing() -> None:
    """A picture with its own fonts or scripts would be shown differently by each reader, or not at all."""
    for path in (ROOT / "docs" / "images").glob("*.svg"):
        assert not re.search(r"@font-face|<script|url\(\"?http", path.read_text("utf-8")), path.name


def test_the_reference_names_every_function() -> None:
    text = (ROOT / "docs" / "language.md").read_text("utf-8")
    missing = [name for name in {*FUNCTIONS, *AGGREGATES, *HISTORY} if f"`{name}(" not in text]
    assert missing == []


def test_examples_in_sentences_are_true() -> None:
    """`7 / 2` is 3.5: what stands in backticks has the value that follows, for an event without fields."""
    said = _EXAMPLE.findall((ROOT / "docs" / "language.md").read_text("utf-8"))
    assert len(said) >= 30
    emit = "".join(f"  e{number}: {json.dumps(expression)}\n" for number, (expression, _) in enumerate(said))
    text = f"rule: said\nmatch: |\n  sequence with maxspan=0ms [e where true]\nemit:\n{emit}"
    loaded = load_text(text)
    assert loaded.rule is not None, loaded.findings
    (match,) = Rules([loaded.rule]).run([{"type": "e", "ts": 0}])
    values = {expression: match.emit[f"e{number}"] for number, (expression, _) in enumerate(said)}
    assert values == {expression: json.loads(value.strip("`")) for expression, value in said}


def test_what_is_false_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = "rule: r\nmatch: |\n  sequence with maxspan=0ms [e where true]\n"
    wrong = (
        Block("here", "yaml", rule + 'tests:\n  - {events: ["+0s e"], expect: []}\n', None),
        Block("here", "yaml", "rule: r\nmatch: nothing\n", None),
        Block("here", "python", "assert False\n", None),
        Block("here", "console", "$ samovar --version\nsamovar 99\n", None),
        Block("here", "console", "$ samovar --version\n...\n$ echo $?\n1\n", None),
        Block("here", "console", "$ rm -r .\n", None),
    )
    for block in wrong:
        with pytest.raises(AssertionError):
            run_document([block], tmp_path, monkeypatch)


def test_snippets_are_found() -> None:
    """A convention that finds nothing would pass every document."""
    found = [block.language for block in blocks_of(ROOT / "docs" / "language.md", ROOT)]
    assert found.count("yaml") >= 20
    assert found.count("console") >= 5


# ---------------------------------------------------------------- links


def links_of(path: Path) -> list[str]:
    text = _CODE.sub("", path.read_text("utf-8"))
    return [target for pair in _LINK.findall(text) for target in pair if target]


def leads_somewhere(path: Path, target: str) -> bool:
    if re.match(r"https?://|mailto:", target):
        return True
    name, _, anchor = target.partition("#")
    file = path.parent / name if name else path
    if not file.exists():
        return False
    return not anchor or anchor in anchors_of(file)


def anchors_of(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = _HEADING.findall(path.read_text("utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}
