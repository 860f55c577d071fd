"""The HTTP process on a real Kafka: alerts, a key, live alerts and a sink, which is a group of its own there."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from samovar.service.auth.tokens import topic_of
from tests.service.http.test_tokens import ends, is_shut, page_of, role_of
from tests.support.http_server import listening_to, served, wait_for
from tests.support.small_service import Service, make, purchase, run

PATIENCE_S = 120.0


def alerting(card: str, second: int) -> str:
    events = [purchase(card, second + later, amount) for later, amount in [(0, 1), (1, 1), (2, 900), (30, 3)]]
    return "".join(json.dumps(event) + "\n" for event in events)


def processed(service: Service, text: str) -> None:
    path = service.config.parent / "events.jsonl"
    path.write_text(text)
    assert run("produce", service.config, "purchase", path).exit_code == 0
    done = run("run", service.config, "--until-caught-up")
    assert done.exit_code == 0, done.output


def on_kafka(folder: Path, kafka: str, more: str = "") -> Service:
    service = make(folder)
    name = f"http-{uuid.uuid4().hex[:8]}"
    text = (
        service.config.read_text().replace("service: s", f"service: {name}").replace("{key:", f"{{topic: {name}, key:")
    )
    service.config.write_text(f'{text}log: {{kafka: {{bootstrap: "{kafka}"}}}}\n{more}')
    return service


def test_tokens_sessions_and_streams_end_there_too_and_nothing_opens(kafka: str, tmp_path: Path) -> None:
    service = on_kafka(tmp_path / "s", kafka)
    processed(service, alerting("before", 0))
    token, kept = (run("tokens", "add", service.config, name).stdout.strip() for name in ("anna", "berta"))
    with served(service) as site, page_of(site, token) as page, listening_to(site.as_(token)) as stream:
        assert stream.next()["event"] == "hello"
        assert role_of(page) == "viewer"
        assert run("tokens", "remove", service.config, "anna").exit_code == 0
        assert ends(stream)
        wait_for(lambda: role_of(page) is None)
        topic = topic_of(service.settings.service)
        site.log.delete([topic])  # and with it every token
        wait_for(lambda: is_shut(site.as_(kept)), PATIENCE_S)
        assert is_shut(site)
    with served(service) as restarted:
        assert is_shut(restarted)
        assert is_shut(restarted.as_(kept))


def test_alerts_are_found_heard_and_delivered(kafka: str, tmp_path: Path) -> None:
    service = on_kafka(tmp_path / "s", kafka, "sinks: {archive: {file: alerts.jsonl}}\n")
    processed(service, alerting("before", 0))
    with served(service) as site:
        wait_for(lambda: site.get("/alerts?rule=testing")["total"] == 1, PATIENCE_S)
        wait_for(lambda: site.world.sinks.reports()[0].partitions == 2, PATIENCE_S)
        with listening_to(site, params={"rule": "testing"}) as stream:
            stream.next()
            processed(service, alerting("card", 100))
            heard = stream.next()["data"]
        assert heard["key_text"] == "card"
        shown = site.get(f"/alerts/{heard['id']}")
        steps = [(each["step"], each["stream"], each["event"]["amount"]) for each in shown["timeline"] if each["step"]]
        assert steps == [("probe", "purchase", 1), ("probe", "purchase", 1), ("big", "purchase", 900)]
        assert shown["timeline_complete"]
        assert shown["why"]["matches"] == 1
        assert site.get("/keys/card")["held"][0]["rules"]
        path = service.config.parent / "alerts.jsonl"
        wait_for(lambda: path.exists() and heard["id"] in path.read_text(), PATIENCE_S)
        assert "before" not in path.read_text()
        sent = site.post("/streams/purchase/events", purchase("posted", 200, 3))
        assert sent["written"] == 1
