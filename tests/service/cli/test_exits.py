"""However a command ends, the user sees a sentence and an exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# A command line with commands that end badly, run as a process of its own.
PROGRAM = """
import os, signal, sys
import typer
from samovar.service.cli import main as cli

@cli.app.command()
def fail() -> None:
    raise ValueError("the kettle is empty")

@cli.app.command()
def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()

@cli.app.command()
def leave() -> None:
    raise typer.Exit(3)

@cli.app.command()
def talk() -> None:
    for number in range(1_000_000):
        print(number)

cli.main()
"""


def test_unexpected_error_is_reported_without_a_traceback(tmp_path: Path) -> None:
    done = run("fail", tmp_path)
    assert done.returncode == 70
    assert done.stdout == ""
    assert done.stderr.startswith("internal error: ValueError: the kettle is empty; ")
    assert "Traceback" not in done.stderr
    (log,) = tmp_path.glob("samovar-*.log")
    assert str(log) in done.stderr
    assert "Traceback" in log.read_text()


def test_unexpected_error_is_reported_when_its_details_cannot_be_written(tmp_path: Path) -> None:
    # Python looks for another temporary folder when the first is missing, so there must be none it could write to.
    done = run("fail", tmp_path, prelude="import tempfile; tempfile.tempdir = '/nonexistent'")
    assert done.returncode == 70
    assert "could not be written" in done.stderr


@pytest.mark.parametrize(("command", "code"), [("interrupt", 130), ("leave", 3)])
def test_quiet_endings(command: str, code: int, tmp_path: Path) -> None:
    done = run(command, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.parametrize("arguments", ["nonsense", "--nonsense", "rules nonsense"])
def test_wrong_usage_is_code_2_and_points_to_help(arguments: str, tmp_path: Path) -> None:
    done = run(arguments, tmp_path)
    assert done.returncode == 2
    assert "--help" in done.stderr
    assert "Traceback" not in done.stderr


def test_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "talk"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "0\n"
        process.stdout.close()
        errors = process.stderr.read()
        process.wait(timeout=60)
    assert (process.returncode, errors) == (141, "")


def run(arguments: str, folder: Path, prelude: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", prelude + PROGRAM, *arguments.split()],
        capture_output=True,
        text=True,
        check=False,
        env={"TMPDIR": str(folder), "PATH": "/usr/bin:/bin"},
    )
