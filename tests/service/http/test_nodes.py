"""Several nodes: any of them answers for all, and asks the owner for what it lacks. And `samovar run --http`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx2

from samovar.changelog.broker.process import free_port
from samovar.changelog.formats import heartbeat
from samovar.changelog.formats.heartbeat import MemberMetadata, TaskReport
from samovar.service.config.loading import load_service
from samovar.service.http.state import Peers
from tests.service.http.test_access import tokens_of
from tests.support.http_server import Served, served, wait_for
from tests.support.project import ROOT
from tests.support.small_service import Service, make, many, purchase
from tests.support.used_service import MARKED


@contextmanager
def two_nodes(service: Service) -> Iterator[tuple[Served, Served]]:
    """Two HTTP processes over one log. The stores are next to the second; the first has an empty disk."""
    settings = service.settings
    bare = settings.model_copy(update={"state": service.config.parent / "elsewhere" / "state"})
    with served(service, bare) as asked, served(service) as owner, service.container():  # which is in the group
        now = int(time.time() * 1000)
        tasks = [TaskReport(stage="", partition=number, life="running") for number in range(2)]
        told = MemberMetadata(
            slot=0,
            host="another-host",
            pid=1,
            since_ms=now,
            version="1",
            time_ms=now,
            tasks=tasks,
            counts={},
            caught_up=True,
            address=owner.world.place.advertised,
        )
        heartbeat.send_heartbeat(asked.log, "s", told)
        wait_for(lambda: asked.world.watch.latest.presences)
        wait_for(lambda: owner.world.watch.latest.presences)
        yield asked, owner


def test_a_key_is_asked_of_its_owner(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.process([*many(60), purchase("open", 400, 1), purchase("open", 500, 3)])
    with two_nodes(service) as (asked, owner):
        found = asked.get("/keys/open")
        assert found["held"] == owner.get("/keys/open")["held"]
        assert found["held"][0]["rules"]
        assert found["missing"] == []
        keys = {each["key_text"] for each in asked.get("/keys?limit=1000")["keys"]}
        assert "open" in keys
        assert keys == {each["key_text"] for each in owner.get("/keys?limit=1000")["keys"]}
        assert {each["id"] for each in asked.get("/alerts")["alerts"]} == {
            each["id"] for each in owner.get("/alerts")["alerts"]
        }
        assert asked.get("/status")["tasks"][0]["life"] == "running"


def test_an_owner_that_does_not_answer_is_told_of(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.process(many(60))
    with two_nodes(service) as (asked, _):
        (seen,) = heartbeat.read_heartbeats(asked.log, "s").values()
        for address, why in ((f"http://127.0.0.1:{free_port('127.0.0.1')}", "does not answer"), (None, "--http")):
            heartbeat.send_heartbeat(asked.log, "s", replace(seen.metadata, address=address))
            wait_for(partial(_is_told, asked, address))
            found = asked.get("/keys/c1")
            assert found["held"] == []
            assert why in found["missing"][0]["why"]


def _is_told(site: Served, address: str | None) -> bool:
    return site.world.watch.latest.presences[0].address == address


def test_a_token_goes_with_the_question_and_nothing_more_is_seen(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.config.write_text(MARKED)
    service.process([purchase("secret-card", 0, 1), purchase("secret-card", 60, 3)])
    tokens = tokens_of(service)
    with two_nodes(service) as (asked, owner):
        asked.refused("/keys/secret-card", 401, "access-token")
        assert owner.ask("GET", "/held/keys/secret-card", headers={"samovar-tasks": "/0,/1"}).status_code == 401
        viewer = asked.as_(tokens["viewer"])
        viewer.refused("/keys/secret-card", 403, "pii-comparison")
        headers = {"samovar-tasks": "/0,/1"}
        assert owner.as_(tokens["viewer"]).ask("GET", "/held/keys/secret-card", headers=headers).status_code == 403
        (listed,) = viewer.get("/keys")["keys"]
        found = viewer.get(f"/keys/{listed['key_text']}")
        assert found["held"]
        assert "secret-card" not in json.dumps(found["held"])
        assert "secret-card" in json.dumps(asked.as_(tokens["operator"]).get("/keys/secret-card")["held"])


def test_cookies_of_other_nodes_are_not_kept_for_the_next_caller() -> None:
    seen: list[str | None] = []

    class Peer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("cookie"))
            self.send_response(200)
            self.send_header("set-cookie", "samovar=somebody")
            self.send_header("content-length", "0")
            self.end_headers()

    with closing(Peers(None)) as peers, HTTPServer(("127.0.0.1", 0), Peer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for _ in range(2):
            peers.client.get(f"http://127.0.0.1:{server.server_port}/")
        server.shutdown()
    assert seen == [None, None]


# ---------------------------------------------------------------- processes


def test_run_serves_beside_its_containers_and_ends_with_them(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.produce(many(60))
    port = free_port("127.0.0.1")
    command = [sys.executable, "-m", "samovar.service.cli", "run", str(service.config), "--http", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE)
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:

            def answer(path: str) -> Any:
                try:
                    found = client.get(path)
                except httpx2.HTTPError:
                    return None
                return found.json() if found.status_code == 200 else None

            wait_for(lambda: answer("/ready"), 180)  # two processes have to start
            wait_for(lambda: answer("/caught-up"))
            status = answer("/api/v1/status")
            assert status["containers"][0]["address"] == f"http://127.0.0.1:{port}"
            wait_for(lambda: answer("/api/v1/alerts")["total"] > 0)
            held = answer("/api/v1/keys/c1")
            assert held["held"][0]["container"] == 0
    finally:
        process.terminate()
        assert process.wait(30) == 0
        assert process.stderr is not None
        process.stderr.close()
    assert load_service(service.config).service == "s"
