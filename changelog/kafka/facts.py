"""What a Kafka cluster tells of itself to one who only looks: brokers, version, and what this user may do."""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaException, TopicCollection, libversion
from confluent_kafka import admin as admin_module

from samovar.changelog.kafka.causes import Causes
from samovar.changelog.kafka.errors import DENIED, error_of, failure_of, unreached
from samovar.changelog.kafka.settings import Settings

ANSWER_S = 10.0
GROUP_S = 4.0
API_VERSIONS, FINALIZED = 18, 2  # a request, and a tagged field of its answer
METADATA = "metadata.version"
# The first level of `metadata.version` of each release; a cluster is never older than its level.
RELEASES = {1: "3.0", 2: "3.1", 3: "3.2", 4: "3.3", 8: "3.4", 9: "3.5", 12: "3.6", 15: "3.7", 20: "3.8", 21: "3.9"}
RELEASES |= {22: "4.0", 26: "4.1", 28: "4.2"}

admin: Any = admin_module  # most of its names are not exported as far as types go


@dataclass(frozen=True)
class Facts:
    """`version` and `authorizer` are None where the cluster does not say. Operations are of those that exist."""

    cluster: str
    brokers: tuple[str, ...]
    version: str | None
    authorizer: str | None  # its class; empty: there is none, and everybody may do all
    topics: Mapping[str, frozenset[str]] = field(default_factory=dict)
    group: frozenset[str] | None = None  # None: no coordinator answered, as where no group ever was
    on_cluster: frozenset[str] = frozenset()


def client_version() -> str:
    return str(libversion()[0])


def facts_of(given: Mapping[str, str], topics: Collection[str], group: str) -> Facts:
    """Ask. Raises LogUnavailable where nobody answers, Refused where the credentials are not taken."""
    settings, causes = Settings(dict(given)), Causes()
    client = admin.AdminClient(settings.admin(causes.note))
    try:
        cluster = client.describe_cluster(include_authorized_operations=True, request_timeout=ANSWER_S).result(ANSWER_S)
    except KafkaException as error:
        client.poll(0)
        raise failure_of(error_of(error), "asking the cluster", settings, causes=causes) from None
    except TimeoutError:
        client.poll(0)
        raise unreached(f"no broker answered within {ANSWER_S:.0f} s", settings, causes) from None
    brokers = tuple(f"{node.host}:{node.port}" for node in cluster.nodes)
    return Facts(
        str(cluster.cluster_id),
        brokers,
        version_of(brokers[0], settings) if brokers else None,
        _authorizer(client, cluster.nodes[0].id) if brokers else None,
        _topics(client, topics),
        _group(client, group),
        names_of(cluster.authorized_operations),
    )


def names_of(operations: Any) -> frozenset[str]:
    return frozenset(each.name for each in operations or ())


def _topics(client: Any, names: Collection[str]) -> dict[str, frozenset[str]]:
    found = {}
    asked = client.describe_topics(TopicCollection(list(names)), include_authorized_operations=True)
    for name, future in asked.items():
        try:
            found[name] = names_of(future.result(ANSWER_S).authorized_operations)
        except KafkaException as error:
            if error_of(error).code() in DENIED:
                found[name] = frozenset()
    return found


def _group(client: Any, group: str) -> frozenset[str] | None:
    asked = client.describe_consumer_groups([group], include_authorized_operations=True, request_timeout=GROUP_S)
    try:
        return names_of(asked[group].result(GROUP_S).authorized_operations)
    except KafkaException as error:
        return frozenset() if error_of(error).code() in DENIED else None
    except TimeoutError:
        return None


def _authorizer(client: Any, broker: int) -> str | None:
    resource = admin.ConfigResource(admin.ResourceType.BROKER, str(broker))
    with suppress(KafkaException):
        (future,) = client.describe_configs([resource]).values()
        entry = future.result(ANSWER_S).get("authorizer.class.name")
        return None if entry is None else str(entry.value or "")
    return None


# ---------------------------------------------------------------- version


def version_of(broker: str, settings: Settings) -> str | None:
    """Brokers tell no version, but the level of their metadata. The client does not ask for it; it is one request."""
    if settings.given.get("security.protocol", "plaintext").lower() != "plaintext":
        return None
    host, _, port = broker.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), ANSWER_S) as wire:
            wire.sendall(_request())
            (size,) = struct.unpack(">i", _exactly(wire, 4))
            level = metadata_level(_exactly(wire, size))
    except (OSError, struct.error, IndexError):
        return None
    return None if level is None else release_of(level)


def release_of(level: int) -> str:
    """The release that brought a level.

    >>> release_of(27), release_of(5)
    ('4.1 (metadata level 27)', '3.3 (metadata level 5)')
    """
    known = max((each for each in RELEASES if each <= level), default=1)
    later = " or later" if known == max(RELEASES) else ""
    return f"{RELEASES[known]}{later} (metadata level {level})"


def _request() -> bytes:
    name = b"samovar"
    compact = bytes([len(name) + 1]) + name
    body = struct.pack(">hhih", API_VERSIONS, 3, 1, len(name)) + name + b"\0" + compact + compact + b"\0"
    return struct.pack(">i", len(body)) + body


def _exactly(wire: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = wire.recv(size - len(data))
        if not part:
            raise OSError("the broker closed the connection")
        data += part
    return data


def metadata_level(answer: bytes) -> int | None:
    """The finalized level of `metadata.version` in an answer of ApiVersions, version 3."""
    at = 6  # past the correlation id and the error
    count, at = _varint(answer, at)
    for _ in range(count - 1):
        at = _past_tags(answer, at + 6)
    fields, at = _varint(answer, at + 4)
    for _ in range(fields):
        tag, at = _varint(answer, at)
        size, at = _varint(answer, at)
        if tag == FINALIZED:
            return _finalized(answer, at)
        at += size
    return None


def _finalized(answer: bytes, at: int) -> int | None:
    count, at = _varint(answer, at)
    for _ in range(count - 1):
        size, at = _varint(answer, at)
        name, at = answer[at : at + size - 1].decode(), at + size - 1
        (level,) = struct.unpack_from(">h", answer, at)
        if name == METADATA:
            return int(level)
        at = _past_tags(answer, at + 4)
    return None


def _past_tags(data: bytes, at: int) -> int:
    count, at = _varint(data, at)
    for _ in range(count):
        _, at = _varint(data, at)
        size, at = _varint(data, at)
        at += size
    return at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
