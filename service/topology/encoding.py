"""The streams of a service that are in Avro: how each is read, and how `samovar produce` writes it."""

from __future__ import annotations

from samovar.changelog.schema_registry import Registry
from samovar.native.kernel import Int64s
from samovar.patterns.engine.avro.codec import Avro, SchemaFiles
from samovar.patterns.engine.avro.write import Encoder
from samovar.patterns.engine.decoder import Decoder
from samovar.service.config.models import Stream
from samovar.tasks.model.plan import Decoding


def decoding_of(stream: Stream) -> Decoding:
    """What makes decoders for a stream's values. Those of one stream share what they learn of its schemas."""
    return Decoder if stream.format == "json" else avro_of(stream).decoder


def avro_of(stream: Stream) -> Avro:
    if stream.registry is not None:
        return Avro(stream.avro, Registry(stream.registry.settings()))
    return Avro(stream.avro, None if stream.schemas is None else SchemaFiles(stream.schemas))


def encoder_of(stream: Stream) -> Encoder | None:
    """What writes a stream's values; None where they are the lines themselves.

    In Avro: by the stream's schema, framed with its number in the registry (where a new one is put) or the highest
    listed; without either they are not framed.
    """
    if stream.format == "json":
        return None
    if stream.registry is not None:
        number, schema = Registry(stream.registry.settings()).number_for(f"{stream.topic}-value", stream.avro)
        return Encoder(schema, number)
    if stream.schemas is not None:
        number = max(stream.schemas)
        return Encoder(stream.schemas[number], number)
    assert stream.avro is not None  # the service file was checked
    return Encoder(stream.avro, None)


def slices(data: bytes, starts: Int64s, ends: Int64s) -> list[bytes]:
    return [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
