"""Avro in the service file: the three ways, errors at their line, secrets hidden, and what rules may read."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from samovar.common.errors import Refused
from samovar.patterns.engine.avro.codec import AvroDecoder, SchemaFiles
from samovar.patterns.engine.decoder import Decoder
from samovar.service.config.loading import BadServiceFile, ServiceFile, load_service
from samovar.service.topology.encoding import avro_of, decoding_of
from samovar.service.topology.ruleset import rules_of

PURCHASE = {
    "type": "record",
    "name": "Purchase",
    "fields": [
        {"name": "card", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["sale", "refund"]}},
        {"name": "ts", "type": "long"},
    ],
}
OTHER = {"type": "record", "name": "Other", "fields": [{"name": "card", "type": "string"}]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rules").mkdir()
    (tmp_path / "purchase.avsc").write_text(json.dumps(PURCHASE))
    (tmp_path / "other.avsc").write_text(json.dumps(OTHER))
    (tmp_path / "text.avsc").write_text('"string"')
    (tmp_path / "bad.avsc").write_text('{"type": "record",\n "name": }')
    return tmp_path


def load(folder: Path, stream: str, environment: dict[str, str] | None = None) -> ServiceFile:
    path = folder / "service.yml"
    path.write_text(f"service: a\nstreams:\n  purchase: {{key: card, {stream}}}\n")
    return load_service(path, environment or {})


def test_plain_avro_with_a_schema_from_a_file(folder: Path) -> None:
    stream = load(folder, "format: avro, schema: purchase.avsc").streams["purchase"]
    assert stream.fields == {"card": "string", "amount": "double", "kind": "string", "ts": "long"}
    assert avro_of(stream).writers is None
    assert isinstance(decoding_of(stream)(["card"], "ts", None, "purchase"), AvroDecoder)


def test_a_schema_may_stand_in_the_service_file(folder: Path) -> None:
    inside = load(folder, f"format: avro, schema: {json.dumps(PURCHASE)}").streams["purchase"]
    beside = load(folder, "format: avro, schema: purchase.avsc").streams["purchase"]
    assert inside.avro == beside.avro


def test_framed_avro_with_schemas_from_files_or_a_registry(folder: Path) -> None:
    stream = load(folder, "format: avro, schemas: {1: purchase.avsc, 20: other.avsc}").streams["purchase"]
    writers = avro_of(stream).writers
    assert isinstance(writers, SchemaFiles)
    assert {number: schema.name for number, schema in writers.schemas.items()} == {1: "Purchase", 20: "Other"}
    assert stream.fields is None
    stream = load(folder, 'format: avro, registry: "http://registry:8081"').streams["purchase"]
    assert stream.registry is not None
    assert stream.registry.settings() == {"url": "http://registry:8081"}


def test_a_stream_in_json_is_as_it_was(folder: Path) -> None:
    stream = load(folder, "schema: {card: string}").streams["purchase"]
    assert (stream.format, stream.avro, stream.fields) == ("json", None, {"card": "string"})
    assert decoding_of(stream) is Decoder


def test_the_types_of_events_are_the_symbols_of_their_field(folder: Path) -> None:
    stream = load(folder, "format: avro, schema: purchase.avsc, type: kind").streams["purchase"]
    assert stream.fields is not None
    assert set(stream.fields) == {"sale", "refund"}


def test_rules_are_checked_against_the_schema(folder: Path) -> None:
    settings = load(folder, "format: avro, schema: purchase.avsc")
    rule = folder / "rules" / "a.yml"
    rule.write_text("rule: a\nmatch: |\n  sequence by card with maxspan=1m [purchase where amont > 1]")
    with pytest.raises(Refused, match="no field `amont`"):
        rules_of(settings)
    rule.write_text('rule: a\nmatch: |\n  sequence by card with maxspan=1m [purchase where amount > "1"]')
    with pytest.raises(Refused, match="number"):
        rules_of(settings)


def test_the_settings_go_to_another_process(folder: Path) -> None:
    settings = load(folder, "format: avro, schema: purchase.avsc, schemas: {1: purchase.avsc}")
    copy = pickle.loads(pickle.dumps(settings))
    stream = copy.streams["purchase"]
    assert stream == settings.streams["purchase"]
    assert avro_of(stream).decoder(["card"], "ts", None, "purchase").json(b"\0\0\0\0\1\2c" + b"\0" * 8 + b"\0\2") == (
        '{"card":"c","amount":0.0,"kind":"sale","ts":1}'
    )


@pytest.mark.parametrize(
    ("stream", "column", "message"),
    [
        ("format: avro", 33, "Avro is not read without a schema"),
        ("format: avro, schema: none.avsc", 47, "cannot read"),
        ("format: avro, schema: bad.avsc", 47, "bad.avsc: no Avro schema: not JSON: Expecting value, line 2"),
        ("format: avro, schema: text.avsc", 47, "an event is a record, and this is the schema of `string`"),
        ("format: avro, schema: {type: rekord}", 47, "no Avro schema: there is no type `rekord`"),
        ("format: avro, schema: other.avsc", 25, "`Other` has no field `ts`"),
        ("format: avro, schema: purchase.avsc, time: at", 68, "`Purchase` has no field `at`"),
        ("format: avro, schema: purchase.avsc, type: sort", 68, "`Purchase` has no field `sort`"),
        ("format: avro, schemas: [a.avsc]", 48, "a list is not a map"),
        ("format: avro, schemas: {one: purchase.avsc}", 48, "`one` cannot be a schema's id"),
        ("format: avro, schemas: {1: none.avsc}", 48, "cannot read"),
        ("format: avro, schema: purchase.avsc, schemas: {1: other.avsc}", 75, "cannot be read as `schema`"),
        ("format: avro, schemas: {1: purchase.avsc}, registry: http://a", 48, "from files or from a registry"),
        ("registry: http://a", 35, "`registry` is of Avro, and the format is json"),
        ("format: avro, registry: a:8081", 49, "this is not an address of a registry"),
        ("format: avro, registry: {url: http://a, sssl.ca.location: b}", 49, "has no setting `sssl.ca.location`"),
        ("format: avro, registry: {url: http://a, timeout: soon}", 49, "`timeout` is `soon`"),
    ],
)
def test_errors_show_their_place(folder: Path, stream: str, column: int, message: str) -> None:
    with pytest.raises(BadServiceFile) as bad:
        load(folder, stream)
    found = [finding for finding in bad.value.findings if message in finding.message]
    assert found, bad.value
    assert found[0].span.line == 3
    if "has no field `ts`" not in message:
        assert found[0].span.column == column


@pytest.mark.parametrize(
    "registry",
    [
        "{url: http://a, basic.auth.user.info: me:geheim}",
        "{url: http://a, bearer.auth.token: geheim}",
        "{url: http://a, basic.auth.user.info: '${USER_INFO}'}",
        "{url: http://a, ssl.key.password: geheim}",
    ],
)
def test_secrets_are_shown_nowhere(folder: Path, registry: str) -> None:
    settings = load(folder, f"format: avro, registry: {registry}", {"USER_INFO": "me:geheim"})
    found: Any = settings.streams["purchase"].registry
    assert "geheim" in "".join(map(str, found.settings().values()))
    assert "geheim" not in repr(settings) + str(settings) + str(settings.model_dump())
    with pytest.raises(BadServiceFile) as bad:
        load(folder, f"kye: k, format: avro, registry: {registry}", {"USER_INFO": "me:geheim"})
    assert "geheim" not in str(bad.value)


def test_an_address_with_a_password_is_refused_without_showing_it(folder: Path) -> None:
    with pytest.raises(BadServiceFile) as bad:
        load(folder, 'format: avro, registry: "http://me:geheim@registry:8081"')
    assert "write it as `basic.auth.user.info: ${NAME}`" in str(bad.value)
    assert "geheim" not in str(bad.value)
