"""Connections of slow or silent clients end: uvicorn itself waits for ever for the rest of a request.

    connected, or the first byte of a request  --header_timeout-->  its headers are whole, else 408
    its headers are whole                      --body_timeout---->  its body is whole, else closed
    an answer cannot be written any further    --body_timeout---->  the client took some of it, else closed

The times are for the whole of the headers and of the body, so that a byte now and then does not help. A connection
beyond `max_connections` is closed at once, before anything is read of it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from samovar.service.config.models import HttpSettings

LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def protocol_of(limits: HttpSettings) -> type[asyncio.Protocol]:
    """The protocol of one server's connections, with its limits."""
    return type("TimedProtocol", (TimedProtocol,), {"limits": limits})


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
            return
        self._await("headers")

    def connection_lost(self, exc: Exception | None) -> None:
        self._await("")
        self._written()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def _look(self) -> None:
        """What is awaited now. Between requests uvicorn's own time-out holds."""
        if self.transport.is_closing():
            self._await("")
        elif self.conn.their_state is h11.SEND_BODY:
            self._await("body")
        elif self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._await("headers")
        else:
            self._await("")

    def _await(self, what: str) -> None:
        if what == self._awaits:
            return
        self._awaits = what
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if what:
            limit_ms = self.limits.header_timeout_ms if what == "headers" else self.limits.body_timeout_ms
            self._reading = self.loop.call_later(limit_ms / 1000, self._late)

    def _late(self) -> None:
        if self.transport.is_closing():
            return
        if self._awaits == "headers" and self.conn.our_state is h11.IDLE:
            self.transport.write(LATE)
            self.transport.close()
        else:
            self.transport.abort()

    # ------------------------------------------------------------ clients that do not take their answer

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._writing is None:
            self._writing = self.loop.call_later(self.limits.body_timeout_ms / 1000, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._written()

    def _written(self) -> None:
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
