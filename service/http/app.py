"""The HTTP API and the pages of a service, put together: routers under /api/v1, pages at /, layers around both."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException

from samovar import __version__
from samovar.service.auth.tokens import Tokens, ensure_access
from samovar.service.config.addresses import place_of
from samovar.service.config.models import ServiceFile
from samovar.service.http import problems
from samovar.service.http.middleware import RequestGuard
from samovar.service.http.request import bearer
from samovar.service.http.routes import access, alerts, keys, lists, rules, status, streams, views
from samovar.service.http.server import bound, run_server, server_of
from samovar.service.http.state import AppState, refuse_open
from samovar.service.ops.log_output import StampedFormatter
from samovar.service.topology.logs import opened

PREFIX = "/api/v1"
PROBLEM = {
    "description": "Refused: application/problem+json, with a code of docs/errors.md.",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
TEXTS = ("type", "title", "code", "detail", "hint", "instance")
PROBLEM_SCHEMA = {
    "type": "object",
    "required": ["type", "title", "status", "code"],
    "properties": {"status": {"type": "integer"}, **{name: {"type": "string"} for name in TEXTS}},
}
ROUTERS = (access, status, alerts, keys, lists, rules, streams, views)

PAGES = Path(__file__).resolve().parent / "web" / "static"
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
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
        server = server_of(app_of(AppState(settings, log, place, slot=slot)), settings.http, stop_s=STOP_S)
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


def app_of(app_state: AppState) -> FastAPI:
    """The app. The threads of its state begin when it starts, and end when it does."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        app_state.broadcaster.bind(asyncio.get_running_loop())
        await asyncio.to_thread(app_state.start)
        try:
            yield
        finally:
            await asyncio.to_thread(app_state.close)

    app = FastAPI(
        title=f"Samovar: {app_state.settings.service}",
        version=__version__,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        lifespan=life,
    )
    app.state.app_state = app_state
    problems.register(app)
    api = APIRouter(prefix=PREFIX, dependencies=[Depends(bearer)], responses={"4XX": PROBLEM, "5XX": PROBLEM})
    api.include_router(status.probes)
    for module in ROUTERS:
        api.include_router(module.router)
    app.include_router(api)
    app.include_router(status.probes, include_in_schema=False)
    app.add_api_route("/metrics", status.metrics, include_in_schema=False)
    _serve_pages(app)
    _describe(app)
    app.add_middleware(RequestGuard, app_state=app_state)
    return app


def _describe(app: FastAPI) -> None:
    """Makes the OpenAPI document say that validation errors are problems, too."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas["Problem"] = PROBLEM_SCHEMA
        for path in document["paths"].values():
            for operation in path.values():
                operation.get("responses", {}).pop("422", None)  # FastAPI's own form; 4XX says ours
        schemas.pop("HTTPValidationError", None)
        schemas.pop("ValidationError", None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _serve_pages(app: FastAPI) -> None:
    """Serves the files that there are now: a path is looked up in their list, never in the file system. What is not a
    file is a page's own route: index.html.
    """
    found = [path for path in PAGES.rglob("*") if path.is_file() and path.suffix in KINDS]
    files = {f"/{path.relative_to(PAGES).as_posix()}": path for path in found}

    @app.api_route("/{path:path}", methods=["GET", "HEAD"], include_in_schema=False)
    def page(request: Request) -> FileResponse:
        asked = request.url.path
        if asked.startswith("/api/") or (Path(asked).suffix and asked not in files):
            raise HTTPException(404, "there is nothing here")
        file = files.get(asked, files["/index.html"])
        return FileResponse(file, media_type=KINDS[file.suffix], headers={"Cache-Control": "no-cache"})
