"""The kernel == fastavro: on values of random schemas, read as later versions of them, and on mutated bytes.

What hypothesis shows on a failure is the seed: `Making(seed)` draws the same again.
"""

from __future__ import annotations

import json
from contextlib import suppress
from random import Random
from struct import error as StructError  # noqa: N812 # an exception, and named as one

from hypothesis import given
from hypothesis import strategies as st

from samovar.patterns.engine.avro.codec import REASONS, framed
from samovar.patterns.engine.decode import Bad
from tests.support.avro_making import Making, by_fastavro, by_kernel, decoder_of, encoded, mutated, told, wanted

SEEDS = st.integers(0, 2**32)
ENDS_EARLY, LEFT_OVER = REASONS[1], REASONS[2]
# fastavro takes these: lengths and numbers of any size, a branch or a symbol counted from the end, any boolean, any
# size of a block. All are wrong by Avro's specification.
STRICTER = REASONS[3:10]


@given(SEEDS)
def test_a_value_is_what_fastavro_reads(seed: int) -> None:
    making = Making(seed)
    schema = making.schema()
    data = encoded(schema, making.value(schema))
    value, _ = by_fastavro(data, schema)
    decoder = decoder_of(schema)
    text = decoder.json(data)
    assert isinstance(text, str)
    assert told(json.loads(text)) == told(value)
    assert told(by_kernel(decoder, data)) == told(wanted(value))
    assert by_kernel(decoder, data, copied=True) == by_kernel(decoder, data)


@given(SEEDS)
def test_a_value_of_an_older_schema_is_what_fastavro_resolves(seed: int) -> None:
    making = Making(seed, logical=False)
    writer = making.schema()
    data = encoded(writer, making.value(writer))
    reader = making.evolved(writer)
    found = by_kernel(decoder_of(writer, reader), framed(1, data))
    try:
        value, _ = by_fastavro(data, writer, reader)
    except Exception:
        assert isinstance(found, Bad)
        assert found.code in ("SCHEMA_MISMATCH", "NOT_UTF8")  # bytes that are read as text must be text
        return
    assert told(found) == told(wanted(value)), (writer, reader)


@given(SEEDS)
def test_of_mutated_bytes_both_say_the_same(seed: int) -> None:
    making = Making(seed, logical=False)
    schema = making.schema()
    data = mutated(Random(seed), encoded(schema, making.value(schema)))
    found = by_kernel(decoder_of(schema), data)
    if not isinstance(found, Bad):
        value, size = by_fastavro(data, schema)
        assert size == len(data)
        assert told(found) == told(wanted(value))
    elif ENDS_EARLY in found.reason:
        with suppress(EOFError, IndexError, ValueError, StructError):
            _, size = by_fastavro(data, schema)
            assert size == len(data)  # it takes fewer bytes than there should be, where they are the last
    elif LEFT_OVER in found.reason:
        _, size = by_fastavro(data, schema)
        assert size < len(data)
    elif found.code == "NOT_AVRO":
        assert any(reason in found.reason for reason in STRICTER)
    else:
        assert found.code in ("EMPTY", "NOT_UTF8", "TIME_OUT_OF_RANGE")


@given(st.binary(max_size=40), SEEDS)
def test_noise_gets_a_verdict(data: bytes, seed: int) -> None:
    schema = Making(seed).schema()
    for message in (data, framed(1, data)):
        found = by_kernel(decoder_of(schema, schema), message)
        assert isinstance(found, dict | Bad)
