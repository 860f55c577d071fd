"""Answers are what the OpenAPI document says of them: no field more, none less, and of these types."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from samovar.service.http import schemas
from samovar.service.http.server import bound
from tests.support.event_loop import run_async
from tests.support.http_server import Served, wait_for
from tests.support.small_service import RULES, purchase
from tests.support.used_service import ABROAD, lived


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, dict[str, str]]]:
    with lived(tmp_path_factory.mktemp("answers") / "s") as made:
        yield made


MODELS = {
    name: model
    for name, model in vars(schemas).items()
    if isinstance(model, type) and issubclass(model, BaseModel) and model.__module__ == schemas.__name__
}
OTHERS = {  # no JSON: what they say is tested where they are
    "GET /rules/{rule}/svg": "image/svg+xml",
    "GET /alerts/live": "text/event-stream",
    "GET /metrics": "text/plain",
}
NOT_ASKED = {"POST /views/{name}/refresh"}  # starts Spark: tests/service/views/test_views_spark.py


def questions(site: Served, tokens: dict[str, str]) -> dict[str, tuple[str, Any]]:
    """One question of every kind, by its operation; the path, and what is sent."""
    alert = site.get("/alerts?limit=1")["alerts"][0]["id"]
    text, event = {"text": ABROAD}, purchase("posted", 90, 3)
    key = site.post("/keys/resolve", {"key": "c1"})["key_ref"]  # who may not see cards asks by pseudonyms
    named = {"rule": "testing", "alert": alert, "key": key, "stream": "purchase"}
    asked = (
        "/me /rules /rules/{rule} /rules/{rule}/history /lists /keys /keys/{key} /keys/{key}/events /sessions /alerts "
        "/alerts/{alert} /alerts/precision /alerts/counts /completions /live /ready /caught-up /status /status/history "
        "/status/rules /status/restores /snapshots /streams /streams/{stream}/events /dead-letters /late /audit "
        "/views"
    )
    found: dict[str, tuple[str, Any]] = {f"GET {path}": (path.format(**named), None) for path in asked.split()}
    found |= {
        "GET /rules/{rule}/diff": ("/rules/testing/diff?a=1&b=1", None),
        "GET /lists/{name}": ("/lists/far", None),
        "GET /views/{name}": ("/views/cards", None),
        "GET /views/{name}/{key}": (f"/views/cards/{key}", None),
        "GET /keys/{key}/why": (f"/keys/{key}/why?rule=testing", None),
        "POST /keys/resolve": ("/keys/resolve", {"key": "c1"}),
        "GET /alerts/values": ("/alerts/values?rule=testing&field=duration_ms", None),
        "PUT /alerts/{alert}/label": (f"/alerts/{alert}/label", {"label": "confirmed", "note": "so it was"}),
        "POST /session": ("/session", {"token": tokens["viewer"]}),
        "POST /rules/check": ("/rules/check", {"text": "rule: x"}),
        "POST /rules/test": ("/rules/test", text),
        "POST /rules/explain": ("/rules/explain", text),
        "POST /rules/try": ("/rules/try", {**text, "minutes": 600}),
        "POST /rules/preview": ("/rules/preview", text),
        "POST /rules/plan": ("/rules/plan", {"text": RULES["testing"].replace("runs=2..", "runs=3..")}),
        "POST /rules/publish": ("/rules/publish", {"text": RULES["testing"].replace("runs=2..", "runs=3..")}),
        "POST /rules/{rule}/disable": ("/rules/testing/disable", {"note": "no"}),
        "POST /rules/{rule}/enable": ("/rules/testing/enable", {}),
        "POST /rules/{rule}/rollback": ("/rules/testing/rollback", {}),
        "POST /lists/{name}/plan": ("/lists/far/plan", {"add": ["GB"]}),
        "POST /lists/{name}/add": ("/lists/far/add", {"items": ["GB"]}),
        "POST /lists/{name}/remove": ("/lists/far/remove", {"items": ["GB"]}),
        "POST /streams/{stream}/events": ("/streams/purchase/events", event),
        "POST /dead-letters/redrive": ("/dead-letters/redrive", {"dry_run": False}),
        "POST /views/{name}/query": ("/views/cards/query", {}),
        "POST /views/{name}/rollback": ("/views/cards/rollback", {}),
        "POST /rules/backtest": ("/rules/backtest", text),
    }
    job = site.post("/rules/backtest", text, 202)["job"]
    wait_for(lambda: site.get(f"/jobs/{job}")["state"] != "running")
    return found | {f"{method} /jobs/{{job}}": (f"/jobs/{job}", None) for method in ("GET", "DELETE")}


def is_as(model: type[BaseModel], answer: Any) -> None:
    found = model.model_validate(answer, strict=False)
    assert found.model_dump(by_alias=True, exclude_unset=True, mode="json") == answer


def test_every_answer_is_as_it_is_described(site: tuple[Served, dict[str, str]]) -> None:
    operator, tokens = site
    document = operator.client.get("/api/v1/openapi.json").json()
    asked = questions(operator, tokens)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            name = f"{method.upper()} {path.removeprefix('/api/v1')}"
            told = [(status, each) for status, each in operation["responses"].items() if status[0] == "2"]
            ((status, described),) = told
            if status == "204" or name in OTHERS:
                assert set(described.get("content", {})) == ({OTHERS[name]} if name in OTHERS else set()), name
                continue
            model = MODELS[described["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]]
            if name not in NOT_ASKED:
                _is_answered(operator, tokens["viewer"], method, asked.pop(name), model)
    assert not asked


def _is_answered(operator: Served, viewer: str, method: str, asked: tuple[str, Any], model: type[BaseModel]) -> None:
    path, body = asked
    answer = operator.ask(method.upper(), path, json=body)
    assert answer.status_code < 300 or path in ("/ready", "/caught-up"), (path, answer.text)
    is_as(model, answer.json())
    if method == "get" and not path.startswith(("/audit", "/jobs")):
        is_as(model, operator.as_(viewer).ask("GET", path).json())  # with what is marked hidden


def test_lists_are_not_empty_by_accident(site: tuple[Served, dict[str, str]]) -> None:
    """What is described is really there to be looked at."""
    operator, _ = site
    for path, name in {
        "/sessions": "sessions",
        "/keys": "keys",
        "/dead-letters": "letters",
        "/late": "events",
        "/audit": "entries",
        "/snapshots": "tasks",
        "/status/history": "samples",
        "/lists/far": "changes",
    }.items():
        assert operator.get(path)[name], path


def test_small_answers_are_sent_at_once() -> None:
    """Else a body waits for the acknowledgement of its headers, 40 ms."""

    async def is_undelayed() -> bool:
        seen: asyncio.Queue[int] = asyncio.Queue()

        async def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.put_nowait(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with bound("127.0.0.1", 0) as listening:
            async with await asyncio.start_server(accepted, sock=listening):
                _, writer = await asyncio.open_connection(*listening.getsockname())
                found = await seen.get()
                writer.close()
        return found != 0

    assert run_async(is_undelayed())
