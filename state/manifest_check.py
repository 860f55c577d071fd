"""Whether RocksDB's MANIFEST is whole. RocksDB takes a broken end for a crash while it was written, and then opens the
store without its newest tables and with its newest log: rows would be missing in the middle.

MANIFEST is blocks of 32,768 bytes, each a run of pieces; fewer than 7 bytes at a block's end are padding:

    checksum (4 bytes)   length (2 bytes, little endian)   kind (1 byte)   content

A kind is 1 for a whole record, 2, 3, 4 for its first, middle and last piece. RocksDB compares the checksums itself.
What it does not tell is a piece that reaches beyond the file's end, because its length is damaged or the file cut off.
A record that a crash left half written is refused too: RocksDB writes one in a single call, so that this is rare. A
file that is cut off exactly between two records cannot be told from a whole one.
"""

from __future__ import annotations

from pathlib import Path

from samovar.state.errors import damaged

_BLOCK = 32_768
_HEADER = 7
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
# Whether the piece is inside a record that goes on, before and after it.
_MOVES = {_WHOLE: (False, False), _FIRST: (False, True), _MIDDLE: (True, True), _LAST: (True, False)}


def check_manifest(path: Path) -> None:
    """StoreDamaged where the manifest that CURRENT names does not end with a whole record."""
    name = (path / "CURRENT").read_bytes().decode("utf-8", "replace").strip()
    try:
        content = (path / name).read_bytes()
    except (OSError, ValueError) as error:
        raise damaged(path, f"CURRENT names {name!r}, which cannot be read: {error}") from error
    if not content:
        raise damaged(path, f"{name} is empty")
    _check(path, name, content)


def _check(path: Path, name: str, content: bytes) -> None:
    at, inside = 0, False
    while at < len(content):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:
            at += left
            continue
        length = int.from_bytes(content[at + 4 : at + 6], "little")
        kind = content[at + 6] if at + 6 < len(content) else 0
        if _HEADER + length > left or at + _HEADER + length > len(content) or _MOVES.get(kind, (None,))[0] != inside:
            raise damaged(path, f"{name} is broken at byte {at} of {len(content)}")
        inside = _MOVES[kind][1]
        at += _HEADER + length
    if inside:
        raise damaged(path, f"{name} ends in the middle of a record")
