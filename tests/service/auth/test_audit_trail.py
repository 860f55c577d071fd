"""The audit trail beyond changes: logins, refused tokens, posted events, reads of marked fields, exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from samovar.common.errors import Refused
from samovar.service.auth.tokens import NOBODY, hash_of
from tests.service.http.test_access import tokens_of
from tests.service.http.test_tokens import page_of
from tests.support.http_server import Served, served
from tests.support.small_service import make, purchase, run
from tests.support.used_service import MARKED


def entries(site: Served, token: str, what: str) -> list[dict[str, Any]]:
    return [each for each in site.as_(token).get("/audit", params={"limit": 500})["entries"] if each["what"] == what]


def test_the_audit_trail_has_logins_refused_tokens_posted_events_and_unmasked_reads(tmp_path: Path) -> None:
    card = "4929-1234-5678-9012"
    service = make(tmp_path / "s")
    service.config.write_text(MARKED)
    service.process([])
    tokens = tokens_of(service)
    with served(service) as site, page_of(site, tokens["author"]) as page:
        page.delete("/api/v1/session")
        operator, viewer = site.as_(tokens["operator"]), site.as_(tokens["viewer"])
        secret = "smv_a-token-that-nobody-knows"
        for _ in range(30):
            site.as_(secret).ask("GET", "/alerts")
        site.client.post("/api/v1/session", json={"token": secret})
        for _ in range(5):
            done = operator.ask("POST", "/streams/purchase/events", content=json.dumps(purchase(card, 0, 1)))
            assert done.json()["written"] == 1
        for _ in range(4):
            operator.get(f"/keys/{card}")
            operator.get("/alerts")
            viewer.get("/alerts")
            operator.get("/status")
        site.world.trail.flush()
        by = {what: entries(site, tokens["operator"], what) for what in _WHAT}
        assert [each["who"] for each in by["logged in"]] == ["author"]
        assert [each["who"] for each in by["logged out"]] == ["author"]
        assert sum(each["detail"]["count"] for each in by["token refused"]) == 31
        assert len(by["token refused"]) <= 3  # nobody fills the topic by asking
        assert sum(each["detail"]["of"]["purchase"] for each in by["events posted"]) == 5
        read: dict[str, int] = {}
        for each in by["unmasked read"]:
            assert each["who"] == "operator"
            for place, count in each["detail"]["of"].items():
                read[place] = read.get(place, 0) + count
        alias = site.world.masks(NOBODY).alias(card)
        assert read == {f"GET /keys/{{key}} {alias}": 4, "GET /alerts": 4}
        trail = json.dumps(operator.get("/audit", params={"limit": 500}))
        assert secret not in trail
        assert hash_of(secret) not in trail
        assert card not in trail
        assert not any(token in trail for token in tokens.values())


_WHAT = ("logged in", "logged out", "token refused", "events posted", "unmasked read")


def test_commands_that_show_or_take_away_marked_data_leave_a_trace(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.config.write_text(MARKED)
    service.process([purchase("c1", 0, 1), purchase("c1", 100, 1)])
    folder = service.config.parent
    for asked in (
        ("read", service.config, "purchase"),
        ("state", "scan", service.config),
        ("dlq", "show", service.config),
        ("dlq", "show", service.config, "--pii"),
        ("restore", service.config, "--from", "changelog", "--out", folder / "there"),
        ("rules", "backtest", folder / "rules" / "testing.yml", service.config, "--html", folder / "report.html"),
    ):
        done = run(*asked)
        assert done.exit_code == 0, done.output
    with served(service) as site:
        found = [(each["what"], each["detail"]["command"]) for each in site.get("/audit")["entries"]][::-1]
    assert found == [
        ("unmasked read", "read"),
        ("unmasked read", "state scan"),
        ("unmasked read", "dlq show --pii"),
        ("exported", "restore"),
        ("exported", "rules backtest"),
    ]


def test_what_cannot_be_written_down_is_tried_again(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    with served(service) as site:
        trail = site.world.trail
        real = trail.record
        trail.record = _failing  # type: ignore[assignment]
        trail.count("anna", "events posted", "purchase", 3)
        trail.count("anna", "events posted", "purchase", 4)
        trail.record = real  # type: ignore[method-assign]
        trail.flush()
        (entry,) = site.get("/audit")["entries"]
        assert (entry["who"], entry["detail"]["count"]) == ("anna", 7)


def _failing(*_: object) -> None:
    raise Refused("topic-missing", "it is away", "Wait.")
