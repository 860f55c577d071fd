"""The numbers that the compiler and the kernel share, read from the kernel's own table: native/match/opcodes.def."""

from __future__ import annotations

import re
from pathlib import Path

_ENTRY = re.compile(r'^([A-Z_]+)\((\w+), "(.*?)"', re.MULTILINE)
_ENTRIES = _ENTRY.findall((Path(__file__).resolve().parent / "match" / "opcodes.def").read_text())


def numbers(kind: str) -> dict[str, int]:
    """The entries of a kind by name: an entry's number is its position."""
    return {name: number for number, (_, name, _) in enumerate(entry for entry in _ENTRIES if entry[0] == kind)}


def numbers_by_word(kind: str) -> dict[str, int]:
    """The same by the word that users write, where there is one."""
    words = [word for each, _, word in _ENTRIES if each == kind]
    return {word: number for number, word in enumerate(words) if word}


OPS = numbers("OP")
OPS_BY_WORD = numbers_by_word("OP")
AGGREGATES = numbers_by_word("AGGREGATE")
AVRO_OPS = numbers_by_word("AVRO_OP")
AVRO_FORMS = numbers("AVRO_FORM")
