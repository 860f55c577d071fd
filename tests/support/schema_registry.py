"""A small schema registry over HTTP, for tests: what the client asks for, with a password, and trouble on demand."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

USER = "reader:let me in"

_BY_ID = re.compile(r"/schemas/ids/(\d+)\Z")
_VERSION = re.compile(r"/subjects/([^/]+)/versions/(\d+|latest)\Z")
_REGISTER = re.compile(r"/subjects/([^/]+)/versions\Z")


@dataclass
class TestRegistry:
    """The source of truth for what is registered. `trouble`: every answer is this status, while it is set."""

    __test__ = False

    password: str | None = None
    trouble: int | None = None
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def add(self, schema: Any, subject: str = "any-value", number: int | None = None, **more: Any) -> int:
        """Register a schema; the same one again has its number already."""
        made = {"schema": schema if isinstance(schema, str) else json.dumps(schema), **more}
        for known, other in self.schemas.items():
            if number is None and other == made:
                number = known
        number = max([*self.schemas, 0]) + 1 if number is None else number
        self.schemas[number] = made
        if number not in self.subjects.setdefault(subject, []):
            self.subjects[subject].append(number)
        return number

    def answer(self, method: str, path: str, body: dict[str, Any], user: str | None) -> tuple[int, dict[str, Any]]:
        self.asked.append(f"{method} {path}")
        if self.trouble is not None:
            return self.trouble, {"error_code": self.trouble, "message": "trouble"}
        if self.password is not None and user != self.password:
            return 401, {"error_code": 401, "message": "who are you?"}
        if method == "GET" and (found := _BY_ID.match(path)):
            known = self.schemas.get(int(found[1]))
            return (200, known) if known else (404, {"error_code": 40403, "message": "Schema not found"})
        if method == "GET" and (found := _VERSION.match(path)):
            return self._version(unquote(found[1]), found[2])
        if method == "POST" and (found := _REGISTER.match(path)):
            return 200, {"id": self.add(body["schema"], unquote(found[1]))}
        return 404, {"error_code": 404, "message": "no such page"}

    def _version(self, subject: str, version: str) -> tuple[int, dict[str, Any]]:
        numbers = self.subjects.get(subject, [])
        place = len(numbers) if version == "latest" else int(version)
        if not 1 <= place <= len(numbers):
            return 404, {"error_code": 40401 if not numbers else 40402, "message": "not found"}
        number = numbers[place - 1]
        return 200, {"subject": subject, "version": place, "id": number, **self.schemas[number]}


@contextmanager
def running(registry: TestRegistry) -> Iterator[TestRegistry]:
    """The registry at `registry.url`, until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET")

        def do_POST(self) -> None:
            self._answer("POST")

        def _answer(self, method: str) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            given = (self.headers.get("Authorization") or "").removeprefix("Basic ")
            user = base64.b64decode(given).decode() if given else None
            path = urlsplit(self.path).path
            status, answer = registry.answer(method, path, json.loads(body or b"{}"), user)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is written to the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
