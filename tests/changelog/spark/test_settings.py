"""A service's settings for Kafka as Java's client takes them: by Java's own parser, where it is one of its formats."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from samovar.changelog.kafka.java import java_settings
from samovar.changelog.spark.session import OpenSession
from samovar.common.errors import Refused

BROKER = {"bootstrap.servers": "b:9092"}
CANARY = 'p"a\\ss;= w\u00f6rd\n\t'
SASL = {"security.protocol": "sasl_ssl", "sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "me"}


def test_what_means_the_same_is_carried_over_and_tuning_is_told() -> None:
    given = {"client.id": "c", "fetch.message.max.bytes": "7", "socket.timeout.ms": "9000", "queued.min.messages": "5"}
    made = java_settings(BROKER | given | {"linger.ms": "3"})
    found = made.settings
    assert (found["bootstrap.servers"], found["client.id"], found["isolation.level"]) == (
        "b:9092",
        "c",
        "read_committed",
    )
    assert (found["max.partition.fetch.bytes"], found["request.timeout.ms"]) == ("7", "9000")
    assert made.left_out == ("linger.ms", "queued.min.messages")
    assert not any(name.startswith(("queued", "linger", "sasl", "ssl")) for name in found)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sasl.oauthbearer.config": "x"}, "`sasl.oauthbearer.config`"),
        ({"ssl.cipher.suites": "x"}, "`ssl.cipher.suites`"),
        ({"enable.ssl.certificate.verification": "false"}, "enable.ssl.certificate.verification"),
        ({"security.protocol": "SASL_SSL"}, "GSSAPI"),
        ({"ssl.ca.location": "/nowhere.pem"}, "/nowhere.pem: No such file"),
        ({"ssl.certificate.pem": "c", "ssl.key.pem": "-----BEGIN RSA PRIVATE KEY-----"}, "PKCS#8"),
    ],
)
def test_what_java_cannot_do_is_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(Refused) as refused:
        java_settings(BROKER | given)
    assert refused.value.code == "spark-kafka-setting"
    assert words in refused.value.what


def test_java_reads_a_password_as_it_is(spark: OpenSession) -> None:
    """The line that Java's parser makes of it, whatever the password has in it."""
    found = java_settings(BROKER | SASL | {"sasl.password": CANARY}).settings
    assert (found["security.protocol"], found["sasl.mechanism"]) == ("SASL_SSL", "SCRAM-SHA-512")
    entry = jaas(spark, found["sasl.jaas.config"])
    assert "ScramLoginModule" in entry.getLoginModuleName()
    assert dict(entry.getOptions()) == {"username": "me", "password": CANARY}


def jaas(spark: OpenSession, line: str) -> Any:
    jvm: Any = spark.spark._jvm
    value = jvm.org.apache.kafka.common.config.types.Password(line)
    types = jvm.java.util.HashMap()
    types.put("sasl.jaas.config", value)
    context = jvm.org.apache.kafka.common.security.JaasContext.loadClientContext(types)
    return context.configurationEntries()[0]


def test_java_takes_certificates_as_text(spark: OpenSession, tmp_path: Path) -> None:
    """By the part of Java's client that reads them; on an executor elsewhere, where the files are not."""
    key, certificate = made(tmp_path)
    files = {"ssl.ca.location": certificate, "ssl.certificate.location": certificate, "ssl.key.location": key}
    given = {"security.protocol": "ssl", "ssl.endpoint.identification.algorithm": "none"}
    found = java_settings(BROKER | given | {name: str(path) for name, path in files.items()}).settings
    assert found["ssl.endpoint.identification.algorithm"] == ""
    key.unlink()
    certificate.unlink()
    jvm: Any = spark.spark._jvm
    told = jvm.java.util.HashMap()
    for name, value in {**found, "key.deserializer": DESERIALIZER, "value.deserializer": DESERIALIZER}.items():
        told.put(name, value)
    factory = jvm.org.apache.kafka.common.security.ssl.DefaultSslEngineFactory()
    factory.configure(jvm.org.apache.kafka.clients.consumer.ConsumerConfig(told).values())
    assert (factory.truststore().size(), factory.keystore().size()) == (1, 1)


DESERIALIZER = "org.apache.kafka.common.serialization.ByteArrayDeserializer"


def made(folder: Path) -> tuple[Path, Path]:
    """A key, and a certificate that it signed itself."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    begin = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for file, data in (("key.pem", text), ("certificate.pem", signed.public_bytes(Encoding.PEM))):
        (folder / file).write_bytes(data)
    return folder / "key.pem", folder / "certificate.pem"
