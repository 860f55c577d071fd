"""Where a container's metrics are served: at an address of this machine to anyone on it, at any other by an API token.

The same time-outs, bounds and TLS as the HTTP process has. Tokens are read from the log when somebody asks, at most
once a second; while the log does not answer, those hold that were read last.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from prometheus_client import CollectorRegistry, make_asgi_app
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Receive, Scope, Send

from samovar.changelog.log import Log
from samovar.common.errors import Fenced, LogUnavailable, Refused
from samovar.service.auth.tokens import Role, Tokens, load_tokens
from samovar.service.config.addresses import is_loopback
from samovar.service.config.models import ServiceFile
from samovar.service.http.server import bound, headers_of, run_server, server_of

FRESH_S = 1.0
STOP_S = 1
BEGIN_S = 10.0
REFUSED = [(b"content-type", b"text/plain; charset=utf-8"), (b"www-authenticate", b"Bearer")]
TOLD = b"access-token: this needs an API token: `samovar tokens add` makes one\n"


class Address(NamedTuple):
    """Where metrics are served."""

    host: str
    port: int


def address_of(text: str) -> Address:
    """From PORT or HOST:PORT.

    >>> address_of("9400"), address_of("0.0.0.0:9400")
    (Address(host='127.0.0.1', port=9400), Address(host='0.0.0.0', port=9400))
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise Refused("bad-address", f"`{text}` is not an address for metrics", "Write a port, or HOST:PORT: 9400.")
    return Address(host.strip("[]") or "127.0.0.1", int(port))


@contextmanager
def serving(settings: ServiceFile, log: Log, address: Address, collector: Collector) -> Iterator[None]:
    """While this lasts, metrics are served, in a thread of its own."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    app: ASGIApp = make_asgi_app(registry)
    if not is_loopback(address.host):
        tokens = load_tokens(log, settings.service)
        if not len(tokens):
            raise Refused(
                "access-required",
                f"metrics at {address.host} can be reached by others, and there is no API token"
                f" {'left' if tokens.was_made else 'yet'}",
                f"Make one first: `samovar tokens add CONFIG NAME --role {Role.VIEWER.word}`, and give it to Prometheus"
                " (`authorization`); or serve them at 127.0.0.1.",
            )
        app = TokensOnly(app, settings, log, tokens)
    try:
        listening = bound(address.host, address.port)
    except Refused as taken:
        raise Refused(
            "metrics-port-taken",
            f"metrics cannot be served at {address.host}:{address.port}: {taken.what.rpartition(': ')[2]}",
            "Choose another port with --metrics; with --containers each takes the next one.",
        ) from taken
    with listening:
        server = server_of(app, settings.http, stop_s=STOP_S, lifespan="off")
        thread = threading.Thread(target=run_server, args=(server, listening), name="metrics", daemon=True)
        thread.start()
        deadline = time.monotonic() + BEGIN_S
        while not server.started and thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        try:
            yield
        finally:
            server.should_exit = True
            thread.join(BEGIN_S)


class TokensOnly:
    """Answers those who show an API token, of any role."""

    def __init__(self, app: ASGIApp, settings: ServiceFile, log: Log, tokens: Tokens) -> None:
        self.app, self._service, self._log = app, settings.service, log
        self._tokens, self._read_s = tokens, time.monotonic()
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scheme, _, token = headers_of(scope).get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or (await self._known()).who(token.strip()) is None:
            await send({"type": "http.response.start", "status": 401, "headers": REFUSED})
            await send({"type": "http.response.body", "body": TOLD})
            return
        await self.app(scope, receive, send)

    async def _known(self) -> Tokens:
        async with self._lock:
            if time.monotonic() - self._read_s > FRESH_S:
                self._read_s = time.monotonic()
                with suppress(LogUnavailable, Fenced, Refused):
                    self._tokens = await asyncio.to_thread(load_tokens, self._log, self._service)
            return self._tokens
