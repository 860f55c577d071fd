"""Functions of values that the kernel leaves to Python: those that need Unicode tables, time zones or RE2.

The kernel remembers their results, so each different value costs one call. What cannot be computed is None.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any

from samovar.patterns.syntax import Scalar

NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def fold(value: Scalar) -> Scalar:
    """Text for a comparison that takes no notice of case."""
    return value.casefold() if isinstance(value, str) else value


def lower(value: Scalar) -> Scalar:
    return value.lower() if isinstance(value, str) else None


def upper(value: Scalar) -> Scalar:
    return value.upper() if isinstance(value, str) else None


def number(value: Scalar, base: Scalar = None) -> Scalar:
    """A number from text. `0x1f` is read as hexadecimal; other bases are given as the second argument."""
    if isinstance(value, bool) or value is None:
        return None
    if not isinstance(value, str):
        return value
    text = value.strip()
    if isinstance(base, int) and not isinstance(base, bool):
        return _whole(text, base)
    if text[:2].lower() == "0x":
        return _whole(text, 16)
    if not NUMBER.fullmatch(text):
        return None
    return float(text) if any(sign in text for sign in ".eE") else int(text)


def _whole(text: str, base: int) -> Scalar:
    try:
        return int(text, base)
    except ValueError:
        return None


def string(value: Scalar) -> Scalar:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def cidr(address: Scalar, *networks: Scalar) -> Scalar:
    if not isinstance(address, str):
        return False
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(isinstance(network, str) and parsed in _network(network) for network in networks)


@lru_cache(maxsize=1024)
def _network(text: str) -> Any:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return ()


@lru_cache(maxsize=256)
def _zone(name: str) -> tzinfo | None:
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - most rules name no zone

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def _local(time: Scalar, zone: Scalar) -> datetime | None:
    if isinstance(time, bool) or not isinstance(time, (int, float)) or not isinstance(zone, str):
        return None
    place = _zone(zone)
    try:
        return None if place is None else (EPOCH + timedelta(milliseconds=time)).astimezone(place)
    except OverflowError:
        return None


def hour(time: Scalar, zone: Scalar = "UTC") -> Scalar:
    local = _local(time, zone)
    return None if local is None else local.hour


def day_of_week(time: Scalar, zone: Scalar = "UTC") -> Scalar:
    local = _local(time, zone)
    return None if local is None else local.isoweekday()


def regex_search(patterns: tuple[str, ...], ignore_case: bool) -> Callable[[Scalar], Scalar]:
    """A search for any of the patterns, in RE2 syntax and linear time."""
    import re2  # noqa: PLC0415 - only rules with regex pay for it

    options = re2.Options()
    options.case_sensitive = not ignore_case
    options.log_errors = False
    compiled = [re2.compile(pattern, options) for pattern in patterns]

    def search(value: Scalar) -> Scalar:
        return isinstance(value, str) and any(pattern.search(value) is not None for pattern in compiled)

    return search


FUNCTIONS: dict[str, Callable[..., Scalar]] = {
    "lower": lower,
    "upper": upper,
    "number": number,
    "string": string,
    "cidr": cidr,
    "hour": hour,
    "day_of_week": day_of_week,
}
