"""Positions and rows as bytes: what is read again, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from samovar.changelog.formats.record import (
    DEADLINE,
    FORMAT,
    FORMATS,
    NO_DEADLINE,
    POSITION,
    EmittedWatermark,
    InputPosition,
    Position,
    SourcePartitionPosition,
    UnknownSchema,
    deadline_rows,
    deadlines_in,
    key_prefix,
    pack_position,
    refuse_newer,
    refuse_others,
    renamed_row,
    row_parts,
    store_prefix,
    unpack_checkpoint,
    unpack_position,
    unreadable_rows,
)
from samovar.common.errors import Refused

PLAIN = Position(
    watermark=5,
    inputs={
        "use": InputPosition(topic="t", topic_id="id", next=10, replay_from=5, max_event_time=3, advances=((7, 4),))
    },
    streams=("use",),
    rules={"r": "1"},
    journal=2,
)


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


def header(key: bytes, time: int | None, store: str = "rule", kind: bytes = b"\0") -> tuple[bytes, bytes]:
    """A header row with its deadline."""
    deadline = NO_DEADLINE if time is None else (time + (1 << 63)).to_bytes(8, "big")
    return store_prefix(key, store) + kind, b"\1" + deadline + b"rest"


def test_headers_with_a_deadline_have_an_index_row() -> None:
    due, never = header(b"a", 5), header(b"b", None)
    chunk = header(b"c", 5, kind=b"\1\0\0\0\1")
    changes = [due, never, chunk, (header(b"d", 5)[0], None), (POSITION, b"\1" + b"x" * 9), header(b"e", -5)]
    found = deadline_rows(changes)
    assert found == [
        (DEADLINE + due[1][1:9] + b"a", b""),
        (DEADLINE + header(b"e", -5)[1][1:9] + b"e", b""),
    ]
    assert list(deadlines_in([due])) == [(found[0][0], due[0])]


@pytest.mark.parametrize("size", [0, 1, 127, 128, 300, 20_000])
def test_a_row_gets_another_store(size: int) -> None:
    key = b"k" * size
    row = store_prefix(key, "old") + b"\1\0\0\0\7"
    other = renamed_row(row, "new-name")
    assert other == store_prefix(key, "new-name") + b"\1\0\0\0\7"
    assert row_parts(other) == (key, "new-name", 1, 7)
    assert other.startswith(key_prefix(key))


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ([], "state-damaged"),
        ([b""], "state-damaged"),
        ([b"\1x", b"\0"], "state-damaged"),
        ([b"\1", b"\2"], "format-newer"),
    ],
)
def test_rows_that_cannot_be_read_are_damaged_or_of_a_newer_version(values: list[bytes], code: str) -> None:
    assert unreadable_rows(values).code == code


@pytest.mark.parametrize(
    ("formats", "is_newer"),
    [
        ({}, False),
        (FORMATS, False),
        ({"row": 0}, False),
        ({"row": 2}, True),
        ({"position": 2, "row": 1}, True),
        ({"x": 1}, True),
    ],
)
def test_formats_of_a_manifest_above_ours_are_refused(formats: dict[str, int], is_newer: bool) -> None:
    if not is_newer:
        refuse_newer(formats, "its state")
        return
    with pytest.raises(Refused) as refused:
        refuse_newer(formats, "its state")
    assert refused.value.code == "format-newer"


@pytest.mark.parametrize("data", [b"no JSON", b"[]", b"{}", b'{"v":"x"}', b'{"v":1}'])
def test_what_is_damaged_is_refused(data: bytes) -> None:
    for unpack in (unpack_position, unpack_checkpoint):
        with pytest.raises(Refused) as refused:
            unpack(data)
        assert refused.value.code == "state-damaged"
