"""Kafka's error codes, as the few kinds that a user of a Log tells apart."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Collection, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka import admin as admin_module

from samovar.changelog.kafka.settings import Settings
from samovar.common.errors import Fenced, LogUnavailable, Refused


def _codes(names: str) -> frozenset[int]:
    return frozenset(getattr(KafkaError, name) for name in names.split())


# Another member or producer took over, or the group went on without this one.
FENCING = _codes(
    """_FENCED _MAX_POLL_EXCEEDED FENCED_INSTANCE_ID ILLEGAL_GENERATION INVALID_PRODUCER_EPOCH PRODUCER_FENCED
    REBALANCE_IN_PROGRESS UNKNOWN_MEMBER_ID"""
)
# What a right is missing on.
DENIED: Mapping[int, str] = {
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "cluster",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "group",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional-id",
}
MISSING = _codes("UNKNOWN_TOPIC_OR_PART _UNKNOWN_TOPIC _UNKNOWN_PARTITION")
TOO_LARGE = _codes("MSG_SIZE_TOO_LARGE RECORD_LIST_TOO_LARGE")
# The client knows a leader that is none any more.
STALE = _codes("FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH NOT_LEADER_FOR_PARTITION")
# Gone in a moment: a coordinator that moves or loads, a leader that is elected, a transaction that is being ended.
PASSING = STALE | _codes(
    """_WAIT_COORD CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE LEADER_NOT_AVAILABLE
    NOT_COORDINATOR OFFSET_NOT_AVAILABLE REQUEST_TIMED_OUT UNSTABLE_OFFSET_COMMIT"""
)
UNREACHED = _codes("_ALL_BROKERS_DOWN _TIMED_OUT _TRANSPORT _RESOLVE")  # no broker could be asked
ASK_S = 5.0
FRESH_S = 30.0  # what was said longer ago explains nothing any more
PROBE_S = 1.0
LOGIN = _codes("_AUTHENTICATION SASL_AUTHENTICATION_FAILED")
UNTRUSTED, HANDSHAKE = "certificate verify failed", "SSL handshake failed"
PEM = "-----BEGIN"

Failure = Fenced | LogUnavailable | Refused
# By what it is needed on: the right, and the names of those of which one may lack it.
Needed: TypeAlias = Mapping[str, tuple[str, Collection[str]]]
NOTHING: Needed = {}

admin: Any = admin_module  # most of its names are not exported as far as types go


def error_of(raised: KafkaException) -> KafkaError:
    told = raised.args[0]
    return told if isinstance(told, KafkaError) else KafkaError(KafkaError._FAIL, str(told))


def failure_of(
    error: KafkaError, doing: str, settings: Settings, needed: Needed = NOTHING, causes: Causes | None = None
) -> Failure:
    """What to raise, by what was tried (`doing`), the rights it needs, and what the client said of its connections."""
    code, text = error.code(), f"{doing}: {settings.scrubbed(error.str())} ({error.name()})"
    if code in FENCING:
        return Fenced(text)
    if code in DENIED:
        kind = DENIED[code]
        right, names = needed.get(kind, ("", ()))
        if kind == "topic" and len(names) > 1:
            names = without(right, names, settings) or names
        what = f"{right} on {kind} {', '.join(sorted(names))}" if names else f"a right on a {kind}"
        hint = (
            "Grant it: `samovar topics plan` lists the rights of each role, with `--commands` as Kafka's own commands."
        )
        return Refused("log-access-denied", f"Kafka denies {settings.user} {what}", hint, text)
    if code in LOGIN:
        return login_refused(error, settings)
    if code in MISSING:
        hint = "Create it, or correct its name; `samovar topics plan` lists all topics."
        return Refused("topic-missing", "Kafka does not know the topic or partition", hint, text)
    if code in TOO_LARGE:
        hint = "Raise max.message.bytes of the topic, and message.max.bytes in the settings of the log."
        return Refused("record-too-large", "a record is larger than Kafka allows", hint, text)
    if code in UNREACHED and causes is not None:
        return unreached(text, settings, causes)
    return LogUnavailable(text)


def unreached(text: str, settings: Settings, causes: Causes) -> Refused | LogUnavailable:
    """A password or a certificate that is not accepted is no broker that is away."""
    refusal = causes.refusal(settings) or (other_protocol(settings) if causes.is_unexplained() else None)
    return refusal or LogUnavailable(text + causes.words(settings))


def without(right: str, topics: Collection[str], settings: Settings) -> list[str]:
    """Which of these topics this user lacks a right on. Kafka says of a transaction only that there is one."""
    client = admin.AdminClient(settings.admin(lambda _error: None))
    asked = client.describe_topics(TopicCollection(list(topics)), include_authorized_operations=True)
    found = []
    for name, future in asked.items():
        try:
            allowed = {each.name for each in future.result(ASK_S).authorized_operations or ()}
        except (KafkaException, FutureTimeout):  # not even to be looked at
            allowed = set()
        if right not in allowed:
            found.append(name)
    return found


# ---------------------------------------------------------------- why a client reaches no broker


class Causes:
    """The source of truth for what one client last said of its connections.

    librdkafka answers a question that it could not ask with a time-out. What was wrong (a password, a certificate,
    another protocol) it says only to its error callback. Where even that says nothing, the broker's port is tried: a
    broker that wants TLS closes the connection of a client without it, and says no word.
    """

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
