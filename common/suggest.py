"""The name that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable

# Longer names are never typed by hand, and distances cost their product.
MAX_LENGTH = 80


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The closest of the choices, or None where none is close.

    >>> nearest("amout", ["card", "amount"])
    'amount'
    """
    if len(name) > MAX_LENGTH:
        return None
    # One slip in a short name, two in a longer one; a name of one or two letters is near to nothing.
    most = 0 if len(name) < 3 else 1 if len(name) < 5 else 2 if len(name) < 9 else 3
    away = [(_distance(name.lower(), choice.lower(), most), choice) for choice in set(choices)]
    distance, choice = min(away, default=(most + 1, ""))
    return choice if distance <= most else None


def did_you_mean(name: str, choices: Iterable[str]) -> str | None:
    """A hint with the nearest name, or None."""
    found = nearest(name, choices)
    return f"did you mean `{found}`?" if found else None


def _distance(left: str, right: str, limit: int) -> int:
    """Insertions, deletions, changes and swaps of neighbours that turn one name into the other."""
    if abs(len(left) - len(right)) > limit:
        return limit + 1
    before: list[int] = []
    last = list(range(len(right) + 1))
    for i, char in enumerate(left, 1):
        row = [i]
        for j, other in enumerate(right, 1):
            cost = min(last[j] + 1, row[-1] + 1, last[j - 1] + (char != other))
            if i > 1 and j > 1 and char == right[j - 2] and left[i - 2] == other:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before, last = last, row
    return last[-1]
