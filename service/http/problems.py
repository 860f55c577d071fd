"""Errors of the HTTP API: application/problem+json (RFC 9457), with the codes of docs/errors.md.

    {"type": urn:samovar:error:CODE, "title": what happened, "status", "code", "detail", "hint", "instance": path, ...}

A fault of ours is a 500 that tells nothing but a number; what happened is in the log of this process, under it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from samovar.common.errors import CommitUnknown, Fenced, LogUnavailable, Refused
from samovar.patterns.engine.matcher import RuleFailure
from samovar.state.errors import StoreError

MEDIA_TYPE = "application/problem+json"
NAMES = "urn:samovar:error:"  # and the code; docs/errors.md has a section for each
LOGGER = logging.getLogger("samovar.http")

# What a refusal means to a client. All others are conflicts with what there is: 409.
STATUS = {
    "access-role": 403,
    "access-token": 401,
    "bad-events": 422,
    "bad-key": 400,
    "bad-mark": 400,
    "bad-place": 400,
    "bad-position": 400,
    "bad-rule": 422,
    "cross-origin": 403,
    "http-host": 421,
    "log-unavailable": 503,
    "not-ready": 503,
    "pii-comparison": 403,
    "owner-silent": 503,
    "rate-limit": 429,
    "read-stalled": 503,
    "request-format": 415,
    "request-large": 413,
    "rule-errors": 422,
    "rule-settings": 422,
    "store-missing": 404,
    "too-much-at-once": 429,
    "topic-missing": 404,
    "unknown-type": 422,
    "view-query": 400,
    "view-version": 404,
}


def status_of(code: str) -> int:
    """
    >>> status_of("unknown-rule"), status_of("access-role"), status_of("group-active")
    (404, 403, 409)
    """
    if code not in STATUS and code.startswith("unknown-"):
        return 404
    return STATUS.get(code, 409)


def problem(
    code: str, title: str, *, status: int, detail: str = "", hint: str = "", path: str = "", **more: Any
) -> dict[str, Any]:
    """The document."""
    told = {"type": NAMES + code, "title": title, "status": status, "code": code, "detail": detail, "hint": hint}
    return {**told, "instance": path, **more}


def answer(request: Request, document: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> JSONResponse:
    told = {**document, "instance": request.url.path}
    return JSONResponse(told, int(document["status"]), dict(headers or {}), MEDIA_TYPE)


def of_refusal(refused: Refused, **more: Any) -> dict[str, Any]:
    found = getattr(refused, "more", {})
    return problem(
        refused.code,
        refused.what,
        status=status_of(refused.code),
        detail=refused.detail,
        hint=refused.hint,
        **{**found, **more},
    )


def unavailable(error: Exception) -> dict[str, Any]:
    hint = "Ask again in a moment; `samovar doctor` says whether the log can be reached."
    return problem("log-unavailable", "the log does not answer", status=503, detail=_first_line(error), hint=hint)


def of_failed_rule(failure: RuleFailure) -> dict[str, Any]:
    """Without the key, which not everybody may see."""
    title = f"rule {failure.rule} could not be run"
    return problem("rule-failed", title, status=503, detail=failure.reason, hint=failure.hint, rule=failure.rule)


# ---------------------------------------------------------------- what can be raised


def register(app: FastAPI) -> None:
    """All errors of an app as problems."""

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
        headers = {"WWW-Authenticate": "Bearer"} if error.code == "access-token" else {}
        return answer(request, of_refusal(error), headers)

    @app.exception_handler(StoreError)
    async def store(request: Request, error: StoreError) -> JSONResponse:
        told = problem(error.code, error.what, status=status_of(error.code), hint=error.hint)  # paths stay here
        return answer(request, told)

    @app.exception_handler(RuleFailure)
    async def failed_rule(request: Request, error: RuleFailure) -> JSONResponse:
        return answer(request, of_failed_rule(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        # Without what was given: it may be what nobody is to see again.
        errors = [{"where": ".".join(map(str, each["loc"])), "what": each["msg"]} for each in error.errors()]
        told = problem(
            "bad-request",
            "the request is not as it should be",
            status=422,
            hint="GET /api/v1/openapi.json says what each endpoint takes.",
            errors=errors,
        )
        return answer(request, told)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        hint, title = "GET /api/v1/openapi.json lists all.", str(error.detail)
        if error.status_code == 404:
            told = problem("not-found", title, status=404, hint=hint)
        elif error.status_code == 405:
            told = problem("bad-method", title, status=405, hint=hint)
        else:
            told = problem("bad-request", title, status=error.status_code, hint=hint)
        return answer(request, told, error.headers)

    for kind in (LogUnavailable, Fenced, CommitUnknown):
        app.exception_handler(kind)(_log_failed)
    app.exception_handler(Exception)(_fault)


async def _log_failed(request: Request, error: Exception) -> JSONResponse:
    return answer(request, unavailable(error), {"Retry-After": "2"})


async def _fault(request: Request, error: Exception) -> JSONResponse:
    number = secrets.token_hex(6)
    route = getattr(request.scope.get("route"), "path", "?")  # and not what stands in it: keys are in no log
    LOGGER.error("fault %s: %s %s", number, request.method, route, exc_info=error)
    told = problem(
        "internal-error",
        "this is a fault of Samovar",
        status=500,
        hint=f"Please report it. The log of the process that answered has more, under {number}.",
    )
    return answer(request, told)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
