"""`samovar repartition` on a real Kafka: inputs are the operator's to grow, and topics vanish slowly."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from samovar.changelog.broker.process import wait_for
from samovar.service.topology.logs import opened
from tests.service.recovery.test_restore_kafka import CLIENT, PATIENCE_S
from tests.support.small_service import START, Service, make, many, purchase, run, run_apart

END = START + 7_200_000
BY_COUNTRY = """
rule: places
match: |
  aggregate by country over 15m
    [purchase where amount > 20]
    having count() >= 3
suppress: 1h
"""


def alerts(service: Service) -> Counter[str]:
    """What was found before the end, but for the places of the events."""
    done = run("read", service.config, "alerts", "--json")
    found = [json.loads(line)["value"] for line in done.stdout.splitlines()]
    plain = ([each[name] for name in ("rule", "key", "start", "end", "at")] for each in found if each["at"] < END)
    return Counter(map(json.dumps, plain))


def process(service: Service, events: list[dict[str, Any]], file: Path) -> None:
    file.write_text("".join(json.dumps(event) + "\n" for event in events))
    assert run("produce", service.config, "purchase", file).exit_code == 0
    ran = run_apart("run", service.config, "--until-caught-up")
    assert ran.returncode == 0, ran.stderr


def three(service: Service) -> None:
    service.config.write_text(service.config.read_text().replace("partitions: 2", "partitions: 3"))


def grow(service: Service, kafka: str) -> None:
    """To three partitions, as its file then says."""
    admin, name = AdminClient({"bootstrap.servers": kafka}), service.settings.service  # which ends with its last name
    admin.create_partitions([NewPartitions(name, 3)])[name].result(PATIENCE_S)
    three(service)


def test_a_topic_that_has_grown_is_taken_over_with_its_state(kafka: str, tmp_path: Path) -> None:
    name = f"moved-{uuid.uuid4().hex[:8]}"
    straight, service = make(tmp_path / "straight"), make(tmp_path / "s")
    for each in (straight, service):
        (each.config.parent / "rules" / "places.yml").write_text(BY_COUNTRY)
    text = service.config.read_text().replace("service: s", f"service: {name}")
    text = text.replace("{key:", f"{{topic: {name}, key:")
    service.config.write_text(text + f'log: {{kafka: {{bootstrap: "{kafka}", {CLIENT}}}}}\n')
    # At the end, event time passes everything in every partition.
    events = [*many(200), *(purchase(f"x{number}", 7_200, 3) for number in range(40))]
    process(service, events[:100], tmp_path / "events.jsonl")
    command = "repartition", service.config, "--partitions", 3
    three(service)
    with opened(service.settings) as log:
        assert wait_for(lambda: not log.members(name), PATIENCE_S)
    assert run(*command).stderr.startswith("repartition-inputs:")
    grow(service, kafka)
    done = run(*command)
    assert done.exit_code == 0, done.output
    assert "equal before and after" in done.output
    process(service, events[100:], tmp_path / "events.jsonl")
    assert run("verify", service.config).exit_code == 3
    process(straight, events, tmp_path / "events.jsonl")
    assert alerts(service) == alerts(straight)
    assert {json.loads(each)[0] for each in alerts(straight)} == {"testing", "countries", "unusual", "places"}
