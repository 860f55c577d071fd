"""What every endpoint needs of a request: the world, who asks, and whether they may."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.responses import Response
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict

from samovar.changelog.errors import Refused
from samovar.service.access import RIGHTS, Who
from samovar.service.access_masks import Masks
from samovar.service.http_world import World

COOKIE = "samovar"
LEAST_MS, MOST_MS = -(1 << 53), 1 << 53

# Only for the OpenAPI document: who asks is found by `who_asks`, which takes the cookie of pages as well.
bearer = HTTPBearer(auto_error=False, description="An API token, as `samovar tokens add` gives it.")


class Body(BaseModel):
    """What a request gives. A name that nobody knows is refused, not passed over."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


def world_of(request: Request) -> World:
    found: World = request.app.state.world
    return found


def who_asks(request: Request) -> Who:
    return world_of(request).who(token_of(request))


def token_of(request: Request) -> str | None:
    header = request.headers.get("authorization", "")
    scheme, _, token = header.partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return request.cookies.get(COOKIE)


class Asking:
    """A request that was let in."""

    def __init__(self, request: Request, who: Who) -> None:
        self.request, self.who = request, who
        self.world = world_of(request)

    @property
    def masks(self) -> Masks:
        return self.world.masks(self.who)

    @property
    def name(self) -> str:
        return self.who.name or "nobody"


def need(right: str) -> Callable[[Request], Asking]:
    """A dependency: whoever asks has this right."""

    def check(request: Request) -> Asking:
        who = who_asks(request)
        if who.role is None:
            raise Refused(
                "access-token",
                "this needs an API token that is known",
                "Send `Authorization: Bearer TOKEN`; `samovar tokens add` makes one.",
            )
        if not who.may(right):
            raise Refused(
                "access-role",
                f"the role {who.role.word} may not do this",
                f"It needs the role {RIGHTS[right].word}: `samovar tokens add` makes a token with it.",
            )
        return Asking(request, who)

    return check


Reading = Annotated[Asking, Depends(need("read"))]
Labelling = Annotated[Asking, Depends(need("label"))]
Authoring = Annotated[Asking, Depends(need("rules"))]
Operating = Annotated[Asking, Depends(need("operate"))]
Ingesting = Annotated[Asking, Depends(need("ingest"))]


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
