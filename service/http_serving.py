"""`samovar serve`: the HTTP process, from its settings to its end."""

from __future__ import annotations

import logging
import socket
import sys
from typing import IO

import uvicorn

from samovar.changelog.errors import Refused
from samovar.service.access import load_tokens
from samovar.service.http import app_of
from samovar.service.http_place import place_of
from samovar.service.http_world import World, refuse_open
from samovar.service.logs import opened
from samovar.service.settings_models import ServiceFile

STOP_S = 3  # for listeners to be told that it ends


def serve(settings: ServiceFile, host: str, port: int, advertise: str | None, out: IO[str], slot: int = 0) -> None:
    """Answer until SIGTERM or Ctrl-C."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    with opened(settings) as log, bound(host, port) as listening:
        place = place_of(host, listening.getsockname()[1], advertise)
        refuse_open(place, load_tokens(log, settings.service))
        world = World(settings, log, place, slot=slot)
        config = uvicorn.Config(
            app_of(world),
            log_level="warning",
            access_log=False,
            lifespan="on",
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=STOP_S,
            proxy_headers=False,  # nobody says by a header who they are
        )
        out.write(f"samovar serve {settings.service}: {place.advertised}/ ({_who(world)})\n")
        out.flush()
        uvicorn.Server(config).run(sockets=[listening])


def _who(world: World) -> str:
    return "this machine only, no tokens" if world.is_open else "API tokens"


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
            "Choose another port with --port, or end whoever has it.",
        ) from error
    return made
