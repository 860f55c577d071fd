"""`http` of a service file: the limits of the HTTP API, how long a browser stays logged in, TLS, and proxies."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from samovar.service.config.types import Count, DurationMs, Model, RelativePath, SizeBytes, shown, wrong

S, H = 1_000, 3_600_000
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


def read_networks(value: Any) -> tuple[str, ...]:
    """Addresses or networks, as text that `networks_of` can read."""
    given = value if isinstance(value, list | tuple) else [value]
    return tuple(_network(item) for item in given)


def _network(value: Any) -> str:
    try:
        return str(ipaddress.ip_network(value)) if isinstance(value, str) else _no_network(value)
    except ValueError:
        return _no_network(value)


def _no_network(value: Any) -> str:
    return wrong(
        f"{shown(value)} is not an address or network", expected='"10.1.2.3", or a network such as "10.0.0.0/8"'
    )


def networks_of(texts: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


class TlsSettings(Model):
    """What this process shows, and by whose word it believes other nodes. PEM files."""

    cert: RelativePath
    key: RelativePath
    ca: RelativePath | None = None


class HttpSettings(Model):
    """Limits of the HTTP API: of one request, of one client, of a browser's login."""

    max_request_bytes: SizeBytes = Field(10 * 10**6, alias="max_request")
    requests_per_s: Count = 200
    max_connections: Count = 1_000
    header_timeout_ms: DurationMs = Field(10 * S, alias="header_timeout")
    body_timeout_ms: DurationMs = Field(60 * S, alias="body_timeout")
    session_ms: DurationMs = Field(12 * H, alias="session")
    session_idle_ms: DurationMs = Field(H, alias="session_idle")
    trusted_proxies: Annotated[tuple[str, ...], BeforeValidator(read_networks)] = ()
    tls: TlsSettings | None = None

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"

    @field_validator("header_timeout_ms", "body_timeout_ms", "session_ms", "session_idle_ms")
    @classmethod
    def _some(cls, value: int, info: ValidationInfo) -> int:
        name = (info.field_name or "").removesuffix("_ms")
        return value if value > 0 else wrong(f"`{name}` must be longer than nothing", expected="10s, 1m or 1h")
