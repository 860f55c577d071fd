"""A writer's schema as a reader sees it, as the words that the kernel follows (drawn in native/decode/avro.h).

Resolution is Avro's: fields by name or alias, defaults for what was not written, what the reader lacks passed over,
numbers and bytes promoted, of a union the branch of the same type or else the first that fits. What can be written but
not read becomes a MISMATCH: only messages that hold it are refused.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from samovar.native.kernel import BOOL, FLOAT, INT, NIL, OTHER, TEXT
from samovar.native.opcodes import AVRO_FORMS, AVRO_OPS
from samovar.patterns.engine.avro.schema import (
    ArrayType,
    AvroSchema,
    Enum,
    FieldType,
    FixedType,
    Logical,
    MapType,
    NoDefault,
    Plain,
    Primitive,
    RecordType,
    Ref,
    Type,
    Union,
    type_name,
)

AS_IS, AS_DOUBLE, DIVIDED, MULTIPLIED, AS_BYTES, AS_TEXT, DECIMAL, UUID = AVRO_FORMS.values()
SKIPPED = -1
DAY_MS = 86_400_000

# All instants and times of day are numbers of milliseconds.
FORMS = {
    "date": (MULTIPLIED, DAY_MS),
    "time-micros": (DIVIDED, 1_000),
    "timestamp-micros": (DIVIDED, 1_000),
    "timestamp-nanos": (DIVIDED, 1_000_000),
    "local-timestamp-micros": (DIVIDED, 1_000),
    "local-timestamp-nanos": (DIVIDED, 1_000_000),
}
PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


class _Unreadable(Exception):
    """What was written cannot be read; the text says why."""


@dataclass
class AvroProgram:
    """`fields` and `faults` are what the numbers in a verdict mean, from 1 on."""

    words: list[int] = field(default_factory=lambda: [0, 0])
    blob: bytearray = field(default_factory=bytearray)
    fields: list[str] = field(default_factory=lambda: [""])
    faults: list[str] = field(default_factory=lambda: [""])


def resolved(writer: AvroSchema, reader: AvroSchema | None = None) -> AvroProgram:
    """The program for messages of this writer; without a reader they are read as they were written."""
    built = _Builder(writer=writer, reader=reader or writer)
    root = built.node(writer.root, built.reader.root, "")
    built.program.words[0] = root
    return built.program


@dataclass(kw_only=True)
class _Builder:
    writer: AvroSchema
    reader: AvroSchema
    program: AvroProgram = field(default_factory=AvroProgram)
    records: dict[tuple[str, str, bool], int] = field(default_factory=dict)
    texts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def node(self, written: Type, read: Type, path: str) -> int:
        """The node that reads a value of one type as another."""
        try:
            return self._node(self.writer.of(written), self.reader.of(read), path)
        except _Unreadable as fault:
            self.program.faults.append(str(fault))
            return self._add("mismatch", len(self.program.faults) - 1)

    def _node(self, w: Plain, r: Plain, path: str) -> int:
        if isinstance(w, Union):
            at = self._add("union", len(w.branches), *[0] * len(w.branches))
            for place, branch in enumerate(w.branches):
                same = r if isinstance(r, Primitive | ArrayType | MapType | Union) else Ref(r.name)
                self.program.words[at + 2 + place] = self.node(branch, same, path)
            return at
        if isinstance(r, Union):
            r = self._branch(w, r, path)
        if not self._fits(w, r):
            raise _Unreadable(f"`{path or 'the value'}` was written as {type_name(w)} and is read as {type_name(r)}")
        if isinstance(w, RecordType):
            return self._record(w, r, path)
        if isinstance(w, ArrayType) and isinstance(r, ArrayType):
            at = self._add("array", 0)
            self.program.words[at + 1] = self.node(w.items, r.items, path + "[]")
            return at
        if isinstance(w, MapType) and isinstance(r, MapType):
            at = self._add("map", 0)
            self.program.words[at + 1] = self.node(w.values, r.values, path + ".*")
            return at
        if isinstance(w, Enum):
            return self._enum(w, r)
        return self._scalar(w, r)

    def _branch(self, w: Plain, r: Union, path: str) -> Plain:
        """The branch of the same type, else the first that fits: so a schema that is its own reader reads itself."""
        branches = [self.reader.of(each) for each in r.branches]
        for plain in (*(each for each in branches if type_name(each) == type_name(w)), *branches):
            if self._fits(w, plain):
                return plain
        names = ", ".join(map(type_name, r.branches))
        raise _Unreadable(f"`{path or 'the value'}` was written as {type_name(w)} and is read as one of {names}")

    def _fits(self, w: Plain, r: Plain) -> bool:
        """Whether the one may be read as the other; what is inside a record shows when it is looked at."""
        if isinstance(w, Union) or isinstance(r, Union):
            return True
        if isinstance(w, ArrayType) and isinstance(r, ArrayType):
            return self._fits(self.writer.of(w.items), self.reader.of(r.items))
        if isinstance(w, MapType) and isinstance(r, MapType):
            return self._fits(self.writer.of(w.values), self.reader.of(r.values))
        if isinstance(w, RecordType | Enum | FixedType):
            if type(w) is not type(r) or (isinstance(w, FixedType) and isinstance(r, FixedType) and w.size != r.size):
                return False
            assert isinstance(r, RecordType | Enum | FixedType)
            return w.name in r.aliases or _short(w.name) in map(_short, (r.name, *r.aliases))
        if isinstance(w, Primitive) and isinstance(r, Primitive):
            return w.kind == r.kind or r.kind in PROMOTIONS.get(w.kind, ())
        return False

    def _around(self, op: str, written: Type, read: Type, path: str) -> int:
        at = self._add(op, 0)
        self.program.words[at + 1] = self.node(written, read, path)
        return at

    def _record(self, w: RecordType, r: Plain, path: str) -> int:
        assert isinstance(r, RecordType)
        key = w.name, r.name, self.reader is self.writer  # a type that is passed over may be read elsewhere
        if key in self.records:
            return self.records[key]
        pairs = list(_pair_fields(w, r))
        missing = [each for each in r.fields if each not in [other for _, other in pairs]]
        for each in missing:
            if each.default is NoDefault:
                raise _Unreadable(f"`{_join_path(path, each.name)}` was not written, and has no default")
        count = len(pairs) + len(missing)
        at = self._add("record", self.program.words[1], count, *[0] * (4 * count))
        self.program.words[1] += 1
        self.records[key] = at
        for place, (mine, other) in enumerate(pairs):
            inside = _join_path(path, mine.name)
            # What the reader lacks is passed over, whatever it is.
            reader = self.reader
            self.reader = reader if other else self.writer
            node = self.node(mine.type, other.type if other else mine.type, inside)
            self.reader = reader
            self._entry(at + 3 + 4 * place, other.name if other else None, node, inside)
        for place, each in enumerate(missing, len(pairs)):
            inside = _join_path(path, each.name)
            try:
                node = self._constant(_default(self.reader, each.type, each.default), inside)
            except _Unreadable:
                self.program.faults.append(f"the default of `{inside}` is not a value of its type")
                node = self._add("mismatch", len(self.program.faults) - 1)
            self._entry(at + 3 + 4 * place, each.name, node, inside)
        return at

    def _entry(self, at: int, name: str | None, node: int, path: str) -> None:
        start, size = (0, SKIPPED) if name is None else self._text(name)
        self.program.fields.append(path)
        self.program.words[at : at + 4] = [start, size, node, len(self.program.fields) - 1]

    def _enum(self, w: Enum, r: Plain) -> int:
        assert isinstance(r, Enum)
        at = self._add("enum", len(w.symbols))
        for symbol in w.symbols:
            known = symbol if symbol in r.symbols else r.default
            self.program.words += (0, SKIPPED) if known is None else self._text(known)
        return at

    def _scalar(self, w: Plain, r: Plain) -> int:
        assert isinstance(w, Primitive | FixedType)
        assert isinstance(r, Primitive | FixedType)
        logical = w.logical or r.logical
        if isinstance(w, FixedType):
            return self._add("fixed", *_form_of_bytes(logical), w.size)
        read = r.kind if isinstance(r, Primitive) else ""
        if w.kind in ("int", "long"):
            form = FORMS.get(logical.name) if logical else None
            return self._add(w.kind, *(form or (AS_DOUBLE if read in ("float", "double") else AS_IS, 1)))
        if w.kind == "string":
            return self._add("string", AS_BYTES if read == "bytes" else AS_IS)
        if w.kind == "bytes":
            return self._add("bytes", *((AS_TEXT, 0) if read == "string" else _form_of_bytes(logical)))
        return self._add(w.kind)

    def _constant(self, value: Any, path: str) -> int:
        if isinstance(value, dict):
            at = self._add("record", self.program.words[1], len(value), *[0] * (4 * len(value)))
            self.program.words[1] += 1
            for place, (name, inner) in enumerate(value.items()):
                self._entry(at + 3 + 4 * place, name, self._constant(inner, _join_path(path, name)), path)
            return at
        if isinstance(value, str):
            return self._add("constant", TEXT, *self._text(value))
        if isinstance(value, list):
            return self._add("constant", OTHER, *self._text(json.dumps(value, ensure_ascii=False)))
        if isinstance(value, bool):
            return self._add("constant", BOOL, int(value), 0)
        if isinstance(value, float):
            return self._add("constant", FLOAT, struct.unpack("<q", struct.pack("<d", value))[0], 0)
        return self._add("constant", NIL, 0, 0) if value is None else self._add("constant", INT, value, 0)

    def _add(self, op: str, *operands: int) -> int:
        self.program.words += (AVRO_OPS[op], *operands)
        return len(self.program.words) - len(operands) - 1

    def _text(self, text: str) -> tuple[int, int]:
        if text not in self.texts:
            data = text.encode()
            self.texts[text] = len(self.program.blob), len(data)
            self.program.blob += data
        return self.texts[text]


def _join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _pair_fields(w: RecordType, r: RecordType) -> Iterator[tuple[FieldType, FieldType | None]]:
    """The writer's fields in their order, each with the reader's, by name or else by alias."""
    names = {each.name: each for each in r.fields}
    aliases = {alias: each for each in r.fields for alias in each.aliases}
    used: set[str] = set()
    for each in w.fields:
        other = names.get(each.name) or aliases.get(each.name)
        other = None if other is not None and other.name in used else other
        used |= {other.name} if other is not None else set()
        yield each, other


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _form_of_bytes(logical: Logical | None) -> tuple[int, int]:
    if logical is None:
        return AS_BYTES, 0
    return (DECIMAL, logical.scale) if logical.name == "decimal" else (UUID, 0)


def _default(schema: AvroSchema, kind: Type, value: Any) -> Any:
    """A default as a rule sees it; raises where it is not a value of its type."""
    plain = schema.of(kind)
    if isinstance(plain, Union):
        for branch in plain.branches:
            with suppress(_Unreadable):
                return _default(schema, branch, value)
        raise _Unreadable
    if isinstance(plain, RecordType) and isinstance(value, dict):
        if any(value.get(each.name, each.default) is NoDefault for each in plain.fields):
            raise _Unreadable
        return {each.name: _default(schema, each.type, value.get(each.name, each.default)) for each in plain.fields}
    if isinstance(plain, MapType) and isinstance(value, dict):
        return {str(name): _default(schema, plain.values, inner) for name, inner in value.items()}
    if isinstance(plain, ArrayType) and isinstance(value, list):
        return [_default(schema, plain.items, inner) for inner in value]
    if isinstance(plain, Enum) and value in plain.symbols:
        return value
    if isinstance(plain, FixedType) and isinstance(value, str) and len(value) == plain.size:
        return _of_bytes(plain.logical, value)
    if isinstance(plain, Primitive):
        return _of_primitive(plain, value)
    raise _Unreadable


def _of_primitive(plain: Primitive, value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if plain.kind == "null" and value is None:
        return None
    if plain.kind == "boolean" and isinstance(value, bool):
        return value
    if plain.kind in ("float", "double") and number:
        return float(value)
    if plain.kind in ("int", "long") and number and value == int(value):
        limit = 2 ** (31 if plain.kind == "int" else 63)
        if -limit <= value < limit:
            whole = int(value)
            form, factor = FORMS.get(plain.logical.name if plain.logical else "", (AS_IS, 1))
            if form == MULTIPLIED:
                return whole * factor
            return whole / factor if whole % factor else whole // factor
    if plain.kind == "string" and isinstance(value, str):
        return value
    if plain.kind == "bytes" and isinstance(value, str):
        return _of_bytes(plain.logical, value)
    raise _Unreadable


def _of_bytes(logical: Logical | None, value: str) -> Any:
    try:
        data = value.encode("latin-1")
    except UnicodeEncodeError:
        raise _Unreadable from None
    form, scale = _form_of_bytes(logical)
    if form == DECIMAL:
        whole = int.from_bytes(data, "big", signed=True)
        return whole / 10**scale if scale or not -(2**63) <= whole < 2**63 else whole
    return str(uuid.UUID(bytes=data)) if form == UUID else value
