"""Of many changelog records, the newest value of each key, in order of keys: what a restore writes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_void_p, string_at
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np

from samovar.changelog.batches import messages_at, objects
from samovar.changelog.formats.record import deadline_rows
from samovar.changelog.log import Records
from samovar.native.kernel import Handle, KernelCount, array_at, kernel, typed
from samovar.state.store import Change

SIGNATURES: Mapping[str, tuple[Any, Sequence[Any]]] = {
    "samovar_newest_new": (Handle, []),
    "samovar_newest_free": (None, [c_void_p]),
    "samovar_newest_size": (c_size_t, [c_void_p]),
    "samovar_newest_add": (KernelCount, [c_void_p, c_size_t, *[c_void_p] * 7]),
    "samovar_newest_sort": (KernelCount, [c_void_p]),
    "samovar_newest_first": (None, [c_void_p, c_void_p, c_void_p]),
    "samovar_newest_pack": (KernelCount, [c_void_p, c_void_p]),
    # newest, path; key, size, value, size; deletes, index
    "samovar_newest_write": (c_int64, [c_void_p, c_char_p, c_char_p, c_size_t, c_char_p, c_size_t, c_int, c_int]),
}


@cache
def _library() -> Any:
    return typed(kernel(), SIGNATURES)


class LatestByKey:
    """Filled once, and then read once."""

    def __init__(self) -> None:
        self.handle: int = _library().samovar_newest_new()
        finalize(self, _library().samovar_newest_free, self.handle)
        self._held: list[Any] = []  # bytes that the kernel points into
        self.bytes = 0

    def __len__(self) -> int:
        return int(_library().samovar_newest_size(self.handle))

    def add(self, records: Records, count: int) -> None:
        """Take the first `count` of the records; all have keys."""
        keys, values = records.keys, records.values
        self.bytes += int(keys.ends[count - 1] - keys.starts[0] + values.ends[count - 1] - values.starts[0])
        columns = (keys.data, keys.starts, keys.ends, values.data, values.starts, values.ends, records.null)
        places = [np.ascontiguousarray(column) for column in columns]
        self._held += (places[0], places[3])
        _library().samovar_newest_add(self.handle, count, *(place.ctypes.data for place in places))

    def sort(self) -> None:
        """Put all in order of keys. Nothing can be added any more."""
        _library().samovar_newest_sort(self.handle)

    def first(self) -> Change | None:
        """The one with the smallest key, once sorted."""
        if len(self) == 0:
            return None
        places, sizes = (c_void_p * 2)(), (c_int64 * 2)()
        _library().samovar_newest_first(self.handle, places, sizes)
        key, value = (string_at(place or 0, max(size, 0)) for place, size in zip(places, sizes, strict=True))
        return key, None if sizes[1] < 0 else value

    def changes(self) -> list[Change]:
        """All of them, in order of keys, once sorted."""
        size, out = len(self), (c_void_p * 5)()
        _library().samovar_newest_pack(self.handle, out)
        keys, key_bounds, values, value_bounds, null = out
        names = objects(messages_at(key_bounds, keys, size, self), np.zeros(size, np.bool_))
        found = objects(messages_at(value_bounds, values, size, self), array_at(null, size, np.dtype(np.bool_), self))
        return list(zip(names, found, strict=True))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class NewestTable:
    """Newest rows after one of the reader's own, as a file that a store takes. Its key is before all of theirs."""

    first: tuple[bytes, bytes]
    rows: LatestByKey
    keep_tombstones: bool  # whether there may be rows in the store that these delete
    index: bool = False  # whether the index of deadlines comes with them

    def changes(self) -> list[Change]:
        rows = [change for change in self.rows.changes() if self.keep_tombstones or change[1] is not None]
        return [self.first, *sorted({*rows, *(deadline_rows(rows) if self.index else ())})]

    def write(self, file: Path) -> int:
        (key, value), handle = self.first, self.rows.handle
        written: int = _library().samovar_newest_write(
            handle, os.fsencode(file), key, len(key), value, len(value), self.keep_tombstones, self.index
        )
        if written < 0:
            raise OSError(-written, os.strerror(-written), str(file))
        return written
