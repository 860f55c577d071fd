"""A uvicorn server on a socket, with TLS by the settings and time-outs for slow clients; it knows no app.

uvicorn itself waits for ever for the rest of a request:

    connected, or the first byte of a request  --header_timeout-->  its headers are whole, else 408
    its headers are whole                      --body_timeout---->  its body is whole, else closed
    an answer cannot be written any further    --body_timeout---->  the client took some of it, else closed

The times are for the whole of the headers and of the body, so that a byte now and then does not help. A connection
beyond `max_connections` is closed at once, before anything is read of it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import partial
from typing import Any, Literal, cast

import h11
import uvicorn
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from samovar.common.errors import Refused
from samovar.service.config.models import HttpSettings, TlsSettings

LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def server_of(app: Any, limits: HttpSettings, *, stop_s: int, lifespan: Literal["on", "off"] = "on") -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http=type("TimedProtocol", (TimedProtocol,), {"limits": limits}),
        ws="none",
        log_config=None,  # as all that this process logs
        log_level="warning",
        access_log=False,
        lifespan=lifespan,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=stop_s,
        proxy_headers=False,  # whose headers are believed: samovar.service.http.middleware
    )
    config.load()
    config.ssl = None if limits.tls is None else server_context(limits.tls)
    return uvicorn.Server(config)


def run_server(server: uvicorn.Server, listening: socket.socket) -> None:
    limits: HttpSettings = cast("Any", server.config.http).limits
    with asyncio.Runner(loop_factory=partial(HandshakeLoop, limits.header_timeout_ms / 1000)) as runner:
        runner.run(server.serve(sockets=[listening]))


def bound(host: str, port: int) -> socket.socket:
    """Binds a socket, or refuses before anything has begun."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named: asyncio sends small answers at once only on sockets that say they are TCP. Else the body
    # waits for the client's acknowledgement of the headers, 40 ms.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except OSError as error:
        made.close()
        hint = "Choose another port with --port, or end the process that has it."
        what = f"{host}:{port} cannot be served at: {error.strerror or error}"
        raise Refused("http-port-taken", what, hint) from error
    return made


def headers_of(scope: Scope) -> dict[str, str]:
    """A request's headers; of one that is given twice, the last, which the nearest proxy wrote."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


# ---------------------------------------------------------------- TLS


def server_context(tls: TlsSettings) -> ssl.SSLContext:
    """TLS 1.2 or newer, with the certificate of the settings."""

    def refuse_password() -> str:
        raise ValueError("the key has a password")  # nobody is there to type it

    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        made.load_cert_chain(tls.cert, tls.key, password=refuse_password)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise Refused(
            "tls-files",
            f"`http.tls` cannot be used: {getattr(error, 'strerror', None) or error}",
            f"Give a certificate with its chain and the key that belongs to it, both PEM and without a password:"
            f" {tls.cert}, {tls.key}.",
        ) from error
    return made


def client_context(tls: TlsSettings | None) -> ssl.SSLContext:
    """For requests to other nodes: trusts the machine's own authorities, or those of `ca`."""
    try:
        made = ssl.create_default_context(cafile=None if tls is None else tls.ca)
    except OSError as error:
        hint = "Give a PEM file with the certificates of the authorities that signed those of all nodes."
        raise Refused("tls-files", f"`http.tls.ca` cannot be used: {error.strerror or error}", hint) from error
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    return made


# ---------------------------------------------------------------- connections


class TimedProtocol(H11Protocol):
    """One connection. The source of truth for what it waits for, and until when."""

    limits: HttpSettings

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._awaits = ""  # headers, body or nothing

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            transport.abort()
        else:
            self._await("headers")

    def connection_lost(self, exc: Exception | None) -> None:
        self._await("")
        self._stop_write_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._restart_read_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._restart_read_timer()

    def _restart_read_timer(self) -> None:
        """Between requests uvicorn's own time-out holds."""
        if self.transport.is_closing():
            self._await("")
        elif self.conn.their_state is h11.SEND_BODY:
            self._await("body")
        else:
            has_begun = self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]
            self._await("headers" if has_begun else "")

    def _await(self, what: str) -> None:
        if what == self._awaits:
            return
        self._awaits = what
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if what:
            limit_ms = self.limits.header_timeout_ms if what == "headers" else self.limits.body_timeout_ms
            self._reading = self.loop.call_later(limit_ms / 1000, self._on_late)

    def _on_late(self) -> None:
        if self.transport.is_closing():
            return
        if self._awaits == "headers" and self.conn.our_state is h11.IDLE:
            self.transport.write(LATE)
            self.transport.close()
        else:
            self.transport.abort()

    def pause_writing(self) -> None:
        """The client does not take its answer."""
        super().pause_writing()
        if self._writing is None:
            self._writing = self.loop.call_later(self.limits.body_timeout_ms / 1000, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()

    def _stop_write_timer(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None


class HandshakeLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers do not wait for a TLS handshake for longer than for headers."""

    def __init__(self, handshake_s: float) -> None:
        super().__init__()
        self.handshake_s = handshake_s

    async def create_server(self, *arguments: Any, **options: Any) -> asyncio.Server:
        if options.get("ssl") is not None:
            options.setdefault("ssl_handshake_timeout", self.handshake_s)
        return await super().create_server(*arguments, **options)
