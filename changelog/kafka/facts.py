"""What a Kafka cluster tells of itself to one who only looks: brokers, version, and what this user may do."""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from io import SEEK_CUR, BytesIO
from typing import Any

from confluent_kafka import KafkaException, TopicCollection, libversion
from confluent_kafka import admin as admin_module

from samovar.changelog.kafka.errors import DENIED, Causes, error_of, failure_of, unreached
from samovar.changelog.kafka.settings import Settings

ANSWER_S = 10.0
GROUP_S = 4.0
API_VERSIONS, FINALIZED = 18, 2  # a request, and a tagged field of its answer
METADATA = "metadata.version"
# The first level of `metadata.version` of each release; a cluster is never older than its level.
RELEASES = {1: "3.0", 2: "3.1", 3: "3.2", 4: "3.3", 8: "3.4", 9: "3.5", 12: "3.6", 15: "3.7", 20: "3.8", 21: "3.9"}
RELEASES |= {22: "4.0", 26: "4.1", 28: "4.2"}

admin: Any = admin_module  # most of its names are not exported as far as types go


@dataclass(frozen=True, kw_only=True)
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
    """Asks. Raises LogUnavailable where nobody answers, Refused where the credentials are not taken."""
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
    authorizer = None
    if brokers:
        resource = admin.ConfigResource(admin.ResourceType.BROKER, str(cluster.nodes[0].id))
        with suppress(KafkaException):
            (future,) = client.describe_configs([resource]).values()
            entry = future.result(ANSWER_S).get("authorizer.class.name")
            authorizer = None if entry is None else str(entry.value or "")
    operations = {}
    asked = client.describe_topics(TopicCollection(list(topics)), include_authorized_operations=True)
    for name, future in asked.items():
        try:
            operations[name] = names_of(future.result(ANSWER_S).authorized_operations)
        except KafkaException as error:
            if error_of(error).code() in DENIED:
                operations[name] = frozenset()
    asked = client.describe_consumer_groups([group], include_authorized_operations=True, request_timeout=GROUP_S)
    on_group: frozenset[str] | None = None
    try:
        on_group = names_of(asked[group].result(GROUP_S).authorized_operations)
    except KafkaException as error:
        on_group = frozenset() if error_of(error).code() in DENIED else None
    except TimeoutError:
        pass  # no coordinator answered
    version = version_of(brokers[0], settings) if brokers else None
    on_cluster = names_of(cluster.authorized_operations)
    return Facts(
        cluster=str(cluster.cluster_id),
        brokers=brokers,
        version=version,
        authorizer=authorizer,
        topics=operations,
        group=on_group,
        on_cluster=on_cluster,
    )


def names_of(operations: Any) -> frozenset[str]:
    return frozenset(each.name for each in operations or ())


def version_of(broker: str, settings: Settings) -> str | None:
    """Brokers tell no version, but the level of their metadata. The client does not ask for it; it is one request."""
    if settings.given.get("security.protocol", "plaintext").lower() != "plaintext":
        return None
    host, _, port = broker.rpartition(":")
    name = b"samovar"
    compact = bytes([len(name) + 1]) + name
    request = struct.pack(">hhih", API_VERSIONS, 3, 1, len(name)) + name + b"\0" + compact + compact + b"\0"
    try:
        with socket.create_connection((host, int(port)), ANSWER_S) as wire, wire.makefile("rb") as answer:
            wire.sendall(struct.pack(">i", len(request)) + request)
            (size,) = struct.unpack(">i", answer.read(4))
            level = metadata_level(answer.read(size))
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


def metadata_level(answer: bytes) -> int | None:
    """The finalized level of `metadata.version` in an answer of ApiVersions, version 3."""
    data = BytesIO(answer)

    def varint() -> int:
        value = shift = 0
        while True:
            byte = data.read(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def pass_tags() -> None:
        for _ in range(varint()):
            varint()
            data.seek(varint(), SEEK_CUR)

    data.seek(6)  # past the correlation id and the error
    for _ in range(varint() - 1):
        data.seek(6, SEEK_CUR)
        pass_tags()
    data.seek(4, SEEK_CUR)
    for _ in range(varint()):
        tag, size = varint(), varint()
        if tag != FINALIZED:
            data.seek(size, SEEK_CUR)
            continue
        for _ in range(varint() - 1):
            name = data.read(varint() - 1).decode()
            (level,) = struct.unpack(">h", data.read(2))
            if name == METADATA:
                return int(level)
            data.seek(2, SEEK_CUR)
            pass_tags()
        return None
    return None
