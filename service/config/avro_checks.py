"""That what a stream says about Avro fits together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from samovar.common.suggest import did_you_mean
from samovar.native.opcodes import AVRO_OPS
from samovar.patterns.engine.avro.program import resolved
from samovar.patterns.engine.avro.schema import AvroSchema, MapType, RecordType, Union, kinds
from samovar.patterns.semantics.schema import Schema as Fields
from samovar.service.config.models import Stream


class AvroFault(NamedTuple):
    """`place` leads to the setting; of a stream's, from the stream on."""

    place: tuple[str, ...]
    message: str
    expected: str | None = None
    hint: str | None = None


def avro_faults(stream: Stream) -> Iterator[AvroFault]:
    if stream.format != "avro":
        for name in ("registry", "schemas"):
            if getattr(stream, name) is not None:
                yield AvroFault((name,), f"`{name}` is of Avro, and the format is {stream.format}", "format: avro")
        return
    if stream.registry is not None and stream.schemas is not None:
        yield AvroFault(("schemas",), "schemas come from files or from a registry", hint="remove one of the two")
    if stream.avro is None and stream.registry is None and stream.schemas is None:
        yield AvroFault(
            ("format",),
            "Avro is not read without a schema",
            "schema: purchase.avsc; or registry: URL or schemas: {1: purchase.avsc}, where messages name theirs",
        )
    for number, schema in (stream.schemas or {}).items():
        yield from _event_faults(("schemas", str(number)), schema)
        yield from _unreadable(number, schema, stream.avro)
    if stream.avro is not None:
        yield from _event_faults(("schema",), stream.avro)
        yield from _missing_fields(stream, stream.avro)


def _event_faults(place: tuple[str, ...], schema: AvroSchema) -> Iterator[AvroFault]:
    if not isinstance(schema.of(schema.root), RecordType | MapType | Union):
        yield AvroFault(place, f"an event is a record, and this is the schema of `{schema.name}`")


def _unreadable(number: int, writer: AvroSchema, reader: AvroSchema | None) -> Iterator[AvroFault]:
    program = resolved(writer, reader)
    if program.words[program.words[0]] == AVRO_OPS["mismatch"]:
        yield AvroFault(("schemas", str(number)), f"it cannot be read as `schema`: {program.faults[-1]}")


def _missing_fields(stream: Stream, schema: AvroSchema) -> Iterator[AvroFault]:
    """Unlike one of JSON, an Avro schema names all fields: what is not in it never comes."""
    found = kinds(schema)
    known = None if found is None else Fields.of({"event": found})
    for role, name in (("time", stream.time), ("type", stream.type)):
        if known is not None and name is not None and known.kind(name, ("event",)) is None:
            names = known.fields(("event",))
            message = f"`{schema.name}` has no field `{name}`"
            yield AvroFault((role,), message, ", ".join(names), did_you_mean(name, names))
