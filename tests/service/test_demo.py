"""`samovar demo` and `samovar generate`: they run without a terminal, and give the same every time."""

from __future__ import annotations

import gzip
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from samovar.service.cli import app
from samovar.service.demo import demo, load_pack


def shown(events: int = 15_000) -> str:
    out = io.StringIO()
    demo(Console(file=out, width=120), events)
    return out.getvalue()


def test_alerts_then_a_summary() -> None:
    text = shown()
    assert "\x1b" not in text
    alerts = re.findall(r"^(critical|high|medium) +(\S+) ", text, re.M)
    assert len(alerts) >= 8
    assert len({rule for _, rule in alerts}) == len(alerts)
    rows = re.findall(r"^│ (\S+) +│", text, re.M)
    rules = [plan.rule.id for kind in ("fraud", "sessions") for plan in load_pack(kind).rules]
    assert sorted(rows) == sorted(rules)


def test_the_same_every_time() -> None:
    assert without_times(shown(5_000)) == without_times(shown(5_000))


def without_times(text: str) -> str:
    return re.sub(r"in [\d.]+ s", "", text)


def test_the_command() -> None:
    result = CliRunner().invoke(app, ["demo", "--events", "2000"])
    assert result.exit_code == 0
    assert "through 21 rules" in result.stdout


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
