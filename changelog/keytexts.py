"""The text of a value as a record's key: equal values are equal bytes, so that they go to one partition."""

from __future__ import annotations

from typing import Any

import numpy as np

from samovar.changelog.log import Int64s
from samovar.changelog.partition import partition_of
from samovar.patterns.native import TEXT, UNDECIDED, Batch, Messages, Other, values_of


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
