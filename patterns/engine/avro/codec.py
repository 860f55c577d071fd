"""Events in Avro: plain (a datum and nothing else) or framed as Confluent's clients do (0, the number of the writer's
schema in four bytes, the datum).

To rules a value is what the same JSON object would give: records and maps are objects, enums and uuids text, decimals
numbers, of a union the value itself. Instants, dates and times of day are numbers of milliseconds. Bytes are text, each
byte the character of its number, as in Avro's own JSON; a float that is not a number is null.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import finalize

import numpy as np

from samovar.native.kernel import VERDICT, Messages, kernel
from samovar.patterns.engine.avro.program import AvroProgram, resolved
from samovar.patterns.engine.avro.schema import AvroSchema
from samovar.patterns.engine.decode import CODES, OF_A_VALUE, Bad, lookup, sentence, shown_byte, shown_value
from samovar.patterns.engine.decoder import Decoder

FRAME_BYTES = 5
PLAIN = 0  # the number of the only schema where messages are not framed

REASONS = (
    "",
    "it ends too early",
    "bytes are left over at its end",
    "a length does not fit",
    "a whole number is too large",
    "a boolean is neither 0 nor 1",
    "a union has no such branch",
    "an enum has no such symbol",
    "a block's size is not that of its items",
    "more items than its bytes can hold",
    "a decimal is longer than 128 bytes",
    "the reader's enum lacks the symbol, and has no default",
)  # in the order of the kernel's enum


class Writers(Protocol):
    """The schemas that messages are written with, by number."""

    def find(self, number: int) -> AvroSchema | None:
        """None where there is no such schema. Raises when that cannot be known at the moment."""

    def missing(self, number: int) -> str:
        """Why there is none, in words."""


@dataclass(frozen=True)
class SchemaFiles:
    """Schemas from files."""

    schemas: Mapping[int, AvroSchema]

    def find(self, number: int) -> AvroSchema | None:
        return self.schemas.get(number)

    def missing(self, number: int) -> str:
        return f"there is no {number} under `schemas`"


@dataclass(frozen=True)
class Avro:
    """How a stream is written. Without `writers` messages are not framed, and all are of the one schema."""

    schema: AvroSchema | None
    writers: Writers | None = None

    def decoder(
        self, paths: Sequence[str], time_field: str = "ts", type_field: str | None = "type", fixed_type: str = ""
    ) -> AvroDecoder:
        return AvroDecoder(self, paths, time_field, type_field, fixed_type)


class AvroDecoder(Decoder):
    """Takes the fields at `paths` from Avro messages, as `Decoder` does from JSON."""

    def __init__(
        self,
        avro: Avro,
        paths: Sequence[str],
        time_field: str = "ts",
        type_field: str | None = "type",
        fixed_type: str = "",
    ) -> None:
        super().__init__(paths, time_field, type_field, fixed_type)
        self.avro = avro
        self.programs: dict[int, AvroProgram] = {}
        self.hidden: frozenset[int] = frozenset()
        self.schemas: int = kernel().samovar_avro_new(self.handle, int(avro.writers is not None))
        finalize(self, kernel().samovar_avro_free, self.schemas)
        if avro.writers is None:
            if avro.schema is None:
                raise ValueError("messages that are not framed need a schema")
            self._add(PLAIN, avro.schema)

    def _prepare(self, messages: Messages) -> None:
        """Asks for schemas that are met for the first time, each once."""
        if self.avro.writers is not None:
            self._learn(numbers_in(messages))

    def _into(self, *arguments: Any) -> None:
        kernel().samovar_decode_avro(self.schemas, *arguments)

    def _learn(self, numbers: Sequence[int]) -> None:
        writers = self.avro.writers
        for number in numbers:
            if number not in self.programs and number not in self.hidden and writers is not None:
                schema = writers.find(number)
                if schema is not None:
                    self._add(number, schema)

    def _add(self, number: int, writer: AvroSchema) -> None:
        program = resolved(writer, self.avro.schema)
        words = np.array(program.words, np.int64)
        blob = bytes(program.blob)
        if not kernel().samovar_avro_add(self.schemas, number, words.ctypes.data, len(words), blob, len(blob)):
            raise ValueError("the kernel cannot read the program that was made of this schema")
        self.programs[number] = program

    def schemas_in(self, messages: Messages) -> Sequence[int]:
        return () if self.avro.writers is None else numbers_in(messages)

    def knows(self, schema: int) -> bool:
        self._learn([schema])
        return schema in self.programs

    def hide(self, schemas: Collection[int]) -> None:
        self.hidden = frozenset(schemas)
        for number in self.hidden & self.programs.keys():
            kernel().samovar_avro_drop(self.schemas, number)
            del self.programs[number]

    def whole(self, message: bytes) -> dict[str, Any]:
        text = self.json(message)
        if isinstance(text, Bad):
            raise ValueError(text.reason)
        fields: dict[str, Any] = json.loads(text)
        return fields

    def json(self, message: bytes) -> str | Bad:
        """A message as the JSON object that rules see."""
        if self.avro.writers is not None and (number := number_of(message)) is not None:
            self._learn([number])
        size, verdict = ctypes.c_size_t(), np.zeros(1, VERDICT)
        out = ctypes.addressof(size), verdict.ctypes.data
        at = kernel().samovar_avro_json(self.schemas, message, len(message), *out)
        if verdict[0]["code"]:
            return self.bad(verdict[0], message)
        return ctypes.string_at(at, size.value).decode()

    def bad(self, verdict: Any, message: bytes) -> Bad:
        word = int(verdict["code"])
        name, reason, where = CODES[word & 0xFF], REASONS[word >> 8 & 0xFF], word >> 16
        if name == "EMPTY":
            return Bad(name, "the message is empty: an event is a record of Avro", None)
        if name in OF_A_VALUE:
            text = self.json(message)
            path = self.type_field if name == "TYPE_NOT_TEXT" else self.time_field
            found = None if isinstance(text, Bad) else lookup(json.loads(text), (path or "").split("."))
            shown = "" if isinstance(text, Bad) else shown_value(found)
        else:
            shown = self._shown(name, reason, where, int(verdict["at"]), message)
        if name == "NOT_AN_OBJECT":
            return Bad(name, f"an event is a record or a map, and this is {shown}", None)
        return Bad(name, sentence(name, shown, self.time_field, self.type_field or ""), None)

    def _shown(self, name: str, reason: str, where: int, at: int, message: bytes) -> str:
        number = PLAIN if self.avro.writers is None else number_of(message)
        of = "" if self.avro.writers is None else f" (schema {number})"
        if name == "NOT_FRAMED":
            short = message[:1] == b"\0"
            return f"it has {len(message)} bytes" if short else f"it begins with {shown_byte(message, 0)}"
        if name == "UNKNOWN_SCHEMA" and self.avro.writers is not None and number is not None:
            return self.avro.writers.missing(number)
        program = self.programs.get(PLAIN if number is None else number, AvroProgram())
        if name == "SCHEMA_MISMATCH" and not reason:
            return f"{program.faults[where]}{of}"
        place = f" in `{program.fields[where]}`" if where else ""
        if name == "NOT_UTF8":
            return f"{shown_byte(message, at)} at {at}{place}"
        if name == "NOT_AN_OBJECT":
            text = self.json(message)
            return "" if isinstance(text, Bad) else shown_value(json.loads(text))
        return f"{reason}{place}{of}, at byte {at}"


def number_of(message: bytes) -> int | None:
    """The number of a framed message's schema."""
    return int.from_bytes(message[1:FRAME_BYTES], "big") if len(message) >= FRAME_BYTES and not message[0] else None


def framed(number: int, datum: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + datum


def numbers_in(messages: Messages) -> list[int]:
    """The numbers of all schemas in a batch, each once."""
    starts = messages.starts[messages.ends - messages.starts >= FRAME_BYTES]
    starts = starts[messages.data[starts] == 0]
    if not len(starts):
        return []
    numbers = np.zeros(len(starts), np.uint32)
    for place in range(1, FRAME_BYTES):
        numbers = numbers << np.uint32(8) | messages.data[starts + place]
    if (numbers == numbers[0]).all():
        return [int(numbers[0])]
    return [int(number) for number in np.unique(numbers)]
