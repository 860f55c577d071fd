"""Which rows of many records are wanted: those of a key, and those at certain offsets. No Python object per record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from samovar.changelog.log import Records, TopicPartition
from samovar.native.kernel import Messages

_Key = TypeVar("_Key")
NEAR = 300  # offsets that are no further apart than this are read in one go


def rows_of(records: Records, text: bytes, *, by_value: bool) -> list[int]:
    """Rows that may be of a key: it is the record's key or, if `by_value`, its bytes are somewhere in the value."""
    found = set(equal(records.keys, text).tolist())
    if by_value:
        found.update(containing(records.values, text).tolist())
    return sorted(found)


def rows_at(records: Records, offsets: Sequence[int]) -> list[int]:
    """Rows of these offsets, as far as they are among the records."""
    rows = np.searchsorted(records.offsets, offsets)
    inside = [(row, offset) for row, offset in zip(rows.tolist(), offsets, strict=True) if row < len(records)]
    return [row for row, offset in inside if records.offsets[row] == offset]


def equal(messages: Messages, text: bytes) -> NDArray[np.int64]:
    """Messages that are this text.

    >>> from samovar.native.kernel import joined
    >>> equal(joined([b"a1", b"", b"a2", b"a1", b"a12"]), b"a1").tolist()
    [0, 3]
    """
    rows = np.flatnonzero(messages.ends - messages.starts == len(text))
    for place, byte in enumerate(text):
        if not len(rows):
            break
        rows = rows[messages.data[messages.starts[rows] + place] == byte]
    return rows


def containing(messages: Messages, text: bytes) -> NDArray[np.int64]:
    """Messages that have this text somewhere, found in all of the data at once; not across the end of one.

    >>> from samovar.native.kernel import joined
    >>> containing(joined([b"xa1", b"a", b"1", b"", b"a1a1"]), b"a1").tolist()
    [0, 4]
    """
    if not text:
        return np.arange(len(messages))
    data, at, places = messages.data.tobytes(), -1, []
    while (at := data.find(text, at + 1)) >= 0:
        places.append(at)
    rows = np.searchsorted(messages.starts, np.array(places, np.int64), side="right") - 1
    inside = [row >= 0 and place + len(text) <= messages.ends[row] for row, place in zip(rows, places, strict=True)]
    return np.unique(rows[np.array(inside, bool)])


def parts_of(wanted: Mapping[_Key, Sequence[int]], most: int) -> list[dict[_Key, Sequence[int]]]:
    """Offsets shared out among at most so many, neighbours together; at least one part.

    >>> parts_of({"a": [1, 2, 900, 5_000, 5_001, 9_000]}, 3)
    [{'a': [1, 2, 900]}, {'a': [5000, 5001, 9000]}]
    """
    parts: list[dict[_Key, Sequence[int]]] = [{} for _ in range(most)]
    for at, offsets in wanted.items():
        ranges = clusters(offsets)
        each = max(-(-len(ranges) // most), 1)
        for number in range(0, len(ranges), each):
            low, high = ranges[number][0], ranges[min(number + each, len(ranges)) - 1][1]
            parts[number // each][at] = [offset for offset in offsets if low <= offset < high]
    return [part for part in parts if part] or [{}]


def rounds(wanted: Mapping[TopicPartition, Sequence[int]]) -> Iterator[dict[TopicPartition, tuple[int, int]]]:
    """Ranges that hold these offsets, of each partition one a round."""
    left = {at: clusters(offsets) for at, offsets in wanted.items()}
    while left:
        yield {at: ranges[0] for at, ranges in left.items()}
        left = {at: ranges[1:] for at, ranges in left.items() if len(ranges) > 1}


def clusters(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """
    >>> clusters([3, 5, 9_000])
    [(3, 6), (9000, 9001)]
    """
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and offset - found[-1][1] <= NEAR:
            found[-1] = found[-1][0], offset + 1
        else:
            found.append((offset, offset + 1))
    return found
