"""The commands of a person on call on a real Kafka: what a broker does differently from the embedded log."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path

from samovar.changelog.broker.process import wait_for
from samovar.service.config.loading import load_service
from samovar.service.topology.logs import opened
from tests.support.small_service import make, many, run, run_apart

PATIENCE_S = 60.0
# A static member that left is known to the broker until its session is over.
CLIENT = '"session.timeout.ms": 1500, "heartbeat.interval.ms": 300'


def test_p2_restore_and_verify_on_kafka(kafka: str, tmp_path: Path) -> None:
    """P2: store, changelog and source are equal, and each brings the state back."""
    name = f"oncall-{uuid.uuid4().hex[:8]}"
    service = make(tmp_path / "s")
    text = (
        service.config.read_text().replace("service: s", f"service: {name}").replace("{key:", f"{{topic: {name}, key:")
    )
    service.config.write_text(text + f'log: {{kafka: {{bootstrap: "{kafka}", {CLIENT}}}}}\n')
    events = tmp_path / "events.jsonl"
    events.write_text("".join(json.dumps(event) + "\n" for event in many(300)))
    assert run("produce", service.config, "purchase", events).exit_code == 0
    ran = run_apart("run", service.config, "--until-caught-up")
    assert ran.returncode == 0, ran.stderr
    assert run("verify", service.config).exit_code == 0
    before = service.digests()

    for partition in (0, 1):
        shutil.rmtree(service.store(partition))
    done = run("restore", service.config, "--verify")
    assert done.exit_code == 0, done.output
    assert service.digests() == before

    settings = load_service(service.config)
    with opened(settings) as log:
        assert wait_for(lambda: not log.members(name), PATIENCE_S)
        log.delete([settings.changelog.topic])
        assert wait_for(lambda: settings.changelog.topic not in log.topics([settings.changelog.topic]), PATIENCE_S)
    done = run("restore", service.config, "--from", "source", "--verify")
    assert done.exit_code == 0, done.output
    assert service.digests() == before
    ran = run_apart("run", service.config, "--until-caught-up")
    assert ran.returncode == 0, ran.stderr
    assert run("verify", service.config).exit_code == 0
