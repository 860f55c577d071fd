"""One number for all rows of a store: equal exactly where the rows are.

SHA-256 over, for each pair in order of keys: length of the key, key, length of the value, value. A length is a varint:
seven bits a byte, the lowest first, the top bit set in all but the last.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

SUMS = 1 << 256  # row sums are less
_CHUNK = 4096  # parts joined before they are hashed: a call of the hash for each would cost more than hashing


def varint(number: int) -> bytes:
    """A number of at least 0 in as few bytes as it needs."""
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


_SHORT = [varint(length) for length in range(1024)]


def digest(pairs: Iterable[tuple[bytes, bytes]]) -> str:
    """The digest of pairs, which come in strict order of keys."""
    hashed = sha256()
    parts: list[bytes] = []
    before: bytes | None = None
    for key, value in pairs:
        assert before is None or before < key, f"keys out of order: {before!r}, {key!r}"
        before = key
        parts += (_length(key), key, _length(value), value)
        if len(parts) >= _CHUNK:
            hashed.update(b"".join(parts))
            parts.clear()
    hashed.update(b"".join(parts))
    return hashed.hexdigest()


def row_sum(pairs: Iterable[tuple[bytes, bytes]]) -> int:
    """A number of rows in any order: those of parts, added, make that of the whole. SHA-256 of each row, added up.

    >>> rows = [(b"a", b"1"), (b"b", b"2")]
    >>> row_sum(rows) == (row_sum(rows[1:]) + row_sum(rows[:1])) % SUMS, row_sum(rows) == row_sum([(b"a", b"2")])
    (True, False)
    """
    hashes = (sha256(_length(key) + key + value).digest() for key, value in pairs)
    return sum(int.from_bytes(each, "big") for each in hashes) % SUMS


def _length(part: bytes) -> bytes:
    size = len(part)
    return _SHORT[size] if size < len(_SHORT) else varint(size)
