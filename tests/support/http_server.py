"""A real HTTP process in a thread of the test: uvicorn on a port of its own, asked over a socket."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2

from samovar.changelog.log import Log
from samovar.service.config.addresses import place_of
from samovar.service.config.models import ServiceFile
from samovar.service.http.app import app_of
from samovar.service.http.server import bound, client_context, run_server, server_of
from samovar.service.http.state import AppState
from samovar.service.topology.logs import opened
from tests.support.small_service import Service

WAIT_S = 60.0


@dataclass
class Served:
    """A service that is being served."""

    service: Service
    world: AppState
    client: httpx2.Client
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def log(self) -> Log:
        return self.world.log

    def ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        headers = {**self.headers, **options.pop("headers", {})}
        return self.client.request(method, f"/api/v1{path}", headers=headers, **options)

    def get(self, path: str, status: int = 200, **options: Any) -> Any:
        return self._answer(self.ask("GET", path, **options), status)

    def post(self, path: str, body: Any, status: int = 200, **options: Any) -> Any:
        return self._answer(self.ask("POST", path, json=body, **options), status)

    def put(self, path: str, body: Any, status: int = 200, **options: Any) -> Any:
        return self._answer(self.ask("PUT", path, json=body, **options), status)

    def _answer(self, response: httpx2.Response, status: int) -> Any:
        assert response.status_code == status, (response.status_code, response.text)
        if status >= 400:
            assert response.headers["content-type"] == "application/problem+json"
        return response.json() if response.content else None

    def refused(self, path: str, status: int, code: str, **options: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.get(path, status, **options)
        assert (found["code"], found["status"]) == (code, status), found
        return found

    def world_paths(self) -> list[tuple[str, str]]:
        """Every endpoint that the OpenAPI document has, with something in the place of names."""
        paths = self.client.get("/api/v1/openapi.json").json()["paths"]
        found = [(method.upper(), path) for path, methods in paths.items() for method in methods]
        return [(method, re.sub(r"\{\w+\}", "x", path)) for method, path in found]

    def caught_up(self) -> None:
        """Until the index has every alert that the topic holds now."""
        wait_for(lambda: self.world.follower.is_caught_up and self.world.follower.trouble is None)

    def as_(self, token: str) -> Served:
        """The same, asked with a token."""
        return replace(self, headers={"authorization": f"Bearer {token}"})


def wait_for(condition: Callable[[], object], timeout_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.02)


@contextmanager
def served(
    service: Service, settings: ServiceFile | None = None, host: str = "127.0.0.1", advertise: str | None = None
) -> Iterator[Served]:
    """Serve until the block ends."""
    settings = settings or service.settings
    listening = bound(host, 0)
    port = listening.getsockname()[1]
    with opened(settings) as log:
        scheme = settings.http.scheme
        world = AppState(settings, log, place_of(host, port, advertise, scheme), watch_every_s=0.2)
        server = server_of(app_of(world), settings.http, stop_s=1)
        thread = threading.Thread(target=run_server, args=(server, listening), name="server")
        thread.start()
        try:
            wait_for(lambda: server.started or not thread.is_alive())
            assert server.started, "it does not start"
            with httpx2.Client(
                base_url=f"{scheme}://127.0.0.1:{port}",
                trust_env=False,
                timeout=30,
                verify=client_context(settings.http.tls),
            ) as client:
                yield Served(service, world, client)
        finally:
            server.should_exit = True
            thread.join(30)
            listening.close()


class Stream:
    """Server-sent events as they come."""

    def __init__(self, response: httpx2.Response) -> None:
        self._lines = response.iter_lines()

    def next(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        deadline = time.monotonic() + WAIT_S
        for line in self._lines:
            assert time.monotonic() < deadline, "nothing comes"
            name, _, value = line.partition(": ")
            if line == "" and "event" in found:
                return found
            if name == "data":
                found["data"] = json.loads(value)
            elif name in ("id", "event"):
                found[name] = value
        raise AssertionError("the stream ended")


@contextmanager
def listening_to(site: Served, **options: Any) -> Iterator[Stream]:
    headers = {**site.headers, **options.pop("headers", {})}
    with site.client.stream("GET", "/api/v1/alerts/live", headers=headers, **options) as response:
        assert response.status_code == 200, response.read()
        yield Stream(response)
