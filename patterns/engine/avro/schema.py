"""Avro schemas as data: what a .avsc file or a registry's answer says, checked, with every name in full.

Named types stand once in `Schema.names`; wherever one is used there is a `Ref`, so that a type may hold itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
MAX_DEPTH = 64

# The logical types that change what a rule sees, and the types that may carry them; elsewhere they mean nothing.
LOGICAL = {
    "date": ("int",), "time-millis": ("int",), "time-micros": ("long",),
    "timestamp-millis": ("long",), "timestamp-micros": ("long",), "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",), "local-timestamp-micros": ("long",), "local-timestamp-nanos": ("long",),
    "decimal": ("bytes", "fixed"),
    "uuid": ("string", "fixed"),
}  # fmt: skip

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class AvroSchemaError(ValueError):
    """A schema that is none; the text says where and why."""


class NoDefault:
    """Stands for no default. The class itself, so that it is the same one in every process."""


@dataclass(frozen=True, slots=True)
class Logical:
    """A logical type; `scale` is that of a decimal."""

    name: str
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Primitive:
    kind: str
    logical: Logical | None = None


@dataclass(frozen=True, slots=True)
class ArrayType:
    items: Type


@dataclass(frozen=True, slots=True)
class MapType:
    values: Type


@dataclass(frozen=True, slots=True)
class Union:
    branches: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class Ref:
    """A named type, by its full name."""

    name: str


@dataclass(frozen=True, slots=True)
class FieldType:
    name: str
    type: Type
    aliases: tuple[str, ...] = ()
    default: Any = NoDefault


@dataclass(frozen=True, slots=True)
class RecordType:
    name: str
    fields: tuple[FieldType, ...]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Enum:
    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FixedType:
    name: str
    size: int
    logical: Logical | None = None
    aliases: tuple[str, ...] = ()


Named: TypeAlias = RecordType | Enum | FixedType
Type: TypeAlias = Primitive | ArrayType | MapType | Union | Ref
Plain: TypeAlias = Primitive | ArrayType | MapType | Union | Named


@dataclass(frozen=True)
class AvroSchema:
    """A schema and the named types in it. `texts` are what it was read from, the types that it refers to first."""

    root: Type
    names: Mapping[str, Named]
    texts: tuple[str, ...] = ()

    def of(self, kind: Type) -> Plain:
        return self.names[kind.name] if isinstance(kind, Ref) else kind

    @property
    def name(self) -> str:
        """What to call it."""
        return type_name(self.of(self.root))


def type_name(kind: Plain | Type) -> str:
    if isinstance(kind, RecordType | Enum | FixedType | Ref):
        return kind.name
    if isinstance(kind, Primitive):
        return kind.kind
    return type(kind).__name__.removesuffix("Type").lower()


def parse_schema(*texts: str) -> AvroSchema:
    """A schema from its JSON text; before it, the texts of others whose names it uses."""
    parser = _Parser()
    root: Type | None = None
    for text in texts:
        try:
            # A registry holds `"string"`, people write `string`; only `null` is JSON as it stands.
            node = text.strip() if text.strip() in PRIMITIVES[1:] else json.loads(text)
            root = parser.type(node, "", "", 0)
        except json.JSONDecodeError as error:
            raise AvroSchemaError(f"not JSON: {error.msg}, line {error.lineno}, column {error.colno}") from None
        except RecursionError:
            raise AvroSchemaError("nested too deeply") from None
    if root is None:
        raise AvroSchemaError("there is no schema")
    return AvroSchema(root, parser.names, texts)


@dataclass
class _Parser:
    """`where` is the way to a part, for messages; `space` the namespace around it."""

    names: dict[str, Named] = field(default_factory=dict)

    def type(self, node: Any, where: str, space: str, depth: int) -> Type:
        if depth > MAX_DEPTH:
            _fail(where, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(node, str):
            return self._named(node, where, space)
        if isinstance(node, list):
            return self._union(node, where, space, depth)
        if not isinstance(node, Mapping):
            _fail(where, "a type is a name, a list or an object")
        kind = node.get("type")
        if isinstance(kind, Mapping | list):
            return self.type(kind, where, space, depth + 1)
        if not isinstance(kind, str):
            _fail(where, "`type` is missing")
        if kind in PRIMITIVES:
            return Primitive(kind, _logical(node, kind))
        if kind == "array":
            return ArrayType(self.type(_has(node, "items", where), f"{where}[]", space, depth + 1))
        if kind == "map":
            return MapType(self.type(_has(node, "values", where), f"{where}.*", space, depth + 1))
        if kind in ("record", "error"):
            return self._record(node, where, space, depth)
        if kind == "enum":
            return self._enum(node, where, space)
        return self._fixed(node, where, space) if kind == "fixed" else self._named(kind, where, space)

    def _named(self, name: str, where: str, space: str) -> Type:
        if name in PRIMITIVES:
            return Primitive(name)
        for full in (_full(name, space), name):
            if full in self.names:
                return Ref(full)
        return _fail(where, f"there is no type `{name}`")

    def _union(self, node: list[Any], where: str, space: str, depth: int) -> Union:
        branches = tuple(self.type(each, where, space, depth + 1) for each in node)
        if not branches:
            _fail(where, "a union has at least one branch")
        if any(isinstance(each, Union) for each in branches):
            _fail(where, "a union cannot hold a union")
        _fail_if_twice(list(map(type_name, branches)), where, "the union has")
        return Union(branches)

    def _record(self, node: Mapping[str, Any], where: str, space: str, depth: int) -> Ref:
        name, aliases = self._name(node, where, space)
        self.names[name] = RecordType(name, ())  # so that it can hold itself
        listed = _has(node, "fields", where)
        if not isinstance(listed, list):
            _fail(where, "`fields` is a list")
        fields = []
        for each in listed:
            if not isinstance(each, Mapping):
                _fail(where, "a field is an object with `name` and `type`")
            own = each.get("name")
            if not isinstance(own, str) or not _NAME.match(own):
                _fail(where, f"`{own}` cannot be a field's name")
            inside = f"{where}.{own}" if where else own
            kind = self.type(_has(each, "type", inside), inside, name.rpartition(".")[0], depth + 1)
            others = tuple(_texts(each, "aliases", inside))
            fields.append(FieldType(own, kind, others, each.get("default", NoDefault)))
        _fail_if_twice([field.name for field in fields], where, f"`{name}` has the field")
        self.names[name] = RecordType(name, tuple(fields), aliases)
        return Ref(name)

    def _enum(self, node: Mapping[str, Any], where: str, space: str) -> Ref:
        name, aliases = self._name(node, where, space)
        symbols = tuple(_texts(node, "symbols", where))
        default = node.get("default")
        if not symbols or len(set(symbols)) < len(symbols):
            _fail(where, f"the enum `{name}` needs `symbols`, each once")
        if default is not None and default not in symbols:
            _fail(where, f"the default of the enum `{name}` is none of its symbols")
        self.names[name] = Enum(name, symbols, default, aliases)
        return Ref(name)

    def _fixed(self, node: Mapping[str, Any], where: str, space: str) -> Ref:
        name, aliases = self._name(node, where, space)
        size = node.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**31:
            _fail(where, f"`{name}` needs a `size`")
        logical = _logical(node, "fixed")
        if logical is not None and logical.name == "uuid" and size != 16:
            logical = None
        self.names[name] = FixedType(name, size, logical, aliases)
        return Ref(name)

    def _name(self, node: Mapping[str, Any], where: str, space: str) -> tuple[str, tuple[str, ...]]:
        name = _has(node, "name", where)
        given = node.get("namespace", space)
        if not isinstance(name, str) or not all(map(_NAME.match, name.split("."))) or not isinstance(given, str):
            _fail(where, f"`{name}` cannot be a type's name")
        full = _full(name, given)
        if full in PRIMITIVES or full in self.names:
            _fail(where, f"there is a type `{full}` already")
        aliases = _texts(node, "aliases", where)
        return full, tuple(_full(alias, full.rpartition(".")[0]) for alias in aliases)


def _fail(where: str, what: str) -> NoReturn:
    raise AvroSchemaError(f"`{where}`: {what}" if where else what)


def _fail_if_twice(names: list[str], where: str, what: str) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        _fail(where, f"{what} `{twice}` twice")


def _has(node: Mapping[str, Any], name: str, where: str) -> Any:
    return node[name] if name in node else _fail(where, f"`{name}` is missing")


def _texts(node: Mapping[str, Any], name: str, where: str) -> Iterator[str]:
    listed = node.get(name) or []
    if not isinstance(listed, list):
        _fail(where, f"`{name}` is a list")
    for each in listed:
        if not isinstance(each, str):
            _fail(where, f"`{name}` holds names")
        yield each


def _full(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _logical(node: Mapping[str, Any], kind: str) -> Logical | None:
    """As Avro says, a logical type that does not fit is passed over."""
    name = node.get("logicalType")
    if not isinstance(name, str) or kind not in LOGICAL.get(name, ()):
        return None
    if name != "decimal":
        return Logical(name)
    scale, precision = node.get("scale", 0), node.get("precision")
    fits = isinstance(scale, int) and isinstance(precision, int) and 0 <= scale <= precision and precision > 0
    return Logical(name, scale) if fits else None


def kinds(schema: AvroSchema) -> dict[str, Any] | None:
    """Fields and their types in the words of samovar.patterns.semantics.schema; None where events have no fields of
    their own.
    """
    found = _kind(schema, schema.root, ())
    return found if isinstance(found, dict) else None


def _kind(schema: AvroSchema, kind: Type, above: tuple[str, ...]) -> Any:
    plain = schema.of(kind)
    if isinstance(plain, RecordType):
        if plain.name in above or not plain.fields:
            return "any"
        return {each.name: _kind(schema, each.type, (*above, plain.name)) for each in plain.fields}
    if isinstance(plain, Union):
        found = [_kind(schema, each, above) for each in plain.branches if each != Primitive("null")]
        return found[0] if found and all(each == found[0] for each in found) else "any"
    if isinstance(plain, ArrayType | MapType):
        return "any"
    if not isinstance(plain, Enum) and plain.logical is not None and plain.logical.name == "decimal":
        return "double"
    if isinstance(plain, Enum | FixedType):
        return "string"
    words = {"null": "any", "boolean": "boolean", "int": "long", "long": "long", "float": "double", "double": "double"}
    return words.get(plain.kind, "string")


def symbols_of(schema: AvroSchema, name: str) -> tuple[str, ...] | None:
    """The symbols of an event's field that is an enum."""
    record = schema.of(schema.root)
    for each in record.fields if isinstance(record, RecordType) else ():
        plain = schema.of(each.type)
        if each.name == name and isinstance(plain, Enum):
            return plain.symbols
    return None
