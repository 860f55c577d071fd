"""What every request passes before it is looked at, and what every answer carries: ASGI layers of one concern each.

    Proxies -> Counting -> Headers -> Hosts -> Origins -> Rates -> Sizes -> the app

- Hosts: where there is no access control, only names of this machine are answered. A page of another site can make its
  own name point here; the name still shows. What came through a proxy is not from this machine, whatever it names.
- Origins: a change that a browser sends must come from our own pages. A browser always says where a POST comes from;
  anyone who says nothing is no browser, and a browser's cookie alone, without an origin, changes nothing.
- Rates: so many requests per second of one client, with a burst; Sizes: so many bytes of a body.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from fastapi.responses import JSONResponse

from samovar.service.config.addresses import is_loopback
from samovar.service.http.asgi import App, Message, Receive, Scope, Send, headers_of
from samovar.service.http.problems import MEDIA_TYPE, problem
from samovar.service.http.state import AppState

SAFE = ("GET", "HEAD", "OPTIONS")
FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
CLIENTS_MOST = 10_000  # that are remembered

# Nothing from elsewhere, no script or style inside a page, no page of ours inside another.
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


async def refuse(scope: Scope, receive: Receive, send: Send, document: dict[str, Any], **headers: str) -> None:
    told = {**document, "instance": scope["path"]}
    response = JSONResponse(told, document["status"], headers, MEDIA_TYPE)
    await response(scope, receive, send)


class RequestCounting:
    """Counts answers by method and status."""

    def __init__(self, app: App, app_state: AppState) -> None:
        self.app, self.app_state = app, app_state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                method = scope["method"] if scope["method"] in (*SAFE, "POST", "PUT", "DELETE", "PATCH") else "OTHER"
                self.app_state.requests.add(method, message["status"])
            await send(message)

        await self.app(scope, receive, counted)


class Headers:
    """Adds what keeps browsers from doing more than our pages ask for."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                own = {**HEADERS} | ({"cache-control": "no-store"} if scope["path"].startswith("/api/") else {})
                added = [(name.encode(), value.encode()) for name, value in own.items() if name.encode() not in present]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await self.app(scope, receive, with_headers if scope["type"] == "http" else send)


class Hosts:
    """Without access control, only requests that name this machine."""

    def __init__(self, app: App, app_state: AppState) -> None:
        self.app, self.app_state = app, app_state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.app_state.is_open and not is_from_here(headers_of(scope)):
            port = self.app_state.place.port
            hint = f"Ask 127.0.0.1 or localhost, port {port}; by other names, or through a proxy, only with API tokens."
            told = problem("http-host", "this name is not answered to", status=421, hint=hint)
            await refuse(scope, receive, send, told)
            return
        await self.app(scope, receive, send)


def is_from_here(headers: Mapping[str, str]) -> bool:
    return is_loopback(host_of(headers.get("host", ""))) and not any(name in headers for name in FORWARDED)


def host_of(text: str) -> str:
    """
    >>> [host_of(text) for text in ("127.0.0.1:8080", "localhost", "[::1]:8080", "evil.example:80", "")]
    ['127.0.0.1', 'localhost', '::1', 'evil.example', '']
    """
    try:
        return urlsplit(f"//{text}").hostname or ""
    except ValueError:
        return ""


class Origins:
    """Changes that a browser sends come from our own pages, or are refused."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in SAFE and not is_own(scope):
            hint = "Send it from this service's own pages, or with `Authorization: Bearer TOKEN` and no Origin."
            told = problem("cross-origin", "a change may not come from another site", status=403, hint=hint)
            await refuse(scope, receive, send, told)
            return
        await self.app(scope, receive, send)


def is_own(scope: Scope) -> bool:
    headers = headers_of(scope)
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site not in ("same-origin", "none"):
        return False
    if origin is not None:
        return same_place(origin, scope.get("scheme", "http"), headers.get("host", ""))
    has_token = headers.get("authorization", "").lower().startswith("bearer ")
    return site is not None or has_token or "cookie" not in headers


def same_place(origin: str, scheme: str, host: str) -> bool:
    """Whether an Origin is that of our own pages. A proxy in front may have ended TLS, so the scheme is not compared.

    >>> same_place("http://a:80", "http", "a:80"), same_place("null", "http", "a"), same_place("https://b", "http", "a")
    (True, False, False)
    """
    del scheme
    return bool(host) and origin.partition("://")[2].lower() == host.lower()


class Rates:
    """A bucket of tokens a client: `per_s` flow in, up to `burst` wait."""

    def __init__(self, app: App, per_s: float, burst: int) -> None:
        self.app, self.per_s, self.burst = app, per_s, burst
        self._clients: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            wait_s = self.take((scope.get("client") or ("",))[0], time.monotonic())
            if wait_s > 0:
                told = problem(
                    "rate-limit",
                    f"more than {self.per_s:g} requests per second",
                    status=429,
                    hint="Wait a moment; `http: {requests_per_s: N}` in the service file sets another limit.",
                )
                await refuse(scope, receive, send, told, **{"Retry-After": str(int(wait_s) + 1)})
                return
        await self.app(scope, receive, send)

    def take(self, client: str, now_s: float) -> float:
        """How long the client must wait; 0 where it need not."""
        left, at_s = self._clients.pop(client, (float(self.burst), now_s))
        left = min(left + (now_s - at_s) * self.per_s, float(self.burst))
        wait_s = 0.0 if left >= 1 else (1 - left) / self.per_s
        self._clients[client] = (left - 1 if left >= 1 else left), now_s
        while len(self._clients) > CLIENTS_MOST:
            self._clients.popitem(last=False)
        return wait_s


class Sizes:
    """A body has an end. What is longer is refused before it is read whole."""

    def __init__(self, app: App, most_bytes: int) -> None:
        self.app, self.most_bytes = app, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        told = problem(
            "request-large",
            f"a request has at most {self.most_bytes:,} bytes",
            status=413,
            hint="Send events in several requests; `http: {max_request: SIZE}` in the service file sets another limit.",
        )
        given = headers_of(scope).get("content-length", "")
        if given.isdecimal() and int(given) > self.most_bytes:
            await refuse(scope, receive, send, told)
            return
        taken, has_begun = 0, False

        async def bounded() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self.most_bytes:
                raise _TooLarge
            return message

        async def noting(message: Message) -> None:
            nonlocal has_begun
            has_begun = has_begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, bounded, noting)
        except _TooLarge:
            if not has_begun:
                await refuse(scope, receive, send, told)


class _TooLarge(Exception):
    """A body without a length has gone on for too long."""
