"""A server on a socket: uvicorn, with time-outs for slow clients and TLS by the settings.

Knows no app: the HTTP process and the metrics of a container have the same.
"""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import Any, Literal, cast

import uvicorn

from samovar.common.errors import Refused
from samovar.service.config.models import HttpSettings
from samovar.service.http.connections import HandshakeLoop, protocol_of
from samovar.service.http.tls import server_context


def server_of(app: Any, limits: HttpSettings, *, stop_s: int, lifespan: Literal["on", "off"] = "on") -> uvicorn.Server:
    """A server with time-outs, and TLS where the settings say so."""
    config = uvicorn.Config(
        app,
        http=protocol_of(limits),
        ws="none",
        log_config=None,  # as all that this process logs
        log_level="warning",
        access_log=False,
        lifespan=lifespan,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=stop_s,
        proxy_headers=False,  # who is believed: samovar.service.http.proxies
    )
    config.load()
    config.ssl = None if limits.tls is None else server_context(limits.tls)
    return uvicorn.Server(config)


def run_server(server: uvicorn.Server, listening: socket.socket) -> None:
    limits: HttpSettings = cast("Any", server.config.http).limits
    with asyncio.Runner(loop_factory=partial(HandshakeLoop, limits.header_timeout_ms / 1000)) as runner:
        runner.run(server.serve(sockets=[listening]))


def bound(host: str, port: int) -> socket.socket:
    """A socket at the address. Refused here, before anything has begun."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named: asyncio sends small answers at once only on sockets that say they are TCP. Else the body
    # waits for the client's acknowledgement of the headers, 40 ms.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise Refused(
            "http-port-taken",
            f"{host}:{port} cannot be served at: {error.strerror or error}",
            "Choose another port with --port, or end the process that has it.",
        ) from error
    return made
