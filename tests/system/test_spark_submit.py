"""deploy/spark-submit.sh says what is missing before it starts anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--master yarn"),
        (["restore", "service.yml"], "--master yarn"),
        (["--master"], "--master needs a URL"),
        (["--master", "yarn"], "say what"),
        (["--master", "yarn", "--packed", "nowhere.tar.gz", "restore", "s.yml"], "nowhere.tar.gz cannot be read"),
    ],
)
def test_what_is_missing_is_said(root: Path, arguments: list[str], words: str) -> None:
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(root)}
    command = [str(root / "deploy" / "spark-submit.sh"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr


def test_no_pyspark(root: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    command = [str(root / "deploy" / "spark-submit.sh"), "--master", "yarn", "restore", "s.yml"]
    environment = {**os.environ, "PYTHON": str(python)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
    assert (done.returncode, "samovar[spark]" in done.stderr) == (2, True), done.stderr
