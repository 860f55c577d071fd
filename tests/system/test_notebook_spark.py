"""The notebook for Spark users shows what it does, and the pictures of plans are those of today's Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docs.images.plans import pictures
from samovar.changelog.spark.session import OpenSession
from tests.support.notebooks import run_notebook, written
from tests.support.project import ROOT

NOTEBOOK = ROOT / "docs" / "spark.ipynb"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, spark: OpenSession) -> Path:
    """In which the notebook ran."""
    return tmp_path_factory.mktemp("notebook")


def test_its_outputs_are_what_its_cells_give(folder: Path) -> None:
    """If they changed on purpose: `python -m tests.support.notebooks docs/spark.ipynb`."""
    given = json.loads(NOTEBOOK.read_text("utf-8"))
    outputs = run_notebook(given, folder)
    assert sum(map(len, outputs)) >= 5
    assert written(given, outputs) == NOTEBOOK.read_text("utf-8")


def test_pictures_are_of_the_plans_of_today(folder: Path, spark: OpenSession) -> None:
    """If these changed: `python docs/images/plans.py`."""
    for name, text in pictures(spark, folder / "shop" / "service.yml").items():
        assert (ROOT / "docs" / "images" / name).read_text("utf-8") == text, name
