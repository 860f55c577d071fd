"""Random Avro from a seed: a schema, values of it, later versions of it; and what rules should see, by fastavro."""

from __future__ import annotations

import copy
import io
import json
import math
import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import fastavro

from samovar.native.kernel import Other, joined
from samovar.patterns.engine.avro.codec import Avro, AvroDecoder, SchemaFiles
from samovar.patterns.engine.avro.schema import parse_schema
from samovar.patterns.engine.decode import Bad, lookup

NAMES = ("a", "b", "c", "d", "kind", "a_long_name_of_a_field")
KEYS = ("a", "b", "c", "a.b", "b.c", "a.b.c", "", "é", "kind")
PATHS = ("a", "b", "c", "d", "kind", "a.b", "b.a", "b.c", "a.b.c", "c.a.b", "d.kind", "a_long_name_of_a_field", "new")
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
GROUPS = (("null",), ("boolean",), ("int", "long", "float", "double"), ("bytes", "string"))
PROMOTED = {"int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",)}
TEXTS = ("", "x", "seven77", "more than eight bytes", "é€😀", 'say "hi"\n\\', "\0\x01\x7f")
WHOLE = (0, 1, -1, 63, 64, -65, 2**31 - 1, -(2**31))
LONG = (*WHOLE, 2**31, 2**53 + 1, 2**63 - 1, -(2**63))
FLOATS = (0.0, 1.5, 0.1, -2.25, 1e300, 5e-324, math.inf, math.nan)
TS = 1_700_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Making:
    """Draws schemas and values. `logical` also draws logical types."""

    def __init__(self, seed: int, *, logical: bool = True) -> None:
        self.random = Random(seed)
        self.logical = logical
        self.count = 0
        self.named: dict[str, Any] = {}

    # ------------------------------------------------------------ schemas

    def schema(self) -> dict[str, Any]:
        """An event: a record with a time."""
        made: dict[str, Any] = self.record(0)
        fields = made["fields"]
        fields.insert(self.random.randint(0, len(fields)), {"name": "ts", "type": "long"})
        return made

    def record(self, depth: int) -> dict[str, Any]:
        name = self.name("R")
        names = self.random.sample(NAMES, self.random.randint(0 if depth else 1, 4))
        made = {"type": "record", "name": name, "fields": [{"name": n, "type": self.type(depth + 1)} for n in names]}
        self.named[name] = made
        return made

    def type(self, depth: int, in_union: bool = False) -> Any:
        kind = self.random.random()
        if depth > 3 or kind < 0.35:
            return self.random.choice(PRIMITIVES)
        if kind < 0.45 and self.logical and not in_union:
            return self.with_logical()
        if kind < 0.5 and self.named:
            return self.random.choice([*self.named])
        if kind < 0.6:
            made = {"type": "enum", "name": self.name("E"), "symbols": ["A", "B", "C"]}
            self.named[made["name"]] = made  # type: ignore[index] # a name is text
            return made
        if kind < 0.65:
            fixed = {"type": "fixed", "name": self.name("F"), "size": self.random.randint(0, 5)}
            self.named[fixed["name"]] = fixed  # type: ignore[index] # a name is text
            return fixed
        if kind < 0.75:
            return {"type": "array", "items": self.type(depth + 1)}
        if kind < 0.85:
            return {"type": "map", "values": self.type(depth + 1)}
        if kind < 0.95 and not in_union:
            return self.union(depth)
        return self.record(depth)

    def union(self, depth: int) -> list[Any]:
        first = self.type(depth + 1, in_union=True)
        kind = first if isinstance(first, str) else first["type"]
        # Of two branches that one value could be read as, fastavro takes the first, and we the one of its own type.
        others = [self.random.choice(group) for group in GROUPS if kind not in group and self.random.random() < 0.4]
        return [first, *others]

    def with_logical(self) -> dict[str, Any]:
        unscaled = {"logicalType": "decimal", "precision": 18, "scale": self.random.choice((0, 2, 6))}
        return self.random.choice(
            [
                {"type": "int", "logicalType": "date"},
                {"type": "int", "logicalType": "time-millis"},
                {"type": "long", "logicalType": "time-micros"},
                {"type": "long", "logicalType": "timestamp-millis"},
                {"type": "long", "logicalType": "timestamp-micros"},
                {"type": "string", "logicalType": "uuid"},
                {"type": "bytes", **unscaled},
                {"type": "fixed", "name": self.name("D"), "size": 8, **unscaled},
                {"type": "string", "logicalType": "unheard-of"},
            ]
        )

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    # ------------------------------------------------------------ values

    def value(self, schema: Any, depth: int = 0) -> Any:
        pick = self.random.choice
        if isinstance(schema, list):
            return self.value(pick(schema), depth)
        if isinstance(schema, str):
            schema = self.named.get(schema, {"type": schema})
        kind = schema["type"]
        if "logicalType" in schema and schema["logicalType"] != "unheard-of":
            return self.logical_value(schema)
        if kind == "record":
            fields = {each["name"]: self.value(each["type"], depth + 1) for each in schema["fields"]}
            return fields | {name: TS + pick(WHOLE) for name in fields if name == "ts" and depth == 0}
        if kind == "array":
            return [self.value(schema["items"], depth + 1) for _ in range(self.random.randint(0, 3))]
        if kind == "map":
            return {pick(KEYS): self.value(schema["values"], depth + 1) for _ in range(self.random.randint(0, 3))}
        if kind == "enum":
            return pick(schema["symbols"])
        if kind in ("fixed", "bytes"):
            return self.random.randbytes(schema.get("size", self.random.randint(0, 6)))
        chosen = {"null": (None,), "boolean": (True, False), "int": WHOLE, "long": LONG, "string": TEXTS}
        return pick(chosen.get(kind, FLOATS[:4] if kind == "float" else FLOATS))

    def logical_value(self, schema: Any) -> Any:
        number = self.random.choice((0, 1, -1, 999, 123_456_789, -86_399_999_999, 1_700_000_000_123_456))
        of_day = timedelta(microseconds=abs(number) % 86_400_000_000)
        return {
            "date": date(1970, 1, 1) + timedelta(days=number % 20_000),
            "time-millis": (EPOCH + timedelta(milliseconds=of_day // timedelta(milliseconds=1))).time(),
            "time-micros": (EPOCH + of_day).time(),
            "timestamp-millis": EPOCH + timedelta(milliseconds=number // 1_000),
            "timestamp-micros": EPOCH + timedelta(microseconds=number),
            "uuid": uuid.UUID(int=self.random.getrandbits(128)),
            "decimal": Decimal(number).scaleb(-schema.get("scale", 0)),
        }[schema["logicalType"]]

    # ------------------------------------------------------------ later versions

    def evolved(self, schema: Any) -> Any:
        """What a reader of a later day may have; sometimes one that cannot be read."""
        return self._changed(copy.deepcopy(schema))

    def _changed(self, schema: Any) -> Any:
        chance = self.random.random
        if isinstance(schema, list):
            if not all(isinstance(each, str) for each in schema):
                return schema  # a type that others refer to stays where it is defined
            self.random.shuffle(schema)
            return schema[1:] if len(schema) > 1 and chance() < 0.2 else schema
        if isinstance(schema, str):
            if schema in PROMOTED and chance() < 0.3:
                return self.random.choice(PROMOTED[schema])
            if schema in PRIMITIVES and schema != "null" and chance() < 0.1:
                return ["null", schema]
            return "int" if schema in PRIMITIVES and chance() < 0.02 else schema
        kind = schema["type"]
        if kind == "record":
            self._change_fields(schema)
        elif kind == "enum" and chance() < 0.5:
            schema["symbols"] = [each for each in schema["symbols"] if chance() < 0.7] + ["Z"]
            if chance() < 0.7:
                schema["default"] = "Z"
        elif kind in ("array", "map"):
            inside = "items" if kind == "array" else "values"
            schema[inside] = self._changed(schema[inside])
        return schema

    def _change_fields(self, schema: Any) -> None:
        fields = []
        for each in schema["fields"]:
            each["type"] = self._changed(each["type"]) if each["name"] != "ts" else each["type"]
            chance = self.random.random()
            if chance < 0.15 and isinstance(each["type"], str) and each["name"] != "ts":
                continue
            if chance < 0.3 and each["name"] != "ts":
                each |= {"name": each["name"] + "_2", "aliases": [each["name"]]}
            fields.append(each)
        if self.random.random() < 0.3:
            fields.append(self.random.choice(NEW_FIELDS))
        if all(isinstance(each["type"], str) for each in fields):
            self.random.shuffle(fields)
        schema["fields"] = fields


NEW_FIELDS = (
    {"name": "new", "type": "string", "default": "n/a"},
    {"name": "new", "type": ["null", "double"], "default": None},
    {"name": "new", "type": {"type": "array", "items": "long"}, "default": [1, 2]},
    {"name": "new", "type": {"type": "map", "values": "int"}, "default": {"a": 1}},
    {"name": "new", "type": "boolean", "default": True},
    {"name": "new", "type": "long"},
)


def encoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(copy.deepcopy(schema)), value)
    return out.getvalue()


def mutated(random: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(random.randint(1, 3)):
        place = random.randint(0, len(changed))
        patch = random.choice((b"", b"\0", b"\1", b"\2", b"\x7f", b"\x80", b"\xff", random.randbytes(1)))
        changed[place : place + random.randint(0, 2)] = patch
    return bytes(changed[: random.randint(0, len(changed))] if random.random() < 0.2 else changed)


# ---------------------------------------------------------------- what rules should see, and what they do


def by_fastavro(data: bytes, writer: Any, reader: Any = None) -> tuple[Any, int]:
    """The value, and how many bytes it took."""
    source = io.BytesIO(data)
    both = [fastavro.parse_schema(copy.deepcopy(each)) if each else None for each in (writer, reader)]
    return seen(fastavro.schemaless_reader(source, *both)), source.tell()  # type: ignore[arg-type] # None is meant


def seen(value: Any) -> Any:
    """One of fastavro's values as a rule sees it."""
    if isinstance(value, dict):
        return {name: seen(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [seen(inner) for inner in value]
    if isinstance(value, datetime):
        return ms_of(value - EPOCH)
    if isinstance(value, date):
        return ms_of(datetime(value.year, value.month, value.day, tzinfo=UTC) - EPOCH)
    if isinstance(value, time):
        return ms_of(timedelta(0, value.second, value.microsecond, 0, value.minute, value.hour))
    if isinstance(value, Decimal):
        whole = value == value.to_integral_value() and value.as_tuple().exponent == 0
        return int(value) if whole else float(value)
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, uuid.UUID) else value


def ms_of(span: timedelta) -> int | float:
    micros = span // timedelta(microseconds=1)
    return micros / 1000 if micros % 1000 else micros // 1000


def decoder_of(writer: Any, reader: Any = None, paths: tuple[str, ...] = PATHS) -> AvroDecoder:
    """As for one framed message of schema 1, where there is a reader."""
    if reader is None:
        return Avro(parse_schema(json.dumps(writer))).decoder(paths, "ts", None, "event")
    listed = SchemaFiles({1: parse_schema(json.dumps(writer))})
    return Avro(parse_schema(json.dumps(reader)), listed).decoder(paths, "ts", None, "event")


def by_kernel(decoder: AvroDecoder, message: bytes, *, copied: bool = False) -> dict[str, Any] | Bad:
    """The columns by path."""
    batch = decoder.batch()
    (verdict,) = decoder.decode(batch, joined([message]), copy=copied)
    if verdict["code"]:
        assert len(batch) == 0
        return decoder.bad(verdict, message)
    return {path: plain(batch.values(column)[0]) for column, path in enumerate(decoder.paths)}


def plain(value: Any) -> Any:
    return json.loads(value.json) if isinstance(value, Other) else value


def wanted(value: dict[str, Any], paths: tuple[str, ...] = PATHS) -> dict[str, Any]:
    return {path: lookup(value, path.split(".")) for path in paths}


def told(value: Any) -> str:
    """A value for comparing: 1 and 1.0 are one number, as to rules, and 1 and true are not."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name!r}: {told(inner)}' for name, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(told, value))}]"
    return repr(int(value) if isinstance(value, float) and value.is_integer() else value)
