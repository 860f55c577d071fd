"""The local broker: started, seen, stopped; and what is said when that cannot be."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from samovar.changelog.broker import jars, node
from samovar.changelog.broker.process import alive, begun_of, free_port, wait_for
from samovar.common.errors import Refused
from samovar.service.cli.main import app


def samovar(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["kafka", *map(str, arguments)])


def quiet(_text: str) -> None: ...


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose broker, if there is one, ends with the test."""
    yield tmp_path / "kafka"
    node.stop(tmp_path / "kafka")


def test_a_broker_from_start_to_stop(folder: Path) -> None:
    port = free_port(node.HOST)
    first = samovar("start", "--dir", folder, "--port", port, "--json")
    assert first.exit_code == 0, first.output
    told = json.loads(first.stdout)
    assert told["address"] == f"127.0.0.1:{port}"
    assert told["started"] is True
    assert Path(told["log"]).exists()

    again = json.loads(samovar("start", "--dir", folder, "--port", port, "--json").stdout)
    assert again == told | {"started": False}
    assert samovar("status", "--dir", folder).exit_code == 0

    other = samovar("start", "--dir", folder, "--port", free_port(node.HOST))
    assert other.exit_code == 2
    assert "kafka-other-port" in other.stderr

    assert samovar("stop", "--dir", folder).stdout == "stopped\n"
    assert begun_of(told["pid"]) is None
    assert samovar("status", "--dir", folder).exit_code == 3
    assert samovar("stop", "--dir", folder).exit_code == 0


def test_a_broker_that_was_killed_starts_again_with_its_data(folder: Path) -> None:
    port = free_port(node.HOST)
    first = node.start(folder, port, quiet)
    cluster = node.cluster_of(folder)
    os.kill(first.pid, signal.SIGKILL)
    assert wait_for(lambda: node.status(folder) is None, 10)
    second = node.start(folder, port, quiet)
    assert second.started
    assert second.pid != first.pid
    assert node.cluster_of(folder) == cluster


def test_a_new_cluster_is_no_option_of_a_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = uuid.UUID(bytes=b"\xf8" * 16)  # a dash, as Base64 has it
    monkeypatch.setattr(uuid, "uuid4", lambda: made)
    assert node.cluster_of(folder)[0] == "e"


def test_a_broker_that_dies_shows_its_last_words(folder: Path) -> None:
    with pytest.raises(Refused) as refused:
        node.start(folder, free_port(node.HOST), quiet, {"log.dirs": "/proc/no/such/folder"})
    assert refused.value.code == "kafka-broker-died"
    assert "/proc/no/such/folder" in refused.value.detail
    assert node.status(folder) is None


def test_a_taken_port_is_refused(folder: Path) -> None:
    with socket.create_server((node.HOST, 0)) as taken:
        refused = samovar("start", "--dir", folder, "--port", taken.getsockname()[1])
    assert refused.exit_code == 2
    assert "kafka-port-taken" in refused.stderr


def test_only_the_process_that_was_started_is_ended(folder: Path) -> None:
    """A pid that was given out again belongs to somebody else."""
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        folder.mkdir()
        written = {"pid": stranger.pid, "begun": "1", "port": 1, "cluster": "x", "kafka": "x"}
        (folder / "broker.json").write_text(json.dumps(written), "utf-8")
        assert node.status(folder) is None
        assert node.stop(folder) is False
        assert stranger.poll() is None
        assert alive(stranger.pid, begun_of(stranger.pid) or "")
    finally:
        stranger.communicate(b"\n")


def test_no_java(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    refused = samovar("start", "--dir", folder, "--port", free_port(node.HOST))
    assert refused.exit_code == 2
    assert "java-missing" in refused.stderr


@pytest.mark.parametrize("old", ["1.8.0_392", "11.0.21"])
def test_an_old_java(old: str) -> None:
    with pytest.raises(Refused) as refused:
        jars.checked_version("java", f'openjdk version "{old}" 2023-10-17\n')
    assert refused.value.code == "java-too-old"


@pytest.mark.parametrize("new", ["17.0.15", "21", "25-ea"])
def test_a_java_that_will_do(new: str) -> None:
    assert jars.checked_version("java", f'openjdk version "{new}" 2025-04-15\n') == new


def test_jars_that_nobody_can_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(jars, "ivy_commands", lambda *_: [])
    with pytest.raises(Refused) as refused:
        jars.kafka_jars(jars.Java("java", "17"), quiet)
    assert refused.value.code == "kafka-jars-missing"
    assert list((tmp_path / "samovar" / "kafka").iterdir()) == []


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = samovar("start", "--dir", tmp_path / "file" / "kafka", "--port", free_port(node.HOST))
    assert refused.exit_code == 2
    assert "kafka-dir-unusable" in refused.stderr
