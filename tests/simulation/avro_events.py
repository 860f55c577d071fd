"""Events in Avro, as a producer with a schema registry writes them; and the registry, in memory."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.error import SchemaRegistryError

URL = "http://registry"
FRAME = 5  # a byte 0, and the schema's number in four
_ANY = ["null", "long", "double", "boolean", "string"]
_FIELDS = [{"name": name, "type": _ANY, "default": None} for name in ("u", "v", "n", "f")]
_HEAD = [{"name": "type", "type": "string"}, {"name": "ts", "type": "long"}]
# The second one has its fields in another order, and one more that no rule reads.
SCHEMAS: dict[int, dict[str, Any]] = {
    1: {"type": "record", "name": "Event", "fields": [*_HEAD, *_FIELDS]},
    2: {"type": "record", "name": "Event", "fields": [*_FIELDS[::-1], {"name": "more", "type": "bytes"}, *_HEAD]},
}
_PARSED = {number: fastavro.parse_schema(schema) for number, schema in SCHEMAS.items()}
_BRANCH = {type(None): "null", int: "long", float: "double", bool: "boolean", str: "string"}


def encoded(event: dict[str, Any], number: int) -> bytes:
    """A message with its frame; what an event lacks is null."""
    fields = {name: (_BRANCH[type(event.get(name))], event.get(name)) for name in ("u", "v", "n", "f")}
    out = io.BytesIO()
    fastavro.schemaless_writer(
        out, _PARSED[number], {"type": event["type"], "ts": event["ts"], "more": b"\0{", **fields}
    )
    return b"\0" + number.to_bytes(4, "big") + out.getvalue()


def schema_of(value: bytes | None) -> int | None:
    """The number in a message's frame."""
    is_framed = value is not None and len(value) >= FRAME and value[0] == 0
    return int.from_bytes(value[1:FRAME], "big") if value is not None and is_framed else None


def decoded(value: bytes | None) -> dict[str, Any] | None:
    """The event of a message; None where it is none."""
    number = schema_of(value)
    if value is None or number not in _PARSED:
        return None
    found = fastavro.schemaless_reader(io.BytesIO(value[FRAME:]), _PARSED[number], None)
    assert isinstance(found, dict)
    return {name: each for name, each in found.items() if name != "more"}


class MemoryRegistry:
    """The source of truth for which schemas are registered, in the place of the client that asks over HTTP."""

    def __init__(self, is_reached: Callable[[], bool]) -> None:
        self.known: set[int] = {1}
        self._is_reached = is_reached

    def get_schema(self, number: int) -> Schema:
        if not self._is_reached():
            raise SchemaRegistryError(503, 50301, "no answer")
        if number not in self.known:
            raise SchemaRegistryError(404, 40403, "Schema not found")
        return Schema(json.dumps(SCHEMAS[number]), "AVRO")
