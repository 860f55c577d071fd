"""Whatever a service writes is for its own user alone: 0600 and 0700, whatever the mask and what was there before."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from samovar.changelog.broker.process import free_port
from samovar.changelog.embedded.log import EmbeddedLog
from samovar.common.folders import OTHERS
from samovar.service.config.loading import load_service
from samovar.service.http.sinks import FileTarget
from samovar.service.ops.doctor import state as state_findings
from tests.support.http_server import wait_for
from tests.support.project import ROOT
from tests.support.small_service import make, many, run

CONFIG = """
service: s
streams:
  purchase: {key: card, partitions: 2, schema: {card: string, amount: double, country: string}, slack: 2s}
snapshots: {every: 1s}
"""


def open_to_others(folder: Path) -> dict[str, str]:
    """All that others may read, write or look into, by its name under the folder."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode & OTHERS and not path.is_symlink():
            found[str(path.relative_to(folder))] = oct(mode)
    return found


@contextmanager
def mask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "samovar.service.cli", *map(str, arguments)]


def done(*arguments: object, cwd: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        command(*arguments), cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=120, umask=0
    )
    assert found.returncode == 0, found.stderr


def test_everything_that_commands_write_is_for_this_user_alone(tmp_path: Path) -> None:
    """Real processes that were started with no mask at all, in a project that others may read."""
    service = make(tmp_path / "s")
    service.config.write_text(CONFIG)
    folder = service.config.parent
    sources = {path.relative_to(folder) for path in folder.rglob("*")} | {Path(), Path("events.jsonl")}
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in many(200)))
    done("produce", "service.yml", "purchase", "events.jsonl", cwd=folder)
    done("tokens", "add", "service.yml", "anna", cwd=folder)
    done("run", "service.yml", "--until-caught-up", cwd=folder)
    port = free_port("127.0.0.1")
    words = folder / ".samovar" / "words"
    with words.open("wb") as said:
        words.chmod(0o600)
        process = subprocess.Popen(
            command("run", "service.yml", "--http", port), cwd=folder, stderr=said, umask=0, env=_environment()
        )
    try:
        wait_for((folder / ".samovar" / "http" / f"alerts-{port}.db").exists, 120)
        wait_for(lambda: list(folder.glob(".samovar/state/*/snapshots/*/manifest.json")), 120)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    done("rules", "backtest", "rules", "service.yml", "--html", "report.html", cwd=folder)
    done("restore", "service.yml", "--from", "changelog", "--out", "restored", cwd=folder)
    done("restore", "service.yml", "--from", "source", cwd=folder)
    done("generate", "fraud", "--events", "10", "--out", "made.jsonl", cwd=folder)
    written = [path.relative_to(folder) for path in folder.rglob("*")]
    names = {path.name for path in written}
    assert {"log.db", "CURRENT", "manifest.json", "report.html", "restored", f"alerts-{port}.db", "made.jsonl"} <= names
    found = open_to_others(folder)
    assert {name: mode for name, mode in found.items() if Path(name) not in sources} == {}


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


def test_with_no_mask_a_state_is_closed_at_its_folder_and_a_log_at_its_file(tmp_path: Path) -> None:
    """Where nobody set the process's mask, as in a program that embeds the service."""
    with mask(0):
        service = make(tmp_path / "s")
        service.process(many(50), snapshot=True)
        target = FileTarget(service.config.parent / "alerts.jsonl", 60.0)
        target.append(b"{}\n")
    folder = service.config.parent
    found = open_to_others(folder)
    assert "alerts.jsonl" not in found
    assert {name for name in found if ".samovar/log/" in name} == set()
    states = service.state
    assert not stat.S_IMODE(states.stat().st_mode) & OTHERS
    for each in states.glob("*/*"):
        assert not stat.S_IMODE(each.stat().st_mode) & OTHERS, each


def test_what_an_earlier_version_left_open_is_closed_at_the_next_start_and_told_before(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.process(many(20))
    log = service.settings.log.embedded
    assert log is not None
    for path in [service.state, *service.state.rglob("*"), log, *log.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    told = run("doctor", service.config).output
    assert f"other users of this machine can look into {service.state}" in told
    assert f"other users of this machine can look into {log}" in told
    service.process(many(5, start_s=1_000))
    assert not stat.S_IMODE(service.state.stat().st_mode) & OTHERS
    assert not stat.S_IMODE((log / "log.db").stat().st_mode) & OTHERS
    assert not stat.S_IMODE((service.state / "0" / "store").stat().st_mode) & OTHERS
    assert [each.state for each in state_findings(service.settings)].count("warn") == 0


def test_a_folder_with_the_services_own_sources_in_it_is_left_as_it_is(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.config.write_text(service.config.read_text() + "state: .\n")
    service.config.parent.chmod(0o755)
    service.process(many(5))
    assert stat.S_IMODE(service.config.parent.stat().st_mode) == 0o755


def test_the_files_beside_the_log_are_as_closed_as_it_is(tmp_path: Path) -> None:
    with mask(0):
        log = EmbeddedLog(tmp_path / "log")
        try:
            assert {path.name for path in (tmp_path / "log").glob("log.db-*")} == {"log.db-wal", "log.db-shm"}
            assert open_to_others(tmp_path / "log") == {}
        finally:
            log.close()


def test_a_new_project_is_the_users_own(tmp_path: Path) -> None:
    """`samovar init` writes sources: as readable as all that the user writes."""
    environment = _environment()
    subprocess.run(
        command("init", "new"), cwd=tmp_path, env=environment, check=True, umask=0o022, stdout=subprocess.DEVNULL
    )
    assert stat.S_IMODE((tmp_path / "new" / "service.yml").stat().st_mode) == 0o644
    assert load_service(tmp_path / "new" / "service.yml").service == "new"
