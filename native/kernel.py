"""The compiled kernel from Python: where it is found, and thin wrappers that own its objects.

The sources are in the folders next to this file; every function of its C interface that is used is declared in
`SIGNATURES`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from dataclasses import dataclass
from functools import cache
from mmap import mmap
from pathlib import Path
from typing import Any, ClassVar, TypeAlias
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from samovar.native.build import abi_of, source_files

Bytes: TypeAlias = bytes | bytearray | memoryview | mmap
Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]

NO_MEMORY = -(1 << 63)  # as in native/util/boundary.h


class Handle(c_void_p):
    """Result of a function that makes an object; null where there is no memory."""


class KernelCount(c_int64):
    """Result of a function that counts, or just does something; NO_MEMORY where there is none."""


VERDICT = np.dtype([("code", np.uint32), ("at", np.uint32)])
VALUE = np.dtype([("tag", np.uint32), ("size", np.uint32), ("bits", np.int64)])
NIL, BOOL, INT, FLOAT, TEXT, OTHER = range(6)
IN_PLACE, ELSEWHERE, UNDECIDED = range(3)  # verdicts of `Batch.misplaced`

SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "samovar_batch_new": (Handle, [c_size_t]),
    "samovar_batch_free": (None, [c_void_p]),
    "samovar_batch_rows": (c_size_t, [c_void_p]),
    "samovar_batch_time": (c_void_p, [c_void_p]),
    "samovar_batch_stream": (c_void_p, [c_void_p]),
    "samovar_batch_partition": (c_void_p, [c_void_p]),
    "samovar_batch_offset": (c_void_p, [c_void_p]),
    "samovar_batch_type": (c_void_p, [c_void_p]),
    "samovar_batch_column": (c_void_p, [c_void_p, c_size_t]),
    # to, from, rows, n
    "samovar_batch_append": (KernelCount, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "samovar_batch_select": (KernelCount, [c_void_p, c_void_p, c_size_t]),
    # batch, column, partitions, partition; verdicts
    "samovar_batch_misplaced": (c_size_t, [c_void_p, c_size_t, c_uint32, c_uint32, c_void_p]),
    # batch, n; time, stream, partition, offset
    "samovar_batch_rows_set": (KernelCount, [c_void_p, c_size_t] + [c_void_p] * 4),
    # batch, column, kind; data, offsets, valid
    "samovar_batch_fill": (KernelCount, [c_void_p, c_int64, c_int] + [c_void_p] * 3),
    "samovar_fields_new": (Handle, [c_void_p, c_size_t, c_char_p, c_char_p, c_char_p]),
    "samovar_fields_free": (None, [c_void_p]),
    # fields, batch; buffer, starts, ends, n; stream, partitions, offsets, copy; verdicts
    "samovar_decode_json": (
        KernelCount,
        [c_void_p] * 2 + [c_void_p, c_void_p, c_void_p, c_size_t] + [c_int32, c_void_p, c_void_p, c_int] + [c_void_p],
    ),
    "samovar_avro_new": (Handle, [c_void_p, c_int]),
    "samovar_avro_free": (None, [c_void_p]),
    # schemas, number; words, n, blob, size
    "samovar_avro_add": (KernelCount, [c_void_p, c_uint32, c_void_p, c_size_t, c_char_p, c_size_t]),
    "samovar_avro_drop": (None, [c_void_p, c_uint32]),
    # as samovar_decode_json, with schemas for fields
    "samovar_decode_avro": (
        KernelCount,
        [c_void_p] * 2 + [c_void_p, c_void_p, c_void_p, c_size_t] + [c_int32, c_void_p, c_void_p, c_int] + [c_void_p],
    ),
    # schemas, message, n; size, verdict
    "samovar_avro_json": (Handle, [c_void_p, c_char_p, c_size_t, c_void_p, c_void_p]),
    "samovar_count_lines": (c_size_t, [c_void_p, c_size_t]),
    "samovar_split_lines": (None, [c_void_p, c_size_t, c_void_p, c_void_p]),
}


class KernelMissingError(ImportError):
    """The compiled kernel is not there, or is not the one that this code was written for."""


class KernelMemoryError(MemoryError):
    """The kernel could not get the memory for a call. Nothing of the call was done."""


@cache
def kernel() -> Any:
    """The library, loaded once, with the types of its functions set. SAMOVAR_KERNEL names another file."""
    path = os.environ.get("SAMOVAR_KERNEL") or str(Path(__file__).resolve().parent / "_kernel.so")
    hint = "Build it with `make kernel` (or `python native/build.py`)"
    if not Path(path).exists():
        raise KernelMissingError(f"the compiled kernel is missing: {path}\n  {hint}, or point SAMOVAR_KERNEL to one.")
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise KernelMissingError(f"the compiled kernel cannot be loaded: {error}\n  {hint} again.") from error
    # Where it was not built from the sources next to this file, its tables may be others.
    try:
        built_from = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, "samovar_abi"))).decode()
    except ValueError:  # there is no such symbol
        raise KernelMissingError(
            f"this library is not the kernel of this version of Samovar, or is older: {path}\n  {hint} again."
        ) from None
    expected = abi_of(source_files())
    if built_from != expected:
        raise KernelMissingError(
            f"the compiled kernel was built from other sources than those of this version of Samovar: {path}\n"
            f"  It says {built_from[:12]}, and the sources are {expected[:12]}. {hint} again."
        )
    return typed(library, SIGNATURES)


def typed(library: Any, signatures: Mapping[str, tuple[Any, Sequence[Any]]]) -> Any:
    """A C library with the types of these functions set: result and arguments by name."""
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
        if result in (Handle, KernelCount):
            function.errcheck = _check_count
    return library


def _check_count(result: Any, function: Any, _arguments: Any) -> int:
    value: int | None = result.value
    if value is None or value == NO_MEMORY:
        raise KernelMemoryError(f"there is no memory for what the kernel was asked to do ({function.__name__})")
    return value


@dataclass(frozen=True, slots=True)
class Other:
    """An object or an array as a value: its JSON text."""

    json: str


class Batch:
    """Events as columns, owned by the kernel. Arrays are views, good until the next decode into the batch."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.handle: int = kernel().samovar_batch_new(columns)
        finalize(self, kernel().samovar_batch_free, self.handle)
        self.buffers: list[NDArray[np.uint8]] = []  # what texts point into

    def __len__(self) -> int:
        return int(kernel().samovar_batch_rows(self.handle))

    @property
    def time(self) -> Int64s:
        return self._array("time", np.dtype(np.int64))

    @property
    def stream(self) -> Int32s:
        return self._array("stream", np.dtype(np.int32))

    @property
    def partition(self) -> Int32s:
        return self._array("partition", np.dtype(np.int32))

    @property
    def offset(self) -> Int64s:
        return self._array("offset", np.dtype(np.int64))

    def types(self) -> list[Any]:
        return values_of(self._array("type", VALUE))

    def values(self, column: int) -> list[Any]:
        """A column as Python values; None for null, `Other` for objects and arrays."""
        return values_of(self.column(column))

    def column(self, column: int) -> NDArray[Any]:
        """A column as it is: tag, size and bits of each value."""
        if not 0 <= column < self.columns:
            raise IndexError(f"column {column} of a batch that has {self.columns}")
        return self._array("column", VALUE, column)

    def append(self, other: Batch, rows: Int64s) -> None:
        """Add rows of another batch; their text is copied, so the other may go."""
        rows = np.ascontiguousarray(rows, np.int64)
        kernel().samovar_batch_append(self.handle, other.handle, rows.ctypes.data, len(rows))

    def select(self, rows: Int64s) -> None:
        """Keep these rows only, in this order."""
        rows = np.ascontiguousarray(rows, np.int64)
        kernel().samovar_batch_select(self.handle, rows.ctypes.data, len(rows))

    def misplaced(self, column: int, partitions: int, partition: int) -> NDArray[np.uint8] | None:
        """By row, whether murmur2 places a column's value in another partition; None where all are in place."""
        verdicts = np.empty(len(self), np.uint8)
        place = column, partitions, partition
        found = kernel().samovar_batch_misplaced(self.handle, *place, verdicts.ctypes.data)
        return verdicts if found else None

    def _array(self, name: str, dtype: np.dtype[Any], *place: int) -> NDArray[Any]:
        address = getattr(kernel(), f"samovar_batch_{name}")(self.handle, *place)
        return array_at(address, len(self), dtype, self)


def array_at(address: int | None, size: int, dtype: np.dtype[Any], owner: object) -> NDArray[Any]:
    """A read-only view of the kernel's memory that keeps its owner alive."""
    if not address or size == 0:
        return np.empty(0, dtype)
    return np.asarray(KernelMemory(address, size, dtype, owner))


class KernelMemory:
    """Memory of the kernel, by numpy's array interface: of ctypes' arrays every size is a type of its own."""

    __slots__ = ("__array_interface__", "owner")
    names: ClassVar[dict[np.dtype[Any], tuple[str, list[Any]]]] = {}

    def __init__(self, address: int, size: int, dtype: np.dtype[Any], owner: object) -> None:
        if dtype not in self.names:
            self.names[dtype] = dtype.str, dtype.descr
        name, fields = self.names[dtype]
        self.owner = owner
        self.__array_interface__ = {
            "version": 3, "data": (address, True), "shape": (size,), "typestr": name, "descr": fields
        }  # fmt: skip


def values_of(column: NDArray[Any]) -> list[Any]:
    parts = column["tag"], column["size"], column["bits"], column["bits"].copy().view(np.float64)
    return list(map(value_of, *(part.tolist() for part in parts)))


def value_of(tag: int, size: int, bits: int, number: float) -> Any:
    if tag >= TEXT:
        text = ctypes.string_at(bits, size).decode() if size else ""
        return text if tag == TEXT else Other(text)
    if tag == NIL:
        return None
    return bool(bits) if tag == BOOL else bits if tag == INT else number


@dataclass(frozen=True, slots=True)
class Messages:
    """Many messages in one buffer: message i is its bytes [starts[i], ends[i])."""

    data: NDArray[np.uint8]
    starts: Int64s
    ends: Int64s

    def __post_init__(self) -> None:
        if len(self.starts) != len(self.ends):
            raise ValueError(f"{len(self.starts)} starts for {len(self.ends)} ends")
        inside = (self.starts >= 0) & (self.starts <= self.ends) & (self.ends <= self.data.size)
        if not inside.all():
            raise ValueError(f"message {int(inside.argmin())} lies outside its buffer of {self.data.size} bytes")

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, place: int) -> bytes:
        return self.data[self.starts[place] : self.ends[place]].tobytes()


def joined(messages: Sequence[bytes]) -> Messages:
    ends = np.cumsum(np.fromiter(map(len, messages), np.int64, len(messages)), dtype=np.int64)
    starts = ends - np.diff(ends, prepend=np.int64(0))
    return Messages(data_of(b"".join(messages)), starts, ends)


def lines_of(buffer: Bytes) -> Messages:
    r"""The lines of a text, without their `\n` or `\r\n`."""
    data = data_of(buffer)
    count = kernel().samovar_count_lines(data.ctypes.data, data.size)
    starts, ends = np.empty(count, np.int64), np.empty(count, np.int64)
    kernel().samovar_split_lines(data.ctypes.data, data.size, starts.ctypes.data, ends.ctypes.data)
    return Messages(data, starts, ends)


def data_of(buffer: Bytes) -> NDArray[np.uint8]:
    return np.frombuffer(buffer, np.uint8) if len(buffer) else np.empty(0, np.uint8)


def one_each(places: NDArray[Any] | None, dtype: Any, count: int) -> NDArray[Any] | None:
    if places is None:
        return None
    if len(places) != count:
        raise ValueError(f"{len(places)} places for {count} messages")
    return np.ascontiguousarray(places, dtype)


def address_of(array: NDArray[Any] | None) -> int | None:
    return None if array is None else int(array.ctypes.data)
