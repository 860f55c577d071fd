"""Schemas from a registry, over HTTP: asked for once, unknown ones told apart from trouble."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from samovar.changelog.broker.process import free_port
from samovar.changelog.schema_registry import ASK_AGAIN_S, Registry, RegistryUnavailable
from samovar.common.errors import LogUnavailable, Refused
from tests.support.schema_registry import USER, TestRegistry, running

CARD = {"type": "record", "name": "Card", "fields": [{"name": "number", "type": "string"}]}
QUICK = {"max.retries": 1, "retries.wait.ms": 1, "retries.max.wait.ms": 1, "timeout": 2}


@pytest.fixture
def server() -> Iterator[TestRegistry]:
    with running(TestRegistry()) as registry:
        yield registry


class Clock:
    """A clock that one sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def client(server: TestRegistry, clock: Clock | None = None, user: str | None = None) -> Registry:
    more = {} if user is None else {"basic.auth.user.info": user}
    return Registry({"url": server.url, **QUICK, **more}, clock or Clock())


def test_a_schema_is_asked_for_once(server: TestRegistry) -> None:
    number = server.add(CARD)
    registry = client(server)
    found = [registry.find(number) for _ in range(3)]
    assert found[0] is not None
    assert found[0].name == "Card"
    assert found[0] is found[2]
    assert server.asked == [f"GET /schemas/ids/{number}"]


def test_an_unknown_schema_is_none_and_asked_for_again_after_a_while(server: TestRegistry) -> None:
    clock = Clock()
    registry = client(server, clock)
    assert [registry.find(7) for _ in range(3)] == [None] * 3
    assert len(server.asked) == 1
    assert registry.missing(7) == f"the registry at {server.url} has no schema 7"
    server.add(CARD, number=7)
    clock.now_s += ASK_AGAIN_S
    assert registry.find(7) is not None


def test_types_of_other_subjects_are_fetched_with_a_schema(server: TestRegistry) -> None:
    server.add(CARD, "card")
    text = '{"type": "record", "name": "Purchase", "fields": [{"name": "card", "type": "Card"}]}'
    number = server.add(text, references=[{"name": "Card", "subject": "card", "version": 1}])
    schema = client(server).find(number)
    assert schema is not None
    assert set(schema.names) == {"Card", "Purchase"}
    assert schema.name == "Purchase"


def test_a_reference_to_nothing_is_a_schema_of_no_use(server: TestRegistry) -> None:
    number = server.add(CARD, references=[{"name": "Gone", "subject": "gone", "version": 3}])
    registry = client(server)
    assert registry.find(number) is None
    assert "refers to version 3 of gone, which is not there" in registry.missing(number)


@pytest.mark.parametrize(
    ("schema", "more", "reason"),
    [
        ("message Card {}", {"schemaType": "PROTOBUF"}, "schema 1 of the registry is PROTOBUF, not Avro"),
        ('{"type": "record"}', {}, "schema 1 of the registry cannot be used: `name` is missing"),
        ("{", {}, "cannot be used: not JSON"),
    ],
)
def test_what_is_no_avro_schema_is_unknown_for_good(
    server: TestRegistry, schema: str, more: dict[str, Any], reason: str
) -> None:
    clock = Clock()
    number, registry = server.add(schema, **more), client(server, clock)
    assert registry.find(number) is None
    assert reason in registry.missing(number)
    clock.now_s += 10 * ASK_AGAIN_S
    assert registry.find(number) is None
    assert len(server.asked) == 1


def test_the_password_goes_with_every_question(server: TestRegistry) -> None:
    server.password = USER
    number = server.add(CARD)
    assert client(server, user=USER).find(number) is not None
    with pytest.raises(Refused) as refused:
        client(server, user="reader:wrong").find(number)
    assert refused.value.code == "registry-refused"
    assert "401" in refused.value.what
    assert "wrong" not in str(refused.value)


@pytest.mark.parametrize("status", [500, 503, 429])
def test_trouble_is_no_answer_and_is_tried_again(server: TestRegistry, status: int) -> None:
    number, registry = server.add(CARD), client(server)
    server.trouble = status
    with pytest.raises(RegistryUnavailable, match=f"{server.url} does not answer, asked for schema {number}"):
        registry.find(number)
    assert len(server.asked) == 1 + QUICK["max.retries"]
    server.trouble = None
    assert registry.find(number) is not None  # nothing was remembered of it


def test_no_registry_at_all_is_trouble_as_of_a_log() -> None:
    registry = Registry({"url": f"http://127.0.0.1:{free_port('127.0.0.1')}", **QUICK})
    with pytest.raises(LogUnavailable, match="does not answer, asked for schema 1: ConnectError"):
        registry.find(1)


def test_another_server_in_its_place_is_no_unknown_schema(server: TestRegistry) -> None:
    """Its 404 is not the registry's word on a schema: good messages must not become dead letters by a wrong address."""
    registry = Registry({"url": server.url + "/elsewhere", **QUICK})
    with pytest.raises(Refused) as refused:
        registry.find(server.add(CARD))
    assert refused.value.code == "registry-refused"


def test_settings_that_the_client_refuses_are_told() -> None:
    with pytest.raises(Refused) as refused:
        Registry({"url": "http://localhost", "ssl.key.location": "key.pem"}).find(1)
    assert refused.value.code == "registry-settings"


def test_a_writer_registers_its_schema_or_takes_the_latest(server: TestRegistry) -> None:
    registry = client(server)
    with pytest.raises(Refused) as refused:
        registry.number_for("tx-value", None)
    assert refused.value.code == "no-schema-to-write"
    schema = registry.find(server.add(CARD, "other"))
    number, _ = registry.number_for("tx-value", schema)
    assert registry.number_for("tx-value", schema) == (number, schema)
    latest, found = registry.number_for("tx-value", None)
    assert (latest, found.name) == (number, "Card")
