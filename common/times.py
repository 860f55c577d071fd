"""Durations as users write them: `30s`, `10m`, `8h`."""

from __future__ import annotations

import re

UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


_OTHER_UNITS = {
    "w": (7, "d"), "week": (7, "d"), "weeks": (7, "d"), "y": (365, "d"), "year": (365, "d"), "years": (365, "d"),
    "mo": (30, "d"), "month": (30, "d"), "months": (30, "d"), "M": (30, "d"), "D": (1, "d"), "H": (1, "h"),
    "day": (1, "d"), "days": (1, "d"), "hr": (1, "h"), "hrs": (1, "h"), "hour": (1, "h"), "hours": (1, "h"),
    "min": (1, "m"), "mins": (1, "m"), "minute": (1, "m"), "minutes": (1, "m"), "S": (1, "s"), "sec": (1, "s"),
    "secs": (1, "s"), "second": (1, "s"), "seconds": (1, "s"), "millis": (1, "ms"), "milliseconds": (1, "ms"),
}  # fmt: skip


def unit_hint(text: str) -> str:
    """For `1w`, `10min`, `1.5h`, `1h30m`: how to write that time."""
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", text)
    total = 0.0
    for number, unit in parts:
        factor, base = _OTHER_UNITS.get(unit, (1, unit))
        if base not in UNITS:
            return "units are ms, s, m, h and d, as in 500ms, 30s, 10m, 8h, 7d"
        total += float(number[:15]) * factor * UNITS[base]
    return f"write `{duration_text(round(total))}`; units are ms, s, m, h and d" if parts else "write it as `30s`"


def duration_text(ms: int) -> str:
    """The shortest way to write a time.

    >>> duration_text(5_400_000)
    '90m'
    """
    unit = next((unit for unit in ("d", "h", "m", "s") if ms and ms % UNITS[unit] == 0), "ms")
    return f"{ms // UNITS[unit]}{unit}"
