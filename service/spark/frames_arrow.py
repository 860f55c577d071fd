"""Arrow columns of what services hold: times, texts, and the records' own places."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from samovar.changelog.batches import objects
from samovar.changelog.log import Int64s, Records

TIME = pa.timestamp("us", "UTC")
TEXT, LONG, INT, DOUBLE, FLAG, BYTES = pa.string(), pa.int64(), pa.int32(), pa.float64(), pa.bool_(), pa.binary()
LAST_MS = 253_402_300_799_999  # the end of the year 9999: later stands for never
PLACE = [pa.field("_partition", INT), pa.field("_offset", LONG), pa.field("_time", TIME), pa.field("_key", TEXT)]


def times_of(ms: Int64s) -> pa.Array:
    """Times that are all there."""
    return pa.array(np.asarray(ms, np.int64) * 1000, LONG).cast(TIME)


def times(values: Sequence[int | None]) -> pa.Array:
    return pa.array([time_us(value) for value in values], LONG).cast(TIME)


def time_us(value: int | None) -> int | None:
    """Microseconds of a time in ms; None where it is no time that a calendar has."""
    return None if value is None or abs(value) > LAST_MS else value * 1000


def text_of(data: bytes | None) -> str | None:
    """As people read it. What is no text is shown with its bytes replaced."""
    return None if data is None else data.decode("utf-8", "replace")


def json_of(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


def keys_of(records: Records) -> list[bytes | None]:
    """The keys one by one, None for the missing."""
    missing = np.fromiter((records.key(int(row)) is None for row in np.flatnonzero(_empty(records))), np.bool_)
    keyless = np.zeros(len(records), np.bool_)
    keyless[np.flatnonzero(_empty(records))] = missing
    return objects(records.keys, keyless)


def _empty(records: Records) -> Any:
    return records.keys.starts == records.keys.ends


def places(records: Records, keys: Sequence[bytes | None]) -> list[pa.Array]:
    """The columns of PLACE."""
    return [
        pa.array(np.full(len(records), records.partition, np.int32)),
        pa.array(np.asarray(records.offsets)),
        times_of(records.times),
        pa.array([text_of(key) for key in keys], TEXT),
    ]
