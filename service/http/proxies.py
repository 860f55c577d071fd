"""What a proxy says of whom it asks for: believed of the proxies that the service file declares, and of nobody else."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from contextlib import suppress

from samovar.service.config.addresses import Network, networks_of
from samovar.service.http.asgi import App, Receive, Scope, Send, headers_of


class Proxies:
    """Puts the client and the scheme that a declared proxy tells in the place of the proxy's own."""

    def __init__(self, app: App, trusted: tuple[str, ...]) -> None:
        self.app, self.trusted = app, networks_of(trusted)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.trusted:
            client = (scope.get("client") or ("", 0))[0]
            if is_in(client, self.trusted):
                headers = headers_of(scope)
                scheme = headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
                if scheme in ("http", "https"):
                    scope["scheme"] = scheme
                scope["client"] = (client_of(client, headers.get("x-forwarded-for", ""), self.trusted), 0)
        await self.app(scope, receive, send)


def client_of(peer: str, forwarded: str, trusted: Sequence[Network]) -> str:
    """The last address on the way that is no declared proxy: what stands before it, anybody may have written.

    >>> proxies = networks_of(("10.0.0.0/8",))
    >>> client_of("10.0.0.1", "6.6.6.6, 192.0.2.7, 10.0.0.2", proxies), client_of("10.0.0.1", "", proxies)
    ('192.0.2.7', '10.0.0.1')
    """
    found = peer
    for part in reversed([part.strip() for part in forwarded.split(",") if part.strip()][-20:]):
        if not is_address(part):
            break
        found = part
        if not is_in(part, trusted):
            break
    return found


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_in(address: str, networks: Sequence[Network]) -> bool:
    """Whether an address is in one of these; an IPv4 address that is written as IPv6 counts as IPv4."""
    with suppress(ValueError):
        parsed = ipaddress.ip_address(address)
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        return any(parsed in network for network in networks if network.version == parsed.version)
    return False
