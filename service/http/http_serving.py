"""`samovar serve`: the HTTP process, from its settings to its end."""

from __future__ import annotations

import logging
import sys
from typing import IO

from samovar.service.auth.tokens import Tokens, ensure_access
from samovar.service.config.addresses import place_of
from samovar.service.config.models import ServiceFile
from samovar.service.http.app import app_of
from samovar.service.http.server import bound, run_server, server_of
from samovar.service.http.state import World, refuse_open
from samovar.service.ops.telling import StampedFormatter
from samovar.service.topology.logs import opened

STOP_S = 3  # for listeners to be told that it ends
# Python's threads take turns. With its 5 ms, a question that waits for the log thirty times would wait as often for the
# loop that serves the listeners.
TURN_S = 0.0005


def serve(settings: ServiceFile, host: str, port: int, advertise: str | None, out: IO[str], slot: int = 0) -> None:
    """Answer until SIGTERM or Ctrl-C."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(StampedFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    sys.setswitchinterval(TURN_S)
    with opened(settings) as log, bound(host, port) as listening:
        place = place_of(host, listening.getsockname()[1], advertise, settings.http.scheme)
        tokens = ensure_access(settings, log)
        refuse_open(settings, place, tokens)
        server = server_of(app_of(World(settings, log, place, slot=slot)), settings.http, stop_s=STOP_S)
        out.write(f"samovar serve {settings.service}: {place.advertised}/ ({tokens_text(tokens)})\n")
        out.flush()
        run_server(server, listening)


def tokens_text(tokens: Tokens) -> str:
    """Who may ask, in a few words."""
    if len(tokens):
        return f"{len(tokens)} API token{'' if len(tokens) == 1 else 's'}"
    if tokens.was_made:
        return "no API token is left: nobody may ask; `samovar tokens add` makes one"
    return "no API tokens: anyone on this machine is operator"
