"""Why a client reaches no broker.

librdkafka answers a question that it could not ask with a time-out. What was wrong (a password, a certificate, another
protocol) it says only to its error callback: that is kept here, by one `Causes` per client. Where even that says
nothing, the broker's port is tried: a broker that wants TLS closes the connection of a client without it, and says no
word.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress

from confluent_kafka import KafkaError

from samovar.changelog.kafka.settings import Settings
from samovar.common.errors import Refused

FRESH_S = 30.0  # what was said longer ago explains nothing any more
PROBE_S = 1.0
LOGIN = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
UNTRUSTED, HANDSHAKE = "certificate verify failed", "SSL handshake failed"
PEM = "-----BEGIN"


class Causes:
    """The source of truth for what one client last said of its connections."""

    def __init__(self) -> None:
        self._last: tuple[float, KafkaError] | None = None
        self._all_down_s = -FRESH_S  # when it last said that it reaches no broker at all

    def note(self, error: KafkaError) -> None:
        """The client's error callback."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._all_down_s = time.monotonic()
        else:
            self._last = time.monotonic(), error

    def refusal(self, settings: Settings) -> Refused | None:
        """Where trying again cannot help, on any broker."""
        error = self._error()
        if error is None or not self._reaches_none():
            return None
        if error.code() in LOGIN:
            return login_refused(error, settings)
        if UNTRUSTED not in error.str():
            return None
        found = next((told for place in _places(settings) if (told := _distrust(*place, settings))), "")
        return _tls(
            f"the certificate of the broker is not trusted{f': {found}' if found else ''}",
            "Let `ssl.ca.location` name the authority that signed it, and `bootstrap` a name that stands in it.",
            settings.scrubbed(error.str()),
        )

    def is_unexplained(self) -> bool:
        """Whether brokers close connections without a word that explains it."""
        error = self._error()
        return self._reaches_none() and (error is None or HANDSHAKE in error.str())

    def words(self, settings: Settings) -> str:
        """To be added to what else is said."""
        error = self._error()
        return "" if error is None else f"; the client says: {settings.scrubbed(error.str())}"

    def _reaches_none(self) -> bool:
        """The client says so once, and not again before it reached one in between."""
        return time.monotonic() - self._all_down_s < FRESH_S

    def _error(self) -> KafkaError | None:
        if self._last is None or time.monotonic() - self._last[0] > FRESH_S:
            return None
        return self._last[1]


def login_refused(error: KafkaError, settings: Settings) -> Refused:
    return Refused(
        "log-login-refused",
        f"Kafka does not let {settings.user} in",
        "Check `sasl.username`, `sasl.password` and `sasl.mechanisms` of the log; the broker is there, and answers.",
        settings.scrubbed(error.str()),
    )


def other_protocol(settings: Settings) -> Refused | None:
    """Where a broker takes connections, and speaks another protocol than the one that it is spoken to in."""
    protocol = settings.protocol
    for host, port in _places(settings):
        if protocol.endswith("PLAINTEXT") and _speaks_tls(host, port):
            return _tls(
                f"the broker at {host}:{port} speaks TLS, and `security.protocol` is {protocol}",
                "Set `security.protocol` to SSL, or to SASL_SSL where it wants a password too.",
            )
        with suppress(OSError):
            if protocol.endswith("SSL"):
                socket.create_connection((host, port), PROBE_S).close()  # it is open
                if not _speaks_tls(host, port):
                    return _tls(
                        f"the broker at {host}:{port} does not speak TLS, and `security.protocol` is {protocol}",
                        "Name the port of its TLS listener in `bootstrap`, or another `security.protocol`.",
                    )
    return None


def _tls(what: str, hint: str, detail: str = "") -> Refused:
    return Refused("log-tls-failed", what, hint, detail)


def _places(settings: Settings) -> list[tuple[str, int]]:
    found = []
    for address in settings.given["bootstrap.servers"].split(","):
        host, _, port = address.strip().rpartition("://")[2].rpartition(":")
        if host and port.isdigit():
            found.append((host.strip("[]"), int(port)))
    return found


def _speaks_tls(host: str, port: int) -> bool:
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    return _handshake(host, port, trusting) is None


def _distrust(host: str, port: int, settings: Settings) -> str:
    """What is wrong with a broker's certificate, which the client does not say."""
    try:
        careful = ssl.create_default_context(cafile=settings.given.get("ssl.ca.location"))
        pem = settings.given.get("ssl.ca.pem", "")
        if PEM in pem:
            careful.load_verify_locations(cadata=pem)
    except OSError:
        return ""
    failed = _handshake(host, port, careful)
    return failed.verify_message if isinstance(failed, ssl.SSLCertVerificationError) else ""


def _handshake(host: str, port: int, context: ssl.SSLContext) -> OSError | None:
    try:
        with socket.create_connection((host, port), PROBE_S) as wire, context.wrap_socket(wire, server_hostname=host):
            return None
    except OSError as error:
        return error
