"""What every endpoint needs of a request: the app's state, who asks, and whether they may."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from anyio import from_thread
from fastapi import Depends, Request
from fastapi.responses import Response
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field

from samovar.common.errors import Refused
from samovar.service.auth.tokens import NOBODY, RIGHTS, Principal
from samovar.service.http.state import AppState, Credential
from samovar.service.query.events import StreamEvent

API = "/api/v1"
# What shows no event, key or alert. Another node that is asked (/held) has been asked by one that wrote it down.
UNMARKED = ("/audit", "/completions", "/held", "/me", "/metrics", "/session", "/snapshots", "/status")
LEAST_MS, MOST_MS = -(1 << 53), 1 << 53

# Only for the OpenAPI document: who asks is found by `who_asks`, which takes the cookie of pages as well.
bearer = HTTPBearer(auto_error=False, description="An API token, as `samovar tokens add` gives it.")


class Body(BaseModel):
    """What a request gives. A name that nobody knows is refused, not passed over."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class NotedBody(Body):
    note: str = Field("", max_length=2_000)


def app_state_of(request: Request) -> AppState:
    found: AppState = request.app.state.app_state
    return found


def who_asks(request: Request) -> Principal:
    app_state, given = app_state_of(request), credential_of(request)
    found = app_state.who(given)
    if found.role is None and given.token is not None:
        app_state.trail.count_refused_token(client_of(request))
    return found


def credential_of(request: Request) -> Credential:
    """A token from the header, else a session from the cookie. A cookie is never a token, nor the other way round."""
    header = request.headers.get("authorization", "")
    scheme, _, token = header.partition(" ")
    if scheme.lower() == "bearer":
        return Credential(token=token.strip())
    return Credential(session=request.cookies.get(cookie_of(app_state_of(request))))


def client_of(request: Request) -> str:
    """The address that a request comes from, as a declared proxy tells it."""
    return request.client.host if request.client is not None else ""


def cookie_of(app_state: AppState) -> str:
    """Its own name for each service: browsers keep cookies by host, whatever the port."""
    return f"samovar-{app_state.settings.service}"


class RequestContext:
    """A request that was let in: who asks, what they may see, and what is needed to answer."""

    def __init__(self, request: Request, who: Principal) -> None:
        self.request, self.who, self.name = request, who, who.name or "nobody"
        self.app_state = app_state_of(request)
        self.settings, self.log = self.app_state.settings, self.app_state.log
        self.masks = self.app_state.masks(who)

    def is_still_allowed(self) -> bool:
        """For answers that go on: whether the caller is still who they were."""
        return self.app_state.who(credential_of(self.request), is_new=False) == self.who

    def record(self, what: str, detail: Mapping[str, Any]) -> None:
        """Writes down a change in the audit trail."""
        self.app_state.trail.record(self.name, what, detail)


def require(permission: str) -> Callable[[Request], RequestContext]:
    """A dependency: the caller has this permission."""

    def check(request: Request) -> RequestContext:
        who = who_asks(request)
        if who.role is None:
            hint = "Send `Authorization: Bearer TOKEN`; `samovar tokens add` makes one."
            raise Refused("access-token", "this needs an API token that is known", hint)
        if not who.may(permission):
            hint = f"It needs the role {RIGHTS[permission].word}: `samovar tokens add` makes a token with it."
            raise Refused("access-role", f"the role {who.role.word} may not do this", hint)
        context = RequestContext(request, who)
        app_state = context.app_state
        path = getattr(request.scope.get("route"), "path", request.url.path).removeprefix(API)
        # That marked fields may be read in the clear is written down, and of which key. Ingesting only writes.
        if permission != "ingest" and who.may("pii") and app_state.lineage.any and not path.startswith(UNMARKED):
            key = request.path_params.get("key")
            shown = "" if key is None else f" {app_state.masks(NOBODY).alias(key)}"
            app_state.trail.count(context.name, "unmasked read", f"{request.method} {path}{shown}")
        return context

    return check


Reading = Annotated[RequestContext, Depends(require("read"))]
Labelling = Annotated[RequestContext, Depends(require("label"))]
Authoring = Annotated[RequestContext, Depends(require("rules"))]
Operating = Annotated[RequestContext, Depends(require("operate"))]
Ingesting = Annotated[RequestContext, Depends(require("ingest"))]


def event_data(context: RequestContext, event: StreamEvent) -> dict[str, Any]:
    """An event as JSON, with what may not be seen hidden."""
    return event.data() | {"event": context.masks.event(event.stream, event.event)}


def answered(data: Any, status: int = 200) -> Response:
    """JSON as it is: no second look at every value, which for a page of alerts takes longer than the search."""
    return Response(json_text(data).encode("utf-8", "replace"), status, media_type="application/json")


def json_text(data: Any) -> str:
    """One line. A number that JSON has no word for (an event may say 1e999) is null."""
    try:
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(data), ensure_ascii=False, separators=(",", ":"), default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def is_connected(request: Request) -> bool:
    """Whether the one who asked still waits. For the threads that answer."""
    return not from_thread.run(request.is_disconnected)
