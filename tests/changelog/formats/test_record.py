"""Positions and rows as bytes: what is read again, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from samovar.changelog.formats.record import (
    FORMAT,
    EmittedWatermark,
    InputPosition,
    Position,
    SourcePartitionPosition,
    UnknownSchema,
    deadline_rows,
    pack_position,
    refuse_newer,
    refuse_others,
    renamed_row,
    row_parts,
    store_prefix,
    unpack_position,
    unreadable_rows,
)
from samovar.common.errors import Refused

PLAIN = Position(5, {"use": InputPosition("t", "id", 10, 5, 3, ((7, 4),))}, ("use",), {"r": "1"}, 2)


def with_input(**fields: object) -> Position:
    return replace(PLAIN, inputs={"use": replace(PLAIN.inputs["use"], **fields)})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "position",
    [
        PLAIN,
        replace(PLAIN, forwards={"r": EmittedWatermark(0, 4, False)}),
        with_input(parts=(SourcePartitionPosition(0, 4, False, 1, 0),), activations=((1, 0, 4),)),
        with_input(unknown=(UnknownSchema(7, 3, None),)),
        replace(PLAIN, ruleset_change=1),
        replace(PLAIN, changelog="c"),
        with_input(placing=(3,)),
        replace(PLAIN, ruleset_change=1, changelog="c", service="s", journal_id="j"),
        replace(PLAIN, rewinding=True),
    ],
)
def test_a_position_is_read_as_it_was_written(position: Position) -> None:
    packed = pack_position(position)
    assert packed.startswith(b'{"v":%d,' % FORMAT)
    assert unpack_position(packed) == position


def code_of(refused: pytest.ExceptionInfo[Refused]) -> str:
    return refused.value.code


def test_a_format_above_ours_is_refused() -> None:
    refuse_newer({"row": 1, "position": FORMAT}, "it")
    for formats in ({"row": 2}, {"position": FORMAT + 1}, {"other": 1}):
        with pytest.raises(Refused) as refused:
            refuse_newer(formats, "it")
        assert code_of(refused) == "format-newer"
    with pytest.raises(Refused) as refused:
        unpack_position(pack_position(PLAIN).replace(b'"v":1', b'"v":%d' % (FORMAT + 1)))
    assert code_of(refused) == "format-newer"
    assert unreadable_rows([b"", b"\x01x", b"\x02"]).code == "format-newer"
    assert unreadable_rows([b"\x01x", b""]).code == "state-damaged"


def test_a_state_of_another_service_is_refused() -> None:
    for position in (None, PLAIN, replace(PLAIN, service="mine")):
        refuse_others(position, "mine", "it")
    with pytest.raises(Refused) as refused:
        refuse_others(replace(PLAIN, service="other"), "mine", "it")
    assert code_of(refused) == "changelog-foreign"


@pytest.mark.parametrize("size", [0, 1, 127, 128, 300, 20_000])
def test_a_row_names_its_key_its_store_and_its_number(size: int) -> None:
    key = b"k" * size
    row = store_prefix(key, "rule") + b"\x01\x02\x03"
    assert row_parts(row) == (key, "rule", 1, 0x0203)
    assert row_parts(renamed_row(row, "other")) == (key, "other", 1, 0x0203)
    header = store_prefix(key, "rule") + b"\0"
    time = (7).to_bytes(8, "big")
    assert deadline_rows([(header, b"\x01" + time + b"more")]) == [(b"t" + time + key, b"")]
    for other in (
        (header, None),
        (header, b"\x01" + b"\xff" * 8),
        (row, b"\x01" + time),
        (b"u" + header[1:], b"\x01" + time),
    ):
        assert deadline_rows([other]) == []
    assert deadline_rows([(store_prefix(key, "rule") + b"\x01", b"\x01" + time)]) == []
