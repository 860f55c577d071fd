"""What a message must be, said twice: here in plain Python, and fast in native/decode/json_reader.h. Tests hold the two
equal.

A message is one JSON object (RFC 8259, strictly) with a time and a type. Each gets one verdict: an `DecodedEvent`, or
`Bad` with a code, a sentence and, where it is known, the column. Of equal names in an object the last counts. `a.b`
reads the nested value first and then a flat field of that name; with more names the shortest first name is tried first
at every level (for a.b.c: a > b > c, a > b.c, a.b > c, a.b.c), and null counts as absent.

The codes are listed in the order of the kernel's enum; the last four are of Avro (samovar.patterns.engine.avro.codec).
Where a message has several faults, bad UTF-8 comes first, then the first fault of structure (NOT_JSON, TOO_DEEP), then
the rest as listed.
"""

from __future__ import annotations

import json
import math
import re
from calendar import monthrange
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

CODES = (
    "OK",
    "EMPTY",
    "BLANK",
    "TOO_LONG",
    "NOT_UTF8",
    "NOT_JSON",
    "TOO_DEEP",
    "NOT_AN_OBJECT",
    "LONE_SURROGATE",
    "NUMBER_TOO_LARGE",
    "MISSING_TIME",
    "TIME_NOT_A_TIME",
    "QUOTED_DIGITS",
    "BAD_TIME",
    "TIME_OUT_OF_RANGE",
    "MISSING_TYPE",
    "TYPE_NOT_TEXT",
    "NOT_AVRO",
    "NOT_FRAMED",
    "UNKNOWN_SCHEMA",
    "SCHEMA_MISMATCH",
)

OF_A_VALUE = ("TIME_NOT_A_TIME", "QUOTED_DIGITS", "BAD_TIME", "TIME_OUT_OF_RANGE", "TYPE_NOT_TEXT")

MAX_DEPTH = 64
MAX_MESSAGE_BYTES = 2**31 - 1
MAX_PATH_NAMES = 64
LEAST_TIME_MS = -62_135_596_800_000  # 0001-01-01T00:00:00.000Z
GREATEST_TIME_MS = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z

SPACE = " \t\n\r"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEARS_0_TO_2000 = timedelta(days=730_485)
BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{\]}]', re.DOTALL)
SURROGATE = re.compile("[\ud800-\udfff]")
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
class DecodedEvent:
    """A good message. `values` has every wanted path; None where it is absent or null."""

    time: int
    type: str
    values: Mapping[str, Any]


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


@dataclass(frozen=True, slots=True)
class Members:
    """An object as written, equal names and all."""

    pairs: tuple[tuple[str, Any], ...]


def decode_strict(
    message: bytes,
    fields: Sequence[str],
    time_field: str = "ts",
    type_field: str | None = "type",
    fixed_type: str = "",
) -> DecodedEvent | Bad:
    """The verdict on one message. Without a `type_field` every event is of `fixed_type`."""
    try:
        members = parse(message)
        time = time_of(lookup(members, time_field.split(".")))
        kind = fixed_type if type_field is None else type_of(lookup(members, type_field.split(".")))
    except RefusedError as refused:
        column = None if refused.place is None else refused.place + 1
        return Bad(refused.code, sentence(refused.code, refused.shown, time_field, type_field or ""), column)
    return DecodedEvent(time, kind, {path: lookup(members, path.split(".")) for path in fields})


def bad_of(code: int, at: int, message: bytes, time_field: str = "ts", type_field: str | None = "type") -> Bad:
    """The kernel's verdict, its code and byte, as a `Bad`."""
    name = CODES[code]
    placed = name in ("NOT_UTF8", "NOT_JSON", "TOO_DEEP", "NOT_AN_OBJECT") or at > 0
    column = len(message[:at].decode(errors="replace")) + 1 if placed else None
    return Bad(name, sentence(name, shown_at(message, at, name), time_field, type_field or ""), column)


# ---------------------------------------------------------------- JSON


def parse(message: bytes) -> dict[str, Any]:
    text = text_of(message)
    refuse_depth(text)
    try:
        value = json.loads(
            text, object_pairs_hook=members_of, parse_int=integer, parse_float=float, parse_constant=refuse_constant
        )
    except json.JSONDecodeError as error:
        raise RefusedError("NOT_JSON", shown_text(text[error.pos :]), error.pos) from None
    if not isinstance(value, Members):
        place = len(text) - len(text.lstrip(SPACE))
        raise RefusedError("NOT_AN_OBJECT", shown_kind(text[place]), place)
    for scalar in scalars(value):
        if isinstance(scalar, str) and SURROGATE.search(scalar):
            raise RefusedError("LONE_SURROGATE")
        if isinstance(scalar, float) and math.isinf(scalar):
            raise RefusedError("NUMBER_TOO_LARGE")
    plain: dict[str, Any] = last_of_each(value)
    return plain


def text_of(message: bytes) -> str:
    if not message:
        raise RefusedError("EMPTY")
    if len(message) > MAX_MESSAGE_BYTES:
        raise RefusedError("TOO_LONG")
    try:
        text = message.decode("utf-8")
    except UnicodeDecodeError as error:
        place = len(message[: error.start].decode())
        raise RefusedError("NOT_UTF8", shown_byte(message, error.start), place) from None
    if not text.strip(SPACE):
        raise RefusedError("BLANK")
    return text


def refuse_depth(text: str) -> None:
    """Refuses the bracket that goes too deep, unless the text goes wrong before it."""
    closers: list[str] = []
    for token in BRACKETS.finditer(text):
        if token[0] in "[{":
            closers.append("]" if token[0] == "[" else "}")
        elif token[0] in "]}" and closers:
            closers.pop()
        if len(closers) > MAX_DEPTH:
            # Good up to here if and only if a value in the bracket's place, and all closed, makes good JSON.
            before = text[: token.start()] + "0" + "".join(reversed(closers[:-1]))
            if is_json(before):
                raise RefusedError("TOO_DEEP", place=token.start())
            return


def is_json(text: str) -> bool:
    try:
        json.loads(text, parse_int=integer, parse_constant=refuse_constant)
    except (json.JSONDecodeError, RefusedError):
        return False
    return True


def members_of(pairs: list[tuple[str, Any]]) -> Members:
    return Members(tuple(pairs))


def integer(text: str) -> int | float:
    """Whole numbers beyond 64 bits are floats (infinite where they are too large for that)."""
    if len(text) > 20:
        return float(text)
    number = int(text)
    return number if -(2**63) <= number < 2**63 else float(text)


def refuse_constant(name: str) -> NoReturn:
    raise RefusedError("NOT_JSON", name)


def scalars(value: Any) -> Iterator[Any]:
    """Names and values in the order in which they are written."""
    if isinstance(value, Members):
        for name, member in value.pairs:
            yield name
            yield from scalars(member)
    elif isinstance(value, list):
        for item in value:
            yield from scalars(item)
    else:
        yield value


def last_of_each(value: Any) -> Any:
    if isinstance(value, Members):
        return {name: last_of_each(member) for name, member in value.pairs}
    if isinstance(value, list):
        return [last_of_each(item) for item in value]
    return value


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


# ---------------------------------------------------------------- time and type


def type_of(value: Any) -> str:
    if value is None:
        raise RefusedError("MISSING_TYPE")
    if not isinstance(value, str):
        raise RefusedError("TYPE_NOT_TEXT", shown_value(value))
    return value


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


# ---------------------------------------------------------------- sentences


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
    kinds = {"[": "a list", '"': "text", "t": "a boolean", "f": "a boolean", "n": "null"}
    return kinds.get(first, "a number")


def shown_byte(message: bytes, at: int) -> str:
    return f"byte 0x{message[at]:02X}"


def shown_value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."


def shown_at(message: bytes, at: int, code: str) -> str:
    """What the kernel's verdict points at, in the words of the strict decoder."""
    if code == "NOT_UTF8":
        return shown_byte(message, at)
    rest = message[at : at + 4096].decode(errors="replace")
    if code == "NOT_JSON":
        return shown_text(rest)
    if code == "NOT_AN_OBJECT":
        return shown_kind(rest[0])
    return shown_value(value_at(rest)) if code in OF_A_VALUE else ""


def value_at(rest: str) -> Any:
    try:
        return json.JSONDecoder().raw_decode(rest)[0]
    except ValueError:  # it is longer than what was looked at
        return rest
