"""Functions of values that the kernel leaves to Python: those that need Unicode tables, time zones or RE2.

The kernel remembers their results, so each different value costs one call. What cannot be computed is None: no value of
an event makes them raise. What they do raise (no memory, no file handles) is not an answer, and the step fails with it.
"""

from __future__ import annotations

import errno
import ipaddress
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from math import isfinite

from samovar.patterns.syntax.tree import Scalar

WHOLE_DIGITS = 1000
# What can be gone a moment later says nothing about the value that was asked for.
TRANSIENT = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EINTR, errno.EAGAIN}
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def fold(value: Scalar) -> Scalar:
    """Text for a comparison that takes no notice of case."""
    return fold_text(value) if isinstance(value, str) else value


def fold_text(text: str) -> str:
    """Text folded letter by letter (Unicode's simple case folding), as in `regex~`: ß is ẞ and not ss."""
    return text.lower() if text.isascii() else "".join(map(_fold_letter, text))


@lru_cache(maxsize=4096)
def _fold_letter(letter: str) -> str:
    return next((each for each in (letter.casefold(), letter.lower()) if len(each) == 1), letter)


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
    # Python reads no whole numbers of thousands of digits; those are not numbers of 64 bits either.
    return _finite(float(text) if len(text) > WHOLE_DIGITS or any(sign in text for sign in ".eE") else int(text))


def _whole(text: str, base: int) -> Scalar:
    try:
        return _finite(int(text, base))
    except (ValueError, OverflowError):
        return None


def _finite(value: float) -> Scalar:
    """A number that the kernel can hold; what is beyond all doubles is none."""
    try:
        return value if isfinite(value) else None
    except OverflowError:
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
    return in_networks(networks)(address)


@lru_cache(maxsize=1024)
def in_networks(networks: Iterable[Scalar]) -> Callable[[Scalar], Scalar]:
    """Whether an address is in any of them: one look per length of a prefix, however many networks there are."""
    starts: dict[tuple[int, int], set[int]] = defaultdict(set)  # IP version and host bits: the bits before those
    for text in networks:
        try:
            network = ipaddress.ip_network(text, strict=False) if isinstance(text, str) else None
        except ValueError:
            continue
        if network is not None:
            host_bits = network.max_prefixlen - network.prefixlen
            starts[network.version, host_bits].add(int(network.network_address) >> host_bits)

    def search(address: Scalar) -> Scalar:
        if not isinstance(address, str):
            return False
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        bits, version = int(parsed), parsed.version
        return any(bits >> size in found for (kind, size), found in starts.items() if kind == version)

    return search


@lru_cache(maxsize=256)
def _zone(name: str) -> tzinfo | None:
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - most rules name no zone

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError):
        return None
    except OSError as error:
        if error.errno in TRANSIENT:
            raise
        return None


def _local(time: Scalar, zone: Scalar) -> datetime | None:
    if isinstance(time, bool) or not isinstance(time, (int, float)) or not isinstance(zone, str):
        return None
    place = _zone(zone)
    try:
        return None if place is None else (EPOCH + timedelta(milliseconds=time)).astimezone(place)
    except (OverflowError, ValueError):
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
    function.__name__: function for function in (lower, upper, number, string, cidr, hour, day_of_week)
}


def with_literals(function: str, literals: Sequence[Scalar]) -> Callable[[Scalar], Scalar]:
    """The function of its first argument, where all others are literals."""
    if function == "cidr":
        return in_networks(tuple(literals))
    call = FUNCTIONS[function]
    return lambda value: call(value, *literals)
