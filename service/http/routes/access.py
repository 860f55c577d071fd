"""Who asks: /me and /session."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from samovar import __version__
from samovar.common.errors import Refused
from samovar.service.auth.tokens import Principal
from samovar.service.http import schemas
from samovar.service.http.request import Body, answered, app_state_of, client_of, cookie_of, who_asks
from samovar.service.http.schemas import answers_with
from samovar.service.http.state import now_ms

router = APIRouter(tags=["access"])


@router.get("/me", responses=answers_with(schemas.Me))
def me(request: Request) -> Response:
    """Who asks, and what they may. Without a token that is known the role is null."""
    return answered(_principal_data(request, who_asks(request)))


class Login(Body):
    token: str = Field(max_length=500)


@router.post("/session", responses=answers_with(schemas.Me))
def log_in(request: Request, body: Login) -> Response:
    """For pages: a session, by a cookie that no script can read and no other site can send."""
    app_state = app_state_of(request)
    token = app_state.tokens.named_by(body.token.strip())
    if token is None:
        app_state.trail.count_refused_token(client_of(request))
        raise Refused("access-token", "this token is not known", "`samovar tokens list CONFIG` shows all names.")
    name = cookie_of(app_state)
    session = app_state.sessions.open(token, request.cookies.get(name), now_ms())
    app_state.trail.record(token.name, "logged in", {"client": client_of(request)})
    response = answered(_principal_data(request, Principal(token.name, token.role)))
    response.set_cookie(
        name,
        session,
        max_age=app_state.settings.http.session_ms // 1000,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path="/",
    )
    return response


@router.delete("/session", status_code=204)
def log_out(request: Request) -> Response:
    """End the session. The token stays good: `samovar tokens remove` ends it."""
    app_state = app_state_of(request)
    name = cookie_of(app_state)
    given = request.cookies.get(name)
    ended = None if given is None else app_state.sessions.end(given)
    if ended is not None:
        app_state.trail.record(ended.token, "logged out", {"client": client_of(request)})
    response = Response(status_code=204)
    response.delete_cookie(name, path="/", httponly=True, samesite="strict", secure=request.url.scheme == "https")
    return response


def _principal_data(request: Request, who: Principal) -> dict[str, Any]:
    app_state = app_state_of(request)
    role = None if who.role is None else who.role.word
    known = {"service": app_state.settings.service, "version": __version__} if role is not None else {}
    access = "open" if app_state.is_open else "tokens"
    masked = app_state.masks(who).hidden if role is not None else []
    return {**known, "access": access, "name": who.name, "role": role, "may": who.rights, "masked": masked}
