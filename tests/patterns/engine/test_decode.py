"""What a message may be, in tables, each row also held against the strict decoder; buffers, lines and batches."""

from __future__ import annotations

import ctypes
import json
from typing import Any

import numpy as np
import pytest

from samovar.native.kernel import Messages, Other, data_of, joined, kernel, lines_of
from samovar.patterns.engine.decode import CODES, MAX_DEPTH, Bad
from samovar.patterns.engine.decoder import Decoder
from tests.support.decoding import GOOD, assert_same, decode, decoder
from tests.support.strict_decoder import DecodedEvent

# ---------------------------------------------------------------- tables


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"", "EMPTY"),
        (b" \t\r\n", "BLANK"),
        (b"\x0c", "NOT_JSON"),
        (b"\xef\xbb\xbf{" + GOOD + b"}", "NOT_JSON"),
        (b"{", "NOT_JSON"),
        (b"{" + GOOD, "NOT_JSON"),
        (b"{" + GOOD + b"}}", "NOT_JSON"),
        (b"{" + GOOD + b"} {", "NOT_JSON"),
        (b"{" + GOOD + b",}", "NOT_JSON"),
        (b"{,}", "NOT_JSON"),
        (b"{x: 1}", "NOT_JSON"),
        (b"{'x': 1}", "NOT_JSON"),
        (b'{"x" 1}', "NOT_JSON"),
        (b'{"x": [1,]}', "NOT_JSON"),
        (b'{"x": [1 2]}', "NOT_JSON"),
        (b'{"x": tru}', "NOT_JSON"),
        (b'{"x": nulll}', "NOT_JSON"),
        (b'{"x": NaN}', "NOT_JSON"),
        (b'{"x": -Infinity}', "NOT_JSON"),
        *[(b'{"x": ' + n + b"}", "NOT_JSON") for n in b"01 -01 1. .5 1e 1e+ - +1 0x1 1_0 --1 1.e1 1E-".split()],
        (b'{"x": "\n"}', "NOT_JSON"),
        (b'{"x": "\x00"}', "NOT_JSON"),
        (b'{"x": "\\x41"}', "NOT_JSON"),
        (b'{"x": "\\u12g4"}', "NOT_JSON"),
        (b'{"x": "\\ud800\\u12"}', "NOT_JSON"),
        (b'{"x": "unclosed}', "NOT_JSON"),
        (b'{"x": "\\', "NOT_JSON"),
        (b'{"x": "\xff"}', "NOT_UTF8"),
        (b'{"x": "\xc0\x80"}', "NOT_UTF8"),
        (b'{"x": "\xed\xa0\x80"}', "NOT_UTF8"),
        (b'{"x": "\xf4\x90\x80\x80"}', "NOT_UTF8"),
        (b'{"x": "\xe2\x82', "NOT_UTF8"),
        (b"{] \x80", "NOT_UTF8"),
        (b"[1]", "NOT_AN_OBJECT"),
        (b' "text"', "NOT_AN_OBJECT"),
        (b"null", "NOT_AN_OBJECT"),
        (b'["\\ud800"]', "NOT_AN_OBJECT"),
        (b'{"x": "\\ud800"}', "LONE_SURROGATE"),
        (b'{"x": "\\udc00\\ud800"}', "LONE_SURROGATE"),
        (b'{"\\ud800\\u0041": 1}', "LONE_SURROGATE"),
        (b'{"x": "\\ud800", "y"}', "NOT_JSON"),
        (b'{"y": 1e309}', "NUMBER_TOO_LARGE"),
        (b'{"y": -1e309, "y": 1}', "NUMBER_TOO_LARGE"),
        (b'{"y": ' + b"9" * 310 + b"}", "NUMBER_TOO_LARGE"),
        (b'{"type": "t"}', "MISSING_TIME"),
        (b'{"type": "t", "ts": null}', "MISSING_TIME"),
        (b'{"type": "t", "ts": 1, "ts": null}', "MISSING_TIME"),
        (b'{"type": "t", "ts": true}', "TIME_NOT_A_TIME"),
        (b'{"type": "t", "ts": [1]}', "TIME_NOT_A_TIME"),
        (b'{"type": "t", "ts": {"ts": 1}}', "TIME_NOT_A_TIME"),
        (b'{"type": "t", "ts": "1700000000000"}', "QUOTED_DIGITS"),
        (b'{"type": "t", "ts": "20231114"}', "QUOTED_DIGITS"),
        (b'{"type": "t", "ts": ""}', "BAD_TIME"),
        (b'{"type": "t", "ts": "yesterday"}', "BAD_TIME"),
        (b'{"type": "t", "ts": 253402300800000}', "TIME_OUT_OF_RANGE"),
        (b'{"type": "t", "ts": 1e300}', "TIME_OUT_OF_RANGE"),
        (b'{"type": "t", "ts": -62135596800001}', "TIME_OUT_OF_RANGE"),
        (b'{"ts": 1}', "MISSING_TYPE"),
        (b'{"ts": 1, "type": null}', "MISSING_TYPE"),
        (b'{"ts": 1, "type": 5}', "TYPE_NOT_TEXT"),
        (b'{"ts": 1, "type": ["t"]}', "TYPE_NOT_TEXT"),
    ],
)
def test_bad_messages(message: bytes, code: str) -> None:
    (bad,) = decode([message])
    assert isinstance(bad, Bad)
    assert bad.code == code
    assert_same(message)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("0", 0),
        ("-0", 0),
        ("1.0", 1.0),
        ("-0.0", -0.0),
        ("1e2", 100.0),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", 2.0**63),
        ("-9223372036854775808", -(2**63)),
        ("-9223372036854775809", -(2.0**63)),
        ("18446744073709551616", 2.0**64),
        ("99999999999999999999", 1e20),
        ("0.1", 0.1),
        ("0.30000000000000004", 0.30000000000000004),
        ("9007199254740993.0", 9007199254740992.0),
        ("1e22", 1e22),
        ("1e23", 1e23),
        ("5e-324", 5e-324),
        ("2e-324", 0.0),
        ("1e-400", 0.0),
        ("1e-99999999999999999999", 0.0),
        ("0e99999999999999999999", 0.0),
        ("1.7976931348623157e308", 1.7976931348623157e308),
        ("2.2250738585072011e-308", 2.2250738585072011e-308),
        ("0." + "0" * 400 + "1e401", 1.0),
        ("true", True),
        ("null", None),
        ('""', ""),
        (r'"\"\\\/\b\f\n\r\t"', '"\\/\b\f\n\r\t'),
        (r'"\u0041\u00e9\u20AC\ud83d\uDE00\u0000"', "Aé€\U0001f600\0"),
        ('"é€\U0001f600\x7f\u2028\ufeff"', "é€\U0001f600\x7f\u2028\ufeff"),
        ('[1, {"b": 2}]', [1, {"b": 2}]),
    ],
)
def test_values(raw: str, value: Any) -> None:
    message = f'{{"x": {raw}, "type": "t", "ts": 1}}'.encode()
    (event,) = decode([message])
    assert isinstance(event, DecodedEvent)
    assert repr(event.values["x"]) == repr(value)
    assert_same(message)


@pytest.mark.parametrize(
    ("raw", "path", "value"),
    [
        ('"a": {"b": 1}, "a.b": 2', "a.b", 1),
        ('"a.b": 2, "a": {"b": 1}', "a.b", 1),
        ('"a.b": 2, "a": {"b": null}', "a.b", 2),
        ('"a.b": 2, "a": 5', "a.b", 2),
        ('"a.b": 2, "a": {"b": 1}, "a": {"b": null}', "a.b", 2),
        ('"a": {"b": 1}, "a": {"c": 1}', "a.b", None),
        ('"a": {"b": 1}, "a": null', "a.b", None),
        ('"a": [{"b": 1}]', "a.b", None),
        ('"a.b": {"c": 3}, "a": {"b.c": 2}, "a.b.c": 4', "a.b.c", 2),
        ('"a.b": {"c": 3}, "a.b.c": 4', "a.b.c", 3),
        ('"a.b.c": 4', "a.b.c", 4),
        ('"a.b": {"c": 3}, "a.b": {"c": 5}', "a.b.c", 5),
        ('"a.b": {"c": {"d": 1}}, "a": {"b": {"c": {"d": null}, "c.d": 6}}', "a.b.c.d", 6),
        (r'"\u0061": {"\u0062": 7}', "a.b", 7),
        ('"x": 1, "x": "last"', "x", "last"),
        ('"a long name": 1, "a long nam": 2, "a long name!": 3', "a long name", 1),
        ('"": 1', "", 1),
    ],
)
def test_paths(raw: str, path: str, value: Any) -> None:
    message = f'{{{raw}, "type": "t", "ts": 1}}'.encode()
    (event,) = decode([message])
    assert isinstance(event, DecodedEvent)
    assert event.values[path] == value
    assert_same(message)


def test_an_object_on_the_way_is_a_value_too() -> None:
    (event,) = decode([b'{"a": {"b": {"c": 1}}, "type": "t", "ts": 1}'])
    assert isinstance(event, DecodedEvent)
    assert (event.values["a"], event.values["a.b"], event.values["a.b.c"]) == ({"b": {"c": 1}}, {"c": 1}, 1)


@pytest.mark.parametrize(
    ("raw", "ms"),
    [
        ("1700000000000", 1700000000000),
        ("1700000000000.999", 1700000000000),
        ("-0.5", -1),
        ("1.7e12", 1700000000000),
        ("253402300799999", 253402300799999),
        ('"2023-11-14"', 1699920000000),
        ('"2023-11-14T22:13"', 1699999980000),
        ('"2023-11-14T22:13:20"', 1700000000000),
        ('"2023-11-14 22:13:20Z"', 1700000000000),
        ('"2023-11-14t22:13:20z"', 1700000000000),
        ('"2023-11-14T22:13:20.5Z"', 1700000000500),
        ('"2023-11-14T22:13:20,1239999999999999999999Z"', 1700000000123),
        ('"2023-11-14T23:13:20+01:00"', 1700000000000),
        ('"2023-11-14T23:13:20+0100"', 1700000000000),
        ('"2023-11-14T21:13:20-01"', 1700000000000),
        ('"2023-11-15T03:58:20+05:45"', 1700000000000),
        ('"20231114T221320Z"', 1700000000000),
        ('"20231114T2213"', 1699999980000),
        ('"1969-12-31T23:59:59.9999Z"', -1),
        ('"2024-02-29"', 1709164800000),
        ('"0001-01-01"', -62135596800000),
        ('"0000-12-31T23:30:00-01:00"', -62135595000000),
        ('"9999-12-31T23:59:59.999Z"', 253402300799999),
        (r'"2023\u002d11-14"', 1699920000000),
    ],
)
def test_times(raw: str, ms: int) -> None:
    message = f'{{"type": "t", "ts": {raw}}}'.encode()
    (event,) = decode([message])
    assert isinstance(event, DecodedEvent)
    assert event.time == ms
    assert_same(message)


@pytest.mark.parametrize(
    "text",
    [
        *["2023", "2023-11", "2023-1-14", "2023-13-01", "2023-00-01", "2023-02-29", "1900-02-29", "2023-11-00"],
        *["2023-11-14T", "2023-11-14T22", "2023-11-14T24:00", "2023-11-14T22:60", "2016-12-31T23:59:60Z"],
        *["2023-11-14T22:13:", "2023-11-14T22:13:20.", "2023-11-14T22:13:20.Z", "2023-11-14T22:13.5"],
        *["2023-11-14Z", "2023-11-14+01:00", "2023-11-14T22:13:20 Z", "2023-11-14T22:13:20UTC", " 2023-11-14"],
        *["2023-11-14T22:13:20+1", "2023-11-14T22:13:20+24:00", "2023-11-14T22:13:20+01:60", "2023-11-14T22:13+01:"],
        *["20231114", "20231114T22:13", "2023-11-14T221320", "2023-1114", "202311-14", "2023-W46-2", "2023-318"],
        *["0000-12-31", "0000-02-30", "9999-12-31T23:59:59-00:01", "0001-01-01T00:00+00:01", "+2023-11-14"],
        *["٢٠٢٣-11-14", "2023-11-14\n", "2023-11-14T22:13:20-", "1.5", "-5", "+7", "1e3", "."],
    ],
)
def test_times_that_are_none(text: str) -> None:
    message = json.dumps({"type": "t", "ts": text}).encode()
    (bad,) = decode([message])
    assert isinstance(bad, Bad)
    assert bad.code in ("QUOTED_DIGITS", "BAD_TIME", "TIME_OUT_OF_RANGE")
    assert_same(message)


def test_depth() -> None:
    for levels, code in ((MAX_DEPTH, None), (MAX_DEPTH + 1, "TOO_DEEP"), (100_000, "TOO_DEEP")):
        inner = levels - 1
        for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
            message = b'{"a":' + opening * inner + b"1" + closing * inner + b"," + GOOD + b"}"
            (result,) = decode([message])
            assert (result.code if isinstance(result, Bad) else None) == code
            assert_same(message)
    assert_same(b"[" * 100_000)
    assert_same(b"[" * 60 + b"}" + b"[" * 60)


def test_a_message_that_is_too_long_is_not_even_read() -> None:
    verdict, bounds = (ctypes.c_uint32 * 2)(), (ctypes.c_int64 * 2)(0, 2**31)
    batch, buffer = decoder().batch(), ctypes.create_string_buffer(1)
    starts, ends = ctypes.addressof(bounds), ctypes.addressof(bounds) + 8
    kernel().samovar_decode_json(
        decoder().handle, batch.handle, ctypes.addressof(buffer), starts, ends, 1, 0, None, None, 0, verdict
    )
    assert (CODES[verdict[0]], len(batch)) == ("TOO_LONG", 0)


def test_a_sentence_for_every_code() -> None:
    message = b'{"when": "soon", "kind": 7}'
    bad = Decoder([], "when", "kind").bad({"code": CODES.index("BAD_TIME"), "at": 9}, message)
    assert bad.reason.startswith('the time field `when` is "soon", which is not an ISO 8601 time')
    assert bad.column == 10
    reasons = {Decoder([]).bad({"code": code, "at": 0}, b"x").reason for code in range(1, len(CODES))}
    assert len(reasons) == len(CODES) - 1


def test_a_fixed_type_needs_no_field() -> None:
    (event,) = decode([b'{"ts": 5}'], type_field=None)
    assert isinstance(event, DecodedEvent)
    assert event.type == "fixed"
    assert_same(b'{"ts": 5, "type": 7}', type_field=None)


def test_fields_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="at most 64 names"):
        Decoder([".".join("a" * 65)])
    with pytest.raises(ValueError, match="NUL"):
        Decoder(["a\0b"])
    with pytest.raises(ValueError, match="no name"):
        Decoder([], type_field="")


# ---------------------------------------------------------------- buffers and batches


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\r\nb\n\nc", [b"a", b"b", b"", b"c"]),
        (b"\n\r\n", [b"", b""]),
        (b"a\rb\r", [b"a\rb\r"]),
    ],
)
def test_lines(text: bytes, lines: list[bytes]) -> None:
    found = lines_of(text)
    assert [found[i] for i in range(len(found))] == lines


def test_places_of_rows() -> None:
    batch = Decoder(["x"]).batch()
    messages = joined([b'{"x": 1, ' + GOOD + b"}", b"bad", b'{"x": 2, ' + GOOD + b"}"])
    decoder = Decoder(["x"])
    decoder.decode(batch, messages)
    decoder.decode(batch, messages, 4, np.array([1, 2, 3], np.int32), np.array([10, 20, 30]))
    assert batch.values(0) == [1, 2, 1, 2]
    assert batch.stream.tolist() == [0, 0, 4, 4]
    assert batch.partition.tolist() == [0, 0, 1, 3]
    assert batch.offset.tolist() == [0, 2, 10, 30]


def test_a_copy_does_not_need_its_buffer() -> None:
    batch = decoder().batch()
    buffer = bytearray(b'{"x": "text", "a": [1], ' + GOOD + b"}")
    messages = Messages(data_of(buffer), np.array([0]), np.array([len(buffer)]))
    decoder().decode(batch, messages, copy=True)
    buffer[:] = b"!" * len(buffer)
    assert (batch.values(0), batch.values(1), batch.types()) == (["text"], [Other("[1]")], ["t"])


def test_messages_outside_their_buffer() -> None:
    with pytest.raises(ValueError, match="message 1 lies outside"):
        Messages(data_of(b"abc"), np.array([0, 2]), np.array([1, 4]))
