"""Which entries of a journal count, and how they are written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from samovar.changelog.formats.journal import (
    FORMAT,
    EntryKind,
    JournalEntry,
    effective_entries,
    is_void,
    pack_entry,
    to_ranges,
    unpack_entry,
    was_rewound,
)
from samovar.common.errors import Refused


def entry(number: int, at: int, kind: str = "advance", **facts: Any) -> JournalEntry:
    return JournalEntry(kind=kind, number=number, inputs={"a": at, "b": 5}, watermark=7, facts=facts)


def test_an_entry_is_read_as_it_was_written() -> None:
    written = entry(3, 9, stream="a", max_event_time=4)
    packed = pack_entry(written)
    assert list(json.loads(packed)) == ["v", "kind", "number", "inputs", "watermark", "stream", "max_event_time"]
    assert b" " not in packed
    assert unpack_entry(packed) == written


def test_an_entry_of_a_newer_format_is_refused() -> None:
    fields = json.loads(pack_entry(entry(1, 0)))
    assert unpack_entry(json.dumps({**fields, "v": FORMAT}).encode()).number == 1
    with pytest.raises(Refused) as refused:
        unpack_entry(json.dumps({**fields, "v": FORMAT + 1}).encode())
    assert refused.value.code == "format-newer"


@pytest.mark.parametrize(
    ("numbers", "ranges"),
    [
        ([], []),
        ([3], [[3, 3]]),
        ([3, 4], [[3, 4]]),
        ([5, 3, 4, 9], [[3, 5], [9, 9]]),
        ([1, 3, 5], [[1, 1], [3, 3], [5, 5]]),
    ],
)
def test_numbers_are_written_as_stretches(numbers: list[int], ranges: list[list[int]]) -> None:
    assert to_ranges(numbers) == ranges
    rewind = entry(10, 0, EntryKind.REWIND, void=ranges)
    assert [number for number in range(12) if is_void(number, rewind)] == sorted(numbers)


def test_a_rewind_takes_entries_back_and_what_stands_before_it_reads_no_further() -> None:
    rewind = JournalEntry(kind=EntryKind.REWIND, number=5, inputs={"a": 12}, watermark=None, facts={"void": [[3, 4]]})
    entries = [entry(1, 10), entry(2, 15), entry(3, 16), entry(4, 17), rewind, entry(6, 13)]
    found = effective_entries(entries)
    assert [(each.number, each.inputs["a"]) for each in found] == [(1, 10), (2, 12), (5, 12), (6, 13)]
    assert found[1].inputs["b"] == 5
    assert [each.number for each in effective_entries(entries, 4)] == [1, 2, 3, 4]
    assert [each.number for each in effective_entries(entries, 5)] == [1, 2, 5]
    assert effective_entries(entries, 0) == []


@pytest.mark.parametrize(
    ("journal", "nexts", "is_back"),
    [
        (2, {"a": 12}, False),
        (2, {"a": 13}, True),  # it had read what the rewind took back
        (2, {"b": 99}, False),
        (3, {"a": 1}, True),
        (4, {"a": 1}, True),
        (5, {"a": 99}, False),  # it came after
        (6, {"a": 99}, False),
    ],
)
def test_which_states_a_later_rewind_took_back(journal: int, nexts: dict[str, int], is_back: bool) -> None:
    rewind = JournalEntry(kind=EntryKind.REWIND, number=5, inputs={"a": 12}, watermark=None, facts={"void": [[3, 4]]})
    entries = [entry(number, number) for number in range(1, 5)] + [rewind]
    assert was_rewound(entries, journal, nexts) == is_back
    assert not was_rewound(entries[:-1], journal, nexts)
