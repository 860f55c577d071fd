"""Errors of the HTTP API: application/problem+json (RFC 9457), with the codes of docs/errors.md.

    {"type": urn:samovar:error:CODE, "title": what happened, "status", "code", "detail", "hint", "instance": path, ...}

A fault of ours is a 500 that tells nothing but a number; what happened is in the log of this process, under it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
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
LOG_ERRORS = (LogUnavailable, Fenced, CommitUnknown)

# What a refusal means to a client. What is unknown is 404; all others are conflicts with what there is: 409.
CODES = {
    400: "bad-key bad-mark bad-place bad-position view-query",
    401: "access-token",
    403: "access-role cross-origin pii-comparison",
    404: "store-missing topic-missing view-version",
    413: "request-large",
    415: "request-format",
    421: "http-host",
    422: "bad-events bad-rule rule-errors rule-settings unknown-type",
    429: "rate-limit too-much-at-once",
    503: "log-unavailable not-ready owner-silent read-stalled",
}
STATUS = {code: status for status, codes in CODES.items() for code in codes.split()}


@dataclass(kw_only=True)
class RefusedWithErrors(Refused):
    """A refusal whose problem has further members: the errors that were found."""

    more: dict[str, Any] = field(default_factory=dict)


def problem(code: str, title: str, *, status: int = 0, detail: str = "", hint: str = "", **more: Any) -> dict[str, Any]:
    """The document. Its status is that of the code, where none is given.

    >>> [problem(code, "")["status"] for code in ("unknown-rule", "access-role", "group-active")]
    [404, 403, 409]
    """
    status = status or STATUS.get(code, 404 if code.startswith("unknown-") else 409)
    told = {"type": NAMES + code, "title": title, "status": status, "code": code, "detail": detail, "hint": hint}
    return {**told, "instance": "", **more}


def answer(path: str, document: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({**document, "instance": path}, int(document["status"]), headers, MEDIA_TYPE)


def problem_of(error: Exception) -> dict[str, Any]:
    """What is expected to go wrong: refusals, and failures of stores, rules and the log."""
    if isinstance(error, Refused):
        more = error.more if isinstance(error, RefusedWithErrors) else {}
        return problem(error.code, error.what, detail=error.detail, hint=error.hint, **more)
    if isinstance(error, StoreError):
        return problem(error.code, error.what, hint=error.hint)  # paths stay here
    if isinstance(error, RuleFailure):  # without the key, which not everybody may see
        title = f"rule {error.rule} could not be run"
        return problem("rule-failed", title, status=503, detail=error.reason, hint=error.hint, rule=error.rule)
    hint = "Ask again in a moment; `samovar doctor` says whether the log can be reached."
    detail = str(error).splitlines()[0] if str(error) else type(error).__name__
    return problem("log-unavailable", "the log does not answer", detail=detail, hint=hint)


def fault(where: str, number: str) -> dict[str, Any]:
    """What is not expected to go wrong."""
    hint = f"Please report it. The log of {where} has more, under {number}."
    return problem("internal-error", "this is a fault of Samovar", status=500, hint=hint)


def register(app: FastAPI) -> None:
    """All errors of an app as problems."""

    async def expected(request: Request, error: Exception) -> JSONResponse:
        headers = {"Retry-After": "2"} if isinstance(error, LOG_ERRORS) else {}
        if isinstance(error, Refused) and error.code == "access-token":
            headers = {"WWW-Authenticate": "Bearer"}
        return answer(request.url.path, problem_of(error), headers)

    for kind in (Refused, StoreError, RuleFailure, *LOG_ERRORS):
        app.exception_handler(kind)(expected)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        # Without what was given: it may be what nobody is to see again.
        errors = [{"where": ".".join(map(str, each["loc"])), "what": each["msg"]} for each in error.errors()]
        title, hint = "the request is not as it should be", "GET /api/v1/openapi.json says what each endpoint takes."
        return answer(request.url.path, problem("bad-request", title, status=422, hint=hint, errors=errors))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        title, status, hint = str(error.detail), error.status_code, "GET /api/v1/openapi.json lists all."
        if status == 404:
            told = problem("not-found", title, status=status, hint=hint)
        elif status == 405:
            told = problem("bad-method", title, status=status, hint=hint)
        else:
            told = problem("bad-request", title, status=status, hint=hint)
        return answer(request.url.path, told, error.headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        number = secrets.token_hex(6)
        route = getattr(request.scope.get("route"), "path", "?")  # and not what stands in it: keys are in no log
        LOGGER.error("fault %s: %s %s", number, request.method, route, exc_info=error)
        return answer(request.url.path, fault("the process that answered", number))
