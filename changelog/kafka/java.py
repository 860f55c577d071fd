"""A service's settings for Kafka as Java's client has them, for Spark's own connector.

Ours are librdkafka's names. Most mean the same in Java under the same or another name; files of certificates become
texts, so that they reach executors that do not have the files; names and passwords become one JAAS line. What only
tunes librdkafka is left out, and told. Anything else is refused: a connection that is less safe than the service's, or
one that fails for a reason nobody sees, is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from samovar.common.errors import Refused

# As they are, or under another name.
CARRIED: Mapping[str, str] = {
    **{
        name: name
        for name in """bootstrap.servers client.id client.rack client.dns.lookup metadata.max.age.ms check.crcs
        reconnect.backoff.ms reconnect.backoff.max.ms retry.backoff.ms retry.backoff.max.ms connections.max.idle.ms
        socket.connection.setup.timeout.ms fetch.min.bytes fetch.max.bytes max.partition.fetch.bytes ssl.key.password
        ssl.keystore.location ssl.keystore.password""".split()
    },
    "metadata.broker.list": "bootstrap.servers",
    "socket.timeout.ms": "request.timeout.ms",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
}
# They say how librdkafka uses its memory, its threads and its log, or are for those who write.
TUNING = (
    "queued.", "socket.nagle.", "socket.keepalive.", "socket.max.fails", "socket.blocking.", "statistics.", "log",
    "debug", "broker.", "topic.metadata.", "topic.blacklist", "api.version.", "internal.", "enable.metrics.push",
    "enable.sparse.connections", "fetch.error.backoff.", "fetch.queue.backoff.", "receive.message.max.bytes",
    "message.", "max.in.flight", "queue.buffering.", "compression.", "linger.ms", "batch.", "sticky.", "request.",
    "delivery.", "transaction.timeout.ms", "session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms",
    "coordinator.query.", "auto.commit.interval.ms", "retries", "allow.auto.create.topics", "metadata.recovery.",
)  # fmt: skip
LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
MIB = 1 << 20
# The connector asks for the bounds of a partition after every poll, so that a poll should bring much.
FETCHING = {
    "max.poll.records": "50000",
    "max.partition.fetch.bytes": str(16 * MIB),
    "fetch.max.bytes": str(64 * MIB),
    "receive.buffer.bytes": str(MIB),
}


@dataclass(frozen=True, repr=False)
class JavaSettings:
    """What Java's consumer is told, and which settings it is not. Not to be shown: there are secrets in it."""

    settings: Mapping[str, str]
    left_out: tuple[str, ...]


def java_settings(given: Mapping[str, str]) -> JavaSettings:
    """The same connection for a consumer of Java's."""
    found, left_out = dict(FETCHING), []
    secured = _secured(given)
    for name, value in given.items():
        if name in SECURING:
            continue
        if name in CARRIED:
            found[CARRIED[name]] = value
        elif name.startswith(TUNING):
            left_out.append(name)
        else:
            raise _unfit(f"the Kafka setting `{name}` is librdkafka's own, and Java's client has none like it")
    return JavaSettings(found | secured | {"isolation.level": "read_committed"}, tuple(sorted(left_out)))


def _unfit(what: str, hint: str = "") -> Refused:
    end = "Remove it, or do the same without Spark: `--engine local`."
    return Refused("spark-kafka-setting", f"{what}: Spark reads Kafka by its own connector", hint or end)


SECURING = frozenset(
    """security.protocol sasl.mechanism sasl.mechanisms sasl.username sasl.password ssl.ca.location ssl.ca.pem
    ssl.certificate.location ssl.certificate.pem ssl.key.location ssl.key.pem ssl.endpoint.identification.algorithm
    enable.ssl.certificate.verification""".split()
)


def _secured(given: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    if "security.protocol" in given:
        found["security.protocol"] = given["security.protocol"].upper()
    if given.get("enable.ssl.certificate.verification", "true").lower() != "true":
        raise _unfit("`enable.ssl.certificate.verification: false` is nothing that Java's client has")
    if "ssl.endpoint.identification.algorithm" in given:
        wanted = given["ssl.endpoint.identification.algorithm"]
        found["ssl.endpoint.identification.algorithm"] = "" if wanted.lower() == "none" else wanted
    if "ssl.keystore.location" in given:
        found["ssl.keystore.type"] = "PKCS12"  # the only kind that librdkafka reads
    if found.get("security.protocol", "").startswith("SASL"):
        mechanism = (given.get("sasl.mechanism") or given.get("sasl.mechanisms") or "GSSAPI").upper()
        if mechanism not in LOGIN:
            raise _unfit(f"the SASL mechanism {mechanism} is not carried over; {', '.join(LOGIN)} are")
        name, password = (quoted(given.get(f"sasl.{part}", "")) for part in ("username", "password"))
        line = f"{LOGIN[mechanism]} required username={name} password={password};"
        found |= {"sasl.mechanism": mechanism, "sasl.jaas.config": line}
    trusted, chain, key = (_pem(given, name) for name in ("ssl.ca", "ssl.certificate", "ssl.key"))
    if trusted is not None:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": trusted}
    if chain is not None and key is not None:
        if "PRIVATE KEY-----" in key and "BEGIN PRIVATE KEY" not in key and "BEGIN ENCRYPTED PRIVATE KEY" not in key:
            raise _unfit(
                "the private key of `ssl.key` is not in PKCS#8, the only form that Java's client reads",
                "`openssl pkcs8 -topk8 -in KEY -out NEW` makes one that both clients read.",
            )
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}
    return found


def quoted(text: str) -> str:
    r"""As a JAAS line has it.

    >>> quoted('a"b\\c')
    '"a\\"b\\\\c"'
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def _pem(given: Mapping[str, str], name: str) -> str | None:
    """The text itself: executors elsewhere may not have the file."""
    if f"{name}.pem" in given:
        return given[f"{name}.pem"]
    if f"{name}.location" not in given:
        return None
    path = Path(given[f"{name}.location"])
    try:
        return path.read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        hint = f"Let `{name}.location` name a file in PEM form that can be read here."
        raise _unfit(f"`{name}.location` is {path}: {reason}", hint) from None
