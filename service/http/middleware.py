"""What every request passes before it is routed, and what every answer carries.

- A declared proxy, and nobody else, is believed about the client and the scheme.
- Without access control, only names of this machine are answered. A page of another site can make its own name point
  here; the name still shows. What came through a proxy is not from this machine, whatever it names.
- A change that a browser sends must come from our own pages. A browser always says where a POST comes from; a client
  that says nothing is no browser, and a browser's cookie alone, without an origin, changes nothing.
- A client has so many requests per second, with a burst, and a body so many bytes.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from samovar.service.config.addresses import Network, is_loopback, networks_of
from samovar.service.http.problems import answer, problem
from samovar.service.http.server import headers_of
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


class RequestGuard:
    """Refuses what must not reach the app, counts answers, and adds headers to them."""

    def __init__(self, app: ASGIApp, app_state: AppState) -> None:
        limits = app_state.settings.http
        self.app, self.app_state, self.most_bytes = app, app_state, limits.max_request_bytes
        self.proxies = networks_of(limits.trusted_proxies)
        self.rates = RateLimiter(float(limits.requests_per_s), limits.requests_per_s * 2)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        taken, has_begun = 0, False

        async def receive_bounded() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self.most_bytes:
                raise _TooLarge
            return message

        async def send_counted(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                self._begin_answer(scope, message)
            await send(message)

        headers = headers_of(scope)
        if self.proxies:
            believe_proxy(scope, headers, self.proxies)
        refusal = self._refusal(scope, headers)
        if refusal is None:
            try:
                await self.app(scope, receive_bounded, send_counted)
                return
            except _TooLarge:
                if has_begun:
                    return
                refusal = self._too_large(scope)
        await refusal(scope, receive, send_counted)

    def _begin_answer(self, scope: Scope, message: Message) -> None:
        method = scope["method"] if scope["method"] in (*SAFE, "POST", "PUT", "DELETE", "PATCH") else "OTHER"
        self.app_state.requests[method, message["status"]] += 1
        present = {name.lower() for name, _ in message["headers"]}
        own = HEADERS | ({"cache-control": "no-store"} if scope["path"].startswith("/api/") else {})
        added = [(name.encode(), value.encode()) for name, value in own.items() if name.encode() not in present]
        message["headers"] = [*message["headers"], *added]

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> JSONResponse | None:
        """The problem to answer with; None where the request may go on."""
        path = scope["path"]
        if self.app_state.is_open and not is_from_here(headers):
            port = self.app_state.place.port
            hint = f"Ask 127.0.0.1 or localhost, port {port}; by other names, or through a proxy, only with API tokens."
            return answer(path, problem("http-host", "this name is not answered to", hint=hint))
        if scope["method"] not in SAFE and not is_own(headers):
            hint = "Send it from this service's own pages, or with `Authorization: Bearer TOKEN` and no Origin."
            return answer(path, problem("cross-origin", "a change may not come from another site", hint=hint))
        wait_s = self.rates.take((scope.get("client") or ("",))[0], time.monotonic())
        if wait_s > 0:
            title = f"more than {self.rates.per_s:g} requests per second"
            hint = "Wait a moment; `http: {requests_per_s: N}` in the service file sets another limit."
            return answer(path, problem("rate-limit", title, hint=hint), {"Retry-After": str(int(wait_s) + 1)})
        length = headers.get("content-length", "")
        return self._too_large(scope) if length.isdecimal() and int(length) > self.most_bytes else None

    def _too_large(self, scope: Scope) -> JSONResponse:
        hint = "Send events in several requests; `http: {max_request: SIZE}` in the service file sets another limit."
        title = f"a request has at most {self.most_bytes:,} bytes"
        return answer(scope["path"], problem("request-large", title, hint=hint))


class _TooLarge(Exception):
    """A body without a length has gone on for too long."""


class RateLimiter:
    """A bucket of tokens per client: `per_s` flow in, up to `burst` wait."""

    def __init__(self, per_s: float, burst: int) -> None:
        self.per_s, self.burst = per_s, burst
        self._clients: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, now_s: float) -> float:
        """Returns how long the client must wait; 0 where it need not."""
        left, at_s = self._clients.pop(client, (float(self.burst), now_s))
        left = min(left + (now_s - at_s) * self.per_s, float(self.burst))
        wait_s = 0.0 if left >= 1 else (1 - left) / self.per_s
        self._clients[client] = (left - 1 if left >= 1 else left), now_s
        while len(self._clients) > CLIENTS_MOST:
            self._clients.popitem(last=False)
        return wait_s


def is_from_here(headers: Mapping[str, str]) -> bool:
    """
    >>> [is_from_here({"host": host}) for host in ("127.0.0.1:80", "localhost", "[::1]:80", "evil.example:80", "")]
    [True, True, True, False, False]
    """
    try:
        host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        return False
    return is_loopback(host) and not any(name in headers for name in FORWARDED)


def is_own(headers: Mapping[str, str]) -> bool:
    """Whether a change comes from our own pages, or from no browser. A proxy in front may have ended TLS, so the scheme
    of the origin is not compared.

    >>> [is_own({"host": "a:80", "origin": origin}) for origin in ("http://a:80", "null", "https://b")]
    [True, False, False]
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site not in ("same-origin", "none"):
        return False
    if origin is not None:
        host = headers.get("host", "")
        return bool(host) and origin.partition("://")[2].lower() == host.lower()
    has_token = headers.get("authorization", "").lower().startswith("bearer ")
    return site is not None or has_token or "cookie" not in headers


def believe_proxy(scope: Scope, headers: Mapping[str, str], proxies: Sequence[Network]) -> None:
    """Puts the client and the scheme that a declared proxy tells in the place of the proxy's own. The client is the
    last address on the way that is no declared proxy: what stands before it, anybody may have written.

    >>> scope, proxies = {"client": ("10.0.0.1", 1)}, networks_of(("10.0.0.0/8",))
    >>> believe_proxy(scope, {"x-forwarded-for": "6.6.6.6, 192.0.2.7, 10.0.0.2"}, proxies)
    >>> scope["client"]
    ('192.0.2.7', 0)
    """
    client = (scope.get("client") or ("", 0))[0]
    if not is_in(client, proxies):
        return
    scheme = headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
    if scheme in ("http", "https"):
        scope["scheme"] = scheme
    way = [part.strip() for part in headers.get("x-forwarded-for", "").split(",") if part.strip()]
    for part in reversed(way[-20:]):
        inside = is_in(part, proxies)
        if inside is None:
            break
        client = part
        if not inside:
            break
    scope["client"] = (client, 0)


def is_in(address: str, networks: Sequence[Network]) -> bool | None:
    """Whether an address is in one of these, None where it is none; IPv4 that is written as IPv6 counts as IPv4."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return None
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return any(parsed in network for network in networks if network.version == parsed.version)
