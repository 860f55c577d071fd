"""Of many changelog records, the newest value of each key, in order of keys: what a restore writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import c_size_t, c_void_p
from functools import cache
from typing import Any
from weakref import finalize

import numpy as np

from samovar.changelog.log import Records
from samovar.changelog.packed import objects
from samovar.patterns.native import Messages, array_at, kernel, typed
from samovar.state.store import Change

INT64, BYTE, BOOL = np.dtype(np.int64), np.dtype(np.uint8), np.dtype(np.bool_)
SIGNATURES: Mapping[str, tuple[Any, Sequence[Any]]] = {
    "samovar_newest_new": (c_void_p, []),
    "samovar_newest_free": (None, [c_void_p]),
    "samovar_newest_size": (c_size_t, [c_void_p]),
    "samovar_newest_add": (None, [c_void_p, c_size_t, *[c_void_p] * 7]),
    "samovar_newest_pack": (None, [c_void_p, c_void_p]),
}


@cache
def _library() -> Any:
    return typed(kernel(), SIGNATURES)


class Newest:
    """Filled once, and then read once."""

    def __init__(self) -> None:
        self._handle: int = _library().samovar_newest_new()
        finalize(self, _library().samovar_newest_free, self._handle)
        self._held: list[Records] = []  # the kernel points into them
        self.bytes = 0

    def __len__(self) -> int:
        return int(_library().samovar_newest_size(self._handle))

    def add(self, records: Records, count: int) -> None:
        """Take the first `count` of the records; all have keys."""
        keys, values = records.keys, records.values
        self._held.append(records)
        self.bytes += int(keys.ends[count - 1] - keys.starts[0] + values.ends[count - 1] - values.starts[0])
        columns = (keys.data, keys.starts, keys.ends, values.data, values.starts, values.ends, records.null)
        places = [np.ascontiguousarray(column) for column in columns]
        _library().samovar_newest_add(self._handle, count, *(place.ctypes.data for place in places))

    def pack(self) -> None:
        """Put all in order of keys. Nothing can be added any more."""
        size, out = len(self), (c_void_p * 5)()
        _library().samovar_newest_pack(self._handle, out)
        keys, key_bounds, values, value_bounds, null = out
        self._keys = _messages(keys, key_bounds, size, self)
        self._values = _messages(values, value_bounds, size, self)
        self._gone = array_at(null, size, BOOL, self)
        self._held.clear()

    def changes(self) -> list[Change]:
        """All of them, in order of keys, once packed."""
        keys = objects(self._keys, np.zeros(len(self), np.bool_))
        return list(zip(keys, objects(self._values, self._gone), strict=True))  # type: ignore[arg-type]


def _messages(data: int | None, bounds: int | None, size: int, owner: object) -> Messages:
    places = array_at(bounds, size + 1, INT64, owner)
    return Messages(array_at(data, int(places[-1]), BYTE, owner), places[:-1], places[1:])
