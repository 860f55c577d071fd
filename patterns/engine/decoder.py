"""JSON messages to the rows of a batch: the kernel does it, as samovar.patterns.engine.decode says in plain Python."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from ctypes import c_char_p
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from samovar.native.kernel import VERDICT, Batch, Int32s, Int64s, Messages, address_of, kernel, one_each
from samovar.patterns.engine.decode import MAX_PATH_NAMES, Bad, bad_of


class Decoder:
    """Takes the fields at `paths` from JSON messages. What a message must be: see samovar.patterns.engine.decode."""

    def __init__(
        self, paths: Sequence[str], time_field: str = "ts", type_field: str | None = "type", fixed_type: str = ""
    ) -> None:
        """Without a `type_field` every event is of `fixed_type`."""
        if type_field == "":
            raise ValueError("the type field has no name; for events of one type pass None and a fixed_type")
        for path in (*paths, time_field, type_field or "", fixed_type):
            if "\0" in path:
                raise ValueError(f"a field's name cannot hold a NUL character: {path!r}")
            if path.count(".") >= MAX_PATH_NAMES:
                raise ValueError(f"a field's path has at most {MAX_PATH_NAMES} names: {path[:40]!r}...")
        self.paths = tuple(paths)
        self.time_field = time_field
        self.type_field = type_field
        encoded = (c_char_p * len(paths))(*[path.encode() for path in paths])
        kind = None if type_field is None else type_field.encode()
        self.handle: int = kernel().samovar_fields_new(
            encoded, len(paths), time_field.encode(), kind, fixed_type.encode()
        )
        finalize(self, kernel().samovar_fields_free, self.handle)

    def batch(self) -> Batch:
        return Batch(len(self.paths))

    def decode(
        self,
        batch: Batch,
        messages: Messages,
        stream: int = 0,
        partitions: Int32s | None = None,
        offsets: Int64s | None = None,
        copy: bool = False,
    ) -> NDArray[Any]:
        """Appends a row to the batch for each good message, and returns a verdict (code, at) for every one.

        Partitions and offsets are one per message; without them 0 and the message's number. With `copy` the batch does
        not need the messages' buffer afterwards; otherwise it keeps it alive.
        """
        self._prepare(messages)
        if batch.columns != len(self.paths):
            raise ValueError(f"a batch of {batch.columns} columns for {len(self.paths)} fields")
        count = len(messages)
        starts, ends = (np.ascontiguousarray(each, np.int64) for each in (messages.starts, messages.ends))
        places = one_each(partitions, np.int32, count), one_each(offsets, np.int64, count)
        verdicts = np.empty(count, VERDICT)
        arrays = messages.data.ctypes.data, starts.ctypes.data, ends.ctypes.data, count
        where = stream, address_of(places[0]), address_of(places[1])
        self._into(batch.handle, *arrays, *where, int(copy), verdicts.ctypes.data)
        if not copy:
            batch.buffers.append(messages.data)
        return verdicts

    def _prepare(self, messages: Messages) -> None:
        """What must be known before messages of this format can be decoded."""

    def _into(self, *arguments: Any) -> None:
        """The kernel's part, for messages of this format."""
        kernel().samovar_decode_json(self.handle, *arguments)

    def schemas_in(self, _messages: Messages) -> Sequence[int]:
        """The numbers of the schemas that messages name; JSON names none."""
        return ()

    def knows(self, _schema: int) -> bool:
        return True

    def hide(self, schemas: Collection[int]) -> None:
        """From here on these are unknown, anyone who may know them, and no others are hidden."""

    def whole(self, message: bytes) -> dict[str, Any]:
        """All that a good message holds."""
        fields: dict[str, Any] = json.loads(message)
        return fields

    def bad(self, verdict: Any, message: bytes) -> Bad:
        """A verdict that is not OK, in words."""
        return bad_of(int(verdict["code"]), int(verdict["at"]), message, self.time_field, self.type_field)
