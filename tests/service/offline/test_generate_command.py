"""`samovar generate` on the command line: to standard output and to files, the same every time."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from samovar.service.cli.main import app


def test_generate_to_stdout_and_to_files(tmp_path: Path) -> None:
    arguments = ["generate", "fraud", "--events", "500", "--keys", "50", "--seed", "3"]
    plain = CliRunner().invoke(app, arguments)
    assert plain.exit_code == 0
    assert len(plain.stdout.splitlines()) == 500
    zipped = tmp_path / "events.jsonl.gz"
    assert CliRunner().invoke(app, [*arguments, "--out", str(zipped)]).exit_code == 0
    assert gzip.decompress(zipped.read_bytes()) == plain.stdout_bytes
    moved = CliRunner().invoke(app, [*arguments, "--start", "2020-01-01", "--disorder", "5s"]).stdout
    assert json.loads(moved.splitlines()[200])["ts"] < json.loads(plain.stdout.splitlines()[0])["ts"]


@pytest.mark.parametrize(
    "arguments",
    [["frauds"], ["fraud", "--disorder", "5"], ["fraud", "--start", "soon"], ["fraud", "--out", "/no/where"]],
)
def test_generate_refuses(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["generate", *arguments]).exit_code == 2
