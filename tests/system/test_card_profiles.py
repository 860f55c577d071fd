"""The worked example of a task: what its README shows is what happens, and its own test passes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.doc_snippets import blocks_of, run_document
from tests.support.project import ROOT

EXAMPLE = ROOT / "examples" / "card-profiles"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy, so that the example stays as it is."""
    return Path(
        shutil.copytree(EXAMPLE, tmp_path / "card-profiles", ignore=shutil.ignore_patterns(".*", "__pycache__"))
    )


def test_what_the_readme_shows_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = list(blocks_of(EXAMPLE / "README.md", ROOT))
    assert sum(block.text.count("$ samovar") for block in blocks if block.language == "console") >= 8
    run_document(blocks, folder, monkeypatch)


def test_its_own_test_passes(folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
