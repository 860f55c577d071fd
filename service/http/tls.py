"""TLS of the HTTP process: what it shows to clients, and by whose word it believes the other nodes."""

from __future__ import annotations

import ssl

from samovar.common.errors import Refused
from samovar.service.config.models import TlsSettings


def server_context(tls: TlsSettings) -> ssl.SSLContext:
    """TLS 1.2 or newer, with the certificate of the settings. Refused before anything is bound."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        made.load_cert_chain(tls.cert, tls.key, password=_no_password)
    except (OSError, ssl.SSLError, _HasPassword) as error:
        raise Refused(
            "tls-files",
            f"`http.tls` cannot be used: {_why(error)}",
            f"Give a certificate with its chain and the key that belongs to it, both PEM and without a password:"
            f" {tls.cert}, {tls.key}.",
        ) from error
    return made


def client_context(tls: TlsSettings | None) -> ssl.SSLContext:
    """For questions to other nodes: the machine's own authorities, or those of `ca`."""
    try:
        made = ssl.create_default_context(cafile=None if tls is None else tls.ca)
    except (OSError, ssl.SSLError) as error:
        raise Refused(
            "tls-files",
            f"`http.tls.ca` cannot be used: {_why(error)}",
            "Give a PEM file with the certificates of the authorities that signed those of all nodes.",
        ) from error
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    return made


class _HasPassword(Exception):
    """Nobody is there to type it."""


def _no_password() -> str:
    raise _HasPassword("the key has a password")


def _why(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
