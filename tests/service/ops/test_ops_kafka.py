"""status, dlq, doctor and rewind on a real Kafka: what a broker does differently from the embedded log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.broker.process import wait_for
from samovar.service.topology.logs import opened
from tests.support.project import ROOT
from tests.support.small_service import START, Service, is_equal, make, many, run, run_apart

PATIENCE_S = 30.0
# A member that was killed is missed soon, so that the test need not wait for long.
CLIENT = '"session.timeout.ms": 1500, "heartbeat.interval.ms": 300'


@pytest.fixture
def service(kafka: str, tmp_path: Path) -> Service:
    name = f"ops-{uuid.uuid4().hex[:8]}"
    made = make(tmp_path / "s")
    text = made.config.read_text().replace("service: s", f"service: {name}")
    text = text.replace("{key:", f"{{topic: {name}, key:")
    made.config.write_text(text + f'log: {{kafka: {{bootstrap: "{kafka}", {CLIENT}}}}}\n')
    return made


def produce(service: Service, events: list[dict[str, Any]], folder: Path) -> None:
    path = folder / "events.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    done = run("produce", service.config, "purchase", path)
    assert done.exit_code == 0, done.output


def process(service: Service) -> None:
    done = run("run", service.config, "--until-caught-up")
    assert done.exit_code == 0, done.output
    nobody_left(service)


def nobody_left(service: Service) -> None:
    """A static member that left is known to the broker until its session is over."""
    settings = service.settings
    with opened(settings) as log:
        assert wait_for(lambda: not log.members(settings.service), PATIENCE_S)


def asked(*arguments: object, code: int = 0) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def ids(service: Service) -> Counter[str]:
    lines = run("read", service.config, "alerts", "--json").stdout.splitlines()
    return Counter(json.loads(line)["value"]["id"] for line in lines)


@contextmanager
def running(service: Service) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "samovar.service.cli", "run", str(service.config)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_status_and_doctor_while_it_runs_when_it_is_killed_and_after(service: Service, tmp_path: Path) -> None:
    produce(service, many(60), tmp_path)
    assert asked("status", service.config, code=1)["lag"] == 60
    with running(service) as process:
        assert wait_for(lambda: caught_up(service), PATIENCE_S)
        found = asked("status", service.config)
        assert [(each["state"], each["pid"], each["tasks"]) for each in found["containers"]] == [
            ("running", process.pid, 2)
        ]
        clock = [each for each in asked("doctor", service.config)["findings"] if each["about"] == "clock"]
        assert [each["what"] for each in clock] == ["within 2 s of the broker's"]
        os.kill(process.pid, signal.SIGKILL)
        assert wait_for(lambda: state_of(service) == ["gone"], PATIENCE_S)
    found = asked("status", service.config, code=1)
    assert ({task["life"] for task in found["tasks"]}, found["lag"]) == ({"stopped"}, 0)
    doctor = {each["about"]: each for each in asked("doctor", service.config)["findings"]}
    assert doctor["log"]["what"].startswith("Kafka 4.")
    assert doctor["topics"]["state"] == doctor["locks"]["state"] == "ok"
    assert "no authorizer" in doctor["rights"]["what"]


def caught_up(service: Service) -> bool:
    done = run("status", service.config, "--json")
    return done.exit_code == 0 and json.loads(done.stdout)["lag"] == 0


def state_of(service: Service) -> list[str]:
    return [each["state"] for each in json.loads(run("status", service.config, "--json").stdout)["containers"]]


def test_letters_go_back_once_though_it_is_killed(service: Service, tmp_path: Path) -> None:
    """In the middle of its second transaction: the first stands, nothing of the second does."""
    bad = [{"card": f"c{n % 5}", "amount": "x", "country": "US", "ts": START, "number": n} for n in range(300)]
    produce(service, bad, tmp_path)
    process(service)
    killed = run_apart("dlq", "redrive", service.config, SAMOVAR_KILL="commit.before:2")
    assert killed.returncode == -9, killed.stderr
    assert asked("dlq", "redrive", service.config)["redriven"] == 100
    assert asked("dlq", "redrive", service.config)["redriven"] == 0
    lines = [json.loads(line) for line in run("read", service.config, "purchase", "--json").stdout.splitlines()]
    back = Counter(line["value"]["number"] for line in lines if line["headers"])
    assert back == Counter(range(300))
    process(service)
    assert Counter(each["attempts"] for each in asked("dlq", "show", service.config, "--limit", 999)["letters"]) == {
        0: 300,
        1: 300,
    }


def test_p1_a_rewind_and_what_it_publishes(service: Service, tmp_path: Path) -> None:
    """P1, P2: with skip as if it had never been, with again each alert after it twice."""
    produce(service, many(150), tmp_path)
    process(service)
    digests, published = service.digests(), ids(service)
    with running(service):
        assert wait_for(lambda: caught_up(service), PATIENCE_S)
        done = run("rewind", service.config, "--to-time", START + 171_500)
        assert (done.exit_code, done.stderr.split(":")[0]) == (2, "group-active")
    nobody_left(service)
    killed = run_apart("rewind", service.config, "--to-time", START + 171_500, SAMOVAR_KILL="commit.after:1")
    assert killed.returncode == -9, killed.stderr
    nobody_left(service)
    found = asked("rewind", service.config, "--to-time", START + 171_500)
    assert len(found["rewound"]) == 1  # the other one was there already
    assert service.digests() != digests
    process(service)
    assert (service.digests(), ids(service)) == (digests, published)
    asked("rewind", service.config, "--to-time", START + 171_500, "--alerts", "again")
    process(service)
    assert service.digests() == digests
    assert set(ids(service).values()) == {1, 2}
    assert is_equal(service)
