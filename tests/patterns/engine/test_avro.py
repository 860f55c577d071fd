"""Avro, case by case: what a value is to rules, how schemas evolve, and what is refused and why."""

from __future__ import annotations

import json
import resource
import time
from decimal import Decimal
from typing import Any

import pytest

from samovar.native.kernel import joined
from samovar.patterns.engine.avro.codec import REASONS, Avro, SchemaFiles, framed
from samovar.patterns.engine.avro.schema import AvroSchema, AvroSchemaError, kinds, parse_schema, symbols_of
from samovar.patterns.engine.avro.write import AvroValueError, Encoder
from samovar.patterns.engine.decode import CODES, Bad
from tests.support.avro_making import by_kernel, encoded, plain

TS = {"name": "ts", "type": "long"}
T = 1_700_000_000_000


def record(*fields: Any, name: str = "Event", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [*fields, TS], **more}


def x(kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": "x", "type": kind, **more}


def read(kind: Any, value: Any, path: str = "x") -> Any:
    """A field's value as rules see it."""
    schema = record(x(kind))
    decoder = Avro(parse_schema(json.dumps(schema))).decoder([path], "ts", None, "event")
    found = by_kernel(decoder, encoded(schema, {"x": value, "ts": T}))
    assert isinstance(found, dict), found
    return found[path]


def resolved(writer: Any, reader: Any, value: Any, *paths: str) -> Any:
    """A message of one schema, read as another."""
    decoder = reading(writer, reader, *paths)
    return by_kernel(decoder, framed(1, encoded(writer, value)))


def reading(writer: Any, reader: Any, *paths: str) -> Any:
    listed = SchemaFiles({1: parse_schema(json.dumps(writer))})
    return Avro(parse_schema(json.dumps(reader)), listed).decoder(paths or ("x",), "ts", None, "event")


# ---------------------------------------------------------------- what a value is


@pytest.mark.parametrize(
    ("kind", "value", "seen"),
    [
        ("null", None, None),
        ("boolean", True, True),
        ("int", -5, -5),
        ("long", 2**63 - 1, 2**63 - 1),
        ("double", 0.1, 0.1),
        ("float", 0.5, 0.5),
        ("double", float("nan"), None),
        ("double", float("-inf"), None),
        ("string", "é😀\0", "é😀\0"),
        ("bytes", b"a\xff\0", "aÿ\0"),
        ({"type": "fixed", "name": "F", "size": 2}, b"\x80\x01", "\x80\x01"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        (["null", "string"], None, None),
        (["null", "string"], "t", "t"),
        ({"type": "array", "items": ["null", "long"]}, [1, None], [1, None]),
        ({"type": "map", "values": "double"}, {"a.b": 1.5}, {"a.b": 1.5}),
        ({"type": "record", "name": "R", "fields": []}, {}, {}),
        ({"type": "int", "logicalType": "date"}, 19_675, 19_675 * 86_400_000),
        ({"type": "int", "logicalType": "date"}, -1, -86_400_000),
        ({"type": "long", "logicalType": "timestamp-millis"}, T, T),
        ({"type": "long", "logicalType": "timestamp-micros"}, T * 1000, T),
        ({"type": "long", "logicalType": "timestamp-micros"}, T * 1000 + 500, T + 0.5),
        ({"type": "long", "logicalType": "timestamp-micros"}, -1500, -1.5),
        ({"type": "long", "logicalType": "timestamp-nanos"}, T * 10**6, T),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, T, T),
        ({"type": "long", "logicalType": "time-micros"}, 1_500, 1.5),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("-12.34"), -12.34),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9}, Decimal(7), 7),
        ({"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 1}, Decimal(10**30), 1e30),
        (
            {"type": "string", "logicalType": "uuid"},
            "9b2d8a3e-0000-4000-8000-000000000001",
        )
        * 1
        + ("9b2d8a3e-0000-4000-8000-000000000001",),
        ({"type": "string", "logicalType": "never-heard-of"}, "t", "t"),
        ({"type": "long", "logicalType": "date"}, 3, 3),  # a date is an int: passed over
    ],
)
def test_a_value_is_what_the_same_json_gives(kind: Any, value: Any, seen: Any) -> None:
    found = read(kind, value)
    assert found == seen
    assert isinstance(found, bool) == isinstance(seen, bool)


def test_a_uuid_of_sixteen_bytes_is_text() -> None:
    kind = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    assert read(kind, bytes(range(16))) == "00010203-0405-0607-0809-0a0b0c0d0e0f"


@pytest.mark.parametrize("scale", [1, 22, 23, 30])
@pytest.mark.parametrize("whole", [0, 1, -1, 2**53 + 1, -(2**63), 2**63, -(2**64), 10**38 - 1, -(10**80), 2**1000])
def test_a_decimal_is_rounded_once(whole: int, scale: int) -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 400, "scale": scale}
    size = max(1, (whole.bit_length() + 8) // 8)
    schema = record(x(kind))
    data = encoded(record(x("bytes")), {"x": whole.to_bytes(size, "big", signed=True), "ts": T})
    decoder = Avro(parse_schema(json.dumps(schema))).decoder(["x"], "ts", None, "event")
    assert by_kernel(decoder, data) == {"x": float(Decimal(whole).scaleb(-scale))}


def test_nested_fields_come_before_flat_names_and_null_is_absent() -> None:
    inner = {"type": "map", "values": ["null", "string", {"type": "map", "values": "string"}]}
    paths = ("x.a.b", "x.a", "x", "x.c")
    schema = record(x(inner))
    decoder = Avro(parse_schema(json.dumps(schema))).decoder(paths, "ts", None, "event")

    def seen(value: Any) -> Any:
        found = by_kernel(decoder, encoded(schema, {"x": value, "ts": T}))
        assert isinstance(found, dict)
        return [found[path] for path in paths]

    assert seen({"a": {"b": "deep"}, "a.b": "flat"})[0] == "deep"
    assert seen({"a.b": "flat", "a": {"c": "other"}})[:2] == ["flat", {"c": "other"}]
    assert seen({"a": None, "c": "c"}) == [None, None, {"a": None, "c": "c"}, "c"]


def test_of_a_key_that_comes_twice_in_a_map_the_last_counts() -> None:
    schema = record(x({"type": "map", "values": ["null", {"type": "map", "values": "string"}]}))
    one = b"\x02a\x02\x02\x02b\x02v\x00"  # "a": {"b": "v"}
    none = b"\x02a\x00"  # "a": null
    time_bytes = encoded({"type": "record", "name": "T", "fields": [TS]}, {"ts": T})
    decoder = Avro(parse_schema(json.dumps(schema))).decoder(["x.a.b"], "ts", None, "event")
    assert by_kernel(decoder, b"\x04" + none + one + b"\0" + time_bytes) == {"x.a.b": "v"}
    assert by_kernel(decoder, b"\x04" + one + none + b"\0" + time_bytes) == {"x.a.b": None}


def test_a_recursive_type_is_read() -> None:
    node = {
        "type": "record",
        "name": "N",
        "fields": [{"name": "v", "type": "int"}, {"name": "n", "type": ["null", "N"]}],
    }
    value = {"v": 1, "n": {"v": 2, "n": {"v": 3, "n": None}}}
    assert read(node, value) == value
    assert read(node, value, "x.n.n.v") == 3


def test_the_time_and_the_type_are_as_in_json() -> None:
    schema = {
        "type": "record",
        "name": "E",
        "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["login", "pay"]}},
        ],
    }
    decoder = Avro(parse_schema(json.dumps(schema))).decoder([], "at", "kind")
    batch = decoder.batch()
    decoder.decode(batch, joined([encoded(schema, {"at": T * 1000 + 999, "kind": "pay"})]))
    assert (batch.time.tolist(), batch.types()) == ([T], ["pay"])


def test_an_event_may_be_a_map_or_one_of_several_records() -> None:
    other = {"type": "record", "name": "Other", "fields": [TS, {"name": "y", "type": "string"}]}
    both = [record(x("int")), other]
    decoder = Avro(parse_schema(json.dumps(both))).decoder(["x", "y"], "ts", None, "event")
    assert by_kernel(decoder, encoded(both, {"y": "b", "ts": T})) == {"x": None, "y": "b"}
    a_map = {"type": "map", "values": ["long", "string"]}
    decoder = Avro(parse_schema(json.dumps(a_map))).decoder(["x"], "ts", None, "event")
    assert by_kernel(decoder, encoded(a_map, {"x": "a", "ts": T})) == {"x": "a"}


# ---------------------------------------------------------------- evolution


def test_a_field_that_was_not_written_has_its_default() -> None:
    fields = [
        {"name": "text", "type": "string", "default": "n/a"},
        {"name": "none", "type": ["null", "string"], "default": None},
        {"name": "either", "type": ["null", "string"], "default": "second"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}, "default": 1_500},
        {
            "name": "cost",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1},
            "default": "{",
        },
        {"name": "list", "type": {"type": "array", "items": "int"}, "default": [1, 2]},
        {"name": "inner", "type": record(x("int"), name="I"), "default": {"x": 4, "ts": 5}},
        {"name": "share", "type": "double", "default": 1},
        {"name": "yes", "type": "boolean", "default": True},
    ]
    paths = ("text", "none", "either", "at", "cost", "list", "inner", "inner.x", "share", "yes")
    found = resolved(record(x("int")), record(*fields), {"x": 1, "ts": T}, *paths)
    assert list(found.values()) == ["n/a", None, "second", 1.5, 12.3, [1, 2], {"x": 4, "ts": 5}, 4, 1.0, True]


def test_fields_are_found_by_name_and_by_alias_in_any_order_and_others_are_passed_over() -> None:
    writer = record({"name": "a", "type": "string"}, {"name": "gone", "type": record(x("bytes"), name="G")}, x("int"))
    reader = {
        "type": "record",
        "name": "Event",
        "fields": [TS, x("double"), {"name": "b", "type": "string", "aliases": ["a"]}],
    }
    value = {"a": "t", "gone": {"x": b"\xff", "ts": 1}, "x": 7, "ts": T}
    assert resolved(writer, reader, value, "x", "b", "a", "gone") == {"x": 7.0, "b": "t", "a": None, "gone": None}


def test_a_record_that_is_passed_over_in_one_place_is_read_in_another() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "int"}]}
    writer = record({"name": "gone", "type": inner}, x("I"))
    narrow = {"type": "record", "name": "I", "fields": [{"name": "b", "type": "long"}]}
    value = {"gone": {"a": 1, "b": 2}, "x": {"a": 3, "b": 4}, "ts": T}
    assert resolved(writer, record(x(narrow)), value, "x", "x.a", "x.b") == {"x": {"b": 4}, "x.a": None, "x.b": 4}


@pytest.mark.parametrize(
    ("writer", "reader", "value", "seen"),
    [
        ("int", "long", 5, 5),
        ("int", "double", 5, 5.0),
        ("long", "float", 2**40, float(2**40)),
        ("float", "double", 0.5, 0.5),
        ("string", "bytes", "é", "Ã©"),
        ("bytes", "string", "é".encode(), "é"),
        ("int", ["null", "string", "long"], 5, 5),
        (["null", "int"], "long", 5, 5),
        (["null", "int"], ["double", "null"], 5, 5.0),
        (["string", "bytes"], ["string", "bytes"], b"\xff", "ÿ"),  # its own type, not the first that would fit
        ({"type": "array", "items": "int"}, {"type": "array", "items": "double"}, [1], [1.0]),
        ({"type": "map", "values": "int"}, {"type": "map", "values": ["null", "long"]}, {"a": 1}, {"a": 1}),
        (
            {"type": "enum", "name": "a.E", "symbols": ["A", "B"]},
            {"type": "enum", "name": "b.E", "symbols": ["Z", "A"], "default": "Z"},
            "B",
            "Z",
        ),
        (
            {"type": "fixed", "name": "Old", "size": 1},
            {"type": "fixed", "name": "New", "aliases": ["Old"], "size": 1},
            b"a",
            "a",
        ),
    ],
)
def test_a_type_is_promoted_as_avro_says(writer: Any, reader: Any, value: Any, seen: Any) -> None:
    assert resolved(record(x(writer)), record(x(reader)), {"x": value, "ts": T}) == {"x": seen}


@pytest.mark.parametrize(
    ("writer", "reader", "value", "why"),
    [
        ("string", "int", "a", "`x` was written as string and is read as int"),
        ("long", "int", 1, "`x` was written as long and is read as int"),
        (["null", "string"], "string", None, "`x` was written as null and is read as string"),
        ("double", ["null", "long"], 1.0, "`x` was written as double and is read as one of null, long"),
        (
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            {"type": "enum", "name": "E", "symbols": ["A"]},
            "B",
            "the reader's enum lacks the symbol, and has no default in `x`",
        ),
        (
            {"type": "fixed", "name": "F", "size": 1},
            {"type": "fixed", "name": "F", "size": 2},
            b"a",
            "`x` was written as F and is read as F",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(writer: Any, reader: Any, value: Any, why: str) -> None:
    found = resolved(record(x(writer)), record(x(reader)), {"x": value, "ts": T})
    assert isinstance(found, Bad)
    assert found.code == "SCHEMA_MISMATCH"
    assert why in found.reason
    assert "(schema 1)" in found.reason


def test_only_messages_that_hold_what_cannot_be_read_are_refused() -> None:
    writer, reader = record(x(["null", "string", "int"])), record(x(["null", "int"]))
    assert resolved(writer, reader, {"x": 3, "ts": T}) == {"x": 3}
    assert isinstance(resolved(writer, reader, {"x": "a", "ts": T}), Bad)


def test_a_missing_field_without_a_default_is_told() -> None:
    found = resolved(record(), record(x("string")), {"ts": T})
    assert isinstance(found, Bad)
    assert "`x` was not written, and has no default" in found.reason


def test_messages_of_several_schemas_in_one_batch() -> None:
    first, second = record(x("int")), record(x("string"), {"name": "y", "type": "int"})
    listed = SchemaFiles({1: parse_schema(json.dumps(first)), 70_000: parse_schema(json.dumps(second))})
    decoder = Avro(None, listed).decoder(["x", "y"], "ts", None, "event")
    old, new = framed(1, encoded(first, {"x": 1, "ts": T})), encoded(second, {"x": "a", "y": 2, "ts": T})
    batch = decoder.batch()
    verdicts = decoder.decode(batch, joined([old, framed(70_000, new), framed(2, new), old, b"\0\0\0", b'{"x": 1}']))
    assert [batch.values(0), batch.values(1)] == [[1, "a", 1], [None, 2, None]]
    assert batch.offset.tolist() == [0, 1, 3]
    codes = [CODES[code & 0xFF] for code in verdicts["code"].tolist()]
    assert codes == ["OK", "OK", "UNKNOWN_SCHEMA", "OK", "NOT_FRAMED", "NOT_FRAMED"]
    assert decoder.bad(verdicts[2], framed(2, new)).reason == "its schema is not known: there is no 2 under `schemas`"
    assert "it has 3 bytes" in decoder.bad(verdicts[4], b"\0\0\0").reason
    assert "it begins with byte 0x7B" in decoder.bad(verdicts[5], b'{"x": 1}').reason


# ---------------------------------------------------------------- hostile bytes


def refused(schema: Any, data: bytes) -> Bad:
    found = by_kernel(Avro(parse_schema(json.dumps(schema))).decoder(["x"], "ts", None, "event"), data)
    assert isinstance(found, Bad), found
    return found


HUGE = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # 2**63 - 1
LEAST = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # -2**63


@pytest.mark.parametrize(
    ("kind", "data", "reason"),
    [
        ("long", b"\x80", "it ends too early in `x`, at byte 0"),
        ("double", b"\0\0", "it ends too early in `x`"),
        ("string", b"\x08ab", "a length does not fit in `x`, at byte 0"),
        ("string", b"\x01", "a length does not fit"),
        ("bytes", HUGE, "a length does not fit"),
        ("bytes", LEAST, "a length does not fit"),
        ("int", b"\x80\x80\x80\x80\x10", "a whole number is too large"),
        ("long", b"\xff" * 10 + b"\0", "a whole number is too large"),
        ("long", b"\x80" * 9 + b"\x02", "a whole number is too large"),
        ("boolean", b"\x02", "a boolean is neither 0 nor 1"),
        (["null", "int"], b"\x04", "a union has no such branch"),
        (["null", "int"], b"\x01", "a union has no such branch"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "an enum has no such symbol"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x01", "an enum has no such symbol"),
        ({"type": "array", "items": "int"}, b"\x01\x08\x02\0", "a block's size is not that of its items"),
        ({"type": "array", "items": "int"}, b"\x01\x01\x02\0", "a block's size is not that of its items"),
        ({"type": "array", "items": "int"}, b"\x01\x04\x02\0\x02", "a block's size is not that of its items"),
        ({"type": "array", "items": "int"}, LEAST + b"\x02\x02\0", "a block's size is not that of its items"),
        ({"type": "array", "items": "int"}, HUGE + b"\x02\x02", "it ends too early"),
        ({"type": "array", "items": "null"}, HUGE + b"\0", "more items than its bytes can hold"),
        ({"type": "map", "values": "int"}, b"\x02\x02\xff\x02\0", "byte 0xFF"),
        ("string", b"\x04\xc3\x28", "byte 0xC3 at 1 in `x`"),
        ("long", b"\x02" + b"\x02" + b"zz", "bytes are left over at its end, at byte 2"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4},
            b"\x82\x02" + b"\0" * 129,
            "a decimal is longer than 128 bytes",
        ),
    ],
)
@pytest.mark.parametrize("wanted", [True, False])
def test_bytes_that_are_no_value_get_a_verdict_with_the_place(
    kind: Any, data: bytes, reason: str, wanted: bool
) -> None:
    """Also where no rule reads the field."""
    name = "x" if wanted else "unread"
    found = refused(record({"name": name, "type": kind}), data)
    assert found.code in ("NOT_AVRO", "NOT_UTF8")
    assert reason.replace("`x`", f"`{name}`") in found.reason


def test_every_reason_of_the_kernel_has_words() -> None:
    assert len(set(REASONS)) == 12
    assert all(REASONS[1:])


@pytest.mark.parametrize("name", ["x", "unread"])
@pytest.mark.parametrize("kind", [["null", "N"], {"type": "array", "items": "N"}, {"type": "map", "values": "N"}])
def test_a_value_nested_too_deeply_is_refused(name: str, kind: Any) -> None:
    node = {"type": "record", "name": "N", "fields": [{"name": "n", "type": kind}]}
    more = b"\x02\0" if isinstance(kind, dict) and kind["type"] == "map" else b"\x02"
    assert refused(record({"name": name, "type": node}), more * 100_000).code == "TOO_DEEP"


def test_a_type_without_an_end_is_refused() -> None:
    endless = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "N"}]}
    assert refused(record(x(endless)), b"").code == "EMPTY"
    assert refused(record(x(endless)), b"\0").code == "TOO_DEEP"


def test_time_and_memory_are_bounded_by_the_message() -> None:
    """A type whose values take no bytes, and twice as many of them at every level: 2**50 nulls in no byte at all."""
    levels: Any = {"type": "record", "name": "L0", "fields": []}
    for level in range(1, 50):
        fields = [{"name": "a", "type": levels}, {"name": "b", "type": f"L{level - 1}"}]
        levels = {"type": "record", "name": f"L{level}", "fields": fields}
    schemas = [record(x({"type": "array", "items": "null"})), record(x(levels))]
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.process_time()
    for schema in schemas:
        for path in ("x", "y"):
            decoder = Avro(parse_schema(json.dumps(schema))).decoder([path], "ts", None, "event")
            found = by_kernel(decoder, HUGE)
            assert isinstance(found, Bad)
            assert "more items" in found.reason
    assert time.process_time() - begun < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 50_000


def test_the_time_field_tells_what_stands_in_it() -> None:
    schema = {"type": "record", "name": "E", "fields": [{"name": "ts", "type": ["null", "string", "long"]}]}
    decoder = Avro(parse_schema(json.dumps(schema))).decoder([], "ts", None, "event")

    def reason(value: Any) -> tuple[str, str]:
        found = by_kernel(decoder, encoded(schema, {"ts": value}))
        assert isinstance(found, Bad)
        return found.code, found.reason

    assert reason(None)[0] == "MISSING_TIME"
    assert reason("12")[0] == "QUOTED_DIGITS"
    code, words = reason(T * 1000)
    assert code == "TIME_OUT_OF_RANGE"
    assert f"is {T * 1000}, outside the years" in words


def test_what_is_no_object_is_no_event() -> None:
    found = by_kernel(Avro(parse_schema('"string"')).decoder([], "ts", None, "event"), b"\x02a")
    assert isinstance(found, Bad)
    assert (found.code, found.reason) == ("NOT_AN_OBJECT", 'an event is a record or a map, and this is "a"')


# ---------------------------------------------------------------- schemas


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON: "),
        ("[]", "a union has at least one branch"),
        ('["int", "int"]', "the union has `int` twice"),
        ('["int", ["null"]]', "a union cannot hold a union"),
        ('"Card"', "there is no type `Card`"),
        ("5", "a type is a name, a list or an object"),
        ("{}", "`type` is missing"),
        ('{"type": "record", "name": "R"}', "`fields` is missing"),
        ('{"type": "record", "name": "1", "fields": []}', "`1` cannot be a type's name"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a.b", "type": "int"}]}',
            "`a.b` cannot be a field's name",
        ),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "Int"}]}', "`a`: there is no type `Int`"),
        ('{"type": "enum", "name": "E", "symbols": []}', "needs `symbols`"),
        ('{"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}', "none of its symbols"),
        ('{"type": "fixed", "name": "F", "size": -1}', "needs a `size`"),
        ('{"type": "array"}', "`items` is missing"),
        ('{"type": "array", "items": ' * 100 + '"int"' + "}" * 100, "nested deeper than 64 levels"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_schema_that_is_none_is_refused_with_the_place(text: str, why: str) -> None:
    with pytest.raises(AvroSchemaError, match=why.replace("[", r"\[")):
        parse_schema(text)


def test_names_are_found_in_their_namespace() -> None:
    inner = {"type": "enum", "name": "E", "symbols": ["A"]}
    outer = {
        "type": "record",
        "name": "R",
        "namespace": "a.b",
        "fields": [{"name": "x", "type": inner}, {"name": "y", "type": "E"}, {"name": "z", "type": "a.b.E"}],
    }
    assert set(parse_schema(json.dumps(outer)).names) == {"a.b.R", "a.b.E"}


def test_a_schema_tells_the_rules_what_they_may_read() -> None:
    schema = parse_schema(
        json.dumps(
            record(
                x(["null", record(x("float"), name="Inner")]),
                {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["a", "b"]}},
                {"name": "cost", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4}},
                {"name": "mixed", "type": ["int", "string"]},
                {"name": "tags", "type": {"type": "map", "values": "string"}},
                {"name": "me", "type": ["null", "Event"]},
            )
        )
    )
    assert kinds(schema) == {
        "x": {"x": "double", "ts": "long"},
        "kind": "string",
        "cost": "double",
        "mixed": "any",
        "tags": "any",
        "me": "any",
        "ts": "long",
    }
    assert symbols_of(schema, "kind") == ("a", "b")
    assert symbols_of(schema, "cost") is None


# ---------------------------------------------------------------- writing


def written(kind: Any, value: Any) -> Any:
    """What a rule sees of a value that was written from JSON."""
    schema = parse_schema(json.dumps(record(x(kind))))
    data = Encoder(schema).encode(json.dumps({"x": value, "ts": T}))
    found = by_kernel(Avro(schema).decoder(["x"], "ts", None, "event"), data)
    assert isinstance(found, dict), found
    return plain(found["x"])


@pytest.mark.parametrize(
    ("kind", "value", "seen"),
    [
        ("double", 5, 5.0),
        ("long", 7.0, 7),
        ("bytes", "aÿ", "aÿ"),
        (["null", "string"], None, None),
        ({"type": "array", "items": "int"}, [1], [1]),
        ({"type": "map", "values": ["null", "double"]}, {"a": 1.5}, {"a": 1.5}),
        ({"type": "long", "logicalType": "timestamp-millis"}, "2023-11-14T22:13:20Z", T),
        ({"type": "long", "logicalType": "timestamp-micros"}, T + 0.5, T + 0.5),
        ({"type": "int", "logicalType": "date"}, "2023-11-14", 1_699_920_000_000),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, 12.34, 12.34),
        ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"},)
        + ("00010203-0405-0607-0809-0a0b0c0d0e0f",) * 2,
    ],
)
def test_json_that_was_written_as_avro_is_seen_as_it_was(kind: Any, value: Any, seen: Any) -> None:
    assert written(kind, value) == seen


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ("double", "5", '`x` is "5", and should be double'),
        ("long", 1.5, "`x` is 1.5, and should be long"),
        ("int", 2**31, "should be int"),
        ("boolean", 1, "should be boolean"),
        ("string", None, "`x` is missing, and has no default"),
        (["null", "long"], "a", "should be null or long"),
        ("bytes", "€", "should be bytes"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", "should be E"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}, 12345, "no value of `Event`"),
        ({"type": "int", "logicalType": "date"}, 1, "should be int"),
    ],
)
def test_json_that_the_schema_cannot_hold_is_refused(kind: Any, value: Any, why: str) -> None:
    with pytest.raises(AvroValueError) as error:
        written(kind, value)
    assert why in str(error.value)


def test_a_field_that_the_schema_lacks_is_not_left_out_in_silence() -> None:
    schema: AvroSchema = parse_schema(json.dumps(record(x("int", default=3))))
    with pytest.raises(AvroValueError, match="`Event` has no field `z`"):
        Encoder(schema).encode('{"x": 1, "ts": 1, "z": 2}')
    assert Encoder(schema, 5).encode('{"ts": 1}') == framed(5, b"\x06\x02")
