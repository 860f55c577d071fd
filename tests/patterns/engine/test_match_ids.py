"""Match ids are the first half of a SHA-256 of rule, version, key and coordinates: as hashlib makes it."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from samovar.patterns.api import load_rules
from samovar.patterns.engine.matcher import encode_key
from samovar.state.digest import varint

RULE = """
rule: r
match: |
  sequence by card with maxspan=20ms
    [a where true] as first
    [b where true] as second
"""


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(len(data)) + data


def number(value: int) -> bytes:
    return varint(value << 1)


@pytest.mark.parametrize("length", [1, 2, 5, *range(18, 30), 83, 84, 200, 1000])  # around the ends of blocks
def test_an_id_is_the_hash_that_python_makes(tmp_path: Path, length: int) -> None:
    (tmp_path / "r.yml").write_text(RULE)
    rules, card = load_rules(tmp_path / "r.yml"), "c" * length
    (match,) = rules.run([{"type": "a", "ts": 5, "card": card}, {"type": "b", "ts": 6, "card": card}]).matches
    packed = text("r") + text(match.version) + text(encode_key([card]))
    for name, (offset,) in match.steps.items():
        packed += text(name) + number(1) + number(0) + number(offset)
    assert match.id == sha256(packed).hexdigest()[:32]
