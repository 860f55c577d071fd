"""How each stream of a service is read, and how those who produce events write it: as JSON or in Avro."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from samovar.changelog.log import Pair
from samovar.changelog.partitioner import key_texts
from samovar.changelog.schema_registry import Registry
from samovar.native.kernel import Int64s, Messages
from samovar.patterns.engine.avro.codec import Avro, SchemaFiles
from samovar.patterns.engine.avro.write import AvroValueError, Encoder
from samovar.patterns.engine.decode import Bad
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


class StreamTarget:
    """How lines become records of one stream."""

    def __init__(self, name: str, stream: Stream) -> None:
        self.topic = stream.topic
        self._decoder = Decoder([stream.key], stream.time, stream.type, name)
        self._encoder = encoder_of(stream)

    def records(
        self, block: bytes, messages: Messages, rows: Int64s, bad: dict[int, Bad]
    ) -> Iterator[tuple[int, Pair]]:
        """The records, each with the row of its line. What is not one is added to the bad ones."""
        own = Messages(messages.data, messages.starts[rows], messages.ends[rows])
        batch = self._decoder.batch()
        verdicts = self._decoder.decode(batch, own)
        for at in np.flatnonzero(verdicts["code"]).tolist():
            if own[at].strip():
                bad[int(rows[at])] = self._decoder.bad(verdicts[at], own[at])
        good = np.flatnonzero(verdicts["code"] == 0)
        values = slices(block, own.starts[good], own.ends[good])
        for row, key, value in zip(rows[good].tolist(), key_texts(batch, 0, own), values, strict=True):
            if self._encoder is not None:
                try:
                    value = self._encoder.encode(value)
                except AvroValueError as error:
                    bad[row] = Bad("NOT_AVRO", str(error), None)
                    continue
            yield row, (key, value)
