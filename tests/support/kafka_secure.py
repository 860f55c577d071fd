"""A Kafka broker as a bank has it: TLS, passwords (SASL/SCRAM) and an authorizer that allows nothing by itself.

Its second listener has no password and may do all: it is the administrator's, and the broker's own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import admin as admin_module

from samovar.changelog.broker import node
from samovar.changelog.broker.jars import find_java, kafka_jars
from samovar.changelog.broker.process import wait_for
from samovar.common.errors import Refused
from samovar.service.topology.acls import AclEntry
from tests.support.kafka import HINT, SOON, low_port

ANSWER_S = 30.0
MECHANISM = "SCRAM-SHA-512"
STORE_PASSWORD = "changeit"
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
# The authorizer then says what it allows, too: so it can be seen which rights are used.
TOLD_ALL = ("-Dorg.slf4j.simpleLogger.log.kafka.authorizer.logger=debug",)
DECISION = re.compile(
    r"Principal = User:(?P<who>\S+) is (?P<verdict>Allowed|Denied) operation = (?P<operation>\w+) from host = \S+ "
    r"on resource = (?P<kind>\w+):LITERAL:(?P<name>\S+) for request"
)
KINDS = {"Topic": "topic", "Group": "group", "TransactionalId": "transactional-id", "Cluster": "cluster"}

admin: Any = admin_module  # most of its names are not exported as far as types go


@dataclass(frozen=True)
class Decision:
    """What the authorizer was asked, and whether it allowed it."""

    who: str
    allowed: bool
    operation: str
    resource: str
    name: str


@dataclass(frozen=True)
class SecureKafka:
    """The broker, its users and their rights."""

    folder: Path
    address: str  # with TLS and a password
    admins: str  # with neither
    authority: Path  # whom clients must trust

    def client(self, user: str, password: str | None = None) -> dict[str, str]:
        """What a service file says under `kafka` to be this user."""
        return {
            "bootstrap": self.address,
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": MECHANISM,
            "sasl.username": user,
            "sasl.password": password or password_of(user),
            "ssl.ca.location": str(self.authority),
        }

    def add_users(self, users: Sequence[str]) -> None:
        scram = admin.ScramCredentialInfo(admin.ScramMechanism.SCRAM_SHA_512, 4096)
        wanted = [admin.UserScramCredentialUpsertion(user, scram, password_of(user).encode()) for user in users]
        client = self._admin()
        for future in client.alter_user_scram_credentials(wanted).values():
            future.result(ANSWER_S)

    def grant(self, user: str, rights: Sequence[AclEntry]) -> None:
        client = self._admin()  # which ends with its last reference, and its answers with it
        _each(client.create_acls, [acl for right in rights for acl in acls_of(user, right)])

    def revoke(self, user: str, rights: Sequence[AclEntry]) -> None:
        client = self._admin()
        _each(client.delete_acls, [acl for right in rights for acl in acls_of(user, right, admin.AclBindingFilter)])

    def said(self) -> int:
        """How far the authorizer's words go, to read on from here later."""
        return (self.folder / "broker.log").stat().st_size

    def decisions(self, since: int = 0) -> set[Decision]:
        with (self.folder / "broker.log").open("rb") as file:
            file.seek(since)
            text = file.read().decode(errors="replace")
        return {
            Decision(
                found["who"],
                found["verdict"] == "Allowed",
                re.sub(r"(?<=[a-z])(?=[A-Z])", "_", found["operation"]).upper(),
                KINDS.get(found["kind"], found["kind"]),
                found["name"],
            )
            for found in DECISION.finditer(text)
        }

    def _admin(self) -> Any:
        return admin.AdminClient({"bootstrap.servers": self.admins, "log_level": 0})


def _each(how: Any, acls: Sequence[Any]) -> None:
    if acls:
        for future in how(acls).values():
            future.result(ANSWER_S)


def password_of(user: str) -> str:
    return f"secret-of-{user}"


def acls_of(user: str, right: AclEntry, kind: Any = None) -> list[Any]:
    """A right as Kafka keeps it: one entry per operation."""
    resource = {
        "topic": admin.ResourceType.TOPIC,
        "group": admin.ResourceType.GROUP,
        "transactional-id": admin.ResourceType.TRANSACTIONAL_ID,
        "cluster": admin.ResourceType.BROKER,  # how the client calls it
    }[right.resource]
    pattern = getattr(admin.ResourcePatternType, right.pattern.upper())
    allow = admin.AclPermissionType.ALLOW
    return [
        (kind or admin.AclBinding)(
            resource, right.name, pattern, f"User:{user}", "*", getattr(admin.AclOperation, operation), allow
        )
        for operation in right.operations
    ]


@contextmanager
def secure_kafka(folder: Path) -> Iterator[SecureKafka]:
    port, secured, controller = (low_port(node.HOST) for _ in range(3))
    folder.mkdir(parents=True, exist_ok=True)
    store, authority = certificates(folder)
    java = find_java()
    extra = settings_of(port, secured, controller, store)
    try:
        jars = kafka_jars(java, lambda _text: None)
        process = node.launch(folder, port, java, jars, extra, java_options=TOLD_ALL)
        node.wait_until_answers(folder, process)
    except Refused as refused:
        pytest.fail(f"{refused}\n{HINT}", pytrace=False)
    try:
        yield SecureKafka(folder, f"{node.HOST}:{secured}", f"{node.HOST}:{port}", authority)
    finally:
        node.stop(folder)


def settings_of(port: int, secured: int, controller: int, store: Path) -> Mapping[str, str]:
    own = f"PLAINTEXT://{node.HOST}:{port},SASL_SSL://{node.HOST}:{secured}"
    return {
        **SOON,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
        "listeners": f"{own},CONTROLLER://{node.HOST}:{controller}",
        "advertised.listeners": own,
        "controller.quorum.voters": f"1@{node.HOST}:{controller}",
        "sasl.enabled.mechanisms": MECHANISM,
        f"listener.name.sasl_ssl.{MECHANISM.lower()}.sasl.jaas.config": f"{MODULE} required;",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(store),
        "ssl.keystore.password": STORE_PASSWORD,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "false",
        "super.users": "User:ANONYMOUS",
    }


def certificates(folder: Path) -> tuple[Path, Path]:
    """The broker's key with a certificate for 127.0.0.1 alone, and that certificate for those who trust it."""
    store, authority = folder / "broker.p12", folder / "authority.pem"
    tool = shutil.which("keytool", path=str(Path(find_java().path).parent)) or shutil.which("keytool")
    assert tool is not None, "a Java without keytool"
    common = ["-alias", "broker", "-keystore", str(store), "-storetype", "PKCS12", "-storepass", STORE_PASSWORD]
    made = ["-keyalg", "EC", "-dname", "CN=samovar tests", "-ext", f"san=ip:{node.HOST}", "-validity", "3650"]
    for command in (["-genkeypair", *made, *common], ["-exportcert", "-rfc", "-file", str(authority), *common]):
        subprocess.run([tool, *command], check=True, capture_output=True, env={**os.environ, "LC_ALL": "C"})
    return store, authority


def until_known(kafka: SecureKafka, since: int, decision: Decision) -> bool:
    """Whether the authorizer has been asked this; it writes it down a moment later."""
    return wait_for(lambda: decision in kafka.decisions(since), ANSWER_S)
