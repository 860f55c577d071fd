"""What `$name` stands for: parameters and lists, and the times among the parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from samovar.common.times import UNITS
from samovar.patterns.syntax.tree import Scalar

_DURATION = re.compile(r"(\d+)(ms|s|m|h|d)\Z")

# A hundred years: longer is a slip, and times stay far within 64 bits.
MAX_DURATION_MS = 36_525 * UNITS["d"]


@dataclass(frozen=True)
class Constants:
    """`durations` names the parameters that were written as a time (`10m`, without quotes) and are held in ms."""

    params: Mapping[str, Scalar] = field(default_factory=dict)
    lists: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    durations: frozenset[str] = frozenset()


def duration_ms(text: str) -> int | None:
    """The milliseconds of `500ms 30s 10m 8h 7d`; None where the text is not a duration or over MAX_DURATION_MS.

    >>> duration_ms("10m"), duration_ms("10 min")
    (600000, None)
    """
    found = _DURATION.match(text)
    if not found or len(found[1]) > 15:
        return None
    ms = int(found[1]) * UNITS[found[2]]
    return ms if ms <= MAX_DURATION_MS else None
