"""Who asks: /me and /session."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from samovar import __version__
from samovar.changelog.errors import Refused
from samovar.service.access import Who
from samovar.service.http_answers import answers_with
from samovar.service.http_answers_state import Me
from samovar.service.http_asking import COOKIE, Body, answered, who_asks, world_of

router = APIRouter(tags=["access"])


@router.get("/me", responses=answers_with(Me))
def me(request: Request) -> Response:
    """Who asks, and what they may. Without a token that is known the role is null."""
    return answered(_told(request, who_asks(request)))


class Login(Body):
    token: str = Field(max_length=500)


@router.post("/session", responses=answers_with(Me))
def log_in(request: Request, body: Login) -> Response:
    """For pages: the token as a cookie that no script can read and no other site can send."""
    token = body.token.strip()
    who = world_of(request).tokens.who(token)
    if who is None:
        raise Refused("access-token", "this token is not known", "`samovar tokens list CONFIG` shows all names.")
    response = answered(_told(request, who))
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=secure, path="/")
    return response


@router.delete("/session", status_code=204)
def log_out() -> Response:
    """Forget the cookie. The token stays good: `samovar tokens remove` ends it."""
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return response


def _told(request: Request, who: Who) -> dict[str, Any]:
    world = world_of(request)
    role = None if who.role is None else who.role.word
    known = {"service": world.settings.service, "version": __version__} if role is not None else {}
    access = "open" if world.is_open else "tokens"
    masked = world.masks(who).hidden if role is not None else []
    return {**known, "access": access, "name": who.name, "role": role, "may": who.rights, "masked": masked}
