"""`samovar demo`, as a person runs it: two services with traffic, alerts with their events, Ctrl-C, and on again."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from samovar.service.cli.main import app
from samovar.service.config.loading import load_service
from samovar.service.offline.traffic import read_mark
from samovar.service.topology.logs import opened
from tests.support.project import ROOT
from tests.support.small_service import run, run_apart

PATIENCE_S = 120  # 15 s are promised of a machine that does nothing else
FIRST = "the first alert, after"


class Watched:
    """A demo and what it said so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, pattern: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.text, re.MULTILINE):
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.text}"
            assert time.monotonic() < deadline, f"no `{pattern}`:\n{self.text}"
            self._thread.join(0.05)

    def interrupt(self) -> int:
        """Ctrl-C: the terminal sends it to every process of the group."""
        os.killpg(self.process.pid, signal.SIGINT)
        code = self.process.wait(PATIENCE_S)
        self._thread.join(PATIENCE_S)
        return code


@contextmanager
def demo(folder: Path, environment: Mapping[str, str], *arguments: str) -> Iterator[Watched]:
    command = [
        sys.executable,
        "-m",
        "samovar.service.cli.main",
        "demo",
        "--folder",
        str(folder),
        "--rate",
        "5",
        *arguments,
    ]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield Watched(process)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(PATIENCE_S)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("fraud", "sessions"):
        ignored = shutil.ignore_patterns(".samovar")
        shutil.copytree(ROOT / "examples" / name, tmp_path / name, ignore=ignored)
    return tmp_path


def is_live(address: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"{address}/live", timeout=PATIENCE_S) as answer:
        return bool(json.load(answer) == {"live": True})
    return False


def children_of(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "-g", str(pid)], capture_output=True, text=True, check=False)
    return [int(number) for number in listed.stdout.split()]


def written(config: Path, environment: Mapping[str, str]) -> int:
    settings = load_service(config, {**os.environ, **environment})
    with opened(settings) as log:
        mark = read_mark(log, settings.service)
    return 0 if mark is None else mark.events


def records(config: Path, topic: str, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    shown = CliRunner().invoke(app, ["read", str(config), topic, "--json"], env=environment)
    assert shown.exit_code == 0, shown.stderr
    return [json.loads(line) for line in shown.stdout.splitlines()]


def goes_on_and_loses_nothing(folder: Path, environment: Mapping[str, str], streams: Mapping[str, str]) -> None:
    """Two demos, one after the other; then all that was generated is there once, and processed once."""
    with demo(folder, environment) as first:
        first.wait_for(FIRST)
        first.wait_for(r"^(low|medium|high|critical) +\S+ \S+=")  # rule and key
        first.wait_for(r"^ {9}\w+: \w+ \w+=")  # and its events
        for address in re.findall(r"pages +(http\S+)", first.text):
            while not is_live(address):
                assert first.process.poll() is None, first.text
        assert first.interrupt() == 0, first.text
        assert children_of(first.process.pid) == []
    before = {name: written(folder / name / "demo.yml", environment) for name in ("fraud", "sessions")}
    assert all(before.values()), before
    with demo(folder, environment) as second:
        for name in ("fraud", "sessions"):
            log = folder / name / ".samovar" / "demo.log"
            while f"goes on after {before[name]:,} events" not in log.read_text("utf-8"):
                second.wait_for("")
                assert second.process.poll() is None, second.text
        second.wait_for(FIRST)
        assert second.interrupt() == 0, second.text
    for name, stream in streams.items():
        config = folder / name / "demo.yml"
        ended = CliRunner().invoke(app, ["run", str(config), "--until-caught-up"], env=environment)
        assert ended.exit_code == 0, ended.stderr
        assert written(config, environment) >= before[name]
        lines = Counter(json.dumps(record["value"]) for record in records(config, stream, environment))
        assert max(lines.values()) == 1
        ids = Counter(record["value"]["id"] for record in records(config, "alerts", environment))
        assert max(ids.values()) == 1
        assert records(config, "late", environment) == records(config, "dead-letters", environment) == []


def test_it_shows_alerts_stops_and_goes_on(folder: Path) -> None:
    goes_on_and_loses_nothing(folder, {}, {"fraud": "purchase"})
    config = folder / "fraud" / "demo.yml"
    assert sum(len(records(config, stream, {})) for stream in load_service(config, {}).streams) == written(config, {})


def test_it_does_the_same_on_kafka(folder: Path, kafka: str) -> None:
    """With topics of its own on the broker of the tests."""
    own = f"demo-{os.getpid()}-{time.time_ns() % 10**6}"
    for name in ("fraud", "sessions"):
        config = folder / name / "demo.yml"
        text = config.read_text("utf-8").replace(f"service: {name}", f"service: {own}-{name}")
        config.write_text(
            re.sub(r"^  (\w+):(.*)\n", rf"  \1:\2\n    topic: {own}-\1\n", text, flags=re.MULTILINE), "utf-8"
        )
    environment = {"SAMOVAR_LOG__KAFKA__BOOTSTRAP": kafka, "SAMOVAR_STATE": ".samovar/demo/state-kafka"}
    goes_on_and_loses_nothing(folder, environment, {"sessions": "web"})


def test_a_process_that_ends_by_itself_ends_the_demo_with_its_words(folder: Path) -> None:
    (folder / "sessions" / "rules" / "broken.yml").write_text("rule: broken\nmatch: nothing\n", "utf-8")
    with demo(folder, {}) as running:
        assert running.process.wait(PATIENCE_S) == 2
        assert children_of(running.process.pid) == []
    assert "rule-errors" in running.text


def containers_of(folder: Path) -> list[dict[str, Any]]:
    """Of the sessions service; one that has only joined does not say yet which process it is."""
    found: list[dict[str, Any]] = json.loads(run_apart("status", folder / "sessions" / "demo.yml", "--json").stdout)[
        "containers"
    ]
    return found


def test_a_killed_container_ends_the_demo_and_tells_why(folder: Path) -> None:
    with demo(folder, {}) as running:
        running.wait_for("^sessions: ")
        while not (known := [each for each in containers_of(folder) if "pid" in each]):
            assert running.process.poll() is None, running.text
        os.kill(known[0]["pid"], signal.SIGKILL)
        assert running.process.wait(PATIENCE_S) == 1
    assert "samovar run of sessions ended with -9" in running.text  # fraud has two: the other goes on


@pytest.mark.parametrize("name", ["fraud", "sessions"])
def test_it_runs_the_examples_with_less_kept(name: str) -> None:
    """Its files have the same streams and rules; only how long records stay, and where, is another."""
    ours, example = (load_service(ROOT / "examples" / name / file, {}) for file in ("demo.yml", "service.yml"))
    as_there = {stream: own.model_copy(update={"retention_ms": 7 * 86_400_000}) for stream, own in ours.streams.items()}
    kept = {name: getattr(example, name) for name in ("log", "state", "changelog", "alerts")}
    own = {"streams": as_there, **kept}
    assert ours.model_copy(update=own).model_dump() == example.model_dump()
    assert {each.retention_ms for each in ours.streams.values()} == {300_000}
    assert example.changelog.min_compaction_lag_ms == 86_400_000


def test_one_that_finds_nothing_in_its_time_fails(folder: Path) -> None:
    with demo(folder, {}, "--for", "0s") as running:
        assert running.process.wait(PATIENCE_S) == 1
    assert "no alerts of fraud" in running.text


def test_without_the_services_it_says_what_is_missing(tmp_path: Path) -> None:
    refused = run("demo", "--folder", tmp_path)
    assert refused.exit_code == 2
    assert "demo-missing" in refused.stderr
