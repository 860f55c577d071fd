"""A record in the wrong partition, from the producer to the letter and back, in a service that goes on."""

from __future__ import annotations

import json
from pathlib import Path

from samovar.changelog.log import Append
from tests.contracts.log_driving import read_to_end
from tests.support.small_service import RULES, SERVICE, START, Service, run
from tests.support.small_service import make as make_service


def purchase(card: str, second: int, amount: float) -> dict[str, object]:
    return {"card": card, "amount": amount, "country": "DE", "ts": START + second * 1_000}


def misplace(service: Service, *events: dict[str, object]) -> None:
    """Append events, each to the partition where its key is not."""
    with service.log() as log:
        for event in events:
            wrong = 1 - service.partition(str(event["card"]))
            log.append([Append(topic="purchase", records=[(b"other", json.dumps(event).encode())], partition=wrong)])


def reasons(service: Service) -> list[str]:
    with service.log() as log:
        rows = read_to_end(log, service.settings.dead_letters.topic)
    return [dict(row.headers)["__streams.errors.exception"].decode() for row in rows]


def test_one_record_in_the_wrong_partition_is_a_letter_and_can_be_put_back(tmp_path: Path) -> None:
    service = make_service(tmp_path / "s")
    service.process([purchase("c1", 0, 1), purchase("c2", 1, 1), purchase("c1", 2, 1)])
    misplace(service, purchase("c1", 3, 300))
    assert "1 dead" in run("run", service.config, "--until-caught-up").output
    assert reasons(service) == ["key-misplaced"]
    assert "0 alerts" in run("run", service.config, "--until-caught-up").output
    assert "1 dead letter redriven" in run("dlq", "redrive", service.config, "--reason", "key-misplaced").output
    done = run("run", service.config, "--until-caught-up")
    assert "1 events" in done.output
    assert "0 dead" in done.output
    service.settle()
    with service.log() as log:
        alerts = [json.loads(row.value or b"{}") for row in read_to_end(log, service.settings.alerts.topic)]
    assert [(alert["rule"], alert["key"]) for alert in alerts if alert["rule"] == "testing"] == [
        ("testing", {"card": "c1"})
    ]


def test_one_record_alone_in_the_wrong_partition_is_a_letter_at_the_first_start_too(tmp_path: Path) -> None:
    service = make_service(tmp_path / "s")
    run("produce", service.config, "purchase", "/dev/null")  # makes the topic
    misplace(service, purchase("c1", 0, 300))
    done = run("run", service.config, "--until-caught-up")
    assert done.exit_code == 0, done.output
    assert reasons(service) == ["key-misplaced"]


def test_a_rebuild_leaves_out_what_was_a_letter(tmp_path: Path) -> None:
    """P2: live state, changelog and rebuild are equal, wherever the records were."""
    service = make_service(tmp_path / "s")
    service.process([purchase(f"c{n % 7}", n, 1 + n % 3) for n in range(60)])
    misplace(service, *(purchase(f"c{n % 7}", 60 + n, 300) for n in range(20)))
    service.process([purchase(f"c{n % 7}", 80 + n, 1 + n % 3) for n in range(60)])
    service.settle()
    assert reasons(service) == ["key-misplaced"] * 20
    done = run("verify", service.config)
    assert done.exit_code == 0, done.output


def test_published_rules_are_taken_though_a_record_is_in_the_wrong_partition(tmp_path: Path) -> None:
    service = make_service(tmp_path / "s")
    service.process([purchase("c1", 0, 1)])
    misplace(service, purchase("c2", 1, 1))
    changed = tmp_path / "testing.yml"
    changed.write_text(RULES["testing"].replace("amount > 200", "amount > 100"))
    assert run("rules", "publish", service.config, changed, "--yes").exit_code == 0
    service.process([purchase("c1", 2, 1), purchase("c1", 3, 150), purchase("c1", 700, 1)])
    service.settle()
    with service.log() as log:
        alerts = [json.loads(row.value or b"{}") for row in read_to_end(log, service.settings.alerts.topic)]
    assert "testing" in {alert["rule"] for alert in alerts}
    assert reasons(service) == ["key-misplaced"]


def test_a_stream_that_only_rules_by_another_field_read_may_be_keyed_by_anything(tmp_path: Path) -> None:
    service = make_service(tmp_path / "s")
    for file in (service.config.parent / "rules").iterdir():
        file.unlink()
    rule = "rule: r\nmatch: |\n  aggregate by country over 1h [purchase where true] having count() >= 3\n"
    (service.config.parent / "rules" / "r.yml").write_text(rule)
    service.config.write_text(SERVICE)
    service.produce([])
    misplace(service, *(purchase(f"c{n}", n, 1) for n in range(3)))
    done = run("run", service.config, "--until-caught-up")
    assert (done.exit_code, "0 dead" in done.output) == (0, True)
