"""Where the HTTP process answers, and networks that it believes."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import TypeAlias

from samovar.common.errors import Refused

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class HttpAddress:
    """Where this process answers: what it binds, and what other nodes call it by."""

    host: str
    port: int
    advertised: str

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """
    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "127.0.0.1.evil.example")]
    [True, True, True, False, False]
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def place_of(host: str, port: int, advertised: str | None = None, scheme: str = "http") -> HttpAddress:
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host  # noqa: S104 - told apart, not bound here
    shown = f"[{name}]" if ":" in name else name
    return HttpAddress(host, port, advertised or f"{scheme}://{shown}:{port}")


def place_from(text: str, advertised: str | None = None, scheme: str = "http") -> HttpAddress:
    """From PORT or HOST:PORT.

    >>> place_from("8080").advertised, place_from("[::1]:8080").host
    ('http://127.0.0.1:8080', '::1')
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise Refused("bad-address", f"`{text}` is not an address for HTTP", "Write a port, or HOST:PORT: 8080.")
    return place_of(host.strip("[]") or "127.0.0.1", int(port), advertised, scheme)


def networks_of(texts: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)
