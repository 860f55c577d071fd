"""What a message must be, and what is said of one that is not: codes, sentences, paths and times.

A message is one JSON object (RFC 8259, strictly) with a time and a type. The kernel decodes it
(native/decode/json_reader.h); tests/support/strict_decoder.py says the same in plain Python, and tests hold the two
equal. `a.b` reads the nested value first and then a flat field of that name; with more names the shortest first name is
tried first at every level (for a.b.c: a > b > c, a > b.c, a.b > c, a.b.c), and null counts as absent.

The codes are listed in the order of the kernel's enum; the last four are of Avro (samovar.patterns.engine.avro.codec).
"""

from __future__ import annotations

import json
import math
import re
from calendar import monthrange
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

CODES = tuple(
    "OK EMPTY BLANK TOO_LONG NOT_UTF8 NOT_JSON TOO_DEEP NOT_AN_OBJECT LONE_SURROGATE NUMBER_TOO_LARGE MISSING_TIME "
    "TIME_NOT_A_TIME QUOTED_DIGITS BAD_TIME TIME_OUT_OF_RANGE MISSING_TYPE TYPE_NOT_TEXT NOT_AVRO NOT_FRAMED "
    "UNKNOWN_SCHEMA SCHEMA_MISMATCH".split()
)
OF_A_VALUE = ("TIME_NOT_A_TIME", "QUOTED_DIGITS", "BAD_TIME", "TIME_OUT_OF_RANGE", "TYPE_NOT_TEXT")

MAX_DEPTH = 64
MAX_MESSAGE_BYTES = 2**31 - 1
MAX_PATH_NAMES = 64
LEAST_TIME_MS = -62_135_596_800_000  # 0001-01-01T00:00:00.000Z
GREATEST_TIME_MS = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEARS_0_TO_2000 = timedelta(days=730_485)
QUOTED_NUMBER = re.compile(r"[+-]?[0-9]+\.?[0-9]*")
ZONE = r"(?P<zone>[Zz]|(?P<sign>[+-])(?P<zone_hours>[0-9]{2})(?::?(?P<zone_minutes>[0-9]{2}))?)?"
EXTENDED = re.compile(
    r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
    rf"(?:[Tt ](?P<hour>[0-9]{{2}}):(?P<minute>[0-9]{{2}})(?::(?P<second>[0-9]{{2}})(?:[.,](?P<part>[0-9]+))?)?{ZONE})?"
)
BASIC = re.compile(
    r"(?P<year>[0-9]{4})(?P<month>[0-9]{2})(?P<day>[0-9]{2})"
    rf"[Tt ](?P<hour>[0-9]{{2}})(?P<minute>[0-9]{{2}})(?:(?P<second>[0-9]{{2}})(?:[.,](?P<part>[0-9]+))?)?{ZONE}"
)


@dataclass(frozen=True, slots=True)
class Bad:
    """Why a message is not an event. `column` counts characters from 1."""

    code: str
    reason: str
    column: int | None


class RefusedError(Exception):
    """A message is bad: its code, what stands in the faulty place, and the place in characters from 0."""

    def __init__(self, code: str, shown: str = "", place: int | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.shown = shown
        self.place = place


def bad_of(code: int, at: int, message: bytes, time_field: str, type_field: str | None) -> Bad:
    """The kernel's verdict, its code and byte, as a `Bad`."""
    name = CODES[code]
    placed = name in ("NOT_UTF8", "NOT_JSON", "TOO_DEEP", "NOT_AN_OBJECT") or at > 0
    column = len(message[:at].decode(errors="replace")) + 1 if placed else None
    rest = message[at : at + 4096].decode(errors="replace")
    shown = ""
    if name == "NOT_UTF8":
        shown = shown_byte(message, at)
    elif name == "NOT_JSON":
        shown = shown_text(rest)
    elif name == "NOT_AN_OBJECT":
        shown = shown_kind(rest[0])
    elif name in OF_A_VALUE:
        try:
            shown = shown_value(json.JSONDecoder().raw_decode(rest)[0])
        except ValueError:  # it is longer than what was looked at
            shown = shown_value(rest)
    return Bad(name, sentence(name, shown, time_field, type_field or ""), column)


def lookup(members: dict[str, Any], names: Sequence[str]) -> Any:
    if len(names) > MAX_PATH_NAMES:
        return None
    for cut in range(1, len(names) + 1):
        value = members.get(".".join(names[:cut]))
        if cut < len(names):
            value = lookup(value, names[cut:]) if isinstance(value, dict) else None
        if value is not None:
            return value
    return None


def time_of(value: Any) -> int:
    """Epoch ms. A fraction of a millisecond is cut downwards, before 1970 too, as the digits of ISO text are."""
    if value is None:
        raise RefusedError("MISSING_TIME")
    if isinstance(value, str):
        time = time_of_text(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        time = math.floor(value)
    else:
        raise RefusedError("TIME_NOT_A_TIME", shown_value(value))
    if not LEAST_TIME_MS <= time <= GREATEST_TIME_MS:
        raise RefusedError("TIME_OUT_OF_RANGE", shown_value(value))
    return time


def time_of_text(text: str) -> int:
    found = EXTENDED.fullmatch(text) or BASIC.fullmatch(text)
    if found is None:
        raise RefusedError("QUOTED_DIGITS" if QUOTED_NUMBER.fullmatch(text) else "BAD_TIME", shown_value(text))
    part = {name: int(found[name] or 0) for name in ("year", "month", "day", "hour", "minute", "second")}
    zone = timedelta(hours=int(found["zone_hours"] or 0), minutes=int(found["zone_minutes"] or 0))
    # Year 0 is out of range, not badly written; 2000 has its calendar.
    year = part["year"] or 2000
    valid = 1 <= part["month"] <= 12 and 1 <= part["day"] <= monthrange(year, part["month"])[1]
    valid = valid and part["hour"] < 24 and part["minute"] < 60 and part["second"] < 60
    if not valid or zone >= timedelta(days=1) or int(found["zone_minutes"] or 0) > 59:
        raise RefusedError("BAD_TIME", shown_value(text))
    month, day, hour, minute, second = list(part.values())[1:]
    local = datetime(year, month, day, hour, minute, second, tzinfo=UTC) - EPOCH
    if part["year"] == 0:
        local -= YEARS_0_TO_2000
    ms = int((found["part"] or "")[:3].ljust(3, "0"))
    return (local - (-zone if found["sign"] == "-" else zone)) // timedelta(milliseconds=1) + ms


def sentence(code: str, shown: str, time_field: str, type_field: str) -> str:
    time, kind, form = f"the time field `{time_field}`", f"the type field `{type_field}`", "(epoch ms or ISO 8601)"
    return {
        "EMPTY": "the message is empty: an event is a JSON object",
        "BLANK": "the message is blank: an event is a JSON object",
        "TOO_LONG": f"the message is longer than {MAX_MESSAGE_BYTES:,} bytes",
        "NOT_UTF8": f"not UTF-8: {shown}; write the message in UTF-8",
        "NOT_JSON": f"not JSON: {shown}",
        "TOO_DEEP": f"nested deeper than {MAX_DEPTH} levels",
        "NOT_AN_OBJECT": f"an event is a JSON object, {{...}}, and this is {shown}",
        "LONE_SURROGATE": "half of a surrogate pair in a \\u escape: characters above U+FFFF need both halves",
        "NUMBER_TOO_LARGE": "a number is too large for a double (about 1.8e308)",
        "MISSING_TIME": f"{time} is missing: every event needs one {form}",
        "TIME_NOT_A_TIME": f"{time} is {shown}, which is not a time {form}",
        "QUOTED_DIGITS": f"{time} is {shown}, digits in quotes: write epoch ms without quotes, or ISO 8601",
        "BAD_TIME": f"{time} is {shown}, which is not an ISO 8601 time (such as 2023-11-14T22:13:20.500Z)",
        "TIME_OUT_OF_RANGE": f"{time} is {shown}, outside the years 1 to 9999; epoch times are in milliseconds",
        "MISSING_TYPE": f"{kind} is missing: every event needs one",
        "TYPE_NOT_TEXT": f"{kind} is {shown}: it must be text",
        "NOT_AVRO": f"not Avro: {shown}",
        "NOT_FRAMED": f"not in the wire format (0, then four bytes with the schema's number): {shown}",
        "UNKNOWN_SCHEMA": f"its schema is not known: {shown}",
        "SCHEMA_MISMATCH": f"its schema cannot be read as the stream's: {shown}",
    }[code]


def shown_text(rest: str) -> str:
    if not rest:
        return "it ends too early"
    return f"unexpected {rest[0]!r}" if rest[0].isprintable() else f"unexpected U+{ord(rest[0]):04X}"


def shown_kind(first: str) -> str:
    return {"[": "a list", '"': "text", "t": "a boolean", "f": "a boolean", "n": "null"}.get(first, "a number")


def shown_byte(message: bytes, at: int) -> str:
    return f"byte 0x{message[at]:02X}"


def shown_value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."
