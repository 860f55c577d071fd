"""What a value is, how two compare, and the functions of plain values."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

Value: TypeAlias = Any
EARTH_RADIUS_KM = 6371.0088


def is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_text(value: Value) -> bool:
    return isinstance(value, str)


def kind(value: Value) -> str:
    """The type of a value. Whole numbers and fractions are one type; true is not 1."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    return "number" if is_number(value) else "text"


def identity(value: Value) -> tuple[str, Value]:
    """What two values share exactly when they are equal: keys and distinct values are told apart by it."""
    return (kind(value), value)


def is_true(value: Value) -> bool:
    """A condition that is neither true nor false counts as false."""
    return value is True


def compare(op: str, left: Value, right: Value) -> bool:
    """A comparison with null is false. Values of two types are never equal, always unequal, and have no order."""
    if left is None or right is None:
        return False
    same = kind(left) == kind(right)
    if op == "==":
        return bool(same and left == right)
    if op == "!=":
        return not same or bool(left != right)
    if not same or isinstance(left, bool):
        return False
    return bool({"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[op])


def calculate(op: str, left: Value, right: Value) -> Value:
    """Arithmetic of anything but two numbers is null; so is a division by zero."""
    if not is_number(left) or not is_number(right):
        return None
    if op in ("/", "%") and right == 0:
        return None
    if op == "%":
        return remainder(left, right)
    result = {"+": add, "-": subtract, "*": multiply, "/": divide}[op](left, right)
    return result if math.isfinite(result) else None


def add(left: Value, right: Value) -> Value:
    return left + right


def subtract(left: Value, right: Value) -> Value:
    return left - right


def multiply(left: Value, right: Value) -> Value:
    return left * right


def divide(left: Value, right: Value) -> Value:
    """`/` is never whole-number division."""
    return left / right


def remainder(left: Value, right: Value) -> Value:
    """`%` has the sign of the left side."""
    if isinstance(left, int) and isinstance(right, int):
        size = abs(left) % abs(right)
        return -size if left < 0 else size
    return math.fmod(left, right)


def show(value: Value) -> str:
    """A value as text, in `string(x)` and in a message. A number that is whole shows no fraction."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(show(item) for item in value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


# ---------------------------------------------------------------- functions of text: null unless all is text


def lower(text: Value) -> Value:
    return text.lower() if is_text(text) else None


def upper(text: Value) -> Value:
    return text.upper() if is_text(text) else None


def length(text: Value) -> Value:
    return len(text) if is_text(text) else None


def starts_with(text: Value, *prefixes: Value) -> Value:
    return text.startswith(prefixes) if all(map(is_text, (text, *prefixes))) else None


def ends_with(text: Value, *suffixes: Value) -> Value:
    return text.endswith(suffixes) if all(map(is_text, (text, *suffixes))) else None


def contains(text: Value, *parts: Value) -> Value:
    return any(part in text for part in parts) if all(map(is_text, (text, *parts))) else None


def substring(text: Value, start: Value, end: Value = math.inf) -> Value:
    """From start up to, not including, end; negative positions count from the end."""
    if not is_text(text) or not is_number(start) or not is_number(end):
        return None
    return text[int(start) :] if end == math.inf else text[int(start) : int(end)]


def concat(*parts: Value) -> Value:
    return "".join(parts) if all(map(is_text, parts)) else None


def index_of(text: Value, part: Value, start: Value = 0) -> Value:
    """The first position at or after start, null where there is none."""
    if not is_text(text) or not is_text(part) or not is_number(start):
        return None
    found = text.find(part, int(start))
    return found if found >= 0 else None


def between(text: Value, left: Value, right: Value, greedy: Value = False) -> Value:
    """What stands between left and the next (greedy: the last) right; empty where they are not found."""
    if not all(map(is_text, (text, left, right))):
        return None
    at = text.find(left)
    if at < 0:
        return ""
    rest = text[at + len(left) :]
    end = rest.rfind(right) if is_true(greedy) else rest.find(right)
    return rest[:end] if end >= 0 else ""


def cidr(address: Value, *networks: Value) -> bool:
    """A bad address is in no network."""
    if not is_text(address):
        return False
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(ip in ipaddress.ip_network(network, strict=False) for network in networks)


# ---------------------------------------------------------------- numbers, times, and the rest


def number(value: Value, base: Value = 10) -> Value:
    """Text read as a number, null where it is none."""
    if is_number(value):
        return value
    if not is_text(value):
        return None
    try:
        return int(value, int(base))
    except ValueError:
        pass
    try:
        parsed = float(value)
    except ValueError:
        return None
    return parsed if base == 10 and math.isfinite(parsed) else None


def string(value: Value) -> Value:
    return None if value is None else show(value)


def absolute(value: Value) -> Value:
    return abs(value) if is_number(value) else None


def rounded(value: Value, digits: Value = 0) -> Value:
    """Half goes away from zero."""
    if not is_number(value) or not is_number(digits):
        return None
    unit = Decimal(1).scaleb(-int(digits))
    result = Decimal(repr(value)).quantize(unit, rounding=ROUND_HALF_UP)
    return int(result) if digits <= 0 else float(result)


def floor(value: Value) -> Value:
    return math.floor(value) if is_number(value) else None


def ceil(value: Value) -> Value:
    return math.ceil(value) if is_number(value) else None


def coalesce(*values: Value) -> Value:
    return next((value for value in values if value is not None), None)


def moment(time: Value, zone: Value) -> datetime | None:
    """A time in epoch ms as a clock in that zone shows it."""
    if not is_number(time):
        return None
    return datetime.fromtimestamp(time // 1000, UTC).astimezone(ZoneInfo(zone))


def hour(time: Value, zone: Value = "UTC") -> Value:
    shown = moment(time, zone)
    return None if shown is None else shown.hour


def day_of_week(time: Value, zone: Value = "UTC") -> Value:
    """1 (Monday) to 7."""
    shown = moment(time, zone)
    return None if shown is None else shown.isoweekday()


def distance_km(lat1: Value, lon1: Value, lat2: Value, lon2: Value) -> Value:
    """Haversine on a sphere of 6371.0088 km."""
    if not all(map(is_number, (lat1, lon1, lat2, lon2))):
        return None
    p1, p2 = math.radians(lat1), math.radians(lat2)
    dp, dl = math.radians(lat2 - lat1), math.radians(lon2 - lon1)
    a = math.sin(dp / 2) ** 2 + math.cos(p1) * math.cos(p2) * math.sin(dl / 2) ** 2
    return 2 * EARTH_RADIUS_KM * math.asin(math.sqrt(min(1.0, a)))


FUNCTIONS: Mapping[str, Callable[..., Value]] = {
    "lower": lower,
    "upper": upper,
    "length": length,
    "starts_with": starts_with,
    "ends_with": ends_with,
    "contains": contains,
    "substring": substring,
    "concat": concat,
    "number": number,
    "string": string,
    "index_of": index_of,
    "between": between,
    "abs": absolute,
    "round": rounded,
    "floor": floor,
    "ceil": ceil,
    "coalesce": coalesce,
    "hour": hour,
    "day_of_week": day_of_week,
    "cidr": cidr,
    "distance_km": distance_km,
}
