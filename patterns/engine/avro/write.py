"""JSON objects to Avro, by fastavro: what `samovar produce` writes to a stream in Avro.

The values are those that rules see (samovar.patterns.engine.avro.codec): instants as epoch ms or ISO 8601, bytes as
text. A field that the schema lacks is refused, and so is one that is missing and has no default: nothing is left out in
silence.
"""

from __future__ import annotations

import io
import json
import uuid
from contextlib import suppress
from decimal import Decimal, DecimalException
from typing import Any, NoReturn

import fastavro

from samovar.patterns.engine.avro.codec import framed
from samovar.patterns.engine.avro.program import DAY_MS, DIVIDED, FORMS, MULTIPLIED
from samovar.patterns.engine.avro.schema import (
    ArrayType,
    AvroSchema,
    Enum,
    FixedType,
    Logical,
    MapType,
    NoDefault,
    Plain,
    Primitive,
    RecordType,
    Type,
    Union,
    type_name,
)
from samovar.patterns.engine.decode import RefusedError, shown_value, time_of_text


class AvroValueError(ValueError):
    """An object that the schema cannot hold; the text says which field and why."""


class Encoder:
    """Writes objects with one schema; with a number, framed."""

    def __init__(self, schema: AvroSchema, number: int | None = None) -> None:
        self.schema = schema
        self.number = number
        names: dict[str, Any] = {}
        for text in schema.texts:
            self._parsed = fastavro.parse_schema(json.loads(text), named_schemas=names)

    def encode(self, text: str | bytes) -> bytes:
        """The bytes for one JSON object."""
        value = self._fitted(self.schema.root, json.loads(text, parse_float=Decimal), "")
        out = io.BytesIO()
        try:
            fastavro.schemaless_writer(out, self._parsed, value)
        except (ValueError, TypeError, OverflowError) as error:
            raise AvroValueError(f"no value of `{self.schema.name}`: {error}") from error
        return out.getvalue() if self.number is None else framed(self.number, out.getvalue())

    def _fitted(self, kind: Type, value: Any, path: str) -> Any:
        """A value as fastavro takes it."""
        plain = self.schema.of(kind)
        if isinstance(plain, Union):
            for branch in plain.branches:
                with suppress(AvroValueError):
                    return self._fitted(branch, value, path)
            names = " or ".join(map(type_name, plain.branches))
            raise AvroValueError(f"`{path or 'the event'}` is {_value_text(value)}, and should be {names}")
        if isinstance(plain, RecordType) and isinstance(value, dict):
            return self._record(plain, value, path)
        if isinstance(plain, MapType) and isinstance(value, dict):
            return {name: self._fitted(plain.values, inner, f"{path}.{name}") for name, inner in value.items()}
        if isinstance(plain, ArrayType) and isinstance(value, list):
            return [self._fitted(plain.items, inner, f"{path}[]") for inner in value]
        if isinstance(plain, Enum) and value in plain.symbols:
            return value
        if isinstance(plain, Primitive | FixedType):
            return _scalar(plain, value, path)
        return _refuse(plain, value, path)

    def _record(self, record: RecordType, value: dict[str, Any], path: str) -> dict[str, Any]:
        above = f"{path}." if path else ""
        names = {each.name for each in record.fields}
        for name in value:
            if name not in names:
                raise AvroValueError(f"`{record.name}` has no field `{above}{name}`")
        found = {}
        for each in record.fields:
            if each.name in value:
                found[each.name] = self._fitted(each.type, value[each.name], above + each.name)
            elif each.default is NoDefault:
                # What is absent is null to rules, so it may be written as null.
                found[each.name] = self._fitted(each.type, None, above + each.name)
        return found


def _refuse(plain: Plain, value: Any, path: str) -> NoReturn:
    if value is None:
        raise AvroValueError(f"`{path}` is missing, and has no default")
    raise AvroValueError(f"`{path or 'the event'}` is {_value_text(value)}, and should be {type_name(plain)}")


def _value_text(value: Any) -> str:
    return str(value) if isinstance(value, Decimal) else shown_value(json.loads(json.dumps(value, default=float)))


def _scalar(plain: Primitive | FixedType, value: Any, path: str) -> Any:
    kind = plain.kind if isinstance(plain, Primitive) else "fixed"
    as_is = {"null": type(None), "boolean": bool, "string": str}.get(kind)
    if as_is is not None and isinstance(value, as_is):
        return value
    if kind in ("float", "double") and isinstance(value, int | Decimal) and not isinstance(value, bool):
        return float(value)
    found = None
    if kind in ("int", "long"):
        whole = _whole(plain.logical, value)
        limit = 2 ** (31 if kind == "int" else 63)
        found = whole if whole is not None and -limit <= whole < limit else None
    elif kind in ("bytes", "fixed"):
        found = _bytes(plain, value)
    return _refuse(plain, value, path) if found is None else found


def _whole(logical: Logical | None, value: Any) -> int | None:
    """A whole number, or an instant in its own unit."""
    if logical is not None and logical.name != "time-millis" and isinstance(value, str):
        try:
            value = time_of_text(value)
        except RefusedError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    form, factor = FORMS.get(logical.name if logical else "", (None, 1))
    scaled = value * factor if form == DIVIDED else Decimal(value) / DAY_MS if form == MULTIPLIED else value
    return int(scaled) if scaled == int(scaled) else None


def _bytes(plain: Primitive | FixedType, value: Any) -> Any:
    name = plain.logical.name if plain.logical else ""
    try:
        if name == "decimal" and not isinstance(value, bool) and isinstance(value, int | str | Decimal):
            return Decimal(value)
        if name == "uuid":
            return uuid.UUID(value).bytes if isinstance(value, str) else None
        if isinstance(value, str):
            data = value.encode("latin-1")
            return data if isinstance(plain, Primitive) or len(data) == plain.size else None
    except (ValueError, DecimalException):
        return None
    return None
