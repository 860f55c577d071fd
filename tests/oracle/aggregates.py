"""Functions of many values: count, sum, avg and the others. All leave nulls out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.oracle.values import Value, identity, is_number, is_text

MAX_VALUES = 100


def aggregate(function: str, values: Sequence[Value]) -> Value:
    """Of nothing, sum, count and distinct are 0 and the rest null (`values`: an empty list)."""
    present = [value for value in values if value is not None]
    numbers = [value for value in present if is_number(value)]
    match function:
        case "count":
            return len(present)
        case "sum":
            return total(numbers)
        case "avg":
            return total(numbers) / len(numbers) if numbers else None
        case "stddev":
            return deviation(numbers)
        case "min" | "max":
            return extreme(function, present)
        case "distinct":
            return len(distinct(present))
        case "values":
            return distinct(present)[:MAX_VALUES]
        case "first":
            return present[0] if present else None
        case "last":
            return present[-1] if present else None
    raise AssertionError(f"no aggregate is called {function}")


def total(numbers: Sequence[Value]) -> Value:
    """The exact sum, rounded once; a whole number where all are."""
    return sum(numbers) if all(isinstance(value, int) for value in numbers) else math.fsum(numbers)


def deviation(numbers: Sequence[Value]) -> Value:
    """The standard deviation of the population."""
    if not numbers:
        return None
    mean = total(numbers) / len(numbers)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in numbers) / len(numbers))


def extreme(function: str, present: Sequence[Value]) -> Value:
    """The least or largest number; of texts, where there is no number, the first or last in code point order."""
    comparable = [value for value in present if is_number(value)] or [value for value in present if is_text(value)]
    if not comparable:
        return None
    return min(comparable) if function == "min" else max(comparable)


def distinct(present: Sequence[Value]) -> list[Value]:
    """Each value once, in the order of its first coming."""
    first: dict[tuple[str, Value], Value] = {}
    for value in present:
        first.setdefault(identity(value), value)
    return list(first.values())
