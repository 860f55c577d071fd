"""Small pieces of text that messages are made of."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """So many of something.

    >>> counted(1, "match", "matches"), counted(2_000, "event")
    ('1 match', '2,000 events')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"
