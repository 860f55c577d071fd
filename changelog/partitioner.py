"""Which partition a key belongs to: murmur2, as Kafka's default partitioner has it, for one key and for many."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import is_not
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from samovar.changelog.log import Int64s
from samovar.native.kernel import TEXT, UNDECIDED, Batch, Messages, Other, values_of

_SEED = 0x9747B28C
_MIX = 0x5BD1E995
_BITS = 0xFFFFFFFF
_SIGN = 0x80000000
_POSITIVE = 0x7FFFFFFF
# Longer keys are hashed one by one: in columns, a few of them would make a long loop over short arrays.
_COLUMN_BYTES = 128
_ROWS_AT_ONCE = 65_536  # what a processor's cache holds

_Words: TypeAlias = NDArray[np.uint32]


def murmur2(key: bytes) -> int:
    """The signed 32-bit hash that Kafka's clients use.

    >>> murmur2(b"foobar")
    -790332482
    """
    size = len(key)
    code = (_SEED ^ size) & _BITS
    whole = size & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * _MIX & _BITS
        word = (word ^ word >> 24) * _MIX & _BITS
        code = code * _MIX & _BITS ^ word
    if whole < size:
        code = (code ^ int.from_bytes(key[whole:], "little")) * _MIX & _BITS
    code = (code ^ code >> 13) * _MIX & _BITS
    code ^= code >> 15
    return code - (code & _SIGN) * 2


def partition_of(key: bytes, partitions: int) -> int:
    return (murmur2(key) & _POSITIVE) % partitions


def partitions_of(keys: Sequence[bytes | None], partitions: int) -> Int64s:
    """The partition of each key. Rows without a key take turns."""
    given = [key for key in keys if key is not None]
    places = partitions_of_sized(given, np.fromiter(map(len, given), np.int64, len(given)), partitions)
    if len(given) == len(keys):
        return places
    everywhere = np.arange(len(keys), dtype=np.int64) % partitions
    everywhere[np.fromiter(map(is_not, keys, repeat(None)), np.bool_, len(keys))] = places
    return everywhere


def partitions_of_sized(keys: Sequence[bytes], sizes: Int64s, partitions: int) -> Int64s:
    """The partition of each key, for who has their sizes at hand."""
    ends = np.cumsum(sizes)
    buffer = b"".join((*keys, b"\0\0\0\0"))  # so that a word can be read at the very end
    words: _Words = np.ndarray((len(buffer) - 3,), "<u4", buffer, strides=(1,))
    codes = np.empty(len(keys), np.uint32)
    for at in range(0, len(keys), _ROWS_AT_ONCE):
        rows = slice(at, at + _ROWS_AT_ONCE)
        codes[rows] = _column_codes(words, ends[rows] - sizes[rows], sizes[rows])
    for row in np.flatnonzero(sizes > _COLUMN_BYTES).tolist():
        codes[row] = murmur2(keys[row]) & _BITS
    return (codes & np.uint32(_POSITIVE)).astype(np.int64) % partitions


def _column_codes(words: _Words, starts: Int64s, sizes: Int64s) -> _Words:
    """The hashes of keys of up to _COLUMN_BYTES, a word of all keys at a time. Longer ones come out wrong."""
    codes = (sizes & _BITS).astype(np.uint32) ^ np.uint32(_SEED)
    whole = np.minimum(sizes, _COLUMN_BYTES) >> 2
    least, most = int(whole.min(initial=_COLUMN_BYTES)), int(whole.max(initial=0))
    for word in range(most):
        rows = slice(None) if word < least else np.flatnonzero(whole > word)
        mixed = words[starts[rows] + 4 * word] * np.uint32(_MIX)
        codes[rows] = codes[rows] * np.uint32(_MIX) ^ (mixed ^ mixed >> np.uint32(24)) * np.uint32(_MIX)
    left = sizes & 3
    rows = np.flatnonzero(left)
    bits = (np.int64(1) << 8 * left[rows]) - 1
    tails = words[starts[rows] + 4 * whole[rows]] & bits.astype(np.uint32)
    codes[rows] = (codes[rows] ^ tails) * np.uint32(_MIX)
    codes = (codes ^ codes >> np.uint32(13)) * np.uint32(_MIX)
    return codes ^ codes >> np.uint32(15)


def key_texts(batch: Batch, column: int, messages: Messages) -> list[bytes | None]:
    """The text of each row's value in a column of events that were decoded from these messages. Null has none."""
    values = batch.column(column)
    # Nearly always all are texts without escapes, which the kernel leaves where they lie in the messages.
    starts = values["bits"] - messages.data.ctypes.data
    ends = starts + values["size"]
    if ((values["tag"] == TEXT) & (starts >= 0) & (ends <= messages.data.size)).all():
        first, last = (int(starts.min()), int(ends.max())) if len(starts) else (0, 0)
        data = messages.data[first:last].tobytes()
        places = zip((starts - first).tolist(), (ends - first).tolist(), strict=True)
        return [data[start:end] for start, end in places]
    return [key_text(value) for value in batch.values(column)]


def key_text(value: Any) -> bytes | None:
    """The bytes of a key. 7 and 7.0 are one, for rules hold them equal.

    >>> [key_text(value) for value in ("c1", 7, 7.0, 0.5, True, None)]
    [b'c1', b'7', b'7', b'0.5', b'true', None]
    """
    if value is None:
        return None
    if isinstance(value, Other):
        return value.json.encode()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).lower().encode() if isinstance(value, bool) else str(value).encode()


def misplaced_rows(batch: Batch, column: int, partitions: int, partition: int) -> Int64s:
    """Rows whose value in a column belongs to another of so many partitions than to this one. Null belongs to any."""
    verdicts = batch.misplaced(column, partitions, partition)
    if verdicts is None:
        return np.empty(0, np.int64)
    undecided = np.flatnonzero(verdicts == UNDECIDED)
    for row, value in zip(undecided.tolist(), values_of(batch.column(column)[undecided]), strict=True):
        verdicts[row] = partition_of(key_text(value) or b"", partitions) != partition
    return np.flatnonzero(verdicts)
